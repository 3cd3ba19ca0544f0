"""Runs notebooks without Jupyter: their code cells, in order, as one program.

    scripts/run_notebooks.py examples/notebooks/*.ipynb              fails where a cell does
    scripts/run_notebooks.py --write examples/notebooks/*.ipynb      also puts what the cells show into the files

Of each cell it keeps what it prints, and the value of its last line as text and, where the value has a form for
notebooks, as HTML.
"""

import argparse
import ast
import contextlib
import io
import json
import sys
import types
from pathlib import Path


class Notebook:
    def __init__(self, path):
        self.path = Path(path)
        self.content = json.loads(self.path.read_text(encoding="utf-8"))
        # Can be imported, so that its classes can be pickled.
        self.module = types.ModuleType(f"notebook_{self.path.stem}")
        sys.modules[self.module.__name__] = self.module

    def run(self):
        """Runs all code cells and notes what they show."""
        number = 0
        for cell in self.content["cells"]:
            if cell["cell_type"] == "code":
                number += 1
                cell["outputs"] = self._outputs("".join(cell["source"]), number)
                cell["execution_count"] = number

    def _outputs(self, source, number):
        tree = ast.parse(source, f"{self.path.name}, cell {number}")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        printed, value = io.StringIO(), None
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, f"{self.path.name}, cell {number}", "exec"), vars(self.module))
            if last is not None:
                expression = compile(ast.Expression(last.value), f"{self.path.name}, cell {number}", "eval")
                value = eval(expression, vars(self.module))
        outputs = []
        if printed.getvalue():
            text = printed.getvalue().splitlines(keepends=True)
            outputs.append({"name": "stdout", "output_type": "stream", "text": text})
        if value is not None:
            shown = {"text/plain": repr(value).splitlines(keepends=True)}
            if hasattr(value, "_repr_html_"):
                shown = {"text/html": value._repr_html_().splitlines(keepends=True), **shown}
            outputs.append({"data": shown, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
        return outputs

    def write(self):
        self.path.write_text(json.dumps(self.content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the results into the files")
    parser.add_argument("notebooks", nargs="+", type=Path)
    args = parser.parse_args()
    for path in args.notebooks:
        notebook = Notebook(path)
        notebook.run()
        if args.write:
            notebook.write()
        print(f"{path}: {sum(cell['cell_type'] == 'code' for cell in notebook.content['cells'])} cells")


if __name__ == "__main__":
    main()

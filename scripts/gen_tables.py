#!/usr/bin/env python3
"""Writes what repeats a table of the sources: whole pages, and blocks of pages that are written by hand.

Usage: gen_tables.py [--check]    --check writes nothing and fails if a page is stale.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GENERATED = "<!-- Written by scripts/gen_tables.py from {source}: change that, then ./dev docs. -->\n"

ERRORS_HEAD = """# Errors
Three classes. `UserError` (Python: `poptorch.Error`): the program or its options are wrong. `DeviceError`
(`RecoverableError` or `UnrecoverableError`): a device, peer, disk or memory failed. `InternalError` (`poptorch.Error`):
Abele is wrong; please report it.

A message says what, at, found, expected and try; parts that say nothing are left out:
```
E0303 stage-order: a forward value flows from stage 2 back to stage 1
  at        encoder.layer.3.add (train.py:88)
  found     made in stage 2 by decoder.embed (train.py:61)
  expected  producer stage <= consumer stage in a pipelined graph
  try       move BeginBlock(ipu_id=2) below train.py:88, or AutoStage.AutoIncrement
```
Each code below but E0001 has a wrong program named after it in `test/error/`.
"""
LAYERS = {
    "E00": "Inside",
    "E01": "Capture",
    "E02": "Graph",
    "E03": "Passes",
    "E04": "Plan",
    "E05": "Executable",
    "E06": "Runtime",
    "E07": "Host and options",
    "E08": "Data",
    "E09": "Tools",
}
STRING = r'((?:"(?:[^"\\]|\\.)*"\s*)+)'


def text_of(literals: str) -> str:
    """Adjacent C string literals as one text."""
    return "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals)).replace('\\"', '"')


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def errors_page(source: Path) -> str:
    rows = re.findall(rf"^ABELE_ERROR\(\s*(E\d+),\s*{STRING},\s*{STRING}\)", source.read_text(), re.M)
    lines = [GENERATED.format(source="include/abele/errors.def"), ERRORS_HEAD]
    layer = None
    for code, name, summary in rows:
        if code[:3] != layer:
            layer = code[:3]
            lines.append(f"\n## {LAYERS[layer]}\n| code | name | meaning |\n|---|---|---|\n")
        lines.append(f"| {code} | {text_of(name)} | {cell(text_of(summary))} |\n")
    return "".join(lines)


def passes_page(source: Path) -> str:
    row = rf"^ABELE_PASS\(\s*(\w+),\s*{STRING},\s*([\w:]+),\s*([\w:]+),\s*{STRING}\)"
    lines = [
        GENERATED.format(source="src/passes/passes.def"),
        "# Passes\nGraph to graph, one transform a file of `src/passes/`. The default order, each position with its "
        "reason, is in\n`src/passes/pipeline.cc`. `needs` and `gives` are forms of the graph (`src/ir/verify.h`). Run "
        "one with\n`abele-opt in.air --passes=NAME`; find one that is wrong with `--bisect` ([abele-opt](abele-opt.md)"
        ").\nExamples of each are in `test/golden/passes`, in a folder with its name.\n\n"
        "| pass | needs | gives | does |\n|---|---|---|---|\n",
    ]
    for _, name, needs, gives, summary in re.findall(row, source.read_text(), re.M):
        forms = [form.split("::")[-1].removeprefix("k").lower() for form in (needs, gives)]
        lines.append(f"| {text_of(name)} | {forms[0]} | {forms[1]} | {cell(text_of(summary))} |\n")
    return "".join(lines)


def schedules_block(source: Path) -> str:
    head = "| word | runs | waiting of a worker in a group, equal stages | micro-batches held by stage s |\n"
    lines = [head, "|---|---|---|---|\n"]
    row = rf"^ABELE_(?:SCHEDULE|PIPELINE)\(\w+, {STRING}, .*, {STRING}, {STRING}, {STRING}\)$"
    for cells in re.findall(row, source.read_text(), re.M):
        name, *others = (cell(text_of(literal)) for literal in cells)
        lines.append(f"| `{name}` | {' | '.join(others)} |\n")
    return "".join(lines)


def rows_of(source: Path, macro: str) -> list[str]:
    """The text of each row, over several lines or one."""
    return re.findall(rf"^{macro}\((.*?)\)$", source.read_text(), re.M | re.S)


def instructions_block(source: Path) -> str:
    lines = ["| op | args | does |\n|---|---|---|\n"]
    for row in rows_of(source, "ABELE_INSTRUCTION"):
        args = [
            f"{name} or none" if verb.startswith("may") else name
            for verb, name in re.findall(r'\b(reads|writes|mayRead|mayWrite)\("(\w+)"', row)
        ]
        name, *_, summary = re.findall(STRING, row)
        lines.append(f"| `{text_of(name)}` | {', '.join(args)} | {cell(text_of(summary))} |\n")
    return "".join(lines)


def optimizers_block(source: Path) -> str:
    lines = ["| optimizer | op | keeps | numbers | does |\n|---|---|---|---|---|\n"]
    for row in rows_of(source, "ABELE_OPTIMIZER"):
        name = row.split(",")[1].strip()
        op, *_, summary = (text_of(literal) for literal in re.findall(STRING, row))
        states = re.findall(r'\b(?:(first|second)\("(\w+)"|step\()[^)]*\)(\.onlyIf)?', row)
        kept = [f"{state or 'step'}{' or none' if may_lack else ''}" for _, state, may_lack in states]
        numbers = re.findall(r'"(\w+)"', re.search(r"numbers\((.*?)\)", row, re.S)[1])
        lines.append(f"| {name} | `{op}` | {', '.join(kept)} | {', '.join(numbers)} | {cell(summary)} |\n")
    return "".join(lines)


def version_module(source: Path) -> str:
    numbers = re.findall(r"^#define ABELE_VERSION_\w+ (\d+)$", source.read_text(), re.M)
    return f'''"""Versions. Written by scripts/gen_tables.py from include/abele/version.h."""

__version__ = "{".".join(numbers)}"
# The version that poptorch reports: the interface and its implementation. Files hold it, and it is compared exactly.
POPTORCH_VERSION = "3.4.0-abele{".".join(numbers[:2])}"
'''


# (page, name of the block) -> function, table. In the page the block lies between two comments.
BLOCKS = {
    ("docs/schedules.md", "schedules"): (schedules_block, "src/schedule/schedules.def"),
    ("src/kernels/README.md", "instructions"): (instructions_block, "src/base/instructions.def"),
    ("src/kernels/README.md", "optimizers"): (optimizers_block, "src/base/optimizers.def"),
}
PAGES = {
    "docs/errors.md": (errors_page, "include/abele/errors.def"),
    "docs/passes.md": (passes_page, "src/passes/passes.def"),
    "python/abele/_version.py": (version_module, "include/abele/version.h"),
}


def with_block(text: str, name: str, table: str, block: str) -> str:
    """The page with this block between its comments."""
    begin, end = rf"<!-- begin {name}\b[^>]*-->\n", f"<!-- end {name} -->"
    head, found, tail = re.split(f"({begin}.*?{end})", text, maxsplit=1, flags=re.S)
    assert found
    says = f"<!-- begin {name}: written by scripts/gen_tables.py from {table} -->\n"
    return f"{head}{says}{block}{end}{tail}"


def main(check: bool) -> int:
    num_stale = 0
    new = {ROOT / page: write(ROOT / table) for page, (write, table) in PAGES.items()}
    for (page, name), (write, table) in BLOCKS.items():
        path = ROOT / page
        new[path] = with_block(new.get(path, path.read_text()), name, table, write(ROOT / table))
    for path, text in new.items():
        if path.exists() and path.read_text() == text:
            continue
        num_stale += 1
        print(f"{'stale' if check else 'wrote'}: {path.relative_to(ROOT)}")
        if not check:
            path.write_text(text)
    return 1 if check and num_stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))

#!/usr/bin/env python3
"""Writes one C++ program of the C++ blocks of the documents: a function for each page, of its blocks in order.

Usage: extract_cpp_blocks.py OUTPUT PAGE...

A block with a main of its own becomes the function; includes go to the top. The program runs all of them.
"""

import re
import sys
from pathlib import Path

BLOCK = re.compile(r"^```cpp\n(.*?)^```$", re.M | re.S)


def parts(page):
    """(#line directives and code, includes) of a page's blocks."""
    text, code, includes = page.read_text(), [], []
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start(1)) + 1
        code.append(f'#line {line} "{page.name}"')
        for row in match.group(1).splitlines():
            includes += [row] if row.startswith("#include") else []
            code.append("" if row.startswith("#include") else row)
    return code, includes


def main():
    output, pages = Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]]
    lines, calls, all_includes = [], [], {}
    for page in pages:
        code, includes = parts(page)
        if not code:
            continue
        all_includes.update(dict.fromkeys(includes))
        name = "page_" + re.sub(r"\W", "_", f"{page.parent.name}_{page.stem}")
        calls.append(f"  {name}::run();")
        text = "\n".join(code)
        if "int main()" in text:
            body = [text.replace("int main()", "void run()")]
        else:
            body = ["void run() {", text, "}"]
        lines += [f"namespace {name} {{", *body, f"}}  // namespace {name}", ""]
    program = [*all_includes, "", *lines, "int main() {", *calls, "}", ""]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("\n".join(program))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes the pages that repeat a table of the sources: docs/errors.md and docs/passes.md.

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
    lines = [GENERATED.format(source="src/base/errors.def"), ERRORS_HEAD]
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
        ").\n\n| pass | needs | gives | does |\n|---|---|---|---|\n",
    ]
    for _, name, needs, gives, summary in re.findall(row, source.read_text(), re.M):
        forms = [form.split("::")[-1].removeprefix("k").lower() for form in (needs, gives)]
        lines.append(f"| {text_of(name)} | {forms[0]} | {forms[1]} | {cell(text_of(summary))} |\n")
    return "".join(lines)


PAGES = {
    "docs/errors.md": (errors_page, "src/base/errors.def"),
    "docs/passes.md": (passes_page, "src/passes/passes.def"),
}


def main(check: bool) -> int:
    num_stale = 0
    for page, (write, table) in PAGES.items():
        source = ROOT / table
        if not source.exists():
            continue
        text = write(source)
        path = ROOT / page
        if path.exists() and path.read_text() == text:
            continue
        num_stale += 1
        print(f"{'stale' if check else 'wrote'}: {page}")
        if not check:
            path.write_text(text)
    return 1 if check and num_stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))

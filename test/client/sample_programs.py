"""Runs the code samples of the documents that the product was specified from, line for line.

The documents are other people's and lie beside the project (../shared/seeds), not in it; without them these tests are
skipped. seed_samples.txt says where each sample is.
"""

import re
import sys
import types
from pathlib import Path

import poptorch
import pytest
import torch

DOCUMENTS = Path(__file__).resolve().parents[3] / "shared" / "seeds"
ROWS = Path(__file__).parent / "seed_samples.txt"


def sample_text(name):
    """The lines of a sample, indented as its author wrote it. Skips the test where the documents are not."""
    row = next(line.split() for line in ROWS.read_text().splitlines() if line.startswith(f"{name}_"))
    _, document, first, *runs = row
    found = list(DOCUMENTS.glob(f"{document}_*.txt"))
    if not found:
        pytest.skip(f"the documents are not here: no {DOCUMENTS.name}/{document}_*.txt beside the project")
    lines = found[0].read_text().splitlines()[int(first) - 1 :]
    columns = []
    for run_length in runs:
        column, _, count = run_length.partition("x")
        columns += [int(column)] * int(count or 1)
    # Before the code stands the line's number, or the plus of a difference.
    return "".join(
        " " * column + re.sub(r"^(\d+|\+)?\s*", "", line).rstrip() + "\n"
        for column, line in zip(columns, lines, strict=False)
    )


def run(name, into=None, **outside):
    """Runs a sample as a module of its own, or on after another one (`into`). Returns the module.

    outside: what the sample names and does not define. The module can be imported by its name, so that what it defines
    can be pickled.
    """
    module = into or types.ModuleType("documents_sample")
    vars(module).update(torch=torch, poptorch=poptorch, **outside)
    code = compile(sample_text(name), f"sample {name}", "exec")
    sys.modules[module.__name__] = module
    exec(code, vars(module))
    return module

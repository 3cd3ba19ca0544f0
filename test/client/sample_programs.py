"""Runs the documents' code samples: the lines of samples/*.py as they are, after names that they take from outside."""

import sys
import types
from pathlib import Path

import poptorch
import torch

SAMPLES = Path(__file__).parent / "samples"


def run(name, into=None, **outside):
    """Runs a sample as a module of its own, or on after another one (`into`). Returns the module.

    The module can be imported by its name, so that what it defines can be pickled.
    """
    path = next(SAMPLES.glob(f"{name}_*.py"))
    module = into or types.ModuleType("documents_sample")
    vars(module).update(torch=torch, poptorch=poptorch, **outside)
    sys.modules[module.__name__] = module
    exec(compile(path.read_text(), path, "exec"), vars(module))
    return module

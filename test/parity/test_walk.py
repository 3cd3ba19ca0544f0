"""Every operator of torch's own database and every module class of torch.nn equals eager PyTorch, or is refused.

The walk (walk/) decides what is visited; nothing is chosen by hand. Cases that do not equal eager bit for bit must be
refused with a typed error; which ones these are is part of docs/compatibility.md.
"""

import json
import os
import sys
from pathlib import Path

import pytest
import torch

WALK = Path(__file__).resolve().parent / "walk"
sys.path.insert(0, str(WALK))
import walk_cases  # noqa: E402
import walk_driver  # noqa: E402
import walk_known  # noqa: E402


@pytest.fixture(scope="module")
def results():
    found = walk_driver.walk(walk_cases.case_keys())
    path = os.environ.get("ABELE_WALK_JSON")  # read by scripts/gen_compatibility.py
    if path:
        Path(path).write_text(json.dumps(found, indent=1) + "\n")
    return found


def named(results, *states):
    return {key: result["detail"] for key, result in results.items() if result["state"] in states}


def test_no_case_crashes_or_hangs(results):
    assert named(results, "crash", "hang") == {}


def test_errors_are_typed(results):
    assert named(results, "untyped") == {}


def test_no_result_differs_from_eager(results):
    assert set(named(results, "different")) <= set(walk_known.CLOSE)


def test_what_is_recorded_is_what_eager_runs(results):
    found = named(results, "other operators")
    assert {key: text for key, text in found.items() if key not in walk_known.OTHER_OPERATORS} == {}


def test_what_is_close_is_close_and_said_so(results):
    assert set(named(results, "close")) <= set(walk_known.CLOSE)


def test_what_is_refused_is_known(results):
    refused = named(results, "refused")
    assert {key: text for key, text in refused.items() if key not in walk_known.REFUSED} == {}


def test_most_operators_are_equal_forward_and_backward(results):
    forward = [key for key, result in results.items() if key.startswith("op ") and result["forward"]]
    training = [key for key, result in results.items() if key.startswith("op ") and result["training"]]
    assert len(forward) > 600 and len(training) > 400


def test_every_module_class_is_visited(results):
    visited = {
        key.partition(" ")[2].removeprefix("nn.").partition(" ")[0] for key in results if key.startswith("module")
    }
    missing = set(walk_cases.module_classes()) - visited - walk_cases.ABSTRACT
    assert missing == set(), f"torch {torch.__version__} has modules that the walk does not build"


def test_every_case_has_a_sample(results):
    assert set(named(results, "no sample")) <= set(walk_known.NO_SAMPLE)

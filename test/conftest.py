"""Options of the whole suite."""

import json
import os
import pathlib

import pytest

pytest_plugins = ["support.own_process"]

MODELS = pathlib.Path(__file__).parent / "models"

# One option that is not the default, for all tests of a run. Each keeps every bit.
CONFIGURATIONS = {
    "no-fusion": {"fusion": "off"},
    "recomputation": {"_Popart.set": ["autoRecomputation", 3]},
    "separate-memory": {"separateMemory": [True]},
    "shared-weights": {"shareWeights": [True]},
    "two-threads": {"threadsPerDevice": [2]},
}


@pytest.fixture
def one_thread():
    """Eager runs with as many threads as a device has."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_addoption(parser):
    parser.addoption(
        "--matrix",
        choices=("part", "full"),
        default="part",
        help="tests named *matrix.py: every combination, or a part with every three or two settings (default)",
    )
    parser.addoption(
        "--configuration",
        choices=sorted(CONFIGURATIONS),
        help="test/parity once more, with one option that is not the default",
    )
    parser.addoption("--models", action="store_true", help="also test/models, the walk over published model classes")


def pytest_configure(config):
    if name := config.getoption("--configuration"):
        os.environ["POPTORCH_DEFAULT_OPTIONS"] = json.dumps(CONFIGURATIONS[name])


@pytest.fixture(scope="session")
def configuration(request):
    """The name of --configuration, or None."""
    return request.config.getoption("--configuration")


def pytest_ignore_collect(collection_path, config):
    """The walk over models takes packages of its own and minutes."""
    if collection_path == MODELS and not config.getoption("--models"):
        return True
    return None

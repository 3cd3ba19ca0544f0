"""Several processes train like one with all replicas, bit for bit. spec environment.md, section 9."""

import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cases import CASES
from launch import trained

OF_THREE = ["sgd", "large", "accumulation"]


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    return trained("run_cases.py", tmp_path_factory.mktemp("two"), 2, CASES)


@pytest.fixture(scope="module")
def of_three(tmp_path_factory):
    return trained("run_cases.py", tmp_path_factory.mktemp("three"), 3, OF_THREE)


def _require_equal(name, processes):
    case = CASES[name]
    alone = case.alone(len(processes))
    for process, result in enumerate(processes):
        assert result["state"].keys() == alone["state"].keys()
        for part in ("weights", "state"):
            for key, value in alone[part].items():
                assert torch.equal(result[part][key], value), f"{part} {key} of process {process}"
        # Outputs are those of a process's own replicas, in their order.
        total, first = case.replicas * len(processes), process * case.replicas
        for call, whole in zip(result["outputs"], alone["outputs"], strict=True):
            for own, expected in zip(call, whole, strict=True):
                rows = expected.reshape(-1, total, expected.numel() // total // case.accumulation // case.iterations)
                assert torch.equal(own.flatten(), rows[:, first : first + case.replicas].flatten())
    for key, value in alone["buffers"].items():  # replica 0's; those of other processes have seen other data
        assert torch.equal(processes[0]["buffers"][key], value), key


@pytest.mark.parametrize("name", CASES)
def test_two_processes(of_two, name):
    _require_equal(name, of_two[name])


@pytest.mark.parametrize("name", OF_THREE)
def test_three_processes(of_three, name):
    _require_equal(name, of_three[name])


def test_the_processes_really_have_different_data(of_two):
    first, second = (result["outputs"][0][0] for result in of_two["sgd"])
    assert not torch.equal(first, second)

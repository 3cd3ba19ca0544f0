"""Two and four processes give the bits of one: strategies x stages x replicas x layouts (process_matrix.py).

By default a part in which every two settings meet that can; `--matrix=full` runs all.
"""

import dataclasses
import functools
import itertools
import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from launch import HERE, poprun
from process_matrix import AXES, Case

CASES_OF_A_START = 24


def _combinations():
    for *words, processes in itertools.product(*AXES.values()):
        case = Case(*words)
        if case.fits(processes):
            yield case, processes


def _every_pair(rows):
    """Few of them in which every two values meet that meet in any: greedy, always the same ones."""
    pairs = {row: set(itertools.combinations(enumerate((*dataclasses.astuple(row[0]), row[1])), 2)) for row in rows}
    missing, chosen = set().union(*pairs.values()), []
    while missing:
        best = max(rows, key=lambda row: len(pairs[row] & missing))
        missing -= pairs[best]
        chosen.append(best)
    return chosen


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        metafunc.parametrize(("case", "processes"), _chosen(metafunc.config), ids=lambda value: str(value))


def _chosen(config):
    rows = list(_combinations())
    return rows if config.getoption("--matrix") == "full" else _every_pair(rows)


@functools.cache
def _alone(strategy, stages, replicas):
    return Case(strategy, stages, replicas, "fewest").train()


@pytest.fixture(scope="module")
def found(request, tmp_path_factory):
    """By number of processes: what each has of every case. Many cases run in one start."""
    results = {count: [{} for _ in range(count)] for count in AXES["processes"]}
    for count, of_processes in results.items():
        words = [case for case, processes in _chosen(request.config) if processes == count]
        for first in range(0, len(words), CASES_OF_A_START):
            folder, some = tmp_path_factory.mktemp("matrix"), words[first : first + CASES_OF_A_START]
            done = poprun("--num-instances", count, sys.executable, HERE / "process_matrix.py", folder, *some)
            assert done.returncode == 0, done.stdout + done.stderr
            for process, all_cases in enumerate(of_processes):
                all_cases.update(torch.load(folder / f"{process}.pt"))
    return results


def test_equals_one_process(found, case, processes):
    results, state = _alone(case.strategy, case.stages, case.replicas)
    for process, all_cases in enumerate(found[processes]):
        own_results, own_state = all_cases[str(case)]
        for call, expected in zip(own_results, results, strict=True):
            for ours, theirs in zip(call, expected, strict=True):
                own = case.share(theirs.reshape(-1, theirs.shape[-1] if theirs.dim() > 1 else 1), process, processes)
                assert torch.equal(ours, own.reshape(ours.shape)), f"a result in process {process}"
        assert own_state.keys() == state.keys()
        has_first = process * case.groups(processes) // processes == 0
        for name, tensor in state.items():
            if name.startswith("norm.") and "weight" not in name and "bias" not in name and not has_first:
                continue  # statistics are of the first replica of a process
            assert torch.equal(own_state[name], tensor), f"{name} in process {process}"

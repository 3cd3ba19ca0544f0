"""Results go to the processes that Distributed.outputRank names, and nothing is sent for those that read none."""

import functools
import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import output_ranks
from launch import trained
from output_ranks import ACCUMULATION, RANKS, SUMS
from stage_cases import ROWS, WIDTH

OWNER = {"early": 0, "late": 1, "loss": 1}
VALUE = ACCUMULATION * ROWS * WIDTH * 4  # bytes of a value of all micro-batches
BYTES = {"early": VALUE, "late": VALUE, "loss": ACCUMULATION * 4}


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    alone = ("training", "inference", "written", "spread", "sums", "predicted_sums", "spread_sums")
    names = [f"{how}-{rank}" for how in alone for rank in RANKS]
    return trained("output_ranks.py", tmp_path_factory.mktemp("two"), 2, names)


@pytest.fixture(scope="module")
def of_four(tmp_path_factory):
    names = [f"{how}-{rank}" for how in ("replicas", "replica_sums") for rank in RANKS]
    return trained("output_ranks.py", tmp_path_factory.mktemp("four"), 4, names)


def _gets(rank, owner, process, processes=2):
    return {"all": True, "first": process == 0, "last": process == processes - 1, "owner": process == owner}[rank]


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("how", ["training", "inference"])
def test_each_result_is_where_the_option_says(of_two, how, rank):
    alone = output_ranks.halves(how == "training")
    for process, found in enumerate(of_two[f"{how}-{rank}"]):
        for ours, theirs in zip(found["results"], alone["results"], strict=True):
            assert ours.keys() == theirs.keys()
            for name, value in theirs.items():
                if _gets(rank, OWNER[name], process):
                    assert torch.equal(ours[name], value), f"{name} in process {process}"
                else:
                    assert ours[name] is None, f"{name} in process {process}"
        for name, value in alone["weights"].items():
            assert torch.equal(found["weights"][name], value), f"{name} in process {process}"


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("how", ["training", "inference"])
def test_nothing_is_sent_that_nobody_reads(of_two, how, rank):
    for process, found in enumerate(of_two[f"{how}-{rank}"]):
        other = 1 - process
        results = sum(BYTES[name] for name in BYTES if OWNER[name] == process and _gets(rank, process, other))
        handed_over = VALUE if how == "training" or process == 0 else 0  # activations forward, gradients back
        has_anchor = how == "training" and process == 0 and _gets(rank, 0, other)
        anchor = ACCUMULATION * WIDTH * 4 if has_anchor else 0
        assert found["sent"] == [handed_over + results + anchor] * output_ranks.CALLS, f"process {process}"


@pytest.mark.parametrize("rank", RANKS)
def test_an_anchor_is_where_the_results_are(of_two, rank):
    alone = output_ranks.halves(True)
    for process, found in enumerate(of_two[f"training-{rank}"]):
        for ours, theirs in zip(found["anchors"], alone["anchors"], strict=True):
            if _gets(rank, 0, process):
                assert torch.equal(ours, theirs), f"process {process}"
            else:
                assert "E0705" in ours and "in another process" in ours, ours


@pytest.mark.parametrize("rank", RANKS)
def test_an_argument_that_forward_writes_is_the_same_in_all(of_two, rank):
    for process, found in enumerate(of_two[f"written-{rank}"]):
        assert torch.equal(found["count"], torch.full((ROWS, 1), float(output_ranks.CALLS))), f"process {process}"
        has_result = [result is not None for result in found["results"]]
        assert has_result == [_gets(rank, 1, process)] * output_ranks.CALLS


def _require_shares(case, rank, processes, of_replica):
    """Of replicas that lie in so many processes: rows of its own replicas in each process that gets results."""
    alone = case.alone()
    for process, found in enumerate(processes):
        place = process % of_replica
        for ours, theirs in zip(found["outputs"], alone["outputs"], strict=True):
            for own, whole in zip(ours, theirs, strict=True):
                if _gets(rank, of_replica - 1, place, of_replica):
                    share = case.share(whole, process, len(processes))
                    assert torch.equal(own, share.view_as(own)), f"process {process}"
                else:
                    assert own is None, f"process {process}"
        for part in ("weights", "state"):
            for name, value in alone[part].items():
                assert torch.equal(found[part][name], value), f"{name} in process {process}"


@pytest.mark.parametrize("rank", RANKS)
def test_processes_of_a_replica_among_others(of_four, rank):
    _require_shares(output_ranks.replicas(rank, False), rank, of_four[f"replicas-{rank}"], 2)


@pytest.mark.parametrize("rank", RANKS)
def test_processes_with_stages_of_two_replicas(of_two, rank):
    _require_shares(output_ranks.replicas(rank, True), rank, of_two[f"spread-{rank}"], 2)


def _added(rows):
    """One after the other, as a program would."""
    return functools.reduce(torch.add, rows)


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("how", ["sums", "predicted_sums"])
def test_one_sum_is_sent_of_all_micro_batches(of_two, how, rank):
    training = SUMS[how] == "training"
    alone = output_ranks.halves(training)
    for process, found in enumerate(of_two[f"{how}-{rank}"]):
        other = 1 - process
        for ours, theirs in zip(found["results"], alone["results"], strict=True):
            for name, value in theirs.items():
                if _gets(rank, OWNER[name], process):
                    expected = _added(value.chunk(ACCUMULATION)).view_as(ours[name])
                    assert torch.equal(ours[name], expected), f"{name} in process {process}"
                else:
                    assert ours[name] is None, f"{name} in process {process}"
        results = sum(BYTES[name] for name in BYTES if OWNER[name] == process and _gets(rank, process, other))
        handed_over = VALUE if training or process == 0 else 0
        anchor = WIDTH * 4 if training and process == 0 and _gets(rank, 0, other) else 0
        assert found["sent"] == [handed_over + results // ACCUMULATION + anchor] * output_ranks.CALLS, process


@pytest.mark.parametrize("rank", RANKS)
def test_an_anchor_is_a_sum_of_all_micro_batches(of_two, rank):
    alone = output_ranks.halves(True)
    for process, found in enumerate(of_two[f"sums-{rank}"]):
        for ours, theirs in zip(found["anchors"], alone["anchors"], strict=True):
            if _gets(rank, 0, process):
                assert torch.equal(ours, _added(theirs.view(ACCUMULATION, WIDTH))), f"process {process}"
            else:
                assert "E0705" in ours and "in another process" in ours, ours


def _require_sums_of_shares(case, rank, processes, of_replica):
    """As _require_shares(), of the sums of each replica."""
    alone = case.alone()
    for process, found in enumerate(processes):
        place = process % of_replica
        for ours, theirs in zip(found["outputs"], alone["outputs"], strict=True):
            for own, whole in zip(ours, theirs, strict=True):
                if not _gets(rank, of_replica - 1, place, of_replica):
                    assert own is None, f"process {process}"
                    continue
                share = case.share(whole, process, len(processes)).view(ACCUMULATION, -1)
                assert torch.equal(own.view(-1), _added(share)), f"process {process}"


@pytest.mark.parametrize("rank", RANKS)
def test_sums_of_replicas_in_processes_of_their_own(of_four, rank):
    _require_sums_of_shares(output_ranks.replicas(rank, False), rank, of_four[f"replica_sums-{rank}"], 2)


@pytest.mark.parametrize("rank", RANKS)
def test_sums_of_replicas_in_the_same_processes(of_two, rank):
    _require_sums_of_shares(output_ranks.replicas(rank, True), rank, of_two[f"spread_sums-{rank}"], 2)

"""E0702: gradient accumulation in inference."""

import poptorch
import pytest
import torch


def test_error():
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(2)
    with pytest.raises(poptorch.Error, match="E0702 option-value") as raised:
        poptorch.inferenceModel(torch.nn.ReLU(), opts)
    assert "deviceIterations" in str(raised.value)


def test_too_many_micro_batches():
    opts = poptorch.Options().deviceIterations(2**32).replicationFactor(2**32)
    with pytest.raises(poptorch.Error, match="E0702 .*a call would have too many micro-batches"):
        poptorch.inferenceModel(torch.nn.ReLU(), opts)(torch.ones(1))


@pytest.mark.parametrize("process, processes", [(5, 2), (2, 2), (1, 1)])
def test_processes_that_do_not_exist(process, processes):
    opts = poptorch.Options()
    opts.Distributed.configureProcessId(process, processes)
    with pytest.raises(poptorch.Error, match=f"E0702.*this is process {process} of {processes}"):
        poptorch.DataLoader(opts, [torch.ones(1)] * 12)
    with pytest.raises(poptorch.Error, match=f"E0702.*this is process {process} of {processes}"):
        poptorch.inferenceModel(torch.nn.ReLU(), opts)(torch.ones(1))


@pytest.mark.parametrize(
    ("processes", "replicas", "devices", "of_replica", "text"),
    [
        (3, 2, 3, 0, "a process holds parts of 2 replicas, on 3 devices .*a multiple of 2"),
        (4, 2, 4, 3, "4 processes cannot share 2 replicas, each in 3 of them, evenly .*leave processesPerReplica out"),
        (4, 3, 4, 2, "4 processes cannot share 3 replicas, each in 2 of them, evenly"),
        (2, 2, 4, 4, "2 processes cannot share 2 replicas, each in 4 of them, evenly"),
        (2, 2, 0, 2, r"processesPerReplica\(2\) without devicesPerProcess"),
    ],
)
def test_processes_that_cannot_share_replicas(processes, replicas, devices, of_replica, text):
    opts = poptorch.Options().replicationFactor(replicas)
    opts.Distributed.configureProcessId(0, processes).devicesPerProcess(devices).processesPerReplica(of_replica)
    with pytest.raises(poptorch.Error, match=f"E0702 option-value: {text.replace(' .*', '(?s:.*)')}"):
        poptorch.inferenceModel(torch.nn.ReLU(), opts)(torch.ones(1))


def test_a_word_that_names_no_processes():
    with pytest.raises(
        poptorch.Error, match=r'E0702.*there is no output rank "middle"(.|\n)*"first", "last" or "owner"'
    ):
        poptorch.Options().Distributed.outputRank("middle")
    for rank in ("all", "first", "last", "owner"):
        options = poptorch.Options()
        assert options.Distributed.outputRank(rank) is options.Distributed
        assert options.Distributed.output_rank == rank
    assert poptorch.Options().Distributed.output_rank == "all"

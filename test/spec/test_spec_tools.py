"""spec tools.md and clients.md: the neighbour packages popart, popdist and libpvti."""

import json
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import libpvti
import popart
import popdist
import popdist.poptorch
import poptorch
import pytest
import torch

PYTHON = Path(poptorch.__file__).parents[1]
ENUMS = {
    "AccumulateOuterFragmentSchedule": "Scheduler Serial OverlapCycleOptimized OverlapMemoryOptimized",
    "SubgraphCopyingStrategy": "OnEnterAndExit JustInTime",
    "RecomputationType": "None Standard NormOnly Pipeline RecomputeAll",
    "SyntheticDataMode": "Off Zeros RandomNormal RandomUniform",
    "VirtualGraphMode": "Off Manual Auto ExecutionPhases",
    "MergeVarUpdateType": "None All AutoLoose AutoTight",
    "Instrumentation": "Outer Inner",
    "BatchSerializationBatchSchedule": "Scheduler Isomorphic OverlapOnIo OverlapOnCompute",
    "BatchSerializationMethod": "UnrollDynamic UnrollStatic Loop",
    "ExecutionPhaseIOSchedule": "Preload OnDemand",
    "MeanReductionStrategy": "Running Post",
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.spec(f"tools/popart_enums/{name}")) for name in ENUMS],
)
def test_enumerations_of_popart(name):
    for value, member in enumerate(ENUMS[name].split()):
        got = getattr(getattr(popart, name), member)
        assert int(got) == value and got.name == member and pickle.loads(pickle.dumps(got)) is got
    assert len(getattr(popart, name)) == len(ENUMS[name].split())


@pytest.mark.spec("tools/popart_enums/SyntheticDataMode")
def test_enumerations_are_values_of_options():
    opts = poptorch.Options()
    opts._Popart.set("accumulateOuterFragmentSettings.schedule", 3)
    opts._Popart.set("subgraphCopyingStrategy", int(popart.SubgraphCopyingStrategy.JustInTime))
    assert poptorch.inferenceModel(torch.nn.Linear(2, 2), opts)(torch.ones(1, 2)).shape == (1, 2)
    assert isinstance(popart.versionString(), str) and popart.versionString()[0].isdigit()
    location = popart.TensorLocation(popart.TensorStorage.OffChip)
    assert location.replicatedTensorSharding != popart.ReplicatedTensorSharding.On
    assert location == popart.TensorLocation(popart.TensorStorage.OffChip) != popart.TensorLocation()


@pytest.mark.spec("environment/9")
def test_without_a_launcher_there_is_one_process():
    assert not popdist.isPopdistEnvSet()
    assert (popdist.getNumInstances(), popdist.getInstanceIndex()) == (1, 0)
    assert (popdist.getNumTotalReplicas(), popdist.getNumLocalReplicas()) == (1, 1)
    popdist.init()


@pytest.mark.spec("environment/9", names=["Distributed.disable", "Distributed.processId", "Distributed.numProcesses"])
def test_options_of_a_launched_program():
    opts = popdist.poptorch.Options(ipus_per_replica=2)
    assert isinstance(opts, poptorch.Options) and opts.replication_factor == 1 and opts.ipus_per_replica == 2
    for call in (
        lambda: opts.useIpuId(0),
        lambda: opts.replicationFactor(2),
        lambda: opts.Distributed.disable(),
        lambda: opts.Distributed.setEnvVarNames("A", "B"),
        lambda: opts.Distributed.configureProcessId(0, 2),
    ):
        with pytest.raises(RuntimeError):
            call()
    opts.deviceIterations(2)
    copy = opts.clone()
    assert type(copy) is type(opts) and copy.ipus_per_replica == 2 and copy.device_iterations == 2
    loader = popdist.poptorch.DataLoader(opts, torch.utils.data.TensorDataset(torch.ones(4, 3)), 2)
    model = poptorch.inferenceModel(torch.nn.Linear(3, 1), opts)
    assert [model(batch).shape for (batch,) in loader] == [(4, 1)]
    assert model.options.toDict()["num_distributed_processes"] == 1


@pytest.mark.spec("environment/9")
def test_options_of_one_of_several_launched_processes(monkeypatch):
    monkeypatch.setenv("POPDIST_NUM_TOTAL_REPLICAS", "4")
    monkeypatch.setenv("POPDIST_NUM_LOCAL_REPLICAS", "2")
    monkeypatch.setenv("POPDIST_REPLICA_INDEX_OFFSET", "2")
    assert popdist.isPopdistEnvSet()
    assert (popdist.getNumInstances(), popdist.getInstanceIndex(), popdist.getNumLocalReplicas()) == (2, 1, 2)
    opts = popdist.poptorch.Options()
    assert (opts.replication_factor, opts.Distributed.processId, opts.Distributed.numProcesses) == (2, 1, 2)
    # Each reads its own part of a data set, and inference is each one's own business.
    loader = popdist.poptorch.DataLoader(opts, torch.utils.data.TensorDataset(torch.arange(8.0).reshape(8, 1)), 2)
    model = poptorch.inferenceModel(torch.nn.Identity(), opts)
    assert [model(batch).flatten().tolist() for (batch,) in loader] == [[4, 5, 6, 7]]
    assert popdist.execute_on_instances({0}, list) is None and popdist.execute_on_instances({1, 2}, list) == []
    monkeypatch.setenv("POPDIST_NUM_LOCAL_REPLICAS", "4")
    monkeypatch.setenv("POPDIST_REPLICA_INDEX_OFFSET", "0")
    assert popdist.poptorch.Options().replication_factor == 4
    for name, value in [
        ("POPDIST_NUM_LOCAL_REPLICAS", "0"),
        ("POPDIST_NUM_LOCAL_REPLICAS", "two"),
        ("POPDIST_REPLICA_INDEX_OFFSET", "4"),
        ("POPDIST_NUM_IPUS_PER_REPLICA", "-1"),
    ]:
        with monkeypatch.context() as wrong:
            wrong.setenv(name, value)
            with pytest.raises(poptorch.Error, match=f"E0702.*{name} is {value}"):
                popdist.poptorch.Options()


@pytest.mark.spec("environment/9")
def test_options_can_be_derived_from():
    class Mine(poptorch.Options):
        def __init__(self):
            self._mine = "?"
            super().__init__()
            self._mine = "mine"
            self.deviceIterations(3)

        def checkIsFrozen(self, option=None):
            super().checkIsFrozen(option)

        def replicationFactor(self, replication_factor):
            raise RuntimeError("no")

    opts = Mine()
    opts._freeze()
    assert opts._mine == "mine" and opts.device_iterations == 3
    with pytest.raises(AttributeError):
        opts.deviceIterations(1)
    opts._unfreeze()
    opts.outputMode(poptorch.OutputMode.All).deviceIterations(2)._freeze()
    assert opts.toDict()["device_iterations"] == 2
    assert poptorch.inferenceModel(torch.nn.Linear(3, 1), opts)(torch.ones(2, 3)).shape == (2, 1)


def traced(program, folder, **variables):
    """Events of the program's trace file."""
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={
            **os.environ,
            "PYTHONPATH": str(PYTHON),
            "PVTI_OPTIONS": json.dumps({"enable": "true", "directory": str(folder)}),
            **variables,
        },
        check=True,
        timeout=300,
    )
    (file,) = folder.glob("*.pvti")
    return json.loads(file.read_text())["traceEvents"]


@pytest.mark.spec("environment/5", "environment/3/PVTI_OPTIONS", names=["variables.PVTI_OPTIONS"])
def test_programs_trace_their_own_work(tmp_path):
    events = traced(
        """
        import libpvti as pvti
        channel = pvti.createTraceChannel("my channel")
        with pvti.Tracepoint(channel, "outer"):
            with pvti.Tracepoint(channel, "inner"):
                pvti.Tracepoint.event(channel, "now")
        series = pvti.Graph("Loss", "nats").addSeries("train")
        series.add(2.5)
        series.add(1)
        pvti.HeatmapDouble("Weights", [0, 1, 2], "log").add([0.5, 1, 2, 7])
        """,
        tmp_path,
    )
    outer, inner = ([e for e in events if e["name"] == name][0] for name in ("outer", "inner"))
    assert outer["cat"] == "my channel" and outer["ph"] == inner["ph"] == "X"
    assert outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    assert [e["ph"] for e in events if e["name"] == "now"] == ["i"]
    assert [e["args"] for e in events if e["name"] == "Loss"] == [{"train": 2.5}, {"train": 1.0}]
    assert [e["args"]["counts"] for e in events if e["name"] == "Weights"] == [[1, 2]]


@pytest.mark.spec("environment/5")
def test_without_tracing_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    channel = libpvti.createTraceChannel("c")
    with libpvti.Tracepoint(channel, "span"):
        libpvti.Tracepoint.event(channel, "text")
    libpvti.Graph("g", "u").addSeries("s").add(1)
    libpvti.HeatmapDouble("h", [0, 1], "u").add([0.5])
    assert not list(tmp_path.iterdir())

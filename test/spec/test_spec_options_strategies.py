"""spec options.md, sections 9 and 10: execution strategies and enums."""

import enum

import poptorch
import pytest
import torch

spec = pytest.mark.spec
X = torch.linspace(-1, 1, 24).reshape(12, 2)


class Chain(torch.nn.Module):
    """Layers in blocks b0, b1, ..."""

    def __init__(self, number, ipus=None):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(number))
        for i in range(number):
            poptorch.BeginBlock(self.layers[i], f"b{i}", ipu_id=None if ipus is None else ipus[i])

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x, poptorch.identity_loss(x.square(), reduction="mean")


class Inference(Chain):
    def forward(self, x):
        return super().forward(x)[0]


def infer(strategy, model, iterations=6, **changes):
    opts = poptorch.Options().deviceIterations(iterations).autoRoundNumIPUs().setExecutionStrategy(strategy)
    executor = poptorch.inferenceModel(model, opts)
    result = executor(X)
    return result, executor._executable.session.stageDevices()


def eager(model):
    with torch.no_grad():
        return torch.cat([model(rows) for rows in X.split(2)])


# 9.1 ------------------------------------------------------------------------------------------------------------------
@spec("options/9.1", names=["poptorch.Stage", "strategies.ipu", "strategies.blocks", "poptorch.BlockId"])
def test_stage():
    stage = poptorch.Stage("a", "b")
    assert stage.blocks == ("a", "b") and stage.ipu(3) is stage
    assert (stage._stage_id, stage._phase_id, stage._ipu) == (-1, -1, 3)
    assert poptorch.Stage("a")._ipu is None and poptorch.BlockId is str
    for wrong in (lambda: poptorch.Stage(1), lambda: poptorch.Stage("a", ["b"]), lambda: stage.ipu("1")):
        with pytest.raises(AssertionError):
            wrong()


@spec("options/9.1", names=["poptorch.Phase", "strategies.ipus", "strategies.stages", "strategies.stage"])
def test_phase():
    stages = [poptorch.Stage("a"), poptorch.Stage("b")]
    phase = poptorch.Phase(*stages)
    assert list(phase.stages) == stages and phase.stage(1) is stages[1]
    assert phase.ipus(0, 2) is None and [s._ipu for s in stages] == [0, 2]
    together = poptorch.Phase("a", "b")
    assert len(together.stages) == 1 and together.stage(0).blocks == ("a", "b")
    for wrong in (
        lambda: poptorch.Phase("a", stages[0]),
        lambda: poptorch.Phase(stages[0], "a"),
        lambda: poptorch.Phase(3),
        lambda: phase.ipus(1),
        lambda: together.ipus(1, 2),
    ):
        with pytest.raises(AssertionError):
            wrong()


# 9.2 ------------------------------------------------------------------------------------------------------------------
BOTH = pytest.mark.parametrize("kind", [poptorch.PipelinedExecution, poptorch.ShardedExecution])


@spec(
    "options/9",
    "options/9.2",
    names=["poptorch.PipelinedExecution", "poptorch.ShardedExecution", "strategies.stage"],
)
@BOTH
def test_explicit_stages(kind):
    stage = poptorch.Stage("b2").ipu(0)
    strategy = kind(poptorch.Stage("b0").ipu(1), ["b1"], stage, "b3")
    assert strategy.stage("b2") is stage and strategy.stage("b1").blocks == ("b1",)
    assert [strategy.stage(f"b{i}")._stage_id for i in range(4)] == [0, 1, 2, 3]
    with pytest.raises(AssertionError):
        strategy.stage("zz")
    model = Inference(4, [3, 2, 3, 3])
    result, devices = infer(strategy, model)
    # A stage's own device, else the block's, else the stage's number.
    assert torch.equal(result, eager(model)) and devices == [1, 2, 0, 3]
    for wrong in (("a", "a"), (["a", "b"], "b"), (3,), (poptorch.AutoStage.SameAsIpu, "a")):
        with pytest.raises(AssertionError):
            kind(*wrong)


@spec("options/9.2")
@BOTH
def test_block_that_is_not_listed(kind):
    with pytest.raises(AssertionError, match="b1"):
        infer(kind("b0"), Inference(2))


@spec("options/9.2", "options/10/AutoStage", names=["poptorch.AutoStage"])
@BOTH
def test_same_as_ipu(kind):
    model = Inference(3, [0, 1, 1])
    for strategy in (kind(), kind(poptorch.AutoStage.SameAsIpu)):
        result, devices = infer(strategy, model)
        assert torch.equal(result, eager(model)) and devices == [0, 1]
    with pytest.raises(AssertionError):
        infer(kind(), Inference(2))


@spec("options/9.2", "options/10/AutoStage", names=["poptorch.AutoStage"])
@BOTH
def test_auto_increment(kind):
    class WithPreamble(Inference):
        def forward(self, x):
            return super().forward(x * 2)

    model = WithPreamble(3)
    result, devices = infer(kind(poptorch.AutoStage.AutoIncrement), model)
    assert torch.equal(result, eager(model)) and devices == [0, 1, 2, 3]  # stage 0: before any block


@spec("options/9.2", "options/9.3")
def test_stages_that_follow_each_other_on_one_device_are_one():
    auto = poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)
    model = Inference(5, [0, 0, 1, 1, 0])
    result, devices = infer(auto, model)
    assert torch.equal(result, eager(model)) and devices == [0, 1, 0]
    opts = poptorch.Options().setExecutionStrategy(auto)
    opts.Training.gradientAccumulation(3)  # two stages
    model = Chain(4, [0, 0, 1, 1])
    poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))(X)


@spec("options/9.2")
@BOTH
def test_training_is_as_without_stages(kind):
    def train(strategy, number):
        opts = poptorch.Options().setExecutionStrategy(strategy).outputMode(poptorch.OutputMode.All)
        opts.Training.gradientAccumulation(6)
        model = Chain(number, range(number))
        executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.5))
        losses = [executor(X)[1] for _ in range(3)]
        return torch.cat(losses), [p.detach().clone() for p in model.parameters()]

    losses, parameters = train(kind(), 2)
    whole = Chain(2)
    poptorch.removeBlocks(whole)
    for layer in whole.layers:
        poptorch.removeBlocks(layer)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.5)
    expected = []
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    for _ in range(3):
        optimizer.zero_grad()
        for rows in X.split(2):
            loss = whole(rows)[1]
            expected.append(loss.detach())
            (loss / 6).backward()
        optimizer.step()
    torch.set_num_threads(before)
    assert torch.equal(losses, torch.stack(expected))
    assert all(torch.equal(a, b) for a, b in zip(parameters, whole.parameters(), strict=True))


# 9.3 ------------------------------------------------------------------------------------------------------------------
@spec("options/9.3")
def test_pipeline_minimum():
    pipelined, sharded = poptorch.PipelinedExecution, poptorch.ShardedExecution
    with pytest.raises(poptorch.Error):
        infer(pipelined(), Inference(4, range(4)), iterations=3)
    infer(pipelined(), Inference(4, range(4)), iterations=4)
    infer(sharded(), Inference(4, range(4)), iterations=1)
    # Blocks on the same device merge.
    infer(pipelined(), Inference(4, [0, 0, 1, 1]), iterations=2)


@spec("options/9.3")
@pytest.mark.parametrize(("devices", "stages"), [([1, 1], 1), ([1, 2], 2), ([2, 3, 3], 2), ([3, 1, 3], 3)])
def test_the_minimum_counts_stages_that_run_wherever_the_first_block_is(devices, stages):
    def infer_with(iterations, cls=Inference):
        strategy = poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)
        infer(strategy, cls(len(devices), devices), iterations=iterations)

    class ViewFirst(Inference):
        def forward(self, x):
            return super().forward(x.view(x.shape))

    infer_with(stages)
    infer_with(stages, ViewFirst)
    if stages > 1:
        with pytest.raises(poptorch.Error, match=f"E0401 .* of {stages} stages"):
            infer_with(stages - 1)


@spec("options/9.3")
@pytest.mark.parametrize(("accumulation", "fits"), [(2, False), (3, True)])
def test_pipeline_minimum_of_training(accumulation, fits):
    def train(strategy):
        opts = poptorch.Options().setExecutionStrategy(strategy)
        opts.Training.gradientAccumulation(accumulation)
        model = Chain(2, range(2))
        poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.5))(X)

    train(poptorch.ShardedExecution())
    if fits:
        train(poptorch.PipelinedExecution())
    else:
        with pytest.raises(poptorch.Error):
            train(poptorch.PipelinedExecution())


@spec("options/9.3")
def test_stages_that_go_back():
    with pytest.raises(poptorch.Error):
        infer(poptorch.PipelinedExecution(), Inference(3, [0, 1, 0]))
    model = Inference(3, [0, 1, 0])
    assert torch.equal(infer(poptorch.ShardedExecution(), model)[0], eager(model))


# 9.4 ------------------------------------------------------------------------------------------------------------------
PHASED = pytest.mark.parametrize("kind", [poptorch.SerialPhasedExecution, poptorch.ParallelPhasedExecution])


@spec(
    "options/9.4",
    names=[
        "poptorch.SerialPhasedExecution",
        "poptorch.ParallelPhasedExecution",
        "strategies.phase",
    ],
)
@spec(
    "options/9.4",
    names=["strategies.useSeparateBackwardPhase"],
    no_effect="backward of a phase is always a phase of its own",
)
@PHASED
def test_phases(kind):
    stages = [poptorch.Stage("b"), poptorch.Stage("c")]
    single = poptorch.Stage("f")
    strategy = kind(poptorch.Phase("a"), stages, ["d", "e"], single, "g")
    assert [len(strategy.phase(i).stages) for i in range(5)] == [1, 2, 1, 1, 1]
    assert strategy.phase(1).stage(1) is stages[1] and strategy.phase(3).stage(0) is single
    assert strategy.phase(2).stage(0).blocks == ("d", "e") and strategy.stage("g").blocks == ("g",)
    assert (stages[1]._phase_id, single._phase_id) == (1, 3)
    strategy.phase(1).ipus(0, 1)
    assert [stage._ipu for stage in stages] == [0, 1]
    assert strategy.useSeparateBackwardPhase() is strategy
    assert strategy.useSeparateBackwardPhase(False) is strategy
    for wrong in (
        lambda: kind(),
        lambda: kind("a", "a"),
        lambda: kind(["a", "b"], poptorch.Phase("b")),
        lambda: kind(3),
        lambda: kind(["a", poptorch.Stage("b")]),
        lambda: strategy.phase(-1),
        lambda: strategy.phase("0"),
        lambda: strategy.phase(0).ipus(0, 1),
        lambda: strategy.stage("zz"),
        lambda: strategy.useSeparateBackwardPhase(1),
    ):
        with pytest.raises(AssertionError):
            wrong()


@spec(
    "options/9.4",
    "options/10/Liveness",
    names=["poptorch.Liveness", "strategies.setTensorsLiveness", "strategies.sendTensorsOffChipAfterFwd"],
)
def test_liveness():
    serial, parallel = poptorch.SerialPhasedExecution("a"), poptorch.ParallelPhasedExecution("a")
    for liveness in poptorch.Liveness:
        assert serial.setTensorsLiveness(liveness) is serial and serial._tensors_liveness == liveness
    assert parallel.sendTensorsOffChipAfterFwd() is parallel
    assert parallel._tensors_liveness == poptorch.Liveness.OffChipAfterFwd
    assert parallel.sendTensorsOffChipAfterFwd(False)._tensors_liveness == poptorch.Liveness.AlwaysLive
    for wrong in (lambda: serial.setTensorsLiveness(0), lambda: parallel.sendTensorsOffChipAfterFwd(1)):
        with pytest.raises(AssertionError):
            wrong()
    assert not hasattr(serial, "sendTensorsOffChipAfterFwd") and not hasattr(parallel, "setTensorsLiveness")


# 9.5 ------------------------------------------------------------------------------------------------------------------
@spec("options/9.5")
@BOTH
def test_before_and_after_blocks(kind):
    class Open(torch.nn.Module):
        def forward(self, x):
            x = x + 1
            poptorch.Block.start("first", ipu_id=1)
            return x * 2  # still in the block

    result, devices = infer(kind(), Open())
    assert torch.equal(result, (X + 1) * 2) and devices == [0, 1]

    class Closed(torch.nn.Module):
        def forward(self, x):
            with poptorch.Block("first", ipu_id=0):
                x = x + 1
            return x * 2

    with pytest.raises(poptorch.Error):
        infer(kind(), Closed())


# 10 -------------------------------------------------------------------------------------------------------------------
ENUMS = {
    "OutputMode": {"Final": 0, "EveryN": 1, "All": 2, "Sum": 3, "Default": 4},
    "ConnectionType": {"Always": 0, "OnDemand": 1, "Never": 2},
    "SyncPattern": {"Full": 0, "SinglePipeline": 1, "ReplicaAndLadder": 2},
    "ReductionType": {"Sum": 0, "Mean": 1, "NoReduction": 2},
    "MeanReductionStrategy": {"Running": 0, "Post": 1, "PostAndLoss": 2},
    "HalfFloatCastingBehavior": {"FloatDowncastToHalf": 0, "HalfUpcastToFloat": 1, "Default": 2},
    "AutoStage": {"SameAsIpu": 0, "AutoIncrement": 1, "AutoSplit": 2},  # AutoSplit: ours
    "Liveness": {"AlwaysLive": 0, "OffChipAfterFwd": 1, "OffChipAfterFwdNoOverlap": 2, "OffChipAfterEachPhase": 3},
    "DataLoaderMode": {"Sync": 0, "Async": 1, "AsyncRebatched": 2},
    "SharingStrategy": {"SharedMemory": 0, "FileSystem": 1, "Fork": 2, "ForkServer": 3},
    "MultiConvPlanType": {"Parallel": 0, "Serial": 1},
    "CommGroupType": {"All": 0, "Consecutive": 1, "Orthogonal": 2, "NoGrouping": 3},
    "VariableRetrievalMode": {"OnePerGroup": 0, "AllReplicas": 2},
    "OverlapMode": {
        "NoOverlap": "no_overlap",
        "OverlapAccumulationLoop": "overlap_accumulation_loop",
        "OverlapDeviceIterationLoop": "overlap_device_iteration_loop",
    },
    "MatMulSerializationMode": {
        "InputChannels": "input_channels",
        "ReducingDim": "reducing_dim",
        "OutputChannels": "output_channels",
        "Disabled": "none",
    },
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=spec(f"options/10/{name}", names=[f"poptorch.{name}"])) for name in ENUMS],
)
def test_enum(name):
    members = ENUMS[name]
    found = getattr(poptorch, name)
    assert found is getattr(poptorch.enums, name)
    assert {member: item.value for member, item in found.__members__.items()} == members
    is_text = name in ("OverlapMode", "MatMulSerializationMode")
    assert issubclass(found, enum.Enum if is_text else enum.IntEnum)
    if not is_text:
        assert all(getattr(found, member) == value for member, value in members.items())


@spec("options/10/OutputMode", names=["poptorch.enums"])
def test_enums_are_hashable_and_copied_by_identity():
    import copy
    import pickle

    for name in ENUMS:
        for member in getattr(poptorch.enums, name):
            assert copy.deepcopy(member) is member and pickle.loads(pickle.dumps(member)) is member
            assert {member: 1}[member] == 1

"""spec options.md, sections 3 to 6: Training, Precision, Jit, expert settings, Distributed, TensorLocations."""

import logging

import poptorch
import pytest
import torch

spec = pytest.mark.spec
X = torch.arange(12.0).reshape(6, 2)


class Weighted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        out = x * self.w
        return poptorch.identity_loss(out, reduction="sum")


def gradient(opts, x=X):
    """What one step subtracts with learning rate 1."""
    model = Weighted()
    executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=1.0))
    executor(x)
    result = 1 - model.w.detach().clone()
    executor.destroy()
    return result


def infer(opts, model=None):
    return poptorch.inferenceModel(model or torch.nn.ReLU(), opts)(X)


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING, poptorch.logger.name)
    return lambda: [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@spec("options/3/gradientAccumulation", names=["Training.gradientAccumulation", "Options.Training"])
def test_gradient_accumulation():
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(3)
    assert opts.Training.gradient_accumulation == 3
    assert torch.equal(gradient(opts.clone()), X.sum(0) / 3)
    with pytest.raises(poptorch.Error, match="gradientAccumulation"):
        poptorch.inferenceModel(torch.nn.ReLU(), opts)
    with pytest.raises(AssertionError):
        opts.Training.gradientAccumulation(1.0)
    zero = poptorch.Options()
    with pytest.raises(poptorch.Error, match="E0702"):
        zero.Training.gradientAccumulation(0)
    zero.Training.gradient_accumulation = 0
    with pytest.raises(poptorch.Error, match="E0702"):
        gradient(zero)


@spec(
    "options/3/accumulationAndReplicationReductionType",
    "options/10/ReductionType",
    names=["Training.accumulationAndReplicationReductionType", "poptorch.ReductionType"],
)
def test_reduction_type():
    kinds = poptorch.ReductionType
    for kind, expected in ((kinds.Sum, X.sum(0)), (kinds.Mean, X.sum(0) / 3)):
        opts = poptorch.Options()
        assert opts.Training.accumulation_and_replication_reduction_type == kinds.Mean
        opts.Training.gradientAccumulation(3).accumulationAndReplicationReductionType(kind)
        assert torch.equal(gradient(opts), expected)
    for wrong in (kinds.NoReduction, 5, "Mean"):
        with pytest.raises(ValueError):
            poptorch.Options().Training.accumulationAndReplicationReductionType(wrong)


@spec(
    "options/3/setMeanAccumulationAndReplicationReductionStrategy",
    "options/10/MeanReductionStrategy",
    names=["Training.setMeanAccumulationAndReplicationReductionStrategy", "poptorch.MeanReductionStrategy"],
)
def test_mean_reduction_strategy():
    kinds = poptorch.MeanReductionStrategy
    assert poptorch.Options().Training.meanAccumulationAndReplicationReductionStrategy == kinds.Post
    for kind in (kinds.Running, kinds.Post):
        opts = poptorch.Options()
        opts.Training.gradientAccumulation(3).setMeanAccumulationAndReplicationReductionStrategy(kind)
        assert torch.equal(gradient(opts), X.sum(0) / 3)


@spec("options/3/setAutomaticLossScaling", names=["Training.setAutomaticLossScaling"])
def test_automatic_loss_scaling_stores():
    opts = poptorch.Options()
    opts.Training.setAutomaticLossScaling(True)
    assert opts._Popart.options["automaticLossScalingSettings.enabled"] is True
    opts.Training.setAutomaticLossScaling(False)
    assert torch.equal(gradient(opts), X.sum(0))


@spec("options/3/setConvolutionDithering", names=["Training.setConvolutionDithering"])
def test_convolution_dithering():
    opts = poptorch.Options()
    opts.Precision.setPartialsType(torch.half)
    opts.Training.setConvolutionDithering(True)
    assert opts._Popart.options["convolutionOptions"] == {"enableConvDithering": True}
    opts.Precision.setPartialsType(torch.float32)
    assert opts._Popart.options["convolutionOptions"] == {"partialsType": "float"}
    opts.Training.setConvolutionDithering(False)
    assert torch.equal(gradient(opts), X.sum(0))


@spec(
    "options/4/Precision.enableFloatingPointExceptions",
    names=["Precision.enableFloatingPointExceptions", "Options.Precision"],
)
def test_floating_point_exceptions_are_off_by_default():
    with pytest.raises(AssertionError):
        poptorch.Options().Precision.enableFloatingPointExceptions(1)
    opts = poptorch.Options()
    opts.Precision.enableFloatingPointExceptions(False)

    class Divides(torch.nn.Module):
        def forward(self, x):
            return 1 / (x - x)

    assert torch.isinf(infer(opts, Divides())).all()


@spec("options/4/Precision.enableStochasticRounding", names=["Precision.enableStochasticRounding"])
def test_stochastic_rounding_of_float32():
    opts = poptorch.Options()
    opts.Precision.enableStochasticRounding(True)
    assert opts._Popart.options["enableStochasticRounding"] is True
    assert torch.equal(gradient(opts), X.sum(0))  # only float16 is rounded so


@spec("options/4/Precision.setPartialsType", names=["Precision.setPartialsType"])
def test_partials_type():
    for dtype, name in (
        (torch.float, "float"),
        (torch.float32, "float"),
        (torch.half, "half"),
        (torch.float16, "half"),
    ):
        opts = poptorch.Options()
        opts.Precision.setPartialsType(dtype)
        assert opts._Popart.options["partialsTypeMatMuls"] == name
        assert opts._Popart.options["convolutionOptions"] == {"partialsType": name}
        assert torch.equal(gradient(opts), X.sum(0))
    for wrong in (torch.float64, torch.int32, "half"):
        with pytest.raises(ValueError):
            poptorch.Options().Precision.setPartialsType(wrong)


@spec(
    "options/4/Precision.halfFloatCasting",
    "options/4/Precision.runningStatisticsAlwaysFloat",
    "options/4/Jit.traceModel",
    "options/10/HalfFloatCastingBehavior",
    names=[
        "Precision.halfFloatCasting",
        "Precision.runningStatisticsAlwaysFloat",
        "Jit.traceModel",
        "Options.Jit",
        "poptorch.HalfFloatCastingBehavior",
    ],
)
def test_deprecated(warnings):
    opts = poptorch.Options()
    before = repr(opts)
    for number, call in enumerate(
        (
            lambda: (
                opts.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat) is opts.Precision
            ),
            lambda: opts.Precision.halfFloatCasting("anything") is opts.Precision,
            lambda: opts.Precision.runningStatisticsAlwaysFloat(True) is opts.Precision,
            lambda: opts.Jit.traceModel(False) is opts.Jit,
        ),
        start=1,
    ):
        assert call() and len(warnings()) == number
    with pytest.raises(ValueError):
        opts.Precision.runningStatisticsAlwaysFloat(1)
    assert len(warnings()) == 4
    with pytest.raises(ValueError):
        opts.Jit.traceModel(True)
    assert len(warnings()) == 5 and repr(opts) == before
    members = poptorch.HalfFloatCastingBehavior.__members__.items()
    assert {name: int(value) for name, value in members} == {
        "FloatDowncastToHalf": 0,
        "HalfUpcastToFloat": 1,
        "Default": 2,
    }


# Section 5 -----------------------------------------------------------------------------------------------------------
ACCEPTED = [
    ("aliasZeroCopy", True),
    ("enableOutlining", False),
    ("batchSerializationSettings.concatOnVirtualGraphChange", True),
    ("replicatedCollectivesSettings.mergeAllReduceCollectives", True),
    ("autoRecomputation", 3),
    ("accumulateOuterFragmentSettings.schedule", 3),
    ("subgraphCopyingStrategy", 1),
    ("virtualGraphMode", 3),
    ("defaultPrefetchBufferingDepth", 3),
    ("compilationProgressTotal", 2**64 - 1),
    ("outlineThreshold", 10.0),
    ("automaticLossScalingSettings.binEdgeLocation", 0.5),
    ("timeLimitScheduler", -1.0),
    ("kahnTieBreaker", "GREEDY"),
    ("accumulateOuterFragmentSettings.excludedVirtualGraphs", ["0", "1"]),
    ("constantWeights", True),
    ("customCodelets", ()),
    ("customCodelets", ("a.cpp",)),
    ("dotChecks", set()),
    ("dotChecks", {0, 1}),
    ("exportPoplarComputationGraph", True),
    ("exportPoplarVertexGraph", True),
    ("serializedPoprithmsShiftGraphsDir", "graphs"),
    ("hardwareInstrumentations", [0, 1]),
    ("updatableNamedBuffers", []),
    ("engineOptions", {"target.workerStackSizeInBytes": "0x2000"}),
    ("convolutionOptions", {"partialsType": "half"}),
    ("lstmOptions", {}),
]
REFUSED = [
    ("noSuchOption", True, "Unknown bool option noSuchOption"),
    ("noSuchOption", 1, "Unknown int option noSuchOption"),
    ("noSuchOption", 1.0, "Unknown float option noSuchOption"),
    ("noSuchOption", "a", "Unknown str option noSuchOption"),
    ("noSuchOption", [1], "Unknown container option noSuchOption"),
    ("noSuchOption", {}, "Unknown map option noSuchOption"),
    ("enableOutlining", 1, "Unknown int option enableOutlining"),
    ("outlineThreshold", 10, "Unknown int option outlineThreshold"),
    ("autoRecomputation", "Pipeline", "Unknown str option autoRecomputation"),
    ("autoRecomputation", 5, "0..4"),
    ("virtualGraphMode", -1, "unsigned"),
    ("defaultBufferingDepth", 2**64, "unsigned"),
    ("cachePath", None, "unsupported type NoneType"),
    ("cachePath", torch.ones(1), "unsupported type Tensor"),
    ("hardwareInstrumentations", [1.5], "strings or integers"),
    ("engineOptions", {1: "a"}, "strings as names"),
    ("engineOptions", {"a": [1]}, "strings as names"),
    ("patterns", {"A": True}, "without a level"),
    ("enableNonStableSoftmax", True, "E0702"),
    ("syntheticDataMode", 4, "E0702"),
]


@spec("options/5", names=["_Popart.set", "_Popart.options", "Options._Popart"])
@pytest.mark.parametrize(("name", "value"), ACCEPTED, ids=[f"{n}={v}" for n, v in ACCEPTED])
def test_accepted_settings(name, value):
    opts = poptorch.Options()
    assert opts._Popart.set(name, value) is opts._Popart and opts._Popart.options[name] == value
    assert opts._popart is opts._Popart
    assert torch.equal(infer(opts), X)


@spec("options/5", names=["_Popart.set", "_Popart.options"])
@pytest.mark.parametrize(("name", "value", "text"), REFUSED, ids=[f"{n}={v}" for n, v, _ in REFUSED])
def test_refused_settings_are_stored_and_refused_at_compile(name, value, text):
    opts = poptorch.Options()
    opts._Popart.set(name, value)
    with pytest.raises(poptorch.Error) as raised:
        infer(opts)
    assert text in str(raised.value)


@spec("options/5", names=["_Popart.setPatterns", "_Popart.setEngineOptions"])
def test_setters_of_expert_settings():
    opts = poptorch.Options()
    assert opts._Popart.options == {"instrumentWithHardwareCycleCounter": False, "rearrangeAnchorsOnHost": False}
    opts._Popart.setPatterns({"TiedGather": True, "OneWayLoss": False}).setEngineOptions({"a": "b"})
    assert opts._Popart.options["patterns"] == {"TiedGather": True, "OneWayLoss": False}
    assert opts._Popart.options["patterns_level"] == 2 and opts._Popart.options["engineOptions"] == {"a": "b"}
    assert opts._Popart.setPatterns({}, level=0).options["patterns_level"] == 0
    for patterns, level in (([], 2), ({"A": 1}, 2), ({1: True}, 2), ({}, "2")):
        with pytest.raises(AssertionError):
            opts._Popart.setPatterns(patterns, level)
    assert torch.equal(infer(opts), X)


@spec("options/5", names=["_Popart.set"])
def test_log_dir_is_ignored(warnings):
    opts = poptorch.Options()
    opts._Popart.set("logDir", "x")
    assert torch.equal(infer(opts), X) and any("logDir" in text for text in warnings())


@spec("options/5", names=["_Popart.set"])
def test_settings_are_reported(caplog):
    caplog.set_level(logging.DEBUG, poptorch.logger.name)
    opts = poptorch.Options()
    opts._Popart.set("outlineThreshold", 12.5)
    infer(opts)
    assert any("outlineThreshold" in r.getMessage() and "12.5" in r.getMessage() for r in caplog.records)


# Section 6 -----------------------------------------------------------------------------------------------------------
@spec(
    "options/6/keys",
    "options/6/construction",
    "options/6/configureProcessId",
    "options/6/setEnvVarNames",
    "options/6/disable",
    "options/6/processId",
    names=[
        "Options.Distributed",
        "Distributed.configureProcessId",
        "Distributed.setEnvVarNames",
        "Distributed.disable",
        "Distributed.processId",
        "Distributed.numProcesses",
    ],
)
def test_distributed(monkeypatch):
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK", raising=False)
    group = poptorch.Options().Distributed
    assert (group.num_distributed_processes, group.distributed_process_id, group.ipuof_configs) == (1, 0, {})
    group.configureProcessId(2, 4)
    assert (group.processId, group.numProcesses) == (2, 4)
    with pytest.raises((AttributeError, AssertionError)):
        group.processId = 3
    monkeypatch.setenv("MY_SIZE", "8")
    monkeypatch.setenv("MY_RANK", "7")
    assert group.setEnvVarNames("MY_SIZE", "MY_RANK") is group
    assert (group.processId, group.numProcesses) == (7, 8)
    group.disable()
    assert (group.processId, group.numProcesses) == (0, 1)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    group = poptorch.Options().Distributed
    assert (group.processId, group.numProcesses) == (1, 2)


SETTERS = {
    "minElementsForOffChip": (8, 8),
    "minElementsForReplicatedTensorSharding": (8, 8),
    "useReplicatedTensorSharding": (True, 1),
    "useIOTilesToLoad": (False, 0),
    "useIOTilesToStore": (True, 1),
}


@spec(
    "options/6/keys",
    names=[
        "poptorch.TensorLocationSettings",
        "TensorLocationSettings.minElementsForOffChip",
        "TensorLocationSettings.minElementsForReplicatedTensorSharding",
        "TensorLocationSettings.useOnChipStorage",
        "TensorLocationSettings.useReplicatedTensorSharding",
        "TensorLocationSettings.useIOTilesToLoad",
        "TensorLocationSettings.useIOTilesToStore",
    ],
)
def test_tensor_location_settings():
    settings = poptorch.TensorLocationSettings()
    assert settings.toDict() == {}
    for name, (value, stored) in SETTERS.items():
        assert getattr(settings, name)(value) is settings
        assert settings.toDict()[name] == stored and type(settings.toDict()[name]) is int
        with pytest.raises(AssertionError):
            getattr(settings, name)("x")
    assert settings.useOnChipStorage().toDict()["onChip"] == 1
    assert "onChip" not in settings.useOnChipStorage(None).toDict()
    assert settings.useOnChipStorage(False).toDict()["onChip"] == 0
    with pytest.raises(AssertionError):
        settings.useOnChipStorage("x")


@spec(
    "options/6/keys",
    names=[
        "Options.TensorLocations",
        "TensorLocations.numIOTiles",
        "TensorLocations.setActivationLocation",
        "TensorLocations.setWeightLocation",
        "TensorLocations.setOptimizerLocation",
        "TensorLocations.setAccumulatorLocation",
    ],
)
def test_tensor_locations():
    opts = poptorch.Options()
    locations = opts.TensorLocations
    for number in (31, 33, 30, 194, 32.0, "32"):
        with pytest.raises(AssertionError):
            locations.numIOTiles(number)
    assert locations.numIOTiles(32) is locations and locations.numIOTiles(192).num_io_tiles == 192
    settings = poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding(True)
    for kind in ("Activation", "Weight", "Optimizer", "Accumulator"):
        setter = getattr(locations, f"set{kind}Location")
        assert setter(settings) is locations
        assert getattr(locations, f"location_{kind.lower()}") == {"onChip": 0, "useReplicatedTensorSharding": 1}
        with pytest.raises(AssertionError):
            setter({"onChip": 0})
    settings.useOnChipStorage(True)
    assert locations.location_weight["onChip"] == 0
    assert torch.equal(gradient(opts), X.sum(0))

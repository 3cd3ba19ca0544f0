"""spec options.md, section 1: what all option objects have in common."""

import copy
import pickle

import poptorch
import pytest
import torch

spec = pytest.mark.spec


@spec("options/1/read", names=["Options.exists", "Options.deleteIfExists", "poptorch.Options", "poptorch.options"])
def test_read():
    opts = poptorch.options.Options()
    assert opts.device_iterations == opts("device_iterations") == 1
    with pytest.raises(AttributeError):
        opts.nothing  # noqa: B018
    with pytest.raises(AttributeError):
        opts("nothing")
    assert opts.exists("device_iterations") and not opts.exists("random_seed")
    opts.randomSeed(3).deleteIfExists("random_seed")
    assert not opts.exists("random_seed")
    opts.deleteIfExists("random_seed")
    opts.randomSeed(3)._freeze()
    opts.deleteIfExists("random_seed")  # no check
    assert not opts.exists("random_seed")


@spec("options/1/write", names=["Options.set"])
def test_write():
    opts = poptorch.Options()
    opts.device_iterations = 4
    assert opts.set(device_iterations=4, replication_factor=2) is opts
    with pytest.raises(AssertionError):
        opts.set(device_iteration=1)
    with pytest.raises(AssertionError):
        opts.device_iteration = 1
    with pytest.raises(AssertionError):
        opts.deviceIterations(1.5)
    with pytest.raises(AssertionError):
        opts.set(log_dir=3)
    assert opts.deviceIterations(True).device_iterations is True
    assert poptorch.Options().set(device_iterations=-3).device_iterations == -3  # a value, no call of a setter


OUT_OF_RANGE = {
    "deviceIterations": lambda opts: opts.deviceIterations(0),
    "replicationFactor": lambda opts: opts.replicationFactor(-1),
    "useIpuId": lambda opts: opts.useIpuId(-1),
    "maxRepeatLogs": lambda opts: opts.maxRepeatLogs(-1),
    "gradientAccumulation": lambda opts: opts.Training.gradientAccumulation(0),
    "offChipMemoryLimit": lambda opts: opts.offChipMemoryLimit(-1),
    "deviceMemoryLimit": lambda opts: opts.deviceMemoryLimit({"IPU1": -1}),
    "configureProcessId: process_id": lambda opts: opts.Distributed.configureProcessId(-1, 2),
    "configureProcessId: num_processes": lambda opts: opts.Distributed.configureProcessId(0, 0),
    "setPatterns": lambda opts: opts._Popart.setPatterns({}, -1),
    "minElementsForOffChip": lambda opts: poptorch.TensorLocationSettings().minElementsForOffChip(-1),
    "minElementsForReplicatedTensorSharding": lambda opts: (
        poptorch.TensorLocationSettings().minElementsForReplicatedTensorSharding(-1)
    ),
}


@spec("options/1/write")
@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_setters_refuse_numbers_out_of_range_at_once(name):
    opts = poptorch.Options()
    before = repr(opts)
    with pytest.raises(poptorch.Error, match=f"E0702 .*{name}(?s:.*)expected"):
        OUT_OF_RANGE[name](opts)
    assert repr(opts) == before


@spec("options/1/read")
@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        (lambda opts: opts.deviceIteration(4), "deviceIterations"),
        (lambda opts: opts.replication_factr, "replication_factor"),
        (lambda opts: opts.Training.GradientAccumulation(4), "gradientAccumulation"),
        (lambda opts: opts.TensorLocations.setWeigthLocation(None), "setWeightLocation"),
        (lambda opts: opts.from_json('{"outputModes": 1}'), "outputMode"),
        (lambda opts: opts.Distributed.setEnvVarName("a", "b"), "setEnvVarNames"),
        (lambda opts: opts.gradientAccumulation(4), "Training.gradientAccumulation"),
    ],
)
def test_messages_name_what_was_meant(wrong, meant):
    with pytest.raises(AttributeError, match=f"did you mean {meant}\\?"):
        wrong(poptorch.Options())


@spec("options/1/write", "options/5")
def test_messages_name_values_and_expert_settings_that_were_meant():
    with pytest.raises(AssertionError, match="did you mean device_iterations?"):
        poptorch.Options().set(device_iteration=1)
    opts = poptorch.Options()
    opts._Popart.set("enableOutlinig", True)
    with pytest.raises(poptorch.Error, match="E0701 (?s:.*)did you mean enableOutlining?"):
        opts._Popart.validate()


@spec("options/1/on_demand_keys", names=["Options.createOrSet"])
def test_on_demand_keys():
    opts = poptorch.Options()
    for key in ("model_name", "use_model", "ipu_id", "ipu_version", "random_seed"):
        assert not opts.exists(key)
        with pytest.raises(AttributeError):
            getattr(opts, key)
    opts.modelName("a").useIpuModel(True).useIpuId(1).useOfflineIpuTarget().randomSeed(2)
    assert (opts.model_name, opts.use_model, opts.ipu_id, opts.ipu_version, opts.random_seed) == ("a", True, 1, 2, 2)
    with pytest.raises(AssertionError):
        opts.modelName(3)
    assert opts.createOrSet(model_name="b") is opts and opts.model_name == "b"
    with pytest.raises(AssertionError):
        opts.createOrSet(random_seed="x")
    with pytest.raises(AttributeError):
        opts.TensorLocations.location_weight  # noqa: B018


@spec("options/1/private_attributes")
def test_private_attributes():
    opts = poptorch.Options()
    with pytest.raises(AttributeError):
        opts._mine = 1

    class Mine(poptorch.Options):
        def __init__(self):
            super().__init__()
            self._mine = 1

    mine = Mine()
    mine._mine = 2
    assert mine._mine == 2
    with pytest.raises(AttributeError):
        mine._yours = 1


@spec(
    "options/1/chaining",
    names=["Options.Training", "Options.Precision", "Options.Jit", "Options._Popart", "Options.Distributed"],
)
def test_chaining():
    opts = poptorch.Options()
    assert (
        opts.deviceIterations(2)
        .replicationFactor(1)
        .broadcastBuffers(False)
        .syncPattern(poptorch.SyncPattern.Full)
        .logDir(".")
        .logCycleCount(False)
        .enableStableNorm(True)
        .updatableNamedBuffers(["a"])
        is opts
    )
    assert opts.relaxOptimizerAttributesChecks().showCompilationProgressBar(False).disableModuleNamescope() is opts
    assert opts.Training.gradientAccumulation(2).setConvolutionDithering(True) is opts.Training
    assert opts.Precision.enableStochasticRounding(False) is opts.Precision
    assert opts.Jit.traceModel(False) is opts.Jit
    assert opts._Popart.set("a", 1).setEngineOptions({}).setPatterns({}) is opts._Popart
    assert opts.Distributed.configureProcessId(0, 1) is opts.Distributed
    assert opts.TensorLocations.numIOTiles(32) is opts.TensorLocations
    for nothing in (
        opts.setAvailableMemoryProportion({}),
        opts.anchorTensor("a", "b"),
        opts.Distributed.disable(),
        poptorch.Phase("a").ipus(0),
    ):
        assert nothing is None


FROZEN = [
    lambda o: o.deviceIterations(2),
    lambda o: o.set(device_iterations=2),
    lambda o: setattr(o, "device_iterations", 2),
    lambda o: o.setExecutionStrategy(poptorch.ShardedExecution()),
    lambda o: o.randomSeed(1),
    lambda o: o.modelName("x"),
    lambda o: o.outputMode(poptorch.OutputMode.All),
    lambda o: o.enableExecutableCaching("x"),
    lambda o: o.enableExecutableCaching(None),
    lambda o: o.enableProfiling(),
    lambda o: o.setAvailableMemoryProportion({"IPU0": 0.5}),
    lambda o: o.Training.gradientAccumulation(2),
    lambda o: o.Training.setConvolutionDithering(True),
    lambda o: o.Precision.setPartialsType(torch.half),
    lambda o: o.Precision.enableStochasticRounding(True),
    lambda o: o.Distributed.configureProcessId(0, 2),
    lambda o: o.Distributed.disable(),
    lambda o: o.TensorLocations.setWeightLocation(poptorch.TensorLocationSettings()),
    lambda o: o._Popart.set("a", 1),
    lambda o: o._Popart.setPatterns({}),
    lambda o: o._Popart.setEngineOptions({}),
]


@spec("options/1/freezing", names=["Options.checkIsFrozen", "Options.anchorTensor"])
@pytest.mark.parametrize("change", FROZEN)
def test_freezing(change):
    opts = poptorch.Options()
    opts.checkIsFrozen("anything")
    settings = poptorch.TensorLocationSettings().useOnChipStorage(True)
    opts.TensorLocations.setOptimizerLocation(settings)
    opts._freeze()
    with pytest.raises(AttributeError, match="can't modify frozen"):
        change(opts)
    with pytest.raises(AttributeError, match="can't modify frozen"):
        opts.checkIsFrozen("anything")
    settings.useOnChipStorage(False)
    assert opts.TensorLocations.location_optimizer == {"onChip": True}
    opts.anchorTensor("a", "b")  # not blocked


@spec("options/1/who_freezes")
def test_who_freezes():
    model, opts = torch.nn.Linear(2, 2), poptorch.Options()
    executor = poptorch.inferenceModel(model, opts)
    for frozen in (opts, executor.options):
        with pytest.raises(AttributeError):
            frozen.deviceIterations(2)
    assert executor.options is not opts and opts.defaultOutputMode()
    assert executor.options.output_mode == poptorch.OutputMode.All
    opts = poptorch.Options()
    assert poptorch.trainingModel(model, opts).options.output_mode == poptorch.OutputMode.Final
    with pytest.raises(AttributeError):
        opts.deviceIterations(2)
    opts = poptorch.Options()
    poptorch.DataLoader(opts, torch.utils.data.TensorDataset(torch.ones(4)), batch_size=2)
    with pytest.raises(AttributeError):
        opts.deviceIterations(2)
    opts = poptorch.Options()
    executor = poptorch.inferenceModel(torch.nn.Linear(2, 2), opts)
    opts.anchorTensor("a", "b")  # not blocked, without effect
    assert torch.equal(executor(torch.zeros(1, 2)), executor.model(torch.zeros(1, 2)))


@spec("options/1/clone", "options/2/clone", names=["Options.clone"])
@pytest.mark.parametrize("copied", [lambda o: o.clone(), copy.deepcopy])
def test_clone(copied):
    opts = poptorch.Options().setExecutionStrategy(poptorch.PipelinedExecution(poptorch.Stage("a")))
    opts._Popart.setEngineOptions({"a": "b"})
    opts._freeze()
    other = copied(opts)
    other.deviceIterations(3).Training.gradientAccumulation(3)
    other._Popart.options["engineOptions"]["a"] = "c"
    other.anchorTensor("a", "b")
    other._execution_strategy.stage("a").ipu(3)
    other.sourceLocationExcludes([])
    assert (opts.device_iterations, opts.Training.gradient_accumulation) == (1, 1)
    assert opts._Popart.options["engineOptions"] == {"a": "b"} and opts.anchored_tensors == {}
    assert opts._execution_strategy.stage("a")._ipu is None and opts.source_location_excludes
    with pytest.raises(AttributeError):
        opts.Training.gradientAccumulation(2)


@spec("options/1/pickle")
@pytest.mark.parametrize("frozen", [False, True])
def test_pickle(frozen):
    opts = poptorch.Options().deviceIterations(3).modelName("m").replicationFactor(2)
    opts.setExecutionStrategy(poptorch.SerialPhasedExecution("a", ["b", "c"]).useSeparateBackwardPhase())
    opts._Popart.setPatterns({"A": True}).set("outlineThreshold", 10.0)
    opts.TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().minElementsForOffChip(4))
    opts.Distributed.configureProcessId(1, 4)
    if frozen:
        opts._freeze()
    other = pickle.loads(pickle.dumps(opts))
    assert repr(other) == repr(opts)
    if frozen:
        with pytest.raises(AttributeError):
            other.deviceIterations(1)


@spec("options/1/repr")
def test_repr():
    changes = [
        lambda o: o.deviceIterations(2),
        lambda o: o.modelName("m"),
        lambda o: o.outputMode(poptorch.OutputMode.EveryN, 3),
        lambda o: o.Training.gradientAccumulation(2),
        lambda o: o.Precision.enableStochasticRounding(True),
        lambda o: o.Precision.setPartialsType(torch.half),
        lambda o: o.Distributed.configureProcessId(1, 2),
        lambda o: o.TensorLocations.numIOTiles(32),
        lambda o: o.TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False)),
        lambda o: o._Popart.set("a", 1),
        lambda o: o.setExecutionStrategy(poptorch.ShardedExecution()),
        lambda o: o.setExecutionStrategy(poptorch.PipelinedExecution("a")),
        lambda o: o.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.Stage("a").ipu(1))),
        lambda o: o.setExecutionStrategy(poptorch.SerialPhasedExecution("a")),
        lambda o: o.setExecutionStrategy(
            poptorch.SerialPhasedExecution("a").setTensorsLiveness(poptorch.Liveness.OffChipAfterFwd)
        ),
        lambda o: o.setExecutionStrategy(poptorch.ParallelPhasedExecution("a")),
    ]
    texts = []
    for change in changes:
        once, again = poptorch.Options(), poptorch.Options()
        change(once)
        change(again)
        assert repr(once) == repr(again)
        texts.append(repr(once))
    texts.append(repr(poptorch.Options()))
    assert len(set(texts)) == len(texts)
    text = repr(poptorch.Options().deviceIterations(7))
    assert text.startswith("Options(device_iterations=7, ")
    places = [
        text.index(name) for name in ("Distributed=", "Jit=", "Precision=", "TensorLocations=", "Training=", "_Popart=")
    ]
    assert places == sorted(places)


@spec("options/1/toDict", names=["Options.toDict"])
def test_to_dict():
    opts = poptorch.Options().setExecutionStrategy(poptorch.ShardedExecution())
    with pytest.raises(AssertionError):
        opts.toDict()
    opts.outputMode(poptorch.OutputMode.Sum).randomSeed(4).enableExecutableCaching("c")
    opts.setAvailableMemoryProportion({"IPU0": 0.25, "IPU3": 1.0})
    opts.Training.gradientAccumulation(3)
    opts.TensorLocations.setOptimizerLocation(
        poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding(True)
    )
    values = opts.toDict()
    assert values["gradient_accumulation"] == 3 and values["device_iterations"] == values["replication_factor"] == 1
    assert values["output_mode"] == 3 and type(values["output_mode"]) is int and values["random_seed"] == 4
    assert values["available_memory_proportion"] == {"IPU0": 0.25, "IPU3": 1.0} and values["cachePath"] == "c"
    assert values["location_optimizer"] == {"onChip": False, "useReplicatedTensorSharding": True}
    assert values["num_distributed_processes"] == 1
    assert callable(values["compilation_progress_bar_fn"])
    assert "compilation_progress_bar_fn" not in opts.showCompilationProgressBar(False).toDict()
    opts._Popart.set("device_iterations", 1)
    with pytest.raises(AssertionError):
        opts.toDict()


@spec("options/1/toDict", names=["poptorch.poptorch_core"])
def test_validate_options():
    validate = poptorch.poptorch_core._validateOptions
    opts = poptorch.Options().outputMode(poptorch.OutputMode.All).randomSeed(1).modelName("m").useIpuModel(True)
    opts.setExecutionStrategy(poptorch.SerialPhasedExecution("a")).enableProfiling()
    opts.TensorLocations.numIOTiles(64).setWeightLocation(poptorch.TensorLocationSettings())
    opts._Popart.setPatterns({"A": False})
    values = opts.toDict()
    validate(values)
    for wrong in ({"noSuch": 1}, {"device_iterations": "1"}, {"log_dir": 3}, {"noSuch": lambda: 1}, {3: 4}):
        with pytest.raises(poptorch.Error):
            validate({**values, **wrong})

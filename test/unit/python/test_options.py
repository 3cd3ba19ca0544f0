"""Options behave as spec options.md says."""

import copy
import inspect
import json
import os
import pathlib
import pickle
import subprocess
import sys

import poptorch
import pytest
import torch

ROOT = os.path.dirname(os.path.abspath(__file__)) + "/../../.."


def test_values_are_typed_and_named():
    options = poptorch.Options()
    options.device_iterations = 4
    assert options.device_iterations == options("device_iterations") == 4
    assert options.set(device_iterations=5) is options
    with pytest.raises(AssertionError):
        options.set(device_iteration=4)
    with pytest.raises(AssertionError):
        options.deviceIterations(1.5)
    with pytest.raises(AttributeError):
        options.no_such_option  # noqa: B018
    with pytest.raises(AttributeError):
        options._undeclared = 1
    assert options.exists("device_iterations") and not options.exists("random_seed")
    options.deleteIfExists("random_seed")


def test_setters_return_the_object_they_belong_to():
    options = poptorch.Options()
    assert options.deviceIterations(2).replicationFactor(1).autoRoundNumIPUs() is options
    assert options.Training.gradientAccumulation(3) is options.Training
    assert options._Popart.set("outlineThreshold", 10.0) is options._Popart
    assert options.setAvailableMemoryProportion({"IPU0": 0.1}) is None
    assert options.anchorTensor("a", "b") is None
    assert options.Distributed.disable() is None


def test_freezing_covers_every_group():
    options = poptorch.Options()
    options._freeze()
    for change in (
        lambda: options.deviceIterations(2),
        lambda: options.Training.gradientAccumulation(2),
        lambda: options.Distributed.configureProcessId(0, 1),
        lambda: options.TensorLocations.numIOTiles(32),
        lambda: options.Precision.setPartialsType(torch.half),
        lambda: options._Popart.set("a", 1),
        lambda: options.setExecutionStrategy(poptorch.ShardedExecution()),
        lambda: setattr(options, "device_iterations", 3),
        lambda: options.randomSeed(1),
    ):
        with pytest.raises(AttributeError, match="can't modify frozen"):
            change()
    clone = options.clone()
    clone.deviceIterations(2).Training.gradientAccumulation(7)
    clone.Precision.setPartialsType(torch.half)
    assert options.device_iterations == options.Training.gradient_accumulation == 1
    assert "partialsTypeMatMuls" not in options._Popart.options
    assert clone._Popart.options["partialsTypeMatMuls"] == "half"
    copy.deepcopy(options).deviceIterations(3)


def test_subclasses_may_declare_attributes_and_forbid_setters():
    class Options(poptorch.Options):
        def __init__(self):
            super().__init__()
            self._ipus_per_replica = 2

        def replicationFactor(self, replication_factor):
            raise RuntimeError("forbidden")

    options = Options()
    options._ipus_per_replica = 4
    with pytest.raises(RuntimeError):
        options.replicationFactor(2)
    options.outputMode(poptorch.OutputMode.All)._freeze()
    assert options.toDict()["replication_factor"] == 1
    assert options.clone()._ipus_per_replica == 4


def test_repr_and_pickle_keep_every_value():
    def configured():
        options = poptorch.Options().deviceIterations(3).randomSeed(42).modelName("m")
        options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.Stage("a", "b").ipu(1), "c"))
        options.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
        options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
        options._Popart.setPatterns({"TiedGather": True})
        return options

    options = configured()
    assert repr(options) == repr(configured())
    assert repr(pickle.loads(pickle.dumps(options))) == repr(options)
    assert repr(options).startswith("Options(device_iterations=3, ")
    groups = ["Distributed=", "Jit=", "Precision=", "TensorLocations=", "Training=", "_Popart="]
    positions = [repr(options).index(group) for group in groups]
    assert positions == sorted(positions)
    other = configured()
    other.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.Stage("a", "b").ipu(2), "c"))
    assert repr(other) != repr(options)


def test_to_dict_is_what_clients_compare():
    options = poptorch.Options()
    with pytest.raises(AssertionError):
        options.toDict()
    assert options.defaultOutputMode()
    options.outputMode(poptorch.OutputMode.All).deviceIterations(2).randomSeed(7).enableExecutableCaching("cache")
    options.Training.gradientAccumulation(4)
    options.setAvailableMemoryProportion({"IPU0": 0.25})
    settings = poptorch.TensorLocationSettings().useOnChipStorage(True).useReplicatedTensorSharding(False)
    options.TensorLocations.setOptimizerLocation(settings)
    values = options.toDict()
    assert values["gradient_accumulation"] == 4 and values["device_iterations"] == 2
    assert values["replication_factor"] == 1 and values["output_mode"] == 2 and values["random_seed"] == 7
    assert values["available_memory_proportion"] == {"IPU0": 0.25} and values["cachePath"] == "cache"
    assert values["location_optimizer"] == {"onChip": True, "useReplicatedTensorSharding": False}


@pytest.mark.parametrize(
    "change",
    [
        lambda o: o.setAvailableMemoryProportion({0: 0.1}),
        lambda o: o.outputMode("All"),
        lambda o: o.outputMode(poptorch.OutputMode.EveryN),
        lambda o: o.outputMode(poptorch.OutputMode.EveryN, 0),
        lambda o: o.setExecutionStrategy("pipelined"),
        lambda o: o.useIpuId("0"),
        lambda o: o.useOfflineIpuTarget(3),
        lambda o: o.connectionType(0),
        lambda o: o.syncPattern(1),
        lambda o: o.randomSeed(1.0),
        lambda o: o.Precision.enableFloatingPointExceptions(1),
        lambda o: o.TensorLocations.numIOTiles(33),
        lambda o: o.TensorLocations.numIOTiles(194),
        lambda o: o.TensorLocations.setWeightLocation({}),
        lambda o: poptorch.TensorLocationSettings().minElementsForOffChip(1.0),
        lambda o: o._Popart.setPatterns({"a": 1}),
    ],
)
def test_wrong_values_are_assertion_errors(change):
    with pytest.raises(AssertionError):
        change(poptorch.Options())


@pytest.mark.parametrize(
    "change",
    [
        lambda o: o.inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive),
        lambda o: o.inputReplicaGrouping(1, poptorch.CommGroupType.All),
        lambda o: o.replicationFactor(4).inputReplicaGrouping(3, poptorch.CommGroupType.Orthogonal),
        lambda o: o.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.NoReduction),
        lambda o: o.Precision.setPartialsType(torch.float64),
        lambda o: o.Precision.runningStatisticsAlwaysFloat(1),
        lambda o: o.Jit.traceModel(True),
    ],
)
def test_wrong_values_are_value_errors(change):
    with pytest.raises(ValueError):
        change(poptorch.Options())


def test_grouping_is_normalised():
    options = poptorch.Options().replicationFactor(4)
    options.inputReplicaGrouping(2, poptorch.CommGroupType.Orthogonal)
    assert (options.input_group_size, options.input_cgt) == (2, poptorch.CommGroupType.Orthogonal)
    options.inputReplicaGrouping(2, poptorch.CommGroupType.NoGrouping)
    assert (options.input_group_size, options.input_cgt) == (1, poptorch.CommGroupType.Consecutive)


def test_location_settings_are_copied():
    options, settings = poptorch.Options(), poptorch.TensorLocationSettings().useOnChipStorage(True)
    options.TensorLocations.setActivationLocation(settings)
    settings.useOnChipStorage(None).useIOTilesToLoad()
    assert options.TensorLocations.location_activation == {"onChip": 1}
    assert settings.toDict() == {"useIOTilesToLoad": 1}


def test_config_file(tmp_path):
    path = tmp_path / "options.conf"
    path.write_text(
        "# comment\n\ndeviceIterations(3)  # three\nTraining.gradientAccumulation(2)\n"
        "setExecutionStrategy(poptorch.ShardedExecution())\n"
    )
    options = poptorch.Options()
    assert options.loadFromFile(str(path)) is options
    assert (options.device_iterations, options.Training.gradient_accumulation) == (3, 2)
    assert isinstance(options._execution_strategy, poptorch.ShardedExecution)

    path.write_text("deviceIterations(7)\n\n# comment\nreplicationFactor(2\n")
    with pytest.raises(poptorch.ConfigFileError) as raised:
        options.loadFromFile(str(path))
    assert poptorch.options.ConfigFileError is poptorch.ConfigFileError
    for part in ("SyntaxError", "line 2", "options.conf", "options.replicationFactor(2"):
        assert part in str(raised.value)
    assert options.device_iterations == 3
    path.write_text("noSuchOption(1)\n")
    with pytest.raises(AttributeError):
        options.loadFromFile(str(path))


def test_json_and_environment(monkeypatch):
    text = json.dumps(
        {
            "deviceIterations": 5,
            "outputMode": ["OutputMode.EveryN", 2],
            "Precision.enableStochasticRounding": True,
            "_Popart.set": ["cachePath", "a.b"],
        }
    )
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", text)
    monkeypatch.setenv("POPTORCH_CACHE_DIR", "folder")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    options = poptorch.Options()
    assert options.device_iterations == 5 and options.output_mode == 1 and options.output_return_period == 2
    assert options._Popart.options["cachePath"] == "a.b"
    assert (options.Distributed.numProcesses, options.Distributed.processId) == (3, 2)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "three")
    with pytest.raises(poptorch.Error, match="E0702"):
        poptorch.Options()


@pytest.mark.parametrize(
    "strategy",
    [
        poptorch.PipelinedExecution(poptorch.Stage("a", "b").ipu(1), "c").schedule("gpipe").recompute("fit"),
        poptorch.PipelinedExecution(poptorch.AutoStage.AutoSplit).devices(3).costs({"stages": []}),
        poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement),
        poptorch.SerialPhasedExecution("a", ["b", "c"]).setTensorsLiveness(poptorch.Liveness.OffChipAfterFwd),
        poptorch.ParallelPhasedExecution("a", "b").useSeparateBackwardPhase().sendTensorsOffChipAfterFwd(),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_what_a_file_says_of_options_is_json_that_gives_them_back(strategy):
    options = poptorch.Options().deviceIterations(3).replicationFactor(4).setExecutionStrategy(strategy).randomSeed(2)
    options.inputReplicaGrouping(2, poptorch.CommGroupType.Orthogonal).outputMode(poptorch.OutputMode.EveryN, 3)
    options.anchorTensor("a", "long", poptorch.OutputMode.EveryN, 3)
    options.setAvailableMemoryProportion({"IPU0": 0.5})
    options.Training.gradientAccumulation(2).setAutomaticLossScaling(True)
    options.TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    options._Popart.set("enableOutlining", False)
    text = options._native.textOfSaved()
    again = poptorch.Options().from_json(text)
    assert repr(again) == repr(options)
    assert again._native.textOfSaved() == text


def test_anchors_and_logs_store_what_was_asked():
    options = poptorch.Options()
    options.anchorTensor("a", "long", poptorch.OutputMode.EveryN, 3)
    options.anchorTensor("b", "long", poptorch.OutputMode.All, 3)
    options.anchorTensor("c", "long")
    assert options.anchored_tensors["a"] == ["long", False, poptorch.OutputMode.EveryN, 3]
    assert options.anchored_tensors["b"][3] == 1 and options.anchored_tensors["c"][1]
    assert options.maxRepeatLogs(None).max_repeat_logs == 2**64 - 1
    options.sourceLocationExcludes(["a"]).appendToLocationExcludes("b", "c")
    assert options.source_location_excludes == ["a", "b", "c"]
    assert options.useOfflineIpuTarget().connection_type == poptorch.ConnectionType.Never
    assert options.ipu_version == 2


TABLE = json.loads((pathlib.Path(ROOT) / "src/options/options.json").read_text())["options"]
OWN = {row["method"]: row for row in TABLE if row["spec"] == "ours" and row["kind"] == "on_demand"}


@pytest.mark.parametrize("setter", OWN)
def test_own_options_have_setters(tmp_path, setter):
    key, argument = OWN[setter]["key"], {"int": 2, "bool": True, "str": "text"}[OWN[setter]["type"]]
    options = poptorch.Options()
    assert not options.exists(key)
    assert getattr(options, setter)(argument) is options and getattr(options, key) == argument
    assert getattr(poptorch.Options, setter).__doc__
    with pytest.raises(AssertionError):
        getattr(options, setter)([argument])
    by_json = poptorch.Options().from_json(json.dumps({setter: argument}))
    (tmp_path / "my.conf").write_text(f"{setter}({argument!r})")
    by_file = poptorch.Options().loadFromFile(tmp_path / "my.conf")
    by_old_name = poptorch.Options()
    assert by_old_name._Popart.set(f"abele.{setter}", argument) is by_old_name._Popart
    assert repr(by_json) == repr(by_file) == repr(by_old_name) == repr(options) == repr(options.clone())
    options._freeze()
    with pytest.raises(AttributeError):
        getattr(options, setter)(argument)


def test_deprecated_spellings_with_another_name():
    options = poptorch.Options()
    options._Popart.set("abele.allowShortPipeline", True).set("abele.isCompiling", True)
    assert not options.enforce_pipeline_minimum and options.capture_as_compiling
    assert not any(name.startswith("abele.") for name in options._Popart.options)


def test_deprecated_spellings_warn_once():
    line = 'poptorch.Options()._Popart.set("abele.threadsPerDevice", 1)'
    program = f"import poptorch\n{line}\n{line}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.count("is deprecated: use options.threadsPerDevice()") == 1


def test_deprecated_spellings_are_checked_as_setters():
    options = poptorch.Options()
    with pytest.raises(AttributeError, match="E0701(.|\n)*threadsPerDevice"):
        options._Popart.set("abele.threadPerDevice", 1)
    with pytest.raises(AssertionError):
        options._Popart.set("abele.threadsPerDevice", "two")
    options._freeze()
    with pytest.raises(AttributeError, match="E0707"):
        options._Popart.set("abele.threadsPerDevice", 1)


def test_strategies():
    stage = poptorch.Stage("a", "b")
    assert stage.ipu(3) is stage and stage.blocks == ("a", "b")
    strategy = poptorch.PipelinedExecution(stage, "c", ["d", "e"])
    assert strategy.stage("b") is stage and strategy.stage("e").blocks == ("d", "e")
    phased = poptorch.SerialPhasedExecution(poptorch.Phase("a"), ["b", "c"], "d")
    phased.phase(0).ipus(1)
    assert phased.phase(0).stage(0)._ipu == 1 and len(phased.phase(1).stages) == 1
    assert phased.useSeparateBackwardPhase() is phased
    assert phased.setTensorsLiveness(poptorch.Liveness.OffChipAfterFwd) is phased
    poptorch.ParallelPhasedExecution("a").sendTensorsOffChipAfterFwd()
    for wrong in (
        lambda: poptorch.Stage(1),
        lambda: stage.ipu("1"),
        lambda: poptorch.Phase("a", stage),
        lambda: poptorch.PipelinedExecution("a", "a"),
        lambda: strategy.stage("z"),
        lambda: poptorch.SerialPhasedExecution(),
        lambda: phased.phase(0).ipus(1, 2),
        lambda: phased.phase(-1),
        lambda: phased.useSeparateBackwardPhase(1),
    ):
        with pytest.raises(AssertionError):
            wrong()


def test_setters_of_the_table_look_like_methods():
    options = poptorch.Options()
    assert str(inspect.signature(options.outputMode)) == "(output_mode, output_return_period=None)"
    assert str(inspect.signature(poptorch.Options.appendToLocationExcludes)) == "(self, *excludes)"
    assert str(inspect.signature(options.useOfflineIpuTarget)) == "(ipu_version=2)"
    assert "Allowed: >= 1." in inspect.getdoc(options.deviceIterations)
    assert options.deviceIterations(device_iterations=3).device_iterations == 3
    for wrong in (
        lambda: options.deviceIterations(),
        lambda: options.deviceIterations(1, 2),
        lambda: options.logDir(a=1),
    ):
        with pytest.raises(TypeError, match="is called with"):
            wrong()


def test_what_is_read_is_a_copy():
    options = poptorch.Options()
    options.source_location_excludes.append("mine")
    assert "mine" not in options.source_location_excludes
    options.source_location_excludes = [*options.source_location_excludes, "mine"]
    assert options.source_location_excludes[-1] == "mine"


def test_groups_show_one_object():
    options = poptorch.Options()
    for copied in (options.clone(), pickle.loads(pickle.dumps(options))):
        copied.Training.gradientAccumulation(5)
        copied._Popart.set("a", 1)
        copied._freeze()
        with pytest.raises(AttributeError):
            copied.Training.gradientAccumulation(6)
        assert copied.Training.gradient_accumulation == 5 and copied._Popart.options["a"] == 1
    assert options.Training.gradient_accumulation == 1 and "a" not in options._Popart.options
    options.Training.gradientAccumulation(2)


def test_rows_written_by_hand_say_why(monkeypatch):
    monkeypatch.syspath_prepend(os.path.join(ROOT, "scripts"))
    import gen_options

    table = json.loads(gen_options.TABLE.read_text())
    gen_options.check(table)
    row = next(row for row in table["options"] if row["kind"] == "written")
    del row["reason"]
    with pytest.raises(SystemExit, match=f"{row['method']}.*reason"):
        gen_options.check(table)


def test_generated_files_are_current():
    script = os.path.join(ROOT, "scripts", "gen_options.py")
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0

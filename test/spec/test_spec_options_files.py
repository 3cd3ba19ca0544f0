"""spec options.md, sections 7 and 8: options from files and from JSON."""

import json

import poptorch
import pytest

spec = pytest.mark.spec


@pytest.fixture
def file(tmp_path):
    def write(*lines):
        path = tmp_path / "my.conf"
        path.write_text("\n".join(lines))
        return str(path)

    return write


@spec("options/7", "options/2/loadFromFile", names=["Options.loadFromFile"])
def test_load_from_file(file):
    opts = poptorch.Options().deviceIterations(9)
    path = file(
        "# a comment",
        "",
        "   replicationFactor(2)   # spaces and a comment",
        "Training.gradientAccumulation(poptorch.Options().device_iterations + 2)",
        "TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))",
        "setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement))",
        "modelName('a # b')",
        "replication_factor = options.replication_factor * 2",
        "_Popart.set('outlineThreshold', 1.5); options.logDir('logs')",
    )
    assert opts.loadFromFile(path) is opts
    assert (opts.device_iterations, opts.replication_factor, opts.Training.gradient_accumulation) == (9, 4, 3)
    assert opts.TensorLocations.location_weight == {"onChip": 0} and opts.model_name == "a # b"
    assert isinstance(opts._execution_strategy, poptorch.ShardedExecution)
    assert opts._Popart.options["outlineThreshold"] == 1.5 and opts.log_dir == "logs"
    opts.loadFromFile(file("replicationFactor(1)"))  # later files override what they name
    assert (opts.replication_factor, opts.Training.gradient_accumulation) == (1, 3)


@spec("options/7", names=["poptorch.ConfigFileError"])
def test_syntax_errors(file):
    assert poptorch.ConfigFileError is poptorch.options.ConfigFileError
    opts = poptorch.Options()
    path = file("# comment", "deviceIterations(3)", "", "replicationFactor(2", "logDir('x')")
    with pytest.raises(poptorch.ConfigFileError) as raised:
        opts.loadFromFile(path)
    text = str(raised.value)
    for part in ("SyntaxError", "line 2", "my.conf", "options.replicationFactor(2", "never closed"):
        assert part in text
    assert opts.device_iterations == 1  # nothing is applied


@spec("options/7", names=["poptorch.ConfigFileError"])
@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("noSuchOption(1)", AttributeError),
        ("deviceIterations(1.5)", AssertionError),
        ("deviceIterations()", TypeError),
        ("deviceIterations(1 / 0)", ZeroDivisionError),
        ("deviceIterations(unknown)", NameError),
        ("Jit.traceModel(True)", ValueError),
    ],
)
def test_other_errors_pass_through(file, line, error):
    opts = poptorch.Options()
    with pytest.raises(error) as raised:
        opts.loadFromFile(file("replicationFactor(2)", line))
    assert not isinstance(raised.value, poptorch.ConfigFileError) and opts.replication_factor == 2


@spec("options/7", names=["poptorch.ConfigFileError"])
def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError):
        poptorch.Options().loadFromFile(str(tmp_path / "absent"))
    (tmp_path / "bytes").write_bytes(b"deviceIterations(1)\n\xff\xfe\n")
    with pytest.raises(poptorch.Error, match="E0712"):
        poptorch.Options().loadFromFile(str(tmp_path / "bytes"))
    (tmp_path / "nul").write_bytes(b"deviceIterations(\0)\n")
    with pytest.raises(poptorch.ConfigFileError, match="line 1"):
        poptorch.Options().loadFromFile(str(tmp_path / "nul"))
    frozen = poptorch.Options()
    frozen._freeze()
    (tmp_path / "good").write_text("deviceIterations(2)")
    with pytest.raises(AttributeError):
        frozen.loadFromFile(str(tmp_path / "good"))


@spec("options/8", "options/2/from_json", names=["Options.from_json"])
def test_from_json():
    opts = poptorch.Options()
    text = json.dumps(
        {
            "deviceIterations": 3,
            "outputMode": ["OutputMode.EveryN", 2],
            "connectionType": "ConnectionType.OnDemand",
            "Precision.enableStochasticRounding": True,
            "Training.accumulationAndReplicationReductionType": "ReductionType.Sum",
            "_Popart.set": ["saveInitializersToFile", "a.onnx"],
            "modelName": "NoEnum.Name",
            "logDir": "OutputMode.NoMember",
            "setAvailableMemoryProportion": {"IPU0": 0.5},
            "appendToLocationExcludes": ["x", "y"],
        }
    )
    assert opts.from_json(text) is opts
    assert (opts.device_iterations, opts.output_mode, opts.output_return_period) == (3, 1, 2)
    assert opts.connection_type == poptorch.ConnectionType.OnDemand
    assert opts._Popart.options["enableStochasticRounding"] is True
    assert opts._Popart.options["saveInitializersToFile"] == "a.onnx"
    assert opts.Training.accumulation_and_replication_reduction_type == poptorch.ReductionType.Sum
    assert (opts.model_name, opts.log_dir) == ("NoEnum.Name", "OutputMode.NoMember")
    assert opts.available_memory_proportion == {0: 0.5} and opts.source_location_excludes[-2:] == ["x", "y"]


@spec("options/8", names=["Options.from_json"])
def test_wrong_json():
    for text in ("", "{", "nothing"):
        with pytest.raises(json.JSONDecodeError):
            poptorch.Options().from_json(text)
    for text in ("[]", "3", '"a"', "null"):
        with pytest.raises(poptorch.Error, match="E0702"):
            poptorch.Options().from_json(text)
    with pytest.raises(AttributeError):
        poptorch.Options().from_json('{"noSuch": 1}')
    with pytest.raises(AttributeError):
        poptorch.Options().from_json('{"Training.noSuch": 1}')
    with pytest.raises(poptorch.Error, match="E0701"):
        poptorch.Options().from_json('{"device_iterations": 3}')  # a value, nothing to call
    with pytest.raises(AssertionError):
        poptorch.Options().from_json('{"deviceIterations": 1.5}')


@spec("options/8", names=["variables.POPTORCH_DEFAULT_OPTIONS", "variables.POPTORCH_CACHE_DIR"])
def test_defaults_from_the_environment(monkeypatch):
    monkeypatch.setenv("POPTORCH_CACHE_DIR", "first")
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"deviceIterations": 6, "enableExecutableCaching": "second"}')
    opts = poptorch.Options()
    assert opts.device_iterations == 6 and opts._Popart.options["cachePath"] == "second"
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", "")
    opts = poptorch.Options()
    assert opts.device_iterations == 1 and opts._Popart.options["cachePath"] == "first"

"""Files of other writers, and damaged files: they hold only data of this program, or cause a typed error."""

import os
import pickle

import abele
import poptorch
import pytest
import torch
from abele._native import core


class Evil:
    """Makes a file when it is read from a pickle."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return open, (self.marker, "w")


def saved(path, **kwargs):
    executor = poptorch.inferenceModel(torch.nn.Linear(3, 2))
    executor.compile(torch.zeros(1, 3))
    executor.save(path, **kwargs)
    return executor


def changed(path, **fields):
    """The file with other contents, and with the checksum that save() writes."""
    file = core().ProgramFile.read(os.fsencode(path))
    for name, value in fields.items():
        setattr(file, name, value)
    file.write(os.fsencode(path))


def test_no_code_of_a_file_runs_in_load_executable(tmp_path):
    path, marker = tmp_path / "file", tmp_path / "marker"
    saved(path)
    changed(path, objects=pickle.dumps(Evil(str(marker))))
    model = torch.nn.Linear(3, 2)
    executor = poptorch.inferenceModel(model)
    executor.loadExecutable(path)
    x = torch.ones(1, 3)
    assert torch.equal(executor(x), model(x)) and not marker.exists()
    changed(path, metadata=pickle.dumps(Evil(str(marker))))
    for load in (poptorch.load, poptorch.inferenceModel(torch.nn.Linear(3, 2)).loadExecutable):
        with pytest.raises(poptorch.Error, match="E0712 file: the file names .*open") as error:
            load(path)
        assert "add_safe_globals" in str(error.value) and not marker.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cposixpath\nos.system\n(S'true'\ntR.",
        b"ctorch.storage\n_load_from_bytes\n(S'x'\ntR.",
        b"ctorch\nload\n(S'x'\ntR.",
        b"cabsent_module\nThing\n.",
        b"not a pickle",
        b"",
    ],
)
def test_metadata_names_plain_classes_only(tmp_path, data):
    saved(tmp_path / "file")
    changed(tmp_path / "file", metadata=data)
    with pytest.raises(poptorch.Error, match="E0712"):
        poptorch.inferenceModel(torch.nn.Linear(3, 2)).loadExecutable(tmp_path / "file")


class ShortOptions(poptorch.Options):
    """A program's own class of options, such as popdist's."""


def test_options_of_a_class_of_the_program_come_back(tmp_path):
    executor = poptorch.inferenceModel(torch.nn.Linear(3, 2), ShortOptions().deviceIterations(2))
    executor.compile(torch.zeros(2, 3))
    executor.save(tmp_path / "file")
    loaded = poptorch.load(tmp_path / "file")
    assert type(loaded.options) is ShortOptions and loaded.options.device_iterations == 2


def test_options_of_a_file_are_its_text_in_both_languages(tmp_path, monkeypatch):
    path = tmp_path / "file"
    saved(path)
    changed(path, options='{"setExecutionStrategy": "ShardedExecution(Stage(\\"a\\").ipu(1))", "logDir": "there"}')
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"deviceIterations": 5}')
    options = poptorch.load(path).options
    assert options.log_dir == "there" and options.device_iterations == 1
    strategy = options._execution_strategy
    assert isinstance(strategy, poptorch.ShardedExecution) and strategy.stage("a")._ipu == 1


def test_a_pickled_module_is_read_last_and_with_a_warning(tmp_path, capfd):
    path, marker = tmp_path / "file", tmp_path / "marker"
    executor = saved(path)
    x = torch.ones(1, 3)
    assert torch.equal(poptorch.load(path)(x), executor(x))
    assert "load only files that you trust" in capfd.readouterr().err
    changed(path, objects=pickle.dumps(Evil(str(marker))), program=b"no program")
    with pytest.raises(poptorch.Error, match="E0501"):
        poptorch.load(path)
    assert not marker.exists()


def test_abele_reads_a_pickled_module_only_when_told_to_trust_it(tmp_path):
    path = tmp_path / "file"
    model = torch.nn.Linear(3, 2)
    executor = abele.inferenceModel(model)
    x = torch.ones(1, 3)
    expected = executor(x)
    executor.save(path)
    with pytest.raises(abele.Error, match="E0712 file: the module of a file is a pickle.*"):
        abele.load(path)
    loaded = abele.load(path, trust=True)
    assert isinstance(loaded, abele.CompiledModel) and torch.equal(loaded(x), expected)


@pytest.mark.parametrize(
    "line",
    [
        "logDir((lambda: 'x')())",
        "logDir(options.__class__.__name__)",
        "logDir((x := 'y'))",
        "logDir([poptorch for poptorch._x in [1]])",
        "logDir(str(poptorch.Options()._values))",
        "source_location_excludes[0] = 'x'",
        "deviceIterations(2); x = 3",
        "deviceIterations",
        "deviceIterations(2) if True",
        "deviceIterations(0777)",
        "import os",
        "deviceIterations(2); import os",
        "deviceIterations(" + "-" * 100_000 + "1)",
        "deviceIterations(" + "[" * 1_000 + "]" * 1_000 + ")",
    ],
)
def test_a_configuration_file_is_parsed_and_never_run(tmp_path, line):
    path = tmp_path / "my.conf"
    path.write_text(f"deviceIterations(5)\n{line}\n")
    options = poptorch.Options()
    with pytest.raises(poptorch.ConfigFileError, match="line 2 of my.conf"):
        options.loadFromFile(path)
    assert options.device_iterations == 1  # nothing was applied


def test_a_configuration_file_knows_no_names_of_python(tmp_path):
    path = tmp_path / "my.conf"
    path.write_text("logDir(__import__('os').getcwd())\n")
    with pytest.raises(NameError, match="__import__"):
        poptorch.Options().loadFromFile(path)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("logDir(open('marker', 'w').name)", NameError),
        ("logDir(poptorch.options.os.getcwd())", AttributeError),
        ("logDir((each for each in [1]).gi_frame)", AttributeError),
        ("logDir(poptorch.Stage.blocks)", AttributeError),
        ("logDir(str.format)", AttributeError),
        ("logDir(int.from_bytes)", AttributeError),
        ("logDir('x'); poptorch.Stage.blocks = 1", AttributeError),
        ("logDir('x'); poptorch.OutputMode.All = 1", AttributeError),
        ("logDir('x'); poptorch.Stage = 1", AttributeError),
        ("logDir(type('x').mro)", NameError),
        ("deviceIterations([1][5])", IndexError),
        ("deviceIterations({'a': 1}['b'])", KeyError),
        ("logDir('{0.__class__}'.format(options))", AttributeError),
        ("deviceIterations(2 ** 4096)", AssertionError),
    ],
)
def test_a_configuration_file_reaches_options_only(tmp_path, monkeypatch, line, error):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my.conf"
    path.write_text(f"{line}\n")
    with pytest.raises(error):
        poptorch.Options().loadFromFile(path)
    assert os.listdir(tmp_path) == ["my.conf"]


def test_expressions_of_a_configuration_file_are_pythons(tmp_path):
    path = tmp_path / "my.conf"
    lines = (
        "deviceIterations(0x10 if options.replication_factor == 1 else 1_000)",
        "setExecutionStrategy(poptorch.PipelinedExecution(*[poptorch.Stage(f'B{i}') for i in range(3)]))",
        "setAvailableMemoryProportion({f'IPU{i}': 0.1 * (i + 1) for i in range(2)})",
        "appendToLocationExcludes(*sorted({'b', 'a'}), 'c%d' % len('four'))",
        "Training.gradientAccumulation(**dict(gradient_accumulation=sum(range(4))))",
        "replication_factor += 1; options.replication_factor *= 2",
        "modelName(', '.join(reversed('a-b'.split('-'))).upper()[:4] + f'{255:#x}' 'z')",
        "logDir(str(divmod(-7, 2)) + ('x' if not 1 < 2 <= 3 else 'y'))",
        "_Popart.options['outlineThreshold'] = 1.5 if options._Popart.options.get('x') is None else 0.0",
        "outputMode(poptorch.OutputMode(1), 2) if options.output_mode == poptorch.OutputMode.Default else None",
    )
    path.write_text("\n".join(lines))
    ours, run = poptorch.Options().loadFromFile(path), poptorch.Options()
    for line in lines:
        exec(f"options.{line}", {"options": run, "poptorch": poptorch})
    assert repr(ours) == repr(run)
    assert ours._execution_strategy.stage("B2") is not None and ours.available_memory_proportion == {0: 0.1, 1: 0.2}


def test_errors_of_a_configuration_file_name_the_line(tmp_path):
    path = tmp_path / "my.conf"
    for line, kind, text in (
        ("logDir([1, 2][7])", IndexError, "E0702 option-value: IndexError: list index out of range"),
        ("logDirs('x')", AttributeError, "did you mean logDir"),
        ("Training.gradient(2)", AttributeError, "no option 'gradient'"),
        ("deviceIterations(0)", poptorch.Error, "device_iterations is 0"),
        ("deviceIterations('x')", AssertionError, "device_iterations is"),
        ("deviceIterations()", TypeError, "no device_iterations"),
        ("anchorTensor('a')", TypeError, "long_name"),
        ("log_dir = 3", AssertionError, "log_dir"),
        ("outputMode(poptorch.OutputMode.Every)", AttributeError, "Every"),
        ("setExecutionStrategy(3)", AssertionError, "an execution strategy"),
    ):
        path.write_text(f"# comment\ndeviceIterations(2)\n\n{line}\n")
        with pytest.raises(kind) as raised:
            poptorch.Options().loadFromFile(path)
        for part in (text, f"line 2 of my.conf: options.{line}"):
            assert part in str(raised.value)
        assert isinstance(raised.value, poptorch.Error)
    path.write_text("deviceIterations(int(2.0 ** 1024))\n")
    with pytest.raises(OverflowError) as overflow:
        poptorch.Options().loadFromFile(path)
    assert overflow.value.__notes__ == ["line 1 of my.conf: options.deviceIterations(int(2.0 ** 1024))"]


def test_json_reaches_options_only():
    for text in ('{"deviceIterations.__func__.__builtins__.clear": []}', '{"_values.clear": []}'):
        with pytest.raises(poptorch.Error, match="E0701"):
            poptorch.Options().from_json(text)


def test_names_that_are_no_text(tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    os.mkdir(folder)
    path = os.path.join(folder, os.fsdecode(b"\xff.poptorch"))
    executor = saved(path)
    x = torch.ones(1, 3)
    assert torch.equal(poptorch.load(path)(x), executor(x))
    options = poptorch.Options().enableExecutableCaching(folder)
    poptorch.inferenceModel(torch.nn.Linear(3, 2), options)(x)
    assert b"\xff.poptorch" in {os.fsencode(name) for name in os.listdir(folder)}
    with pytest.raises(poptorch.Error, match=r"E0712[^$]*absent\\xff"):
        poptorch.load(os.path.join(folder, os.fsdecode(b"absent\xff")))
    config = os.path.join(folder, os.fsdecode(b"\xfe.conf"))
    with open(config, "w") as file:
        file.write("deviceIterations(3)")
    assert poptorch.Options().loadFromFile(config).device_iterations == 3


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"ABELEPTF")
    os.truncate(tmp_path / "large", 1 << 40)
    for path, code in (
        (tmp_path / "pipe", "E0712"),
        ("/dev/zero", "E0712"),
        (tmp_path, "E0712"),
        (tmp_path / "large", "E0712"),
    ):
        with pytest.raises(poptorch.Error, match=code):
            poptorch.load(path)
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(poptorch.Error, match="E0712"):
            poptorch.Options().loadFromFile(path)
    with pytest.raises(poptorch.Error, match="E0712"):
        saved(tmp_path / "pipe")


def test_save_follows_no_link_and_leaves_nothing_behind(tmp_path):
    (tmp_path / "victim").write_text("untouched")
    os.symlink(tmp_path / "victim", tmp_path / "file")
    (tmp_path / ".abele-0123456789abcdef.part").write_text("of a process that died")
    saved(tmp_path / "file")
    assert (tmp_path / "victim").read_text() == "untouched" and not (tmp_path / "file").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["file", "victim"]

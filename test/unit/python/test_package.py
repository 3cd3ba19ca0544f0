"""The effects of `import poptorch`."""

import logging
import pickle
import subprocess
import sys

import abele
import poptorch
import pytest
import torch


def test_names_that_are_not_there_say_so():
    with pytest.raises(AttributeError, match="no attribute"):
        poptorch.noSuchName  # noqa: B018


def test_enums_have_their_values():
    assert [int(m) for m in poptorch.OutputMode] == [0, 1, 2, 3, 4]
    assert poptorch.enums.VariableRetrievalMode.AllReplicas == 2
    assert poptorch.OverlapMode.NoOverlap.value == "no_overlap"
    assert poptorch.MatMulSerializationMode.Disabled.value == "none"


def test_errors_carry_fields():
    error = poptorch.createPoptorchError("text")
    assert (error.message, error.type, error.location) == ("text", "poptorch_py_error", "")
    assert str(error).splitlines()[0] == "text" and "poptorch_py_error" in str(error)
    assert issubclass(poptorch.RecoverableError, poptorch.Error)
    assert issubclass(poptorch.UnrecoverableError, poptorch.Error)


def test_long_messages_go_to_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = poptorch.createPoptorchError("\n".join(f"line {i}" for i in range(200)))
    assert "poptorch_error.log" in str(error) and len(str(error).splitlines()) < 5
    assert "line 199" in (tmp_path / "poptorch_error.log").read_text()


def test_log_levels():
    before = poptorch.logger.level
    try:
        for level, expected in (
            ("TRACE", logging.DEBUG),
            ("ERR", logging.ERROR),
            (2, logging.INFO),
            (6, logging.CRITICAL),
        ):
            poptorch.setLogLevel(level)
            assert poptorch.logger.level == expected
        for wrong in ("LOUD", 5, -1):
            with pytest.raises(ValueError, match="WARN"):
                poptorch.setLogLevel(wrong)
    finally:
        poptorch.setLogLevel("WARN")  # also sets the native part
        poptorch.logger.setLevel(before)


def test_hooks_are_checked_and_removable():
    handle = poptorch.registerPreCompileHook(lambda: None)
    handle.remove()
    with pytest.raises(RuntimeError):
        poptorch.registerPostCompileHook(3)


def test_channels_do_nothing():
    channel = poptorch.profiling.Channel("c")
    model = torch.nn.ReLU()
    assert channel.instrument(model, "forward") is model
    with channel.tracepoint("t"):
        pass


def test_devices(monkeypatch):
    assert poptorch.ipuHardwareVersion() in (2, 21) and poptorch.ipuHardwareIsAvailable(4)
    assert not poptorch.ipuHardwareIsAvailable(1000)
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")
    assert not poptorch.ipuHardwareIsAvailable()
    monkeypatch.setenv("ABELE_EMULATED_DEVICES", "0")
    with pytest.raises(AssertionError):
        poptorch.ipuHardwareVersion()


def test_modules_of_both_packages_are_one_and_show_poptorchs_name():
    assert poptorch.optim is abele.optim and sys.modules["poptorch.optim"] is abele.optim
    assert f"{poptorch.Error}" == "<class 'poptorch._errors.Error'>" and poptorch.Error is abele.Error
    for shown in (poptorch.Options, poptorch.OutputMode, poptorch.optim.SGD, poptorch.identity_loss):
        assert shown.__module__.startswith("poptorch.")
        assert getattr(sys.modules[shown.__module__], shown.__name__) is shown
    assert issubclass(abele.CompiledModel, poptorch.PoplarExecutor)
    assert isinstance(abele.inferenceModel(torch.nn.Linear(2, 2)), poptorch.PoplarExecutor)


def test_pickles_may_name_either_package():
    options = poptorch.Options().deviceIterations(3)
    data = pickle.dumps(options, protocol=2)
    assert b"cpoptorch.options\n" in data
    for text in (data, data.replace(b"cpoptorch.", b"cabele.")):
        assert pickle.loads(text).device_iterations == 3


WITHOUT_POPTORCH = """
import sys
sys.modules["poptorch"] = None  # importing it raises
import abele, pickle, torch

class Sorted(torch.nn.Module):
    def forward(self, x):
        return torch.unique(x)

source, target = sys.argv[1:]
model = abele.load(source, trust=True)
model(torch.ones(2, 4))
model.save(target)
assert type(pickle.loads(pickle.dumps(model.options))) is abele.Options
try:
    abele.inferenceModel(Sorted())(torch.ones(2))
except abele.Error as error:
    assert error.code == "E0101" and error.type == "poptorch_cpp_error"
    print(str(error).splitlines()[1])
"""


def test_abele_runs_where_poptorch_is_absent(tmp_path):
    source, target, program = tmp_path / "a.poptorch", tmp_path / "b.poptorch", tmp_path / "program.py"
    model = poptorch.inferenceModel(torch.nn.Linear(4, 4))
    expected = model(torch.ones(2, 4))
    model.save(source)
    program.write_text(WITHOUT_POPTORCH)
    result = subprocess.run([sys.executable, program, source, target], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "program.py:8" in result.stdout
    assert torch.equal(poptorch.load(target)(torch.ones(2, 4)), expected)


def test_native_errors_have_a_text_before_python_registers_their_classes():
    code = "import torch, abele._abele as native; native.ProgramFile.read('/none')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "RuntimeError: E0712 file: a file cannot be read" in result.stderr

"""spec executor.md section 10: exceptions and what they carry."""

import os

import poptorch
import pytest
import torch
from poptorch import poptorch_core


@pytest.mark.spec(
    "executor/10",
    names=["poptorch.Error", "poptorch.RecoverableError", "poptorch.UnrecoverableError", "poptorch.poptorch_core"],
)
def test_classes():
    assert issubclass(poptorch.Error, Exception)
    assert issubclass(poptorch.RecoverableError, poptorch.Error)
    assert issubclass(poptorch.UnrecoverableError, poptorch.Error)
    assert poptorch_core.Error is poptorch.Error
    assert poptorch_core.RecoverableError is poptorch.RecoverableError
    assert poptorch_core.UnrecoverableError is poptorch.UnrecoverableError


TYPES = {
    "Poptorch": (poptorch.Error, "poptorch_cpp_error"),
    "Popart": (poptorch.Error, "popart_exception"),
    "PopartInternal": (poptorch.Error, "popart_internal_exception"),
    "Poplibs": (poptorch.Error, "poplibs_exception"),
    "PoplarUnrecoverable": (poptorch.UnrecoverableError, "poplar_unrecoverable_runtime_error"),
    "PoplarUnknown": (poptorch.Error, "poplar_unknown_runtime_error"),
    "PoplarRecoverableFullReset": (poptorch.RecoverableError, "poplar_recoverable_runtime_error"),
    "PoplarLinkError": (poptorch.Error, "poplar_link_error"),
}


@pytest.mark.spec("executor/10", names=["Error.message", "Error.type", "Error.location", "Error.recovery_action"])
@pytest.mark.parametrize("name", TYPES)
def test_fault_injection(name):
    expected_class, expected_type = TYPES[name]
    for _ in range(2):  # the context of one error does not leak into the next
        with pytest.raises(poptorch.Error) as caught:
            poptorch_core._throwTestError(getattr(poptorch_core.TestErrorType, name))
        error = caught.value
        assert type(error) is expected_class and error.type == expected_type
        for attribute in ("message", "type", "location"):
            assert isinstance(getattr(error, attribute), str)
        assert error.message and error.location
        assert error.location not in error.message
        for part in (error.message, error.type, error.location):
            assert part in str(error)
        assert str(error).count(error.location) == 1
        if expected_class is poptorch.RecoverableError:
            assert error.recovery_action == "FULL_RESET" and "FULL_RESET" in str(error)
        else:
            assert not hasattr(error, "recovery_action")


@pytest.mark.spec("executor/10", names=["poptorch.createPoptorchError", "Error.message", "Error.type"])
def test_errors_of_the_python_layer():
    error = poptorch.createPoptorchError("something is wrong")
    assert type(error) is poptorch.Error
    assert (error.type, error.location, error.message) == ("poptorch_py_error", "", "something is wrong")
    assert "something is wrong" in str(error) and "poptorch_py_error" in str(error)
    with pytest.raises(poptorch.Error) as caught:
        poptorch.inferenceModel(torch.nn.ReLU(), {})
    assert caught.value.type == "poptorch_py_error" and caught.value.location == ""


@pytest.mark.spec("executor/10", names=["Error.message", "Error.type"])
def test_errors_of_the_native_layer():
    class Reads(torch.nn.Module):
        def forward(self, x):
            return x * x.sum().item()

    with pytest.raises(poptorch.Error) as caught:
        poptorch.inferenceModel(Reads())(torch.ones(2))
    assert caught.value.type == "poptorch_cpp_error"
    assert caught.value.message in str(caught.value) and caught.value.type in str(caught.value)


@pytest.mark.spec("executor/10", names=["Error.message"])
@pytest.mark.parametrize(("lines", "shortened"), [(80, False), (81, True)])
def test_long_messages_go_to_a_file(lines, shortened, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "\n".join(f"line {i}" for i in range(lines))
    error = poptorch.createPoptorchError(text)
    assert os.path.exists("poptorch_error.log") == shortened
    if shortened:
        assert "poptorch_error.log" in error.message and "poptorch_error.log" in str(error)
        assert len(error.message.splitlines()) < 10
        assert (tmp_path / "poptorch_error.log").read_text() == text
    else:
        assert error.message == text


@pytest.mark.spec("executor/10", names=["Error.location"])
def test_a_failing_step_says_where_and_the_executor_stays_usable():
    class Look(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(4, 2)

        def forward(self, index):
            return self.table(index)

    executor = poptorch.inferenceModel(Look())
    good = torch.tensor([0, 3], dtype=torch.int32)
    expected = executor(good)
    with pytest.raises(poptorch.Error) as caught:
        executor(torch.tensor([0, 9], dtype=torch.int32))
    assert caught.value.location and caught.value.location in str(caught.value)
    assert torch.equal(executor(good), expected)

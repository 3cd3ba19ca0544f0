"""E0608: a model is called from within its own call. In C++: test/unit/api/threads_test.cc."""

import threading

import poptorch
import pytest
import torch

X = torch.ones(4, 3)


def _code_of(call):
    try:
        call()
    except poptorch.Error as error:
        return error.code
    return ""


class Calls(torch.nn.Module):
    """Two stages; the second calls a function on the host, on its worker's thread."""

    def __init__(self, name, during):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.host = poptorch.CPU(self.on_host, name)
        self.during = during

    def forward(self, x):
        poptorch.Block.start("first", ipu_id=0)
        y = self.linear(x)
        poptorch.Block.start("second", ipu_id=1)
        return self.host(y)

    def on_host(self, y):
        self.during()
        return y


def _wrapped(name, during):
    return poptorch.inferenceModel(Calls(name, during), poptorch.Options().deviceIterations(4))


@pytest.mark.parametrize("what", ["call", "report", "copyWeightsToDevice", "save"])
def test_a_call_from_a_host_function(what, tmp_path):
    codes, inside = [], []
    calls = {
        "call": lambda: executor(X),
        "report": lambda: executor.report(),
        "copyWeightsToDevice": lambda: executor.copyWeightsToDevice(),
        "save": lambda: executor.save(tmp_path / "file"),
    }
    executor = _wrapped(f"own {what}", lambda: inside and codes.append(_code_of(calls[what])))
    expected = executor(X)
    inside.append(True)
    assert torch.equal(executor(X), expected)
    assert codes == ["E0608"] * 4
    inside.clear()
    assert torch.equal(executor(X), expected)


def test_models_that_wait_for_each_other():
    both, codes, calls = threading.Barrier(2, timeout=60), [], [False, False]

    def during(index):
        if calls[index]:
            calls[index] = False
            both.wait()
            codes.append(_code_of(lambda: executors[1 - index](X)))

    executors = [_wrapped(f"model {index}", lambda index=index: during(index)) for index in range(2)]
    for executor in executors:
        executor(X)
    calls[:] = [True, True]
    threads = [threading.Thread(target=executor, args=(X,)) for executor in executors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == ["", "E0608"]

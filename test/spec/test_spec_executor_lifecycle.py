"""spec executor.md sections 6 and 7: who has the newest weights, and the life of an executor."""

import gc
import sys

import poptorch
import pytest
import torch

LR = 0.1


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.fc = torch.nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("shift", torch.zeros(1))

    def forward(self, x, target=None):
        self.calls += 1
        out = self.fc(x) + self.shift
        if target is None:
            return out
        return out, torch.nn.functional.mse_loss(out, target)


X, TARGET = torch.linspace(-1, 1, 12).view(4, 3), torch.linspace(0, 1, 8).view(4, 2)


def training(model, opts=None, **values):
    return poptorch.trainingModel(model, opts, poptorch.optim.SGD(model.parameters(), lr=LR, **values))


def eager_steps(number, **values):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, **values)
    for _ in range(number):
        optimizer.zero_grad()
        model(X, TARGET)[1].backward()
        optimizer.step()
    return model


def same(a, b):
    return torch.equal(a.fc.weight, b.fc.weight) and torch.equal(a.fc.bias, b.fc.bias)


# --- section 6 -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("executor/6/training_call", "executor/6/compile", names=["PoplarExecutor.copyWeightsToHost"])
def test_a_training_call_makes_the_host_stale():
    model = Net()
    executor = training(model)
    for number in (1, 2):
        executor(X, TARGET)
        raw = executor._executable.session
        assert raw is not None
        assert executor.copyWeightsToHostIfNeeded() is True
        assert executor.copyWeightsToHostIfNeeded() is False
        assert same(model, eager_steps(number))
    assert model.copyWeightsToHostIfNeeded() is False
    executor(X, TARGET)
    executor.copyWeightsToHost()
    assert executor.copyWeightsToHostIfNeeded() is False and same(model, eager_steps(3))


@pytest.mark.spec(
    "executor/6/inference_call_on_a_model_shared_with_a_live_training_executor",
    names=["poptorch.inferenceModel", "poptorch.trainingModel"],
)
def test_inference_of_a_model_in_training_sees_its_weights():
    model = Net()
    before = poptorch.inferenceModel(model)
    before.compile(X)
    executor = training(model)
    after = poptorch.inferenceModel(executor)
    uploads = []
    for number in (1, 2):
        executor(X, TARGET)
        expected = eager_steps(number)(X)
        for inferred in (before, after):
            assert torch.equal(inferred(X), expected)
            session = inferred._executable.session
            uploads.append(session)
            assert torch.equal(inferred(X), expected)


@pytest.mark.spec("executor/6/CPU_training_or_manual_edit_after_compile", names=["PoplarExecutor.copyWeightsToDevice"])
def test_edits_on_the_host_are_not_seen_before_they_are_copied_to_the_device():
    model = Net()
    executor = poptorch.inferenceModel(model)
    expected = executor(X)
    with torch.no_grad():
        model.fc.bias += 1
    assert torch.equal(executor(X), expected)
    executor.copyWeightsToDevice()
    assert torch.equal(executor(X), model(X))


@pytest.mark.spec("executor/6/save", names=["PoplarExecutor.copyWeightsToDevice"])
def test_copy_to_the_device_loses_progress_that_was_not_read():
    model = Net()
    executor = training(model)
    executor.compile(X, TARGET)
    for _ in range(3):
        executor(X, TARGET)
    executor.copyWeightsToDevice()
    assert executor.copyWeightsToHostIfNeeded() is False
    assert same(model, Net())
    executor(X, TARGET)
    assert same(model, eager_steps(1))


@pytest.mark.spec(names=["PoplarExecutor.copyWeightsToHost", "PoplarExecutor.copyWeightsToDevice"])
def test_copies_need_a_compiled_executor():
    executor = training(Net())
    for _ in range(2):
        for call in (executor.copyWeightsToHost, executor.copyWeightsToDevice, executor.copyNamedBuffersToDevice):
            with pytest.raises(poptorch.Error):
                call()
        assert executor.copyWeightsToHostIfNeeded() is False
        executor(X, TARGET)
        executor.destroy()


@pytest.mark.spec(
    "options/2/updatableNamedBuffers",
    names=["PoplarExecutor.copyNamedBuffersToDevice", "Options.updatableNamedBuffers"],
)
def test_named_buffers():
    model = Net()
    opts = poptorch.Options().updatableNamedBuffers(["shift"])
    executor = poptorch.inferenceModel(model, opts)
    with pytest.raises(poptorch.Error):
        executor.copyNamedBuffersToDevice()
    before = executor(X)
    with torch.no_grad():
        model.shift += 2
        model.fc.bias += 100
        model.calls -= 1000
    executor.copyNamedBuffersToDevice()
    assert torch.equal(executor(X), before + 2)
    executor.copyWeightsToHost()
    assert model.calls == 2
    plain = poptorch.inferenceModel(Net())
    plain(X)
    with pytest.raises(poptorch.Error):
        plain.copyNamedBuffersToDevice()
    wrong = poptorch.inferenceModel(Net(), poptorch.Options().updatableNamedBuffers(["nothing"]))
    with pytest.raises(poptorch.Error, match="E0702 .*no buffer nothing(?s:.*)shift"):
        wrong(X)
    assert not wrong.isCompiled()
    parameter = poptorch.inferenceModel(Net(), poptorch.Options().updatableNamedBuffers(["fc.bias"]))
    with pytest.raises(poptorch.Error, match="no buffer fc.bias"):
        parameter.compile(X)


# --- section 7 -------------------------------------------------------------------------------------------------------


@pytest.mark.spec(
    "executor/7/compile", "executor/7/isCompiled", names=["PoplarExecutor.compile", "PoplarExecutor.isCompiled"]
)
def test_compile_does_not_run(caplog):
    model = Net()
    executor = training(model)
    assert not executor.isCompiled() and executor._executable is None
    executor.compile(X, target=TARGET)
    assert executor.isCompiled() and executor._executable is not None and executor.isAttachedToDevice()
    assert same(model, Net()) and model.calls == 0
    poptorch.logger.propagate = True
    executor.compile(X, TARGET)
    assert "has no effect" in caplog.text
    caplog.clear()
    executor.compile(X[:1], TARGET[:1])  # its arguments do not matter
    executor.compile()
    assert caplog.text.count("has no effect") == 2
    executor(X, TARGET)
    assert same(model, eager_steps(1))


@pytest.mark.spec(
    "executor/7/attachToDevice",
    "executor/7/detachFromDevice",
    "executor/7/isCompiled",
    names=[
        "PoplarExecutor.attachToDevice",
        "PoplarExecutor.detachFromDevice",
        "PoplarExecutor.isAttachedToDevice",
    ],
)
def test_attach_and_detach():
    model = Net()
    executor = training(model, momentum=0.9)
    for call in (executor.attachToDevice, executor.detachFromDevice):
        with pytest.raises(poptorch.Error):
            call()
    executor(X, TARGET)
    assert executor.isAttachedToDevice()
    with pytest.raises(poptorch.Error):
        executor.attachToDevice()
    executor.detachFromDevice()
    assert not executor.isAttachedToDevice() and executor.isCompiled()
    assert executor.copyWeightsToHostIfNeeded() is False and same(model, eager_steps(1))
    with pytest.raises(poptorch.Error):
        executor.detachFromDevice()
    executor.attachToDevice()
    executor(X, TARGET)
    executor.detachFromDevice()
    executor(X, TARGET)  # attaches by itself
    assert executor.isAttachedToDevice() and same(model, eager_steps(3, momentum=0.9))
    executor.detachFromDevice()
    with torch.no_grad():
        model.fc.weight.zero_()
        model.fc.bias.zero_()
    executor.attachToDevice()
    assert torch.equal(executor(X, TARGET)[0], torch.zeros(4, 2))


@pytest.mark.spec("options/2/connectionType", "executor/7/attachToDevice", names=["Options.connectionType"])
def test_connection_types():
    opts = poptorch.Options().connectionType(poptorch.ConnectionType.OnDemand)
    executor = poptorch.inferenceModel(Net(), opts)
    executor.compile(X)
    assert not executor.isAttachedToDevice()
    executor(X)
    assert executor.isAttachedToDevice()
    executor = poptorch.inferenceModel(Net(), poptorch.Options().connectionType(poptorch.ConnectionType.Never))
    executor.compile(X)
    assert executor.isCompiled() and not executor.isAttachedToDevice()
    for call in (lambda: executor(X), executor.attachToDevice):
        with pytest.raises(AssertionError):
            call()
    executor = poptorch.inferenceModel(Net(), poptorch.Options().connectionType(poptorch.ConnectionType.Always))
    executor.compile(X)
    assert executor.isAttachedToDevice()


@pytest.mark.spec(names=["PoplarExecutor.attachToDevice", "PoplarExecutor.detachFromDevice"])
def test_training_and_inference_alternate_on_the_device():
    model = Net()
    opts = poptorch.Options().connectionType(poptorch.ConnectionType.OnDemand)
    train, infer = training(model, opts.clone()), poptorch.inferenceModel(model, opts.clone())
    train.compile(X, TARGET)
    infer.compile(X)
    for number in (1, 2, 3):
        train.attachToDevice()
        train(X, TARGET)
        train.detachFromDevice()
        infer.attachToDevice()
        assert torch.equal(infer(X), eager_steps(number)(X))
        infer.detachFromDevice()


def test_weights_that_no_longer_fit_their_module_are_told_of_when_an_executor_is_released(caplog, monkeypatch):
    raised = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    model = Net()
    executor = training(model)
    executor(X, TARGET)
    model.half()
    executor(X, TARGET)
    with pytest.raises(poptorch.Error, match="E0704"):
        executor.copyWeightsToHost()
    del executor
    gc.collect()
    assert not raised and "fc.weight" in caplog.text


@pytest.mark.spec("executor/7/destroy", names=["PoplarExecutor.destroy"])
def test_destroy():
    model = Net()
    executor = training(model, momentum=0.9)
    executor.destroy()  # nothing at all
    assert type(model).__name__ == "PoptorchNet"
    executor(X, TARGET)
    executor.destroy()
    assert not executor.isCompiled() and not executor.isAttachedToDevice() and executor._executable is None
    assert type(model) is Net and same(model, eager_steps(1))
    executor.destroy()
    executor(X[:2], TARGET[:2])  # recompiles, for other shapes
    assert type(model).__name__ == "PoptorchNet"
    model.destroy()
    assert type(model) is Net and not executor.isCompiled()
    again = training(model)
    again(X, TARGET)
    again.destroy()
    inferred = poptorch.inferenceModel(model)
    inferred(X)
    inferred.destroy()
    assert inferred(X[:1]).shape == (1, 2)


@pytest.mark.spec("executor/7/destroy", names=["PoplarExecutor.destroy"])
def test_destroy_keeps_the_state_of_the_optimizer():
    model = Net()
    executor = training(model, momentum=0.9)
    for _ in range(2):
        executor(X, TARGET)
    executor.destroy()
    for _ in range(2):
        executor(X, TARGET)
    assert same(model, eager_steps(4, momentum=0.9))


@pytest.mark.spec("executor/7/setOptimizer", names=["PoplarExecutor.setOptimizer"])
def test_set_optimizer():
    model, eager = Net(), Net()
    executor = poptorch.trainingModel(model, None, torch.optim.SGD(model.parameters(), lr=0.1))
    for lr in (0.1, 0.01, 0.0):
        executor.setOptimizer(torch.optim.SGD(model.parameters(), lr=lr))
        executor(X, TARGET)
        eager.zero_grad()
        eager(X, TARGET)[1].backward()
        torch.optim.SGD(eager.parameters(), lr=lr).step()
        assert same(model, eager)
    with pytest.raises(poptorch.Error):
        executor.setOptimizer(torch.optim.Adam(model.parameters()))


@pytest.mark.spec("executor/7/model", names=["PoplarExecutor.model", "PoplarExecutor.options"])
def test_properties():
    model, opts = Net(), poptorch.Options().deviceIterations(2)
    executor = poptorch.trainingModel(model, opts)
    assert executor.model is model and executor.options.device_iterations == 2
    assert executor._options.toDict()["device_iterations"] == 2
    with pytest.raises(AttributeError):
        executor.options.deviceIterations(3)


class Noise(torch.nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


@pytest.mark.spec("executor/7/rng_state", names=["PoplarExecutor.rng_state"])
def test_rng_state():
    zeros = torch.zeros(20)
    executor = poptorch.inferenceModel(Noise(), poptorch.Options().randomSeed(42))
    with pytest.raises(poptorch.Error):
        executor.rng_state  # noqa: B018
    with pytest.raises(poptorch.Error):
        executor.rng_state = [1, 2]
    executor(zeros)
    state = executor.rng_state
    assert isinstance(state, list) and all(isinstance(value, int) for value in state) and state[0] == 42
    assert executor.rng_state == state
    results = [executor(zeros) for _ in range(3)]
    assert executor.rng_state != state
    mine = list(state)
    executor.rng_state = mine
    mine[0] = 7
    assert executor.rng_state == state
    for expected in results:
        assert torch.equal(executor(zeros), expected)
    other = poptorch.inferenceModel(Noise())
    other.compile(zeros)
    other.rng_state = state
    other.detachFromDevice()
    other.attachToDevice()
    assert torch.equal(other(zeros), results[0])


@pytest.mark.spec("executor/7/distributed_compile")
def test_a_process_waits_for_the_one_that_compiles(tmp_path):
    """The lock is a file lock: another open description of the folder has to wait until it is given back."""
    import fcntl
    import os

    from poptorch._poplar_executor import POLICY

    opts = poptorch.Options().enableExecutableCaching(str(tmp_path)).outputMode(poptorch.OutputMode.All)
    opts.Distributed.configureProcessId(0, 2)
    native = opts._native.programOptions(False, POLICY)
    assert native.cache_lock and native.cache_path == str(tmp_path)
    seen = []
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody compiles
        fcntl.flock(folder, fcntl.LOCK_UN)
        executor = poptorch.inferenceModel(Noise(), poptorch.Options().enableExecutableCaching(str(tmp_path)))
        executor(torch.zeros(2))
        seen = list(tmp_path.iterdir())
    finally:
        os.close(folder)
    assert len(seen) == 1


@pytest.mark.spec("executor/7/distributed_compile")
def test_several_processes_without_a_cache_are_warned(caplog):
    from poptorch._poplar_executor import POLICY

    opts = poptorch.Options().outputMode(poptorch.OutputMode.All)
    opts.Distributed.configureProcessId(0, 2)
    poptorch.logger.propagate = True
    native = opts._native.programOptions(False, POLICY)
    assert "enableExecutableCaching" in caplog.text
    assert not native.cache_lock and not native.cache_path


@pytest.mark.spec("options/2/modelName", names=["Options.modelName"])
def test_model_names_are_kept():
    executor = poptorch.inferenceModel(Net(), poptorch.Options().modelName("mine"))
    assert executor.options.model_name == "mine" and executor(X).shape == (4, 2)


@pytest.mark.spec(names=["PoplarExecutor.load_state_dict", "PoplarExecutor.state_dict"])
def test_names_that_other_packages_import():
    from poptorch import _impl

    model = Net()
    executor = training(model)
    executor(X, TARGET)
    _impl.unwrapModelIfNecessary(model)
    assert type(model) is Net and same(model, eager_steps(1))
    _impl.rewrapModelIfNecessary(model)
    assert type(model).__name__ == "PoptorchNet"
    executor(X, TARGET)
    assert same(model, eager_steps(2))
    plain = Net()
    _impl.unwrapModelIfNecessary(plain)
    _impl.rewrapModelIfNecessary(plain)
    assert type(plain) is Net

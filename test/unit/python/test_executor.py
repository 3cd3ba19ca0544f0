"""Calls, results and life cycle of executors."""

import collections
import copy
import gc
import pickle
import signal
import sys
import threading
import weakref

import abele
import poptorch
import pytest
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.loss = torch.nn.MSELoss()

    def forward(self, x, target=None):
        out = self.fc(x)
        if target is None:
            return out
        return out, self.loss(out, target)


def inference(forward, opts=None, *, cls=torch.nn.Module):
    """An inference executor of a module with this forward."""
    return poptorch.inferenceModel(type("M", (cls,), {"forward": forward})(), opts)


def iterations(n):
    return poptorch.Options().deviceIterations(n)


# Arguments and results -----------------------------------------------------------------------------------------------
def test_structures_of_arguments_and_results():
    Pair = collections.namedtuple("Pair", "a b")

    def forward(self, x, others, *, flag, scale=2.0):
        return {"sum": x + others["y"][0] if flag else x, "pair": Pair(x * scale, "text"), "none": None, "same": x}

    model = inference(forward)
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    result = model(x, {"y": (y, None), "z": y}, flag=True)
    assert torch.equal(result["sum"], x + y) and torch.equal(result["pair"].a, 2 * x)
    assert type(result["pair"]) is Pair and result["pair"].b == "text" and result["none"] is None
    assert torch.equal(result["same"], x)
    # Another order of keys is the same call.
    assert torch.equal(model(flag=True, others={"z": y, "y": (y, None)}, x=x)["sum"], x + y)
    for wrong in (
        lambda: model(x, {"y": (y, None), "z": y}, flag=False),
        lambda: model(x[:1], {"y": (y, None), "z": y}, flag=True),
        lambda: model(x, {"y": (y, None)}, flag=True),
        lambda: model(x, {"y": (y, 1), "z": y}, flag=True),
    ):
        with pytest.raises(poptorch.Error, match="E0704"):
            wrong()
    with pytest.raises(AssertionError):
        model(x, y, flag=True, colour=3)
    with pytest.raises(poptorch.Error, match="missing"):
        model(x, flag=True)


def test_result_types_are_narrowed():
    model = inference(lambda self, x, y: (x + 1, y.double() * 2, y > 0))
    a, b, c = model(torch.arange(3), torch.ones(3))
    assert (a.dtype, b.dtype, c.dtype) == (torch.int32, torch.float32, torch.bool) and a.tolist() == [1, 2, 3]


def test_inputs_are_adapted_with_a_warning(caplog):
    model = inference(lambda self, x: x * 2)
    x = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    out = model(x)
    assert out.dtype == torch.float32 and not out.requires_grad
    assert torch.equal(out, x.detach().float() * 2) and "float32" in caplog.text and "detached" in caplog.text
    transposed = torch.randn(2, 4, dtype=torch.float64).t()
    assert torch.equal(model(transposed), transposed.float() * 2) and "contiguous" in caplog.text
    for wrong in (torch.empty(0, 2), torch.ones(4, 2, dtype=torch.complex64)):
        with pytest.raises(poptorch.Error):
            inference(lambda self, x: x * 2)(wrong)


@pytest.mark.parametrize(
    "mode, period, rows",
    [
        (poptorch.OutputMode.All, None, [0, 1, 2, 3, 4, 5]),
        (poptorch.OutputMode.Final, None, [5]),
        (poptorch.OutputMode.EveryN, 2, [1, 3, 5]),
    ],
)
def test_output_modes(mode, period, rows):
    opts = iterations(6).outputMode(mode, period)
    x = torch.randn(12, 3)
    values, sums = inference(lambda self, x: (x * 3, x.sum()), opts)(x)
    assert torch.equal(values, torch.cat([x[2 * k : 2 * k + 2] * 3 for k in rows]))
    expected = torch.stack([x[2 * k : 2 * k + 2].sum() for k in rows])
    assert torch.equal(sums, expected if len(rows) > 1 else expected[0])


def test_output_mode_sum():
    x = torch.randn(6, 3)
    opts = iterations(3).outputMode(poptorch.OutputMode.Sum)
    values, sums = inference(lambda self, x: (x * 3, x.sum()), opts)(x)
    assert torch.equal(values, x[:2] * 3 + x[2:4] * 3 + x[4:] * 3) and sums.dim() == 0


def test_default_output_modes():
    opts = iterations(2)
    model = Net()
    inferred = poptorch.inferenceModel(model, opts)
    trained = poptorch.trainingModel(model, opts)
    assert opts.defaultOutputMode()
    assert inferred.options.output_mode == poptorch.OutputMode.All
    assert trained.options.output_mode == poptorch.OutputMode.Final
    with pytest.raises(AttributeError):
        opts.deviceIterations(3)
    out, loss = trained(torch.randn(4, 4), torch.randn(4, 4))
    assert out.shape == (2, 4) and loss.dim() == 0


def test_batches_must_split():
    model = inference(lambda self, x, y: x + y, iterations(3))
    for wrong in ((torch.ones(4, 2), torch.ones(4, 2)), (torch.ones(3, 2), torch.tensor(1.0))):
        with pytest.raises(AssertionError, match="E0703"):
            model(*wrong)


def test_written_arguments_are_written_back():
    def forward(self, x):
        x += 1
        return x * 2

    x = torch.zeros(4, 2)
    assert torch.equal(inference(forward, iterations(2))(x), torch.full((4, 2), 2.0))
    assert torch.equal(x, torch.ones(4, 2))


def test_custom_types():
    class Box:
        def __init__(self, tensor):
            self.tensor = tensor

    class Parser(poptorch.ICustomArgParser):
        def yieldTensors(self, struct):
            yield struct.tensor

        def reconstruct(self, original_structure, tensor_iterator):
            return Box(next(tensor_iterator))

    poptorch.registerCustomArgParser(Box, Parser())
    try:
        result = inference(lambda self, box: [Box(box.tensor * 2)])(Box(torch.ones(2)))
        assert torch.equal(result[0].tensor, torch.full((2,), 2.0))
    finally:
        poptorch.registerCustomArgParser(Box, None)


# State ---------------------------------------------------------------------------------------------------------------
def test_buffers_persist_and_attributes_do_not():
    class Counter(torch.nn.Module):
        def __init__(self, buffer):
            super().__init__()
            if buffer:
                self.register_buffer("i", torch.zeros(1))
            else:
                self.i = torch.zeros(1)

        def forward(self):
            self.i += 1
            return self.i

    kept = Counter(True)
    model = poptorch.inferenceModel(kept)
    assert [model().item(), model().item()] == [1.0, 2.0] and kept.i.item() == 0
    model.copyWeightsToHost()
    assert kept.i.item() == 2
    forgets = poptorch.inferenceModel(Counter(False))
    assert [forgets().item(), forgets().item()] == [1.0, 1.0]


def test_weights_come_back_when_they_are_read():
    model = Net()
    before = model.fc.weight.detach().clone()
    executor = poptorch.trainingModel(model)
    pulls = []
    original = executor.copyWeightsToHost
    executor.copyWeightsToHost = lambda: (pulls.append(1), original())
    batch = torch.randn(2, 4), torch.randn(2, 4)
    executor(*batch)
    assert not pulls
    assert not torch.equal(model.fc.weight, before) and len(pulls) == 1
    model.state_dict(), model.fc.bias.sum(), model(batch[0])
    assert len(pulls) == 1
    for read in (
        lambda: model.state_dict(),
        lambda: torch.equal(model.fc.weight, before),
        lambda: model.fc.weight.data,
        lambda: model(batch[0]),
        lambda: copy.deepcopy(model),
        lambda: list(model.parameters())[0].norm(),
        lambda: executor.state_dict(),
    ):
        executor(*batch)
        pulls.clear()
        read()
        read()
        assert len(pulls) == 1
    executor(*batch)
    assert executor.copyWeightsToHostIfNeeded() and not executor.copyWeightsToHostIfNeeded()


def test_class_wrapping_is_undone_and_does_not_travel(tmp_path):
    model = Net()
    executor = poptorch.trainingModel(model)
    batch = torch.randn(2, 4), torch.randn(2, 4)
    executor(*batch)
    assert type(model).__name__ == "PoptorchNet" and isinstance(model, Net)
    assert isinstance(model.fc.weight, torch.nn.Parameter) and type(copy.copy(model)) is type(model)
    state = model.state_dict()
    assert type(state["fc.weight"]) is torch.Tensor and state["fc.weight"].data_ptr() == model.fc.weight.data_ptr()
    path = tmp_path / "model.pt"
    torch.save(model, path)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(path, weights_only=False)):
        assert type(other) is Net and type(other.fc.weight) is torch.nn.Parameter
        assert torch.equal(other.fc.weight, model.fc.weight)
    with pytest.raises(RuntimeError, match="E0709"):
        poptorch.trainingModel(model)
    model.destroy()
    assert type(model) is Net and type(model.fc.weight) is torch.nn.Parameter and not executor.isCompiled()
    assert torch.equal(state["fc.weight"], model.fc.weight)
    poptorch.trainingModel(model)


def test_copies_of_wrapped_models_keep_their_tensors_apart():
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(20)))
    model[7].weight = model[3].weight
    poptorch.trainingModel(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert len(list(other.parameters())) == 39 and other[7].weight is other[3].weight
        for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
            assert torch.equal(ours, theirs) and ours.data_ptr() != theirs.data_ptr()


def test_dropping_the_executor_frees_it_and_keeps_its_progress():
    model = Net()
    before = model.fc.weight.detach().clone()
    executor = poptorch.trainingModel(model)
    executor(torch.randn(2, 4), torch.randn(2, 4))
    reference = weakref.ref(executor)
    del executor
    gc.collect()
    assert reference() is None
    assert not torch.equal(model.fc.weight.detach(), before)
    poptorch.trainingModel(model)


def test_training_and_inference_share_weights():
    torch.manual_seed(0)
    model = Net()
    early = poptorch.inferenceModel(model)
    trained = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
    late = poptorch.inferenceModel(trained)
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    for _ in range(3):
        trained(x, y)
        assert torch.equal(early(x), late(x))
        assert torch.equal(late(x), torch.nn.functional.linear(x, model.fc.weight, model.fc.bias))
    trained(x, y)
    model.destroy()
    assert torch.equal(late(x), model(x).detach())
    # Manual edits are not seen until they are copied.
    with torch.no_grad():
        model.fc.bias += 1
    stale = late(x)
    late.copyWeightsToDevice()
    assert torch.equal(late(x), model(x).detach()) and not torch.equal(stale, late(x))


def test_load_state_dict_uploads():
    model, other = Net(), Net()
    executor = poptorch.inferenceModel(model)
    x = torch.randn(2, 4)
    executor(x)
    executor.load_state_dict(other.state_dict())
    assert torch.equal(executor(x), other(x).detach())


def test_updatable_buffers():
    class Shift(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("by", torch.zeros(1))

        def forward(self, x):
            return x + self.by

    model = Shift()
    executor = poptorch.inferenceModel(model, poptorch.Options().updatableNamedBuffers(["by"]))
    with pytest.raises(poptorch.Error, match="E0705"):
        executor.copyNamedBuffersToDevice()
    assert executor(torch.ones(1)).item() == 1
    model.by.fill_(5)
    assert executor(torch.ones(1)).item() == 1
    executor.copyNamedBuffersToDevice()
    assert executor(torch.ones(1)).item() == 6


# Life cycle ----------------------------------------------------------------------------------------------------------
def test_life_cycle():
    executor = poptorch.inferenceModel(Net())
    x = torch.randn(2, 4)
    assert not executor.isCompiled() and not executor.isAttachedToDevice() and executor._executable is None
    executor.destroy()
    for early in (executor.copyWeightsToHost, executor.copyWeightsToDevice, executor.attachToDevice):
        with pytest.raises(poptorch.Error, match="E0705"):
            early()
    executor.compile(x)
    assert executor.isCompiled() and executor.isAttachedToDevice() and executor._executable is not None
    expected = executor(x)
    with pytest.raises(poptorch.Error):
        executor.attachToDevice()
    executor.detachFromDevice()
    assert not executor.isAttachedToDevice()
    with pytest.raises(poptorch.Error):
        executor.detachFromDevice()
    assert torch.equal(executor(x), expected) and executor.isAttachedToDevice()
    assert executor.compilationTime().total_seconds() > 0
    executor.destroy()
    assert not executor.isCompiled() and torch.equal(executor(x), expected)


def test_compile_twice_is_ignored(caplog):
    executor = poptorch.inferenceModel(Net())
    executor.compile(torch.randn(2, 4))
    executor.compile(torch.randn(2, 4))
    assert "is compiled already" in caplog.text


def test_connection_never():
    executor = poptorch.inferenceModel(Net(), poptorch.Options().useOfflineIpuTarget())
    executor.compile(torch.randn(2, 4))
    assert executor.isCompiled() and not executor.isAttachedToDevice()
    with pytest.raises(AssertionError):
        executor(torch.randn(2, 4))
    with pytest.raises(AssertionError):
        executor.attachToDevice()


def test_uncompiled_executors_are_pickled():
    executor = poptorch.trainingModel(Net(), iterations(2))
    other = pickle.loads(pickle.dumps(executor))
    assert torch.equal(other.model.fc.weight, executor.model.fc.weight) and other.options.device_iterations == 2
    other(torch.randn(4, 4), torch.randn(4, 4))
    with pytest.raises(poptorch.Error):
        pickle.dumps(other)


def test_attributes_are_those_of_the_model():
    model = Net()
    model.answer = 42
    executor = poptorch.trainingModel(model)
    assert executor.answer == 42 and executor.fc is model.fc and executor.model is model
    assert [name for name, _ in executor.named_parameters()] == ["fc.weight", "fc.bias"]
    assert "Linear" in repr(executor)
    with pytest.raises(AttributeError):
        executor.no_such_attribute  # noqa: B018
    inferred = poptorch.inferenceModel(Net())
    inferred.eval()
    assert not inferred.model.training


def test_the_traced_object_is_a_shallow_copy():
    class Mode(torch.nn.Module):
        def forward(self, x):
            return x + 1 if self.training else x

    model = Mode().eval()
    executor = poptorch.inferenceModel(model)
    model.train()
    assert executor(torch.zeros(1)).item() == 0


def test_hooks_surround_tracing():
    calls = []
    handles = [
        poptorch.registerPreCompileHook(lambda: calls.append("pre")),
        poptorch.registerPostCompileHook(lambda: calls.append("post")),
    ]
    try:
        inference(lambda self, x: calls.append("forward") or x * 2)(torch.ones(1))
        assert calls == ["pre", "forward", "post"]

        def fails(self, x):
            raise KeyError("mine")

        with pytest.raises(KeyError):
            inference(fails)(torch.ones(1))
        assert calls[3:] == ["pre", "post"]
    finally:
        for handle in handles:
            handle.remove()


def test_forward_may_fail_and_be_tried_again():
    class Fails(Net):
        broken = True

        def forward(self, x, target):
            with poptorch.Block("b", ipu_id=0):
                result = super().forward(x, target)
                if self.broken:
                    raise KeyError("mine")
            return result

    model = Fails()
    executor = poptorch.trainingModel(model)
    batch = torch.randn(2, 4), torch.randn(2, 4)
    with pytest.raises(KeyError, match="mine"):
        executor(*batch)
    assert not executor.isCompiled() and not poptorch.isRunningOnIpu()
    Fails.broken = False
    model(*batch)
    executor = poptorch.inferenceModel(model)
    executor(*batch)


def test_running_on_device_only_while_captured():
    seen = []

    class Asks(torch.nn.Module):
        def __init__(self):
            super().__init__()
            seen.append(poptorch.isRunningOnIpu())

        def forward(self, x):
            seen.append(poptorch.isRunningOnIpu())
            return x * 2

    model = Asks()
    model(torch.ones(1))
    executor = poptorch.inferenceModel(model)
    executor(torch.ones(1))
    executor(torch.ones(1))
    assert seen == [False, False, True]


def test_reassigned_parameters_are_refused_and_put_back():
    class Replaces(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(2))

        def forward(self, x):
            self.total = self.total + x
            return self.total

    model = Replaces()
    total = model.total
    with pytest.raises(poptorch.Error, match="E0108") as raised:
        poptorch.inferenceModel(model)(torch.ones(2))
    assert "copy_" in str(raised.value) and model.total is total


def test_tensors_can_be_printed_while_captured(capsys):
    inference(lambda self, x: print(x) or x * 2)(torch.ones(3))
    assert capsys.readouterr().out == "tensor(<unavailable>, size=(3,), dtype=torch.float32)\n"
    assert "1." in repr(torch.ones(3))


def test_random_state_is_reproducible():
    model = torch.nn.Dropout(0.5).train()
    executor = poptorch.inferenceModel(model, poptorch.Options().randomSeed(3))
    x = torch.ones(64)
    first, state = executor(x), executor.rng_state
    assert state[0] == 3
    second = executor(x)
    executor.rng_state = state
    assert torch.equal(executor(x), second) and not torch.equal(first, second)
    again = poptorch.inferenceModel(model, poptorch.Options().randomSeed(3))
    assert torch.equal(again(x), first)


def test_interrupt_during_a_step():
    def forward(self, x):
        for _ in range(400):
            x = torch.tanh(x @ x)
        return x

    x = torch.randn(256, 256).mul_(0.01)
    executor = inference(forward)
    expected = executor(x)
    entered = threading.Event()

    def interrupt():
        entered.wait()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    # The other thread gets to run only when the step lets go of the interpreter.
    interval, handler = sys.getswitchinterval(), signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.setswitchinterval(100)
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            entered.set()
            executor(x)
    finally:
        sys.setswitchinterval(interval)
        signal.signal(signal.SIGINT, handler)
    thread.join()
    assert torch.equal(executor(x), expected)


# The abele front end -------------------------------------------------------------------------------------------------
def test_every_shape_has_a_program():
    torch.manual_seed(0)
    model = Net()
    reference = copy.deepcopy(model)
    ours, theirs = (torch.optim.Adam(m.parameters(), lr=0.1) for m in (model, reference))
    executor = abele.trainingModel(model, optimizer=ours)
    for rows in (2, 3, 2, 5, 3):
        x, y = torch.randn(rows, 4), torch.randn(rows, 4)
        _, loss = executor(x, y)
        theirs.zero_grad()
        expected = reference(x, y)[1]
        expected.backward()
        theirs.step()
        assert torch.equal(loss, expected.detach())
    assert torch.equal(model.fc.weight, reference.fc.weight)
    assert "aten" in executor.graphText() and executor.report()["step_ns"] > 0
    strict = poptorch.inferenceModel(reference)
    strict(x)
    with pytest.raises(poptorch.Error, match="E0704"):
        strict(x[:1])


def test_limits_are_those_of_poptorch_only():
    class Cut(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3))

        def forward(self, x):
            for stage, part in enumerate(self.parts):
                with poptorch.Block(ipu_id=stage):
                    x = part(x)
                    if stage == 2:
                        return poptorch.identity_loss(x, "mean")

    x = torch.randn(2, 2)
    abele.trainingModel(Cut())(x)
    with pytest.raises(poptorch.Error, match="E0402"):
        poptorch.trainingModel(Cut())(x)
    opts = poptorch.Options()
    opts.enforcePipelineMinimum(False)
    with pytest.raises(poptorch.Error, match="power of two"):
        poptorch.trainingModel(Cut(), opts.clone())(x)
    poptorch.trainingModel(Cut(), opts.clone().autoRoundNumIPUs())(x)


def test_parametrized_modules():
    model = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 2))
    x = torch.randn(1, 3)
    assert torch.equal(poptorch.inferenceModel(model)(x), model(x))


def test_options_that_would_change_behaviour_are_refused():
    opts = poptorch.Options()
    opts._Popart.set("noSuchSetting", 1)
    with pytest.raises(poptorch.Error, match="Unknown int option noSuchSetting"):
        poptorch.inferenceModel(Net(), opts)(torch.randn(2, 4))


class BuildsItself(torch.nn.Module):
    """Chooses its layer when it meets the first rows."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Identity()

    def forward(self, x):
        if isinstance(self.layer, torch.nn.Identity):
            self.layer = torch.nn.Tanh()
        return self.layer(x)


@pytest.mark.parametrize("package", [abele, poptorch])
def test_a_forward_that_replaces_modules_once_is_captured_as_it_is_then(package, capfd):
    eager, ours, x = BuildsItself(), BuildsItself(), torch.ones(2, 3)
    model = package.inferenceModel(ours)
    for _ in range(2):
        assert torch.equal(model(x), eager(x))
    assert isinstance(ours.layer, torch.nn.Tanh) and "[warning]" not in capfd.readouterr().err

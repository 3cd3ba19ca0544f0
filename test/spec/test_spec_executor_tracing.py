"""spec executor.md section 5: what forward may do while it is traced."""

import poptorch
import pytest
import torch


def module(forward):
    class Local(torch.nn.Module):
        pass

    Local.forward = forward
    return Local()


def inference(forward, opts=None):
    return poptorch.inferenceModel(module(forward), opts)


def iterations(number):
    return poptorch.Options().deviceIterations(number)


@pytest.fixture
def log(caplog):
    poptorch.logger.propagate = True
    with caplog.at_level("WARNING", logger=poptorch.logger.name):
        yield caplog


@pytest.mark.spec("executor/5")
def test_control_flow_is_frozen_and_constants_start_again():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.plain = torch.zeros(1)
            self.number = 1

        def forward(self, x):
            self.plain += 1
            return x + self.plain + self.number

    model = Counting()
    executor = poptorch.inferenceModel(model)
    assert executor(torch.zeros(1)) == 2
    model.number = 100
    assert executor(torch.zeros(1)) == 2


@pytest.mark.spec("executor/5", names=["poptorch.isRunningOnIpu"])
def test_is_running_on_ipu():
    seen = []

    class Ask(torch.nn.Module):
        def __init__(self):
            super().__init__()
            seen.append(poptorch.isRunningOnIpu())

        def forward(self, x):
            seen.append(poptorch.isRunningOnIpu())
            return x + 1

    model = Ask()
    model(torch.zeros(1))
    poptorch.inferenceModel(model)(torch.zeros(1))
    assert seen == [False, False, True] and not poptorch.isRunningOnIpu()


FACTORIES = {
    "arange": lambda **k: torch.arange(4, **k),
    "empty": lambda **k: torch.empty(4, **k).zero_(),
    "full": lambda **k: torch.full((4,), 2.0, **k),
    "full_like": lambda **k: torch.full_like(torch.zeros(4, device="cpu"), 2.0, **k),
    "linspace": lambda **k: torch.linspace(0, 1, 4, **k),
    "logspace": lambda **k: torch.logspace(0, 1, 4, **k),
    "ones": lambda **k: torch.ones(4, **k),
    "rand": lambda **k: torch.rand(4, **k),
    "randint": lambda **k: torch.randint(0, 5, (4,), **k),
    "randn": lambda **k: torch.randn(4, **k),
    "randperm": lambda **k: torch.randperm(4, **k),
    "range": lambda **k: torch.range(1, 4, **k),
    "tensor": lambda **k: torch.tensor([1.0, 2.0, 3.0, 4.0], **k),
    "zeros": lambda **k: torch.zeros(4, **k),
    "zeros_like": lambda **k: torch.zeros_like(torch.ones(4, device="cpu"), **k),
    "normal": lambda **k: torch.normal(0.0, 1.0, (4,), **k),
}


@pytest.mark.spec("executor/5")
@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.filterwarnings("ignore:torch.range")
def test_factories_without_a_device_are_redirected_with_a_warning(name, log):
    x = torch.zeros(4)
    assert inference(lambda self, x: x + FACTORIES[name]())(x).shape == (4,)
    assert f"torch.{name}()" in log.text
    log.clear()
    assert inference(lambda self, x: x + FACTORIES[name](device="ipu"))(x).shape == (4,)
    assert inference(lambda self, x: x + FACTORIES[name](device=x.device))(x).shape == (4,)
    FACTORIES[name]()
    assert f"torch.{name}()" not in log.text


@pytest.mark.spec("executor/5")
def test_printed_tensors_have_no_values(capsys):
    inference(lambda self, x: print(x) or x + 1)(torch.full((2,), 7.0))
    printed = capsys.readouterr().out
    assert "<unavailable>" in printed and "7" not in printed
    print(torch.full((2,), 7.0))
    assert "7" in capsys.readouterr().out


@pytest.mark.spec("executor/5")
def test_distributions_are_not_checked():
    def forward(self, x):
        return torch.distributions.Normal(x, torch.exp(x)).log_prob(x)

    x = torch.randn(3)
    assert torch.equal(inference(forward)(x), forward(None, x))
    with pytest.raises(ValueError, match="scale"):
        torch.distributions.Normal(x, -torch.ones(3))


@pytest.mark.spec("executor/5")
@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: x.to("cpu"),
        lambda x: x.cpu(),
        lambda x: 1 if x.sum() > 0 else 2,
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: float(x[0]),
    ],
)
def test_reading_a_device_value_is_an_error_and_the_model_stays_usable(read):
    def forward(self, x):
        read(x * 2)
        return x + 1

    model = module(forward)
    executor = poptorch.inferenceModel(model)
    with pytest.raises(poptorch.Error):
        executor(torch.ones(2))
    assert not executor.isCompiled()
    assert torch.equal(model(torch.ones(2)), torch.full((2,), 2.0))
    assert torch.ones(1).to("cpu") == torch.ones(1).cpu() == 1


@pytest.mark.spec("executor/5")
def test_moves_that_stay_on_the_device():
    def forward(self, x):
        return x.to("ipu") + x.to(x.device).to(device="ipu", dtype=torch.float16).to(torch.float32) + x.to("ipu:0")

    x = torch.ones(2)
    assert torch.equal(inference(forward)(x), x * 3)


@pytest.mark.spec("executor/5")
def test_reassigning_a_parameter_or_buffer_is_an_error():
    class Reassigns(torch.nn.Module):
        def __init__(self, what):
            super().__init__()
            self.what = what
            self.weight = torch.nn.Parameter(torch.ones(2))
            self.register_buffer("state", torch.ones(2))

        def forward(self, x):
            if self.what == "delete":
                del self.state
                return x + 1
            if self.what == "parameter":
                self.weight = torch.nn.Parameter(x * 2)
                return x + self.weight
            self.state = x * 2
            return x + self.state

    for what, name in (("delete", "state"), ("parameter", "weight"), ("buffer", "state")):
        model = Reassigns(what)
        with pytest.raises(poptorch.Error, match=rf"(?s){name}.*copy_"):
            poptorch.inferenceModel(model)(torch.zeros(2))
        assert torch.equal(model.state, torch.ones(2)) and torch.equal(model.weight, torch.ones(2))


@pytest.mark.spec("executor/5", "executor/6/inference_modifying_buffers")
def test_buffers_updated_in_place_persist():
    class Count(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count += 1
            return x + self.count

    model = Count()
    executor = poptorch.inferenceModel(model, iterations(2))
    assert executor(torch.zeros(2)).tolist() == [1, 2]
    assert executor(torch.zeros(2)).tolist() == [3, 4]
    assert model.count == 0  # not read back without being asked
    executor.copyWeightsToHost()
    assert model.count == 4


@pytest.mark.spec("executor/5")
def test_unused_and_tied_parameters():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
            self.b.weight = self.a.weight
            self.unused = torch.nn.Parameter(torch.ones(2))

        def forward(self, x):
            return poptorch.identity_loss(self.b(self.a(x)), reduction="sum")

    model = Tied()
    executor = poptorch.trainingModel(model, None, torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5))
    before = model.a.weight.detach().clone()
    executor(torch.ones(1, 3))
    assert model.a.weight is model.b.weight and not torch.equal(model.a.weight, before)
    assert torch.equal(model.unused, torch.ones(2))


@pytest.mark.spec("executor/5", names=["poptorch.registerPreCompileHook", "poptorch.registerPostCompileHook"])
def test_hooks(tmp_path):
    calls = []
    for wrong in (None, 3, "hook"):
        with pytest.raises(RuntimeError):
            poptorch.registerPreCompileHook(wrong)
        with pytest.raises(RuntimeError):
            poptorch.registerPostCompileHook(wrong)
    handles = [
        poptorch.registerPreCompileHook(lambda: calls.append("pre 1")),
        poptorch.registerPreCompileHook(lambda: calls.append("pre 2")),
        poptorch.registerPostCompileHook(lambda: calls.append("post")),
    ]
    assert all(isinstance(handle, torch.utils.hooks.RemovableHandle) for handle in handles)
    try:
        executor = inference(lambda self, x: calls.append("forward") or x * 2)
        executor(torch.ones(1))
        executor(torch.ones(1))
        assert calls == ["pre 1", "pre 2", "forward", "post"]
        calls.clear()
        with pytest.raises(poptorch.Error):
            inference(lambda self, x: x * x.sum().item())(torch.ones(1))
        assert calls == ["pre 1", "pre 2", "post"]
        executor.save(tmp_path / "file", export_model=False)
        calls.clear()
        inference(lambda self, x: x).loadExecutable(tmp_path / "file")
        assert calls == ["pre 1", "pre 2", "post"]
    finally:
        for handle in handles:
            handle.remove()
    calls.clear()
    inference(lambda self, x: x * 2)(torch.ones(1))
    assert calls == []

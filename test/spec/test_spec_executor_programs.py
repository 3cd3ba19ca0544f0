"""Ways of using executors that the rows of the specification imply, met in programs and test suites."""

import collections
import dataclasses
import subprocess
import sys

import poptorch
import pytest
import torch

spec = pytest.mark.spec


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x, target=None):
        out = self.layer(x)
        return out if target is None else (out, torch.nn.functional.mse_loss(out, target))


class Constants(torch.nn.Module):
    def forward(self, x):
        return x + 1, torch.arange(3), torch.tensor(2.0), x.mean()


class Apply(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


@spec("executor/2/too_many_unknown_repeated")
def test_an_unknown_name_is_told_before_a_missing_argument():
    class Two(torch.nn.Module):
        def forward(self, x, y):
            return x + y

    with pytest.raises(AssertionError, match="bogus"):
        poptorch.inferenceModel(Two())(torch.ones(1), bogus=torch.ones(1))


@spec("executor/4")
def test_anomaly_mode_reads_no_values():
    model, x = Linear(), torch.randn(4, 3)
    before = model.layer.weight.detach().clone()
    with torch.autograd.set_detect_anomaly(True):
        poptorch.trainingModel(model)(x, x)
        assert torch.is_anomaly_enabled()
    assert not torch.equal(model.layer.weight, before)


@spec("executor/1/inference")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_modules_of_torchscript():
    x = torch.randn(2, 3)
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    for scripted in (torch.jit.trace(net, x), torch.jit.script(net)):
        model = poptorch.inferenceModel(scripted)
        assert torch.equal(model(x), net(x))
    trained = torch.jit.script(Linear())
    before = trained.layer.weight.detach().clone()
    poptorch.trainingModel(trained)(x, x)
    assert not torch.equal(trained.layer.weight, before)


@spec("executor/3/All")
@pytest.mark.parametrize("mode", [poptorch.OutputMode.All, poptorch.OutputMode.Final])
def test_results_that_are_constants_are_not_multiplied(mode, tmp_path):
    options = poptorch.Options().deviceIterations(3).replicationFactor(2).outputMode(mode)
    model = poptorch.inferenceModel(Constants(), options)
    parts = 6 if mode == poptorch.OutputMode.All else 2
    file = str(tmp_path / "model")

    def check(results):
        assert [tuple(value.shape) for value in results] == [(2 * parts,), (3,), (), (parts,)]
        assert results[1].tolist() == [0, 1, 2] and results[2].item() == 2

    check(model(torch.zeros(12)))
    model.save(file)
    check(poptorch.load(file)(torch.zeros(12)))


@spec("executor/3/All")
def test_tensors_in_objects_of_other_classes_are_warned_of(caplog):
    @dataclasses.dataclass
    class Result:
        value: torch.Tensor

    for make in (Result, lambda x: collections.deque([x])):
        caplog.clear()
        poptorch.inferenceModel(Apply(lambda x, make=make: [make(x + 1)]))(torch.ones(1))
        assert "registerCustomArgParser" in caplog.text
    caplog.clear()
    poptorch.inferenceModel(Apply(lambda x: [x + 1, Result(3), "text", {1}]))(torch.ones(1))
    assert "registerCustomArgParser" not in caplog.text


@spec("executor/1/inference")
def test_modules_that_programs_name():
    assert poptorch.ops.BeginBlock is poptorch.BeginBlock and poptorch.ops.identity_loss is poptorch.identity_loss
    assert poptorch.options.AutoStage is poptorch.AutoStage and poptorch.options.Stage is poptorch.Stage
    code = "import poptorch; poptorch._impl.rewrapModelIfNecessary; poptorch._poplar_executor.PoplarExecutor"
    subprocess.run([sys.executable, "-c", code], check=True)


@spec("executor/7/rng_state")
def test_restored_random_state_repeats_stochastic_rounding(tmp_path):
    options = poptorch.Options().randomSeed(3)
    options.Precision.enableStochasticRounding(True)
    model = poptorch.inferenceModel(torch.nn.Linear(64, 64).half(), options)
    x = torch.linspace(-1, 1, 64 * 8).reshape(8, 64).half()
    model(x)
    state = model.rng_state
    first, second = model(x), model(x)
    assert not torch.equal(first, second)
    model.rng_state = state
    assert torch.equal(model(x), first)
    model.save(str(tmp_path / "model"))
    assert torch.equal(poptorch.load(str(tmp_path / "model"))(x), second)
    assert torch.equal(model(x), second)


# Warnings and errors that programs meet ----------------------------------------------------------------------------
@spec("executor/2/requires_grad_inputs", "executor/2/non_contiguous", "executor/5")
def test_warnings_say_what_happens(caplog):
    poptorch.inferenceModel(Apply(lambda x: x + torch.ones(2)))(torch.ones(2, requires_grad=True))
    assert "an input tensor requires a gradient" in caplog.text
    assert "torch.ones() names no device" in caplog.text
    model = poptorch.inferenceModel(Apply(lambda x: x + 1))
    model(torch.ones(2, 3).t())
    assert "an input tensor is not contiguous" in caplog.text
    model.compile(torch.ones(3, 2))
    assert "compile() has no effect" in caplog.text


@spec("executor/2/binding", "environment/11/integers")
def test_float64_inside_of_forward_is_warned_of(caplog):
    poptorch.inferenceModel(Apply(lambda x: x * 2))(torch.ones(2))
    assert "float64" not in caplog.text
    result = poptorch.inferenceModel(Apply(lambda x: x.double() * 2))(torch.ones(2))
    assert result.dtype == torch.float32 and "narrowed to float32" in caplog.text


@spec("executor/7/destroy", "executor/8/cycleCount")
def test_errors_say_what_is_wrong():
    model = Linear()
    executor = poptorch.trainingModel(model)
    with pytest.raises(RuntimeError, match="belongs to another executor"):
        poptorch.trainingModel(model)
    with pytest.raises(poptorch.Error, match="cycles are not counted"):
        executor.cycleCount()
    _, loss = executor(torch.ones(1, 3), torch.ones(1, 3))
    with pytest.raises(poptorch.Error, match="the step has run backward already"):
        loss.backward()
    counting = poptorch.inferenceModel(model, poptorch.Options().logCycleCount(True))
    counting.compile(torch.ones(1, 3))
    with pytest.raises(poptorch.Error, match="no cycles are known yet"):
        counting.cycleCount()
    offline = poptorch.inferenceModel(model, poptorch.Options().connectionType(poptorch.ConnectionType.Never))
    with pytest.raises(AssertionError, match="a model for an offline device"):
        offline(torch.ones(1, 3))
    with pytest.raises(poptorch.Error, match="marks no loss"):
        poptorch.trainingModel(torch.nn.Linear(2, 2))(torch.ones(1, 2))

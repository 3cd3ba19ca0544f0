"""Optimizers that no device implements: their own step() on the host, with the gradients of the devices."""

import contextlib
import copy

import abele
import poptorch
import pytest
import torch
from against_eager import require_same

ACCUMULATION, ROWS, STEPS = 4, 2, 3


class Net(torch.nn.Module):
    """Two stages; the normalisation has running statistics, and one parameter is not reached by the loss."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Tanh())
        self.second = torch.nn.Linear(6, 3)
        self.unused = torch.nn.Parameter(torch.ones(2))

    def forward(self, x, target):
        return torch.nn.functional.mse_loss(self.second(self.first(x)), target)


class Signs(torch.optim.Optimizer):
    """An optimizer of the program's own, which reads values."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["largest"] = max(state.get("largest", 0.0), parameter.grad.abs().max().item())
                    parameter.sub_(parameter.grad.sign(), alpha=group["lr"] / (1 + state["largest"]))


def matrices(parameters):
    return [parameter for parameter in parameters if parameter.dim() == 2]


OPTIMIZERS = {
    "Adadelta": lambda parameters: torch.optim.Adadelta(parameters, lr=0.5),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
    "Adamax": lambda parameters: torch.optim.Adamax(parameters, lr=0.01, weight_decay=0.1),
    "NAdam": lambda parameters: torch.optim.NAdam(parameters, lr=0.01),
    "RAdam": lambda parameters: torch.optim.RAdam(parameters, lr=0.01),
    "ASGD": lambda parameters: torch.optim.ASGD(parameters, lr=0.05),
    "Rprop": lambda parameters: torch.optim.Rprop(parameters, lr=0.01),
    "Adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=0.01),
    "amsgrad": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, amsgrad=True),
    "matrices alone": lambda parameters: torch.optim.Adagrad(matrices(parameters), lr=0.05),
    "own": Signs,
}


def options(stages=1, accumulation=ACCUMULATION):
    opts = abele.Options()
    opts.Training.gradientAccumulation(accumulation)
    opts.threadsPerDevice(torch.get_num_threads())
    if stages == 1:
        opts.setExecutionStrategy(abele.ShardedExecution())
    return opts


def batches(count=STEPS):
    torch.manual_seed(2)
    rows = ROWS * ACCUMULATION
    return [(torch.randn(rows, 4), torch.randn(rows, 3)) for _ in range(count)]


def eager_step(net, optimizer, batch):
    optimizer.zero_grad()
    for k in range(ACCUMULATION):
        loss = net(*(tensor[k * ROWS : (k + 1) * ROWS] for tensor in batch))
        (loss / ACCUMULATION).backward()
    optimizer.step()
    return loss.detach()


def pair(make, stages=1, opts=None):
    net, reference = Net(), Net()
    if stages == 2:
        abele.BeginBlock(net.second, ipu_id=1)
    executor = abele.trainingModel(net, options(stages) if opts is None else opts, make(net.parameters()))
    return net, executor, reference, make(reference.parameters())


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_equals_eager(name, stages):
    net, executor, reference, optimizer = pair(OPTIMIZERS[name], stages)
    for batch in batches():
        assert torch.equal(executor(*batch), eager_step(reference, optimizer, batch))
    require_same(net.state_dict(), reference.state_dict())
    assert all(parameter.grad is None for parameter in net.parameters())


@pytest.mark.parametrize("shares", [True, False])
def test_schedulers_groups_and_weights_between_calls(shares):
    opts = options()
    opts.shareWeights(shares)

    def make(parameters):
        first, *others = parameters
        return torch.optim.Adagrad([{"params": [first], "lr": 0.1}, {"params": others}], lr=0.05)

    net, executor, reference, optimizer = pair(make, opts=opts)
    ours = executor._optimizer
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(each, 0.5) for each in (ours, optimizer)]
    for step, batch in enumerate(batches()):
        executor(*batch)
        eager_step(reference, optimizer, batch)
        for scheduler in schedulers:
            scheduler.step()
        executor.setOptimizer(ours)
        if step == 1:
            with torch.no_grad():
                for each in (net, reference):
                    each.second.bias.fill_(0.5)
            executor.copyWeightsToDevice()
    executor.destroy()
    require_same(net.state_dict(), reference.state_dict())
    assert ours.state_dict()["param_groups"][0]["lr"] == optimizer.param_groups[0]["lr"]


def test_replicas():
    opts = options(accumulation=ACCUMULATION // 2).replicationFactor(2)
    opts.broadcastBuffers(False)
    net, executor, reference, optimizer = pair(OPTIMIZERS["RAdam"], opts=opts)
    for batch in batches():
        executor(*batch)
        eager_step(reference, optimizer, batch)
    for name, parameter in net.named_parameters():
        assert torch.allclose(parameter, dict(reference.named_parameters())[name], atol=1e-6), name


def test_a_saved_training_goes_on(tmp_path):
    net, executor, reference, optimizer = pair(OPTIMIZERS["NAdam"])
    first, second, third = batches()
    for batch in (first, second):
        executor(*batch)
        eager_step(reference, optimizer, batch)
    executor.save(tmp_path / "net")
    loaded = abele.load(tmp_path / "net", trust=True)
    eager_step(reference, optimizer, third)
    loaded(*third)
    require_same(loaded.state_dict(), reference.state_dict())


def test_gradients_of_the_program_stay_its_own():
    net, executor, _, _ = pair(OPTIMIZERS["Adagrad"])
    net.second.bias.grad = torch.ones(3)
    executor(*batches()[0])
    assert torch.equal(net.second.bias.grad, torch.ones(3)) and net.second.weight.grad is None


@pytest.mark.parametrize("shares", [True, False])
def test_training_goes_on_after_a_step_that_failed(shares):
    class Failing(Signs):
        """Its second step fails after the update."""

        steps = 0

        @torch.no_grad()
        def step(self):
            self.steps += 1
            super().step()
            if self.steps == 2:
                raise LookupError("of the program's own")

    opts = options()
    opts.shareWeights(shares)
    net, executor, reference, optimizer = pair(Failing, opts=opts)
    for step, batch in enumerate(batches()):
        with pytest.raises(LookupError) if step == 1 else contextlib.nullcontext():
            executor(*batch)
        with pytest.raises(LookupError) if step == 1 else contextlib.nullcontext():
            eager_step(reference, optimizer, batch)
        require_same(net.state_dict(), reference.state_dict())
    assert all(parameter.grad is None for parameter in net.parameters())


class Nothing(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})


@pytest.mark.parametrize(
    ("make", "change", "words"),
    [
        (torch.optim.LBFGS, lambda opts: None, "closure"),
        (Nothing, lambda opts: None, "no step"),
        (torch.optim.Adagrad, lambda opts: opts.deviceIterations(2), "deviceIterations"),
        (torch.optim.Adagrad, lambda opts: opts.Distributed.configureProcessId(0, 2), "one process"),
        (torch.optim.Adagrad, lambda opts: opts.Training.setAutomaticLossScaling(True), "automatic loss scaling"),
    ],
)
def test_what_it_cannot_do_is_refused(make, change, words):
    net, opts = Net(), options()
    change(opts)
    with pytest.raises(abele.Error, match=words) as raised:
        abele.trainingModel(net, opts, make(net.parameters()))
    assert raised.value.code == "E0706" and type(net) is Net


@pytest.mark.parametrize("name", ["NAdam", "Adafactor", "own"])
def test_a_checkpoint_goes_on(name, tmp_path):
    net, executor, reference, optimizer = pair(OPTIMIZERS[name])
    first, second, third = batches()
    for batch in (first, second):
        executor(*batch)
        eager_step(reference, optimizer, batch)
    abele.save_checkpoint(tmp_path, executor, step=2)
    eager_step(reference, optimizer, third)
    resumed, again, _, _ = pair(OPTIMIZERS[name])
    assert abele.load_checkpoint(tmp_path, again)["step"] == 2
    again(*third)
    require_same(resumed.state_dict(), reference.state_dict())


@pytest.mark.parametrize("make", [torch.optim.Adagrad, torch.optim.SGD])
def test_a_checkpoint_of_another_optimizer_is_refused(make, tmp_path):
    _, executor, _, _ = pair(OPTIMIZERS["NAdam"])
    executor(*batches()[0])
    abele.save_checkpoint(tmp_path, executor, step=1)
    net, other, _, _ = pair(make)
    before = copy.deepcopy(dict(net.state_dict()))
    with pytest.raises(abele.Error, match="E0706"):
        abele.load_checkpoint(tmp_path, other)
    require_same(dict(net.state_dict()), before)
    other(*batches()[0])


def test_a_model_stays_with_host_or_devices():
    net, executor, reference, optimizer = pair(OPTIMIZERS["Adagrad"])
    batch = batches()[0]
    executor(*batch)
    with pytest.raises(abele.Error, match="E0706"):
        executor.setOptimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.raises(abele.Error, match="E0706"):
        list(abele.optimizer_state(executor))
    executor(*batch)
    for _ in range(2):
        eager_step(reference, optimizer, batch)
    require_same(net.state_dict(), reference.state_dict())
    other = abele.trainingModel(Net(), options(), torch.optim.SGD(Net().parameters(), lr=0.1))
    with pytest.raises(abele.Error, match="E0706"):
        other.setOptimizer(torch.optim.Adagrad(other.model.parameters()))


def test_verify_compares_gradients():
    _, executor, _, _ = pair(OPTIMIZERS["Adagrad"])
    found = abele.verify(executor, *batches(2))
    assert found, found.text


def test_poptorch_refuses_them_as_poptorch_does():
    net = Net()
    with pytest.raises(AssertionError, match="E0706"):
        poptorch.trainingModel(net, None, torch.optim.Adagrad(net.parameters()))


def test_a_copy_of_the_optimizer_goes_on_in_eager():
    net, executor, reference, optimizer = pair(OPTIMIZERS["Adamax"])
    first, second, _ = batches()
    executor(*first)
    eager_step(reference, optimizer, first)
    ours = executor._optimizer
    executor.destroy()
    eager = copy.deepcopy(net)
    theirs = torch.optim.Adamax(eager.parameters(), lr=0.01, weight_decay=0.1)
    theirs.load_state_dict(ours.state_dict())
    eager_step(eager, theirs, second)
    eager_step(reference, optimizer, second)
    require_same(eager.state_dict(), reference.state_dict())

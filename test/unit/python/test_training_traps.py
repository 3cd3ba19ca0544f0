"""Code that looks like training and is not: one warning names it and a remedy. Ordinary programs get no warning."""

import copy
import gc

import abele
import poptorch
import pytest
import torch

X, TARGET = torch.linspace(-1, 1, 12).view(4, 3), torch.linspace(0, 1, 8).view(4, 2)
WRAPPERS = [poptorch, abele]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.fc = torch.nn.Linear(3, 2)
        self.norm = torch.nn.BatchNorm1d(2)

    def forward(self, x, target=None):
        out = self.norm(self.fc(x))
        return out if target is None else (out, torch.nn.functional.mse_loss(out, target))


@pytest.fixture
def said(capfd, caplog):
    """Warnings of both languages since the last call."""
    poptorch.setLogLevel("WARN")  # also for the native part, after any level that other tests have left
    poptorch.logger.propagate = True
    caplog.set_level("WARNING", logger=poptorch.logger.name)

    def read():
        lines = [record.getMessage() for record in caplog.records if record.name == poptorch.logger.name]
        caplog.clear()
        native = capfd.readouterr().err.splitlines()
        return lines + [line for line in native if "[poptorch:cpp]" in line and "[warn" in line]

    return read


def trained(package, net, optimizer=None, options=None):
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return package.trainingModel(net, options or all_warnings(), optimizer), optimizer


def all_warnings():
    """Warnings, including those that another test has caused."""
    return poptorch.Options().maxRepeatLogs(None)


# Ordinary programs ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("package", WRAPPERS)
def test_ordinary_programs_see_no_warning(package, said, tmp_path):
    net = Net()
    executor, optimizer = trained(package, net)
    predict = package.inferenceModel(net, all_warnings())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for _ in range(3):
        executor(X, TARGET)
        scheduler.step()
        executor.setOptimizer(optimizer)
        predict(X)
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint.pt")
    with torch.no_grad():
        net.fc.weight.mul_(0.5)
    executor.copyWeightsToDevice()
    executor(X, TARGET)
    executor.load_state_dict(copy.deepcopy(net.state_dict()))
    executor(X, TARGET)
    net.fc.weight.detach().numpy().sum()
    float(net.fc.weight.data.norm())
    executor(X, TARGET)
    executor.detachFromDevice()
    with torch.no_grad():
        net.fc.weight.mul_(0.5)
    executor(X, TARGET)  # attaches, and uploads
    executor.destroy()
    net.fc.weight.data.fill_(0.25)
    executor, optimizer = trained(package, net, optimizer)
    executor(X, TARGET)
    assert said() == []


# Values that do not reach the device ----------------------------------------------------------------------------------
@pytest.mark.parametrize("package", WRAPPERS)
def test_a_learning_rate_that_was_not_sent(package, said):
    executor, optimizer = trained(package, Net())
    executor(X, TARGET)
    optimizer.param_groups[0]["lr"] = 0.5
    assert said() == []
    executor(X, TARGET)
    (text,) = said()
    assert "lr of param_groups[0]" in text and "setOptimizer" in text
    executor(X, TARGET)
    assert said() == []  # once
    executor.setOptimizer(optimizer)
    executor(X, TARGET)
    assert said() == []


def edits():
    def in_place(net):
        with torch.no_grad():
            net.fc.weight.mul_(2)
        return "fc.weight"

    def through_data(net):
        net.fc.bias.data.fill_(3)
        return "fc.bias"

    def one_element(net):
        with torch.no_grad():
            net.fc.weight[1, 1] = 5
        return "fc.weight"

    def loaded(net):
        state = {name: value + 1 for name, value in net.state_dict().items()}
        net.load_state_dict(state)
        return "fc.weight"

    def buffer(net):
        net.norm.running_mean.fill_(4)
        return "norm.running_mean"

    def trained_on_the_host(net):
        was_training = net.training
        net.train()
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
        net(X, TARGET)[1].backward()
        optimizer.step()
        net.train(was_training)
        return "fc.weight"

    return [in_place, through_data, one_element, loaded, buffer, trained_on_the_host]


@pytest.mark.parametrize("edit", edits(), ids=lambda edit: edit.__name__)
def test_abele_sees_them_or_says_so(edit, said):
    """If the devices use the module's own memory, they see what is written there."""
    net = Net().eval()
    executor = abele.inferenceModel(net, all_warnings())
    executor(X)
    said()
    edit(net)
    found = executor(X)
    assert said() or torch.equal(found, abele.inferenceModel(net.eval())(X))


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("edit", edits(), ids=lambda edit: edit.__name__)
def test_weights_that_the_device_does_not_see(training, edit, said):
    net = Net()
    executor = trained(poptorch, net)[0] if training else poptorch.inferenceModel(net.eval(), all_warnings())
    arguments = (X, TARGET) if training else (X,)
    executor(*arguments)
    said()
    name = edit(net)
    executor(*arguments)
    (text,) = said()
    assert name in text and "copyWeightsToDevice()" in text
    edit(net)
    executor(*arguments)
    assert said() == []  # once


def test_what_was_put_back_is_no_edit(said):
    net = Net()
    executor, _ = trained(poptorch, net)
    executor(X, TARGET)
    before = copy.deepcopy(net.state_dict())
    with torch.no_grad():
        net.fc.weight.mul_(2)
        net.fc.weight.copy_(before["fc.weight"])
    executor(X, TARGET)
    assert said() == []


# Gradients that are not there -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("package", WRAPPERS)
def test_clipping_after_the_call(package, said):
    net = Net()
    executor, _ = trained(package, net)
    for _ in range(2):
        executor(X, TARGET)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    (text,) = said()
    assert "clip_grad_norm_" in text and "max_grad_norm" in text
    executor.destroy()
    net(X, TARGET)[1].backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    assert said() == []


@pytest.mark.parametrize("package", WRAPPERS)
def test_hooks_after_accumulation(package, said):
    net = Net()
    calls = []
    net.fc.weight.register_post_accumulate_grad_hook(calls.append)
    executor, _ = trained(package, net)
    executor(X, TARGET)
    executor(X, TARGET)
    (text,) = said()
    assert "fc.weight" in text and "never called" in text and calls == []


@pytest.mark.parametrize("package", WRAPPERS)
def test_hooks_after_accumulation_beside_functions_of_the_program(package):
    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    class WithFunction(Net):
        def forward(self, x, target=None):
            return super().forward(Same.apply(x), target)

    net = WithFunction()
    before = net.fc.weight.detach().clone()

    def forget(weight):  # as optimizers do that work in backward
        weight.grad = None

    net.fc.weight.register_post_accumulate_grad_hook(forget)
    executor, _ = trained(package, net)
    executor(X, TARGET)
    assert not torch.equal(net.state_dict()["fc.weight"], before)


def test_hooks_of_gradient_accumulators(said):
    net = Net()
    accumulator = net.fc.bias.expand_as(net.fc.bias).grad_fn.next_functions[0][0]
    accumulator.register_hook(lambda *_: None)
    trained(poptorch, net)[0](X, TARGET)
    (text,) = said()
    assert "fc.bias" in text


@pytest.mark.parametrize("package", WRAPPERS)
def test_executors_that_share_parameters(package, said):
    class Other(torch.nn.Module):
        def __init__(self, fc):
            super().__init__()
            self.fc = fc

        def forward(self, x, target):
            return torch.nn.functional.l1_loss(self.fc(x), target)

    net = Net()
    executor, _ = trained(package, net)
    executor(X, TARGET)
    other = Other(net.fc)
    second, _ = trained(package, other)
    second(X, TARGET)
    if package is poptorch:  # abele's continue from each other's weights (test/parity/test_trainings_that_share.py)
        (text,) = said()
        assert "fc.weight" in text and "destroy()" in text
    assert said() == []
    second.destroy()
    executor.destroy()
    del executor, second
    gc.collect()
    trained(package, Other(net.fc))[0](X, TARGET)
    assert said() == []


# Losses that are left out ---------------------------------------------------------------------------------------------
class Returns(torch.nn.Module):
    def __init__(self, result):
        super().__init__()
        torch.manual_seed(1)
        self.fc, self.scale, self.result = torch.nn.Linear(3, 2), torch.tensor(2.0), result

    def forward(self, x, target):
        out = self.fc(x)
        return self.result(self, out, torch.nn.functional.mse_loss(out, target))


def in_place(self, out, loss):
    total = loss.clone()
    total += 0.1 * self.fc.weight.pow(2).sum()
    return out, total


TERMS = {
    "penalty": lambda self, out, loss: (out, loss + 0.1 * self.fc.weight.abs().sum()),
    "both": lambda self, out, loss: (loss, loss + out.pow(2).mean()),
    "scaled": lambda self, out, loss: {"loss": 0.5 * loss - out.pow(2).mean()},
    "in_place": in_place,
    "reshaped": lambda self, out, loss: (loss + out.mean()).reshape(1),
}
MULTIPLES = {"half": lambda self, out, loss: (out, loss / 2), "negative": lambda self, out, loss: -loss}
FINE = {
    "loss": lambda self, out, loss: loss,
    "converted": lambda self, out, loss: (out, loss.float().reshape(1), loss.detach()),
    "with_a_constant": lambda self, out, loss: loss + 1,
    "with_a_detached_term": lambda self, out, loss: (loss, loss + out.detach().mean()),
    "and_a_multiple": lambda self, out, loss: (loss, loss * 100),
    "perplexity": lambda self, out, loss: (out, loss.exp()),
    "marked": lambda self, out, loss: poptorch.identity_loss(loss + out.mean(), reduction="none"),
}


@pytest.mark.parametrize("package", WRAPPERS)
@pytest.mark.parametrize("result", TERMS.values(), ids=TERMS)
def test_a_term_that_is_no_part_of_the_loss(package, result, said):
    executor, _ = trained(package, Returns(result))
    executor(X, TARGET)
    executor(X, TARGET)
    (text,) = said()
    assert "plus a term" in text and "poptorch.identity_loss" in text


@pytest.mark.parametrize("result", MULTIPLES.values(), ids=MULTIPLES)
def test_a_multiple_of_the_loss(result, said):
    trained(poptorch, Returns(result))[0](X, TARGET)
    (text,) = said()
    assert "multiple of its loss" in text and "poptorch.identity_loss" in text


def test_the_mean_of_a_loss_of_many_elements(said):
    class Mean(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(3, 2)

        def forward(self, x, target):
            return torch.nn.functional.mse_loss(self.fc(x), target, reduction="none").mean()

    trained(poptorch, Mean())[0](X, TARGET)
    (text,) = said()
    assert "multiple of its loss" in text and "poptorch.identity_loss" in text


def test_a_function_of_the_loss(said):
    trained(poptorch, Returns(lambda self, out, loss: loss.sqrt()))[0](X, TARGET)
    (text,) = said()
    assert "is made of its loss" in text and "poptorch.identity_loss" in text


def test_a_loss_that_depends_on_no_parameter(said):
    class Detached(Returns):
        def forward(self, x, target):
            return torch.nn.functional.mse_loss(self.fc(x).detach(), target)

    trained(poptorch, Detached(None))[0](X, TARGET)
    (text,) = said()
    assert "the loss depends on no parameter that is trained" in text


@pytest.mark.parametrize("result", FINE.values(), ids=FINE)
def test_losses_that_are_what_they_look_like(result, said):
    trained(poptorch, Returns(result))[0](X, TARGET)
    assert said() == []


# Data -----------------------------------------------------------------------------------------------------------------
def test_a_loader_without_batches(said):
    data = torch.utils.data.TensorDataset(torch.zeros(7, 3))
    options = poptorch.Options().deviceIterations(2)
    loader = poptorch.DataLoader(options, data, batch_size=4)
    assert len(loader) == 0 and len(list(loader)) == 0
    (text,) = said()
    assert "length 0" in text and "7 samples" in text and "8" in text and "drop_last=False" in text
    poptorch.DataLoader(options, data, batch_size=3)
    assert said() == []


# Checkpoints of torch's optimizers ------------------------------------------------------------------------------------
OPTIMIZERS = [
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    lambda parameters: torch.optim.Adam(parameters, lr=0.1),
    lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    lambda parameters: torch.optim.RMSprop(parameters, lr=0.1, momentum=0.5, centered=True),
]


@pytest.mark.parametrize("package", WRAPPERS)
@pytest.mark.parametrize("make", OPTIMIZERS, ids=["SGD", "Adam", "AdamW", "RMSprop"])
@pytest.mark.parametrize("when", ["before", "after", "destroyed"])
def test_a_checkpoint_resumes(package, make, when, tmp_path):
    def weights(net):
        return [parameter.detach().clone() for parameter in net.parameters()]

    net = Net()
    optimizer = make(net.parameters())
    executor = package.trainingModel(net, None, optimizer)
    for _ in range(3):
        executor(X, TARGET)
    executor.copyWeightsToHost()
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint.pt")
    for _ in range(2):
        executor(X, TARGET)
    expected = weights(net)
    eager = Net()
    own = make(eager.parameters())
    saved = torch.load(tmp_path / "checkpoint.pt")
    resumed = Net()
    optimizer = make(resumed.parameters())
    if when == "after":
        executor = package.trainingModel(resumed, None, optimizer)
        executor(X, TARGET)
        optimizer.load_state_dict(saved["optimizer"])
        resumed.load_state_dict(saved["model"])
        executor.copyWeightsToDevice()
    elif when == "before":
        resumed.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        executor = package.trainingModel(resumed, None, optimizer)
    else:
        executor = package.trainingModel(resumed, None, optimizer)
        for _ in range(3):
            executor(X, TARGET)
        executor.destroy()
        executor = package.trainingModel(resumed, None, optimizer)
    for _ in range(2):
        executor(X, TARGET)
    assert all(map(torch.equal, weights(resumed), expected))
    # Eager continues from the saved state too.
    eager.load_state_dict(saved["model"])
    own.load_state_dict(saved["optimizer"])
    for _ in range(2):
        own.zero_grad()
        eager(X, TARGET)[1].backward()
        own.step()
    assert all(map(torch.equal, weights(eager), expected))


def test_reading_the_weights_moves_no_state():
    net = Net()
    executor, optimizer = trained(poptorch, net)
    executor(X, TARGET)
    net.state_dict()
    assert not optimizer.state
    executor.copyWeightsToHost()
    assert len(optimizer.state) == 4


# Optimizers that are refused ------------------------------------------------------------------------------------------
class Foreign(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})


REFUSED = [  # abele takes Adagrad and Adam: test/parity/test_optimizers_on_the_host.py
    (poptorch, lambda parameters: Foreign(parameters), AssertionError),
    (poptorch, lambda parameters: torch.optim.Adagrad(parameters), AssertionError),
    (poptorch, lambda parameters: torch.optim.Adam(parameters, amsgrad=True), ValueError),
    *((package, lambda parameters: poptorch.optim.AdamW(parameters, amsgrad=True), ValueError) for package in WRAPPERS),
]


@pytest.mark.parametrize(("package", "make", "builtin"), REFUSED)
def test_a_refused_optimizer_is_an_error_of_ours(package, make, builtin):
    net = Net()
    for expected in (poptorch.Error, builtin):
        with pytest.raises(expected, match="E0706") as raised:
            package.trainingModel(net, None, make(net.parameters()))
        assert raised.value.code == "E0706" and raised.value.type == "poptorch_py_error"
    executor, _ = trained(package, net)
    with pytest.raises(poptorch.Error):
        executor.setOptimizer(make(net.parameters()))


GROUPS = [
    (torch.optim.RMSprop, "centered", True),
    (torch.optim.Adam, "decoupled_weight_decay", True),
    (poptorch.optim.SGD, "use_combined_accum", True),
    (poptorch.optim.SGD, "max_grad_norm", 1.0),
    (poptorch.optim.Adam, "accum_type", torch.float16),
    (poptorch.optim.AdamW, "bias_correction", False),
    (poptorch.optim.RMSprop, "use_tf_variant", True),
    (poptorch.optim.LAMB, "second_order_momentum_accum_type", torch.float16),
]


@pytest.mark.parametrize("package", WRAPPERS)
@pytest.mark.parametrize(("kind", "name", "value"), GROUPS, ids=str)
def test_groups_that_must_agree(package, kind, name, value):
    net = Net()
    optimizer = kind([{"params": net.fc.parameters()}, {"params": net.norm.parameters()}], lr=0.1)
    optimizer.param_groups[1][name] = value
    with pytest.raises(poptorch.Error, match=f"E0706.*{name}"):
        package.trainingModel(net, None, optimizer)
    good = kind([{"params": net.fc.parameters()}, {"params": net.norm.parameters()}], lr=0.1)
    executor = package.trainingModel(net, None, good)
    executor(X, TARGET)
    with pytest.raises(poptorch.Error, match=f"E0706.*{name}"):
        executor.setOptimizer(optimizer)

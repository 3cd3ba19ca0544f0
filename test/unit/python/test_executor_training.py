"""Optimizers and losses of training executors."""

import copy

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


def test_a_compiled_step_does_not_see_the_callers_autocast():
    torch.manual_seed(0)
    x = torch.randn(2, 4)
    executor = poptorch.inferenceModel(Net())
    expected = executor(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(executor(x), expected)


def test_a_steady_state_allocates_no_tensor_memory():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = torch.nn.Sequential(layer, torch.nn.Flatten(), torch.nn.Linear(64, 3))
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)

    class WithLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x, target):
            return torch.nn.functional.cross_entropy(self.model(x), target)

    wrapped = WithLoss()
    optimizer = torch.optim.AdamW(wrapped.parameters())
    executor = poptorch.trainingModel(wrapped, options, optimizer)
    x, target = torch.randn(8, 4, 16), torch.randint(3, (8,))
    for _ in range(3):
        executor(x, target)
    assert executor.report()["heap_allocations"] == 0


# Optimizers ----------------------------------------------------------------------------------------------------------
def test_set_optimizer_sends_new_values():
    torch.manual_seed(0)
    model = Net()
    reference = copy.deepcopy(model)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, reference))
    executor = poptorch.trainingModel(model, optimizer=ours)
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    for lr in (0.1, 0.01, 0.5):
        ours.param_groups[0]["lr"] = theirs.param_groups[0]["lr"] = lr
        executor.setOptimizer(ours)
        executor(x, y)
        theirs.zero_grad()
        reference(x, y)[1].backward()
        theirs.step()
    assert torch.equal(model.fc.weight, reference.fc.weight)
    ours.param_groups[0]["momentum"] = 0.9
    with pytest.raises(poptorch.Error, match="E0706"):
        executor.setOptimizer(ours)


def test_unexpected_attributes_are_named_once(caplog):
    model = Net()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    executor(x, y)
    executor.setOptimizer(optimizer)
    assert not caplog.records
    optimizer.param_groups[0]["loss_scaling"] = 1.0
    executor.setOptimizer(optimizer)
    executor.setOptimizer(optimizer)
    assert caplog.text.count("ignoring unexpected optimizer") == 1 and "loss_scaling" in caplog.text


def test_optimizer_state_is_read_and_restored():
    torch.manual_seed(0)
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    first = Net()
    optimizer = poptorch.optim.Adam(first.parameters(), lr=0.1)
    assert optimizer.state_dict()["ipu_state"] is None
    executor = poptorch.trainingModel(first, optimizer=optimizer)
    for _ in range(3):
        executor(x, y)
    state = copy.deepcopy(optimizer.state_dict())
    assert "Accl1___fc.weight" in state["ipu_state"] and state["ipu_param"]["lossScaling_FLOAT"] == 1
    assert state["ipu_param"]["learningRate___specific___fc.weight"] == torch.tensor(0.1)
    second = copy.deepcopy(first)
    executor(x, y)
    expected = first.fc.weight.detach().clone()
    first.destroy()
    other = poptorch.optim.Adam(second.parameters(), lr=0.1)
    other.load_state_dict(state)
    poptorch.trainingModel(second, optimizer=other)(x, y)
    assert torch.equal(second.fc.weight, expected)


def test_optimizers_that_the_device_cannot_run():
    model = Net()
    with pytest.raises(AssertionError, match="unsupported optimizer"):
        poptorch.trainingModel(model, optimizer=torch.optim.Adagrad(model.parameters()))
    foreign = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    executor = poptorch.trainingModel(model, optimizer=foreign)
    with pytest.raises(poptorch.Error, match="E0706"):
        executor(torch.randn(2, 4), torch.randn(2, 4))


# Losses --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
def test_identity_loss_trains(reduction):
    class Squares(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.arange(4.0))

        def forward(self, x):
            return poptorch.identity_loss((self.w * x) ** 2, reduction)

    model, x = Squares(), torch.ones(4)
    loss = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.25))(x)
    squares = torch.arange(4.0) ** 2
    assert torch.equal(loss, {"sum": squares.sum(), "mean": squares.mean(), "none": squares}[reduction])
    gradient = 2 * torch.arange(4.0) / (4 if reduction == "mean" else 1)
    assert torch.equal(model.w.detach(), torch.arange(4.0) - 0.25 * gradient)


def loss_cases():
    p, q = lambda t: t.softmax(-1), lambda t: t.log_softmax(-1)
    return {
        "kl_div": lambda x, y: torch.nn.functional.kl_div(q(x), p(y), reduction="batchmean"),
        "gaussian_nll": lambda x, y: torch.nn.functional.gaussian_nll_loss(x, y, torch.ones_like(x)),
        "multilabel_soft_margin": lambda x, y: torch.nn.functional.multilabel_soft_margin_loss(x, (y > 0).float()),
        "triplet_with_distance": lambda x, y: torch.nn.TripletMarginWithDistanceLoss()(x, y, y.flip(0)),
        "smoothed": lambda x, y: torch.nn.functional.cross_entropy(x, y.argmax(-1), label_smoothing=0.1),
        "poisson": lambda x, y: torch.nn.PoissonNLLLoss()(x, y.abs()),
        "cosine": lambda x, y: torch.nn.functional.cosine_embedding_loss(x, y, torch.ones(x.size(0))),
        "margin": lambda x, y: torch.nn.functional.margin_ranking_loss(x, y, torch.ones_like(x)),
    }


@pytest.mark.parametrize("name", loss_cases())
def test_losses_of_torch_are_losses(name):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.fc = torch.nn.Linear(4, 4)

        def forward(self, x, y):
            return loss_cases()[name](self.fc(x), y)

    model, reference = Model(), Model()
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    loss = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))(x, y)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    expected = reference(x, y)
    expected.backward()
    optimizer.step()
    assert torch.equal(loss, expected.detach()) and torch.equal(model.fc.weight, reference.fc.weight)

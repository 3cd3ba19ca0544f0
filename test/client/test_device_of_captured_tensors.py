"""Programs that ask in forward where a tensor is, make others there, and copy tensors with Python's own means."""

import copy

import poptorch
import pytest
import torch
import torch.utils.checkpoint


class Asking(torch.nn.Module):
    """Looks at values only where it may, as graph libraries do."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("counts", torch.tensor([1, 2, 1]))
        self.devices = []

    def forward(self, x, index):
        self.devices = [t.device.type for t in (x, index, self.layer.weight, self.counts, self.layer(x))]
        sums = torch.zeros(3, 4, device=x.device).index_add(0, index, self.layer(x))
        if x.device.type != "ipu":
            assert (index < 3).all()
        y = sums / self.counts.to(x.device)[:, None]
        return y, poptorch.identity_loss(y.square(), reduction="mean")


def inputs():
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 1, 2])


def test_the_device_is_ipu_in_a_captured_forward_and_nowhere_else():
    model, (x, index) = Asking(), inputs()
    expected = model(x, index)[0]
    assert model.devices == ["cpu"] * 5
    executor = poptorch.inferenceModel(model)
    result, _ = executor(x, index)
    assert executor.model.devices == ["ipu"] * 5
    assert result.device.type == "cpu" and x.device.type == "cpu"
    assert torch.equal(result, expected)


def test_such_a_model_trains():
    torch.manual_seed(0)
    model, reference = Asking(), Asking()
    reference.load_state_dict(model.state_dict())
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(2):
        _, loss = executor(*inputs())
        expected = reference(*inputs())[1]
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        assert torch.equal(loss, expected)
    assert torch.equal(model.layer.weight, reference.layer.weight)
    assert model.layer.weight.device.type == "cpu"


MAKERS = {
    "arange": lambda device, x: torch.arange(4, device=device),
    "as_tensor": lambda device, x: torch.as_tensor(x, device=device),
    "empty_like": lambda device, x: torch.empty_like(x, device=device).fill_(2),
    "eye": lambda device, x: torch.eye(4, device=device),
    "hann_window": lambda device, x: torch.hann_window(4, device=device),
    "linear": lambda device, x: torch.nn.Linear(4, 4, device=device).weight.detach().fill_(1),
    "new_tensor": lambda device, x: x.new_tensor([1.0, 2.0, 3.0, 4.0], device=device),
    "new_zeros": lambda device, x: x.new_zeros(4, device=device),
    "tensor": lambda device, x: torch.tensor([1.0, 2.0, 3.0, 4.0], device=device),
    "to": lambda device, x: x.to(device),
    "to with a type": lambda device, x: x.to(device, torch.float16),
    "triu_indices": lambda device, x: torch.triu_indices(4, 4, device=device)[0, :4],
    "zeros_like": lambda device, x: torch.zeros_like(x, device=device),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("device", ["ipu", torch.device("ipu"), torch.device("ipu", 0), None], ids=str)
def test_tensors_are_made_on_that_device(name, device):
    class Making(torch.nn.Module):
        def forward(self, x):
            made = MAKERS[name](x.device if device is None else device, x)
            return x + made, made

    x = torch.ones(4, 4)
    result, made = poptorch.inferenceModel(Making())(x)
    assert torch.equal(made, MAKERS[name]("cpu", x))
    assert torch.equal(result, x + made)


class Checkpointed(torch.nn.Module):
    """torch's own functions look for the module of a tensor's device: torch.cuda, ..."""

    def __init__(self, use_reentrant):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Dropout(0.25))
        self.first = torch.nn.Linear(4, 4)
        self.use_reentrant = use_reentrant

    def forward(self, x):
        y = torch.utils.checkpoint.checkpoint(self.layers, self.first(x), use_reentrant=self.use_reentrant)
        return y, poptorch.identity_loss(y.square(), reduction="mean")


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_training_model_checkpoints(use_reentrant):
    torch.manual_seed(0)
    model, reference = Checkpointed(use_reentrant), Checkpointed(use_reentrant)
    reference.load_state_dict(model.state_dict())
    executor = poptorch.trainingModel(
        model, poptorch.Options().randomSeed(3), torch.optim.SGD(model.parameters(), lr=0.1)
    )
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    ours = [executor(inputs()[0]) for _ in range(3)]
    torch.manual_seed(3)
    for result in ours:
        expected = reference(inputs()[0])
        optimizer.zero_grad()
        expected[1].backward()
        optimizer.step()
        assert all(map(torch.equal, result, expected))
    assert all(map(torch.equal, model.state_dict().values(), reference.state_dict().values()))


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
def test_autocast_on_the_device_of_a_tensor(dtype):
    class Model(torch.nn.Module):
        def forward(self, x):
            with torch.autocast(x.device.type, dtype=dtype):
                y = x @ x.t()
                with torch.autocast(device_type=x.device.type, enabled=False):
                    return y, x @ x

    x = inputs()[0]
    ours, expected = poptorch.inferenceModel(Model())(x), Model()(x)
    assert [y.dtype for y in ours] == [y.dtype for y in expected] and all(map(torch.equal, ours, expected))


def test_copies_by_the_module_copy():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x):
            kept, seen, both = copy.deepcopy(x), copy.copy(x), copy.deepcopy([x, x])
            weight = copy.deepcopy(self.layer.weight)
            x.mul_(2)
            return kept, seen, both[0] + 1, both[0] is both[1], self.layer(kept) + x @ weight

    x, model = inputs()[0], Model()
    ours, expected = poptorch.inferenceModel(model)(x.clone()), model(x.clone())
    assert ours[3] is True and expected[3] is True
    assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True) if isinstance(b, torch.Tensor))
    assert not hasattr(torch.Tensor, "__copy__")

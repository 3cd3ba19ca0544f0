"""Quantisation-aware training: fake quantisation whose observers follow the data, and embeddings beside it."""

import copy

import abele
import poptorch
import pytest
import torch
from torch.ao import quantization

X, TARGET = torch.linspace(-1, 1, 24).view(6, 4), torch.linspace(0, 1, 18).view(6, 3)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.quant, self.dequant = quantization.QuantStub(), quantization.DeQuantStub()
        self.first, self.second = torch.nn.Linear(4, 6), torch.nn.Linear(6, 3)

    def forward(self, x, target):
        out = self.second(torch.relu(self.first(self.quant(x))))
        return torch.nn.functional.mse_loss(self.dequant(out), target)


def prepared(backend):
    net = Net()
    net.qconfig = quantization.get_default_qat_qconfig(backend)
    return quantization.prepare_qat(net.train())


@pytest.mark.parametrize("package", [poptorch, abele])
@pytest.mark.parametrize("backend", ["fbgemm", "qnnpack"])
def test_training_equals_eager(backend, package, one_thread):
    net = prepared(backend)
    net(X, TARGET)  # observers take their sizes from the first batch
    reference = copy.deepcopy(net)
    opts = package.Options()
    opts.Training.gradientAccumulation(2)
    opts.threadsPerDevice(1)
    executor = package.trainingModel(net, opts, torch.optim.SGD(net.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step in range(3):
        x = X * (step + 1)
        executor(x, TARGET)
        optimizer.zero_grad()
        for rows in (slice(0, 3), slice(3, 6)):
            (reference(x[rows], TARGET[rows]) / 2).backward()
        optimizer.step()
    for (name, ours), theirs in zip(net.state_dict().items(), reference.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name


def test_observers_without_sizes_are_refused_with_a_remedy():
    net = prepared("fbgemm")
    with pytest.raises(abele.Error, match="E0106.*resizes") as raised:
        abele.trainingModel(net)(X, TARGET)
    assert "natively" in str(raised.value)


@pytest.mark.parametrize("package", [poptorch, abele])
def test_sparse_gradients_are_refused_with_a_remedy(package):
    class Words(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(5, 3, sparse=True)

        def forward(self, index, target):
            return torch.nn.functional.mse_loss(self.words(index), target)

    with pytest.raises(package.Error, match="E0105") as raised:
        package.trainingModel(Words())(torch.tensor([0, 1]), torch.zeros(2, 3))
    assert "sparse=False" in str(raised.value)

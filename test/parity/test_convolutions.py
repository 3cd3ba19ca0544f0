"""Convolutions of every kind have eager's bits in predictions, also after their weights were written."""

import copy

import abele
import poptorch
import pytest
import torch
from torch import nn

MICRO_BATCH, MICRO_BATCHES = 4, 8


class Net(nn.Module):
    """Convolutions with and without bias, of strides, groups and dilations, and one that is used twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 32, 5, stride=2, padding=2)
        self.twice = nn.Conv2d(32, 32, 3, padding=1, bias=False)
        self.grouped = nn.Conv2d(32, 64, 3, padding=2, dilation=2, groups=4)
        self.single = nn.Conv2d(64, 64, 3, padding=1, groups=64)
        self.point = nn.Conv2d(64, 24, 1, stride=2, bias=False)
        self.last = nn.Linear(24, 10)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.relu(x + self.twice(torch.relu(self.twice(x))))
        x = self.point(torch.relu(self.single(torch.relu(self.grouped(x)))))
        return self.last(x.mean((2, 3)))


@pytest.fixture(autouse=True)
def seeded():
    threads = torch.get_num_threads()
    torch.manual_seed(11)
    yield
    torch.set_num_threads(threads)


def options(fusion="exact", replicas=1):
    opts = abele.Options().fusion(fusion).deviceIterations(MICRO_BATCHES).replicationFactor(replicas)
    opts.threadsPerDevice(torch.get_num_threads())
    return opts


def require_eager(executor, model, replicas=1, micro_batch=MICRO_BATCH):
    x = torch.randn(MICRO_BATCHES * replicas * micro_batch, 3, 20, 20)
    with torch.no_grad():
        expected = torch.cat([model(rows) for rows in x.split(micro_batch)])
    assert torch.equal(executor(x), expected)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("fusion", ["exact", "off"])
def test_predictions_have_eagers_bits(fusion, threads):
    torch.set_num_threads(threads)
    model = Net().eval()
    reference = copy.deepcopy(model)
    executor = abele.inferenceModel(model, options(fusion))
    for _ in range(3):
        require_eager(executor, reference)
    executor.destroy()


def test_one_row():
    """Of a single row ATen takes another kernel, whose bits are others."""
    model = Net().eval()
    executor = abele.inferenceModel(model, options())
    require_eager(executor, copy.deepcopy(model), micro_batch=1)
    executor.destroy()


@pytest.mark.parametrize("shared", [True, False])
def test_weights_written_between_steps(shared):
    model = Net().eval()
    reference = copy.deepcopy(model)
    opts = options()
    opts.shareWeights(shared)
    executor = abele.inferenceModel(model, opts)
    for _ in range(3):
        require_eager(executor, reference)
        with torch.no_grad():
            for net in (model, reference):
                net.twice.weight.mul_(-0.5)
                net.first.bias.add_(1)
        if not shared:
            executor.copyWeightsToDevice()
    executor.destroy()


@pytest.mark.parametrize("replicas", [1, 2])
def test_stages_and_replicas(replicas):
    torch.set_num_threads(1)
    model = Net().eval()
    reference = copy.deepcopy(model)
    poptorch.BeginBlock(model.grouped, ipu_id=1)
    executor = abele.inferenceModel(model, options(replicas=replicas))
    for _ in range(2):
        require_eager(executor, reference, replicas)
    executor.destroy()


def test_training_between_predictions():
    model = Net()
    reference = copy.deepcopy(model)
    training = abele.Options().outputMode(abele.OutputMode.All)
    training.threadsPerDevice(torch.get_num_threads())
    training.Training.gradientAccumulation(2)

    class WithLoss(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x, target):
            out = self.net(x)
            return out, nn.functional.cross_entropy(out, target)

    train = abele.trainingModel(WithLoss(model), training, torch.optim.SGD(model.parameters(), lr=0.1))
    predict = abele.inferenceModel(model, options())
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(2):
        x, target = torch.randn(2 * MICRO_BATCH, 3, 20, 20), torch.randint(10, (2 * MICRO_BATCH,))
        train(x, target)
        optimizer.zero_grad()
        for rows, classes in zip(x.chunk(2), target.chunk(2), strict=True):
            (nn.functional.cross_entropy(reference(rows), classes) / 2).backward()
        optimizer.step()
        require_eager(predict, reference)
    train.destroy()
    predict.destroy()

"""A compiled training step gives the bits that eager PyTorch gives, wherever the model is cut."""

import copy

import networks
import poptorch
import pytest
import torch
from against_eager import MICRO_BATCH, OPTIMIZERS, cut, options, require_same, train_equally

pytestmark = pytest.mark.usefixtures("one_thread")


def train(network, strategy, num_stages, make_optimizer, accumulation, iterations=1):
    torch.manual_seed(0)
    model = networks.NETWORKS[network]()
    reference = copy.deepcopy(model)
    cut(model, num_stages)
    opts = options(strategy, accumulation, iterations)
    executor = poptorch.trainingModel(model, opts, make_optimizer(model.parameters()))
    optimizer = make_optimizer(reference.parameters())
    train_equally(executor, model, reference, optimizer, accumulation, iterations)
    executor.destroy()
    assert type(model) is networks.NETWORKS[network]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("strategy", [poptorch.PipelinedExecution, poptorch.ShardedExecution])
@pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
@pytest.mark.parametrize("network", networks.NETWORKS)
def test_training_equals_eager(network, num_stages, strategy, optimizer):
    train(network, strategy, num_stages, OPTIMIZERS[optimizer], accumulation=2 * num_stages - 1)


@pytest.mark.parametrize("strategy", [poptorch.PipelinedExecution, poptorch.ShardedExecution])
@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize("network", networks.NETWORKS)
def test_training_equals_eager_on_two_cores(network, num_stages, strategy):
    torch.set_num_threads(2)
    train(network, strategy, num_stages, OPTIMIZERS["adamw"], accumulation=2 * num_stages - 1)


@pytest.mark.parametrize("network", ["ResidualMlp", "ResNet"])
def test_several_updates_in_one_call(network):
    train(network, poptorch.PipelinedExecution, 3, OPTIMIZERS["adamw"], accumulation=5, iterations=3)


@pytest.mark.parametrize("nesterov", [False, True])
def test_groups_have_their_own_values(nesterov):
    def optimizer(parameters):
        parameters = list(parameters)
        groups = [{"params": parameters[::2]}, {"params": parameters[1::2], "lr": 0.2, "weight_decay": 0.1}]
        return torch.optim.SGD(groups, lr=0.05, momentum=0.8, nesterov=nesterov)

    train("ResidualMlp", poptorch.PipelinedExecution, 2, optimizer, accumulation=3)


@pytest.mark.parametrize("num_stages", [1, 2, 5])
@pytest.mark.parametrize("strategy", [poptorch.PipelinedExecution, poptorch.ShardedExecution])
@pytest.mark.parametrize("network", networks.NETWORKS)
def test_inference_equals_eager(network, num_stages, strategy):
    torch.manual_seed(0)
    model = networks.NETWORKS[network]().eval()
    batch = model.batch(MICRO_BATCH * 6)
    reference = copy.deepcopy(model)
    with torch.no_grad():
        expected = [reference(*(t[2 * k : 2 * k + 2] for t in batch)) for k in range(6)]
    cut(model, num_stages)
    opts = options(strategy, 1, iterations=6)
    executor = poptorch.inferenceModel(model, opts)
    output, loss = executor(*batch)
    assert torch.equal(loss, torch.stack([loss for _, loss in expected]))
    assert torch.equal(output, torch.cat([output for output, _ in expected]))
    executor.copyWeightsToHost()
    require_same(model.state_dict(), reference.state_dict())


def test_devices_with_several_threads():
    torch.manual_seed(0)
    torch.set_num_threads(2)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.LayerNorm(256), torch.nn.Linear(256, 256))
    model = Loss(model)
    reference = copy.deepcopy(model)
    opts = poptorch.Options()
    opts.threadsPerDevice(2)
    executor = poptorch.trainingModel(model, opts, torch.optim.AdamW(model.parameters(), lr=0.01))
    x = torch.randn(512, 256)
    loss = executor(x)
    optimizer = torch.optim.AdamW(reference.parameters(), lr=0.01)
    expected = reference(x)
    expected.backward()
    optimizer.step()
    assert torch.equal(loss, expected.detach())
    require_same(model.state_dict(), reference.state_dict())


class Loss(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return torch.nn.functional.mse_loss(self.inner(x), x)


def test_sum_reduction():
    torch.manual_seed(0)
    model = networks.ResidualMlp().eval()
    reference = copy.deepcopy(model)
    opts = options(poptorch.PipelinedExecution, 3)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    batch = model.batch(MICRO_BATCH * 3)
    executor(*batch)
    for k in range(3):
        reference(*(t[2 * k : 2 * k + 2] for t in batch))[1].backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    require_same(model.state_dict(), reference.state_dict())

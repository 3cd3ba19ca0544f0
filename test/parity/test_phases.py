"""Phased execution gives the bits of eager PyTorch, forward and backward, whatever the phases are."""

import copy

import networks
import poptorch
import pytest
import torch
from against_eager import OPTIMIZERS, options, train_equally

pytestmark = pytest.mark.usefixtures("one_thread")

SPEC = ("options/9.4", "options/9.1")
NAMES = ["poptorch.SerialPhasedExecution", "poptorch.ParallelPhasedExecution", "poptorch.Phase"]


def serial():
    strategy = poptorch.SerialPhasedExecution(poptorch.Phase("0"), poptorch.Phase("1", "2"), poptorch.Phase("3"))
    return strategy.setTensorsLiveness(poptorch.Liveness.OffChipAfterEachPhase)


def serial_on_two_devices():
    stage = poptorch.Stage
    strategy = poptorch.SerialPhasedExecution(poptorch.Phase(stage("0"), stage("1")), [stage("2"), stage("3")])
    for index in range(2):
        strategy.phase(index).ipus(0, 1)
    return strategy.useSeparateBackwardPhase()


def parallel():
    return poptorch.ParallelPhasedExecution("0", "1", "2", "3").sendTensorsOffChipAfterFwd()


STRATEGIES = {"serial": serial, "serial-2-devices": serial_on_two_devices, "parallel": parallel}


@pytest.mark.spec(*SPEC, names=NAMES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("network", ["Encoder", "ResNet", "Lstm", "Tied"])
def test_training_equals_eager(network, strategy, optimizer):
    torch.manual_seed(0)
    model = networks.NETWORKS[network]()
    reference = copy.deepcopy(model)
    for block in range(4):
        poptorch.BeginBlock(model.parts[block * len(model.parts) // 4], str(block))
    opts = options(STRATEGIES[strategy], 3)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS[optimizer](model.parameters()))
    theirs = OPTIMIZERS[optimizer](reference.parameters())
    train_equally(executor, model, reference, theirs, 3)


class TwoHalves(torch.nn.Module):
    """Every phase multiplies two halves on two devices, each from both results of the phase before."""

    def forward(self, x, y):
        for phase in range(4):
            with poptorch.Block(f"phase{phase}_0"):
                left = x @ y
            with poptorch.Block(f"phase{phase}_1"):
                right = y @ x
            x, y = left, right
        with poptorch.Block("phase3_1"):
            return x + y


def halves(phase, *devices):
    return [poptorch.Stage(f"phase{phase}_{i}").ipu(device) for i, device in enumerate(devices)]


@pytest.mark.spec(*SPEC, names=NAMES)
def test_stages_of_a_phase_exchange_values():
    opts = poptorch.Options()
    opts.setExecutionStrategy(poptorch.ParallelPhasedExecution(*(halves(p, p % 2, p % 2 + 2) for p in range(4))))
    x, y = torch.rand(3, 3) / 3, torch.rand(3, 3) / 3
    assert torch.equal(poptorch.inferenceModel(TwoHalves(), opts)(x, y), TwoHalves()(x, y))


@pytest.mark.spec(*SPEC, names=NAMES)
def test_parallel_phases_must_alternate_between_even_and_odd_devices():
    opts = poptorch.Options()
    opts.setExecutionStrategy(poptorch.ParallelPhasedExecution(*(halves(p, 0, 2) for p in range(4))))
    with pytest.raises(poptorch.Error, match="E0402.*\n(.*\n)*.*odd device"):
        poptorch.inferenceModel(TwoHalves(), opts)(torch.rand(3, 3), torch.rand(3, 3))


@pytest.mark.spec(*SPEC, names=NAMES)
def test_every_operation_needs_a_phase():
    opts = poptorch.Options().setExecutionStrategy(poptorch.SerialPhasedExecution(*(halves(p, 0, 1) for p in range(3))))
    with pytest.raises((poptorch.Error, AssertionError), match="phase3_0"):
        poptorch.inferenceModel(TwoHalves(), opts)(torch.rand(3, 3), torch.rand(3, 3))

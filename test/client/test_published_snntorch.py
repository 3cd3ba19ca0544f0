"""snnTorch's spiking neurons, unmodified: outputs, losses and weights of trainings are those of eager PyTorch.

Skipped where it is not installed:
  pip install --no-deps --target FOLDER snntorch==1.0.0
  PYTHONPATH=FOLDER python -m pytest test/client/test_published_snntorch.py
"""

import copy

import abele
import poptorch
import pytest
import torch

snntorch = pytest.importorskip("snntorch")

ROWS, WIDTH, HIDDEN, CLASSES, TIMES, STEPS = 6, 5, 8, 3, 4, 5


# Makes a neuron of this number of units, and the constants that it learns. In snntorch 1.0.0 alpha of Alpha cannot be
# learned, and beta of Lapicque keeps an autograd graph in a buffer, so that eager's second backward fails.
NEURONS = {
    "Leaky": (lambda units, **rest: snntorch.Leaky(beta=0.9, **rest), ("beta", "threshold")),
    "Synaptic": (lambda units, **rest: snntorch.Synaptic(alpha=0.8, beta=0.7, **rest), ("alpha", "beta", "threshold")),
    "Lapicque": (lambda units, **rest: snntorch.Lapicque(beta=0.6, **rest), ("threshold",)),
    "Alpha": (
        lambda units, **rest: snntorch.Alpha(alpha=0.9, beta=0.8, reset_mechanism="zero", **rest),
        ("beta", "threshold"),
    ),
    "RLeaky": (
        lambda units, **rest: snntorch.RLeaky(beta=0.9, all_to_all=True, linear_features=units, **rest),
        ("beta", "threshold"),
    ),
}


@pytest.fixture(autouse=True)
def without_neurons():
    """It keeps all neurons of a process, and detaches the states of all."""
    snntorch.SpikingNeuron.init()


class Net(torch.nn.Module):
    """As its tutorials are: two layers of neurons that see each row TIMES times."""

    def __init__(self, neuron, learned, **kwargs):
        super().__init__()
        torch.manual_seed(3)
        self.inner, self.outer = torch.nn.Linear(WIDTH, HIDDEN), torch.nn.Linear(HIDDEN, CLASSES)
        make, names = NEURONS[neuron]
        kwargs |= {f"learn_{name}": learned for name in names}
        self.first, self.last = make(HIDDEN, **kwargs), make(CLASSES, **kwargs)

    def scored(self, potentials, y):
        potential = torch.stack(potentials)
        return potential, torch.nn.functional.cross_entropy(potential.sum(0), y)


class Outside(Net):
    """The loop carries the states."""

    def forward(self, x, y):
        states, potentials = [neuron.reset_mem() for neuron in (self.first, self.last)], []
        states = [state if isinstance(state, tuple) else (state,) for state in states]
        for _ in range(TIMES):
            spikes, *states[0] = self.first(self.inner(x), *states[0])
            spikes, *states[1] = self.last(self.outer(spikes), *states[1])
            potentials.append(states[1][-1] + spikes)
        return self.scored(potentials, y)


class Inside(Net):
    """The neurons keep the states, and forward clears them first."""

    begins_anew = True

    def __init__(self, neuron, learned):
        super().__init__(neuron, learned, init_hidden=True)
        self.last.output = True

    def forward(self, x, y):
        potentials = []
        if self.begins_anew:
            self.first.reset_mem(), self.last.reset_mem()
        for _ in range(TIMES):
            spikes, *states = self.last(self.outer(self.first(self.inner(x))))
            potentials.append(states[-1] + spikes)
        return self.scored(potentials, y)


class Carried(Inside):
    """The neurons keep the states from call to call; the program detaches them between calls."""

    begins_anew = False


def batch(step, rows=ROWS):
    generator = torch.Generator().manual_seed(step)
    return 3 * torch.randn(rows, WIDTH, generator=generator), torch.randint(0, CLASSES, (rows,), generator=generator)


def detach(net):
    for neuron in (net.first, net.last):
        type(neuron).detach_hidden()


def assert_same_state(ours, theirs):
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name
    for name, value in theirs.named_buffers():  # states are buffers that are not saved
        assert torch.equal(dict(ours.named_buffers())[name], value), name


@pytest.mark.parametrize("learned", [False, True], ids=["constant", "learned"])
@pytest.mark.parametrize("kind", [Outside, Inside, Carried])
@pytest.mark.parametrize("neuron", NEURONS)
def test_training_and_inference(neuron, kind, learned):
    theirs, ours = kind(neuron, learned), kind(neuron, learned)
    before = copy.deepcopy(theirs.state_dict())
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    step = abele.trainingModel(ours, optimizer=torch.optim.SGD(ours.parameters(), lr=0.1, momentum=0.9))
    for index in range(STEPS):
        x, y = batch(index)
        optimizer.zero_grad()
        potential, loss = theirs(x, y)
        loss.backward()
        optimizer.step()
        for want, got in zip((potential, loss), step(x, y), strict=True):
            assert torch.equal(got, want.detach())
        detach(theirs)
    step.destroy()
    assert_same_state(ours, theirs)
    for name, _ in theirs.named_parameters():
        assert not torch.equal(before[name], theirs.state_dict()[name]), name

    infer = abele.inferenceModel(ours.eval())
    theirs.eval()
    for index, rows in enumerate((ROWS, 2, ROWS)):
        want = theirs(*batch(STEPS + index, rows))
        for got, expected in zip(infer(*batch(STEPS + index, rows)), want, strict=True):
            assert torch.equal(got, expected.detach())
        detach(theirs)
    assert_same_state(ours, theirs)


@pytest.mark.parametrize("kind", [Outside, Inside])
@pytest.mark.parametrize("neuron", NEURONS)
def test_poptorch_refuses_replaced_buffers(neuron, kind):
    net = kind(neuron, False)
    with pytest.raises(poptorch.Error) as error:
        poptorch.inferenceModel(net)(*batch(0))
    assert error.value.code == "E0108"

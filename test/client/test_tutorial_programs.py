"""Small forms of programs that people train and run: losses, states and results are those of eager PyTorch."""

import copy

import poptorch
import pytest
import torch

nn, functional = torch.nn, torch.nn.functional


@pytest.fixture(autouse=True)
def seed(one_thread):
    torch.manual_seed(0)


def train_equally(model, batches, accumulation=1, lr=1e-2):
    """Each batch is one update. The loss is the last result of forward."""
    reference = copy.deepcopy(model)
    opts = poptorch.Options().outputMode(poptorch.OutputMode.All)
    opts.Training.gradientAccumulation(accumulation)
    executor = poptorch.trainingModel(model, opts, torch.optim.AdamW(model.parameters(), lr=lr))
    optimizer = torch.optim.AdamW(reference.parameters(), lr=lr)
    for batch in batches:
        losses = executor(*batch)[-1]
        optimizer.zero_grad()
        expected = []
        for rows in zip(*(value.chunk(accumulation) for value in batch), strict=True):
            expected.append(reference(*rows)[-1])
            (expected[-1] / accumulation).backward()
        optimizer.step()
        assert torch.equal(losses.flatten(), torch.stack(expected).detach())
    executor.copyWeightsToHost()
    for name, value in reference.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    return executor


class TemporalGraph(nn.Module):
    """Nodes remember what happened to them: a buffer that each micro-batch writes at positions of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("memory", torch.zeros(10, 4))
        self.register_buffer("last_seen", torch.zeros(10, dtype=torch.int32))
        self.update, self.time, self.link = nn.GRUCell(6, 4), nn.Linear(1, 2), nn.Linear(8, 1)

    def forward(self, source, target, time, label):
        source, target = source.long(), target.long()
        passed = torch.cos(self.time((time - self.last_seen[source]).float()[:, None]))
        state = self.update(torch.cat([self.memory[target], passed], -1), self.memory[source])
        score = self.link(torch.cat([state, self.memory[target]], -1)).squeeze(-1)
        self.memory.index_copy_(0, source, state.detach())
        self.last_seen.index_copy_(0, source, time)
        return score, functional.binary_cross_entropy_with_logits(score, label)


def test_temporal_graph_network():
    def events(start):
        nodes = torch.arange(6, dtype=torch.int32)
        return nodes, torch.randint(0, 10, (6,), dtype=torch.int32), nodes + start, torch.rand(6).round()

    train_equally(TemporalGraph(), [events(0), events(6), events(12)], accumulation=3)


class SelfDistillation(nn.Module):
    """The teacher follows the student by a moving average, taken inside forward."""

    def __init__(self):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 8))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.register_buffer("center", torch.zeros(1, 8))

    def forward(self, one, other):
        with torch.no_grad():
            taught = [self.teacher(view) for view in (one, other)]
            goals = [functional.softmax((view - self.center) / 0.04, -1) for view in taught]
        learned = [functional.log_softmax(self.student(view) / 0.1, -1) for view in (other, one)]
        loss = sum(-(goal * guess).sum(-1).mean() for goal, guess in zip(goals, learned, strict=True)) / 2
        with torch.no_grad():
            self.center.mul_(0.9).add_(torch.cat(taught).mean(0, keepdim=True) * 0.1)
            for student, teacher in zip(self.student.parameters(), self.teacher.parameters(), strict=True):
                teacher.mul_(0.99).add_(student.detach() * 0.01)
        return (poptorch.identity_loss(loss, "none"),)


def test_self_distillation():
    train_equally(SelfDistillation(), [(torch.randn(4, 12), torch.randn(4, 12)) for _ in range(3)])


class Transducer(nn.Module):
    """Sums over all alignments by a lattice of tensors."""

    def __init__(self, width=8, symbols=5):
        super().__init__()
        self.encoder = nn.LSTM(6, width, num_layers=2, batch_first=True)
        self.embed, self.predictor = nn.Embedding(symbols, width), nn.LSTM(width, width, batch_first=True)
        self.join, self.out = nn.Linear(width, width), nn.Linear(width, symbols)

    def forward(self, sound, text):
        heard = self.encoder(sound)[0]
        start = torch.zeros(len(text), 1, 8)
        said = self.predictor(torch.cat([start, self.embed(text)], 1))[0]
        scores = functional.log_softmax(self.out(torch.tanh(self.join(heard[:, :, None] + said[:, None]))), -1)
        blank = scores[..., 0]
        spoken = (
            scores[:, :, :-1].gather(-1, text.long()[:, None, :, None].expand(-1, heard.size(1), -1, 1)).squeeze(-1)
        )
        lattice = {(0, 0): torch.zeros(len(text))}
        for time in range(heard.size(1)):
            for place in range(said.size(1)):
                ways = []
                if time > 0:
                    ways.append(lattice[time - 1, place] + blank[:, time - 1, place])
                if place > 0:
                    ways.append(lattice[time, place - 1] + spoken[:, time, place - 1])
                if ways:
                    lattice[time, place] = torch.logsumexp(torch.stack(ways), 0)
        total = lattice[heard.size(1) - 1, said.size(1) - 1] + blank[:, -1, -1]
        return (poptorch.identity_loss(-total, "mean"),)


def test_transducer():
    train_equally(Transducer(), [(torch.randn(4, 4, 6), torch.randint(1, 5, (4, 2)))] * 2, accumulation=2)


class MaskedImages(nn.Module):
    """Drops most patches by sorting noise, and puts them back."""

    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Conv2d(3, 16, 4, 4), nn.Parameter(torch.randn(1, 16, 16) * 0.02)
        layer = {"dim_feedforward": 32, "dropout": 0.0, "batch_first": True, "norm_first": True}
        self.encoder = nn.TransformerEncoderLayer(16, 2, **layer)
        self.decoder = nn.TransformerEncoderLayer(16, 2, **layer)
        self.missing, self.paint = nn.Parameter(torch.zeros(1, 1, 16)), nn.Linear(16, 48)

    def forward(self, image, noise):
        patches = self.embed(image).flatten(2).transpose(1, 2) + self.position
        order = noise.argsort(1)
        back = order.argsort(1)
        seen = patches.gather(1, order[:, :4, None].expand(-1, -1, 16))
        full = torch.cat([self.encoder(seen), self.missing.expand(len(image), 12, 16)], 1)
        full = full.gather(1, back[:, :, None].expand(-1, -1, 16)) + self.position
        mask = torch.cat([torch.zeros(len(image), 4), torch.ones(len(image), 12)], 1).gather(1, back)
        pixels = torch.einsum("nchpwq->nhwpqc", image.reshape(-1, 3, 4, 4, 4, 4)).reshape(-1, 16, 48)
        error = ((self.paint(self.decoder(full)) - pixels) ** 2).mean(-1)
        return error, poptorch.identity_loss((error * mask).sum() / mask.sum(), "none")


def test_masked_images():
    train_equally(MaskedImages(), [(torch.randn(4, 3, 16, 16), torch.rand(4, 16)) for _ in range(2)], accumulation=2)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(4, 16), nn.Linear(16, 2), nn.Linear(16, 1)

    def forward(self, state, action=None, gain=None):
        body = torch.tanh(self.body(state))
        chances, value = functional.softmax(self.actor(body), -1), self.critic(body).squeeze(-1)
        if action is None:
            return chances, value
        choices = torch.distributions.Categorical(chances)
        policy = -(choices.log_prob(action.long()) * (gain - value).detach()).mean()
        loss = policy + 0.5 * functional.mse_loss(value, gain) - 0.01 * choices.entropy().mean()
        return poptorch.identity_loss(loss, "none")


def test_policy_gradient_acts_with_the_weights_it_learns():
    policy = Policy()
    reference = copy.deepcopy(policy)
    learner = poptorch.trainingModel(policy, optimizer=torch.optim.Adam(policy.parameters(), lr=1e-2))
    actor = poptorch.inferenceModel(policy)
    optimizer = torch.optim.Adam(reference.parameters(), lr=1e-2)
    for _ in range(3):
        state = torch.randn(8, 4)
        chances, value = actor(state)
        assert torch.equal(chances, reference(state)[0]) and torch.equal(value, reference(state)[1])
        action, gain = torch.multinomial(chances, 1).squeeze(1), torch.randn(8)
        loss = learner(state, action, gain)
        optimizer.zero_grad()
        expected = reference(state, action, gain)
        expected.backward()
        optimizer.step()
        assert torch.equal(loss, expected)


class Sampler(nn.Module):
    """One step of a Metropolis chain, whose state stays on the device."""

    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(8, 2))

    def forward(self, scale):
        proposed = self.state + scale * torch.randn(8, 2)
        accepted = torch.rand(8).log() < 0.5 * (self.state**2 - proposed**2).sum(-1)
        self.state.copy_(torch.where(accepted[:, None], proposed, self.state))
        return self.state.clone(), accepted.float().mean()


def test_markov_chain():
    sampler = Sampler()
    reference = copy.deepcopy(sampler)
    executor = poptorch.inferenceModel(sampler, poptorch.Options().randomSeed(3).deviceIterations(5))
    states, rates = executor(torch.full((5, 1), 0.7))
    torch.manual_seed(3)
    expected = [reference(torch.full((1, 1), 0.7)) for _ in range(5)]
    assert torch.equal(states, torch.cat([state for state, _ in expected]))
    assert torch.equal(rates, torch.stack([rate for _, rate in expected]))
    executor.copyWeightsToHost()
    assert torch.equal(executor.model.state, reference.state)


class Generator(nn.Module):
    """Greedy decoding in a loop on the device."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.out = nn.Embedding(20, 16), nn.GRU(16, 16, batch_first=True), nn.Linear(16, 20)

    def scores(self, words):
        return self.out(self.mix(self.embed(words))[0])

    def forward(self, words):
        def body(words, place):
            scores = poptorch.dynamic_slice(self.scores(words), 1, place, 1, 1)
            word = scores.argmax(-1).to(words.dtype)
            return poptorch.dynamic_update(words, word, 1, place + 1, 1), place + 1

        return poptorch.for_loop(5, body, [words, torch.tensor([1], dtype=torch.int32)])[0]


def test_generation():
    generator = Generator().eval()
    words = torch.randint(1, 20, (2, 8), dtype=torch.int32)
    expected = words.clone()
    for place in range(1, 6):
        expected[:, place + 1] = generator.scores(expected)[:, place].argmax(-1)
    assert torch.equal(poptorch.inferenceModel(generator)(words), expected)

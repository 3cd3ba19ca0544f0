"""Instructions that are joined (Options.fusion) keep every bit, and write and read less memory."""

import copy

import poptorch
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from traffic import traffic

ACCUMULATION, STEPS = 4, 3


class Words(nn.Module):
    """Embeddings with padding, a shared table, and linear layers whose weights lie in different ways."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows  # of a micro-batch: what products of weight gradients run over
        self.words = nn.Embedding(50, 16, padding_idx=3)
        self.places = nn.Embedding(8, 16)
        self.up, self.down = nn.Linear(16, 40), nn.Linear(40, 16, bias=False)
        self.turned = nn.Parameter(torch.randn(16, 12).t())  # used and updated as a transposed tensor
        self.shared = nn.Linear(16, 16)  # used twice: autograd adds its gradients before we see them

    def forward(self, x, target):
        h = self.words(x) + self.places(x % 8)
        h = h + self.down(F.relu(self.up(h)))
        h = self.shared(torch.tanh(self.shared(h)))
        h = F.linear(h, self.turned)
        out = F.linear(h, self.words.weight[:, :12]) if self.rows % 2 else h @ self.up.weight[:12, :12]
        loss = F.cross_entropy(out.flatten(0, -2), target.flatten() % out.shape[-1])
        return out, poptorch.identity_loss(loss, "none")

    def batch(self):
        shape = (ACCUMULATION * 2, self.rows)
        return torch.randint(50, shape), torch.randint(12, shape)


def train(make, fusion, threads, num_stages=1, dtype=torch.float32, bound=None):
    """Trains compiled and in eager PyTorch, requires equal bits, and returns the executable's text. bound: require no
    more than that losses and weights differ by no more than that share of the largest."""

    def require_like(found, expected, name):
        found = found.reshape(expected.shape).to(expected.dtype)  # poptorch narrows float64
        if bound is None:
            assert torch.equal(found, expected), name
        else:
            assert (found - expected).abs().max() <= bound * expected.abs().max(), name

    torch.set_num_threads(threads)
    torch.manual_seed(4)
    model = make().to(dtype)
    reference = copy.deepcopy(model)
    if num_stages == 2:
        poptorch.BeginBlock(model.up, ipu_id=1)
    options = poptorch.Options().fusion(fusion)
    options.outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(ACCUMULATION)
    options.threadsPerDevice(threads)
    executor = poptorch.trainingModel(model, options, torch.optim.AdamW(model.parameters(), lr=0.01))
    optimizer = torch.optim.AdamW(reference.parameters(), lr=0.01)
    for _ in range(STEPS):
        batch = model.batch()
        _, ours = executor(*batch)
        optimizer.zero_grad()
        losses = []
        for part in zip(*(tensor.chunk(ACCUMULATION) for tensor in batch), strict=True):
            _, loss = reference(*part)
            (loss / ACCUMULATION).backward()
            losses.append(loss.detach())
        optimizer.step()
        require_like(ours, torch.stack(losses).to(ours.dtype), "loss")
    trained = executor.state_dict()
    for name, expected in reference.state_dict().items():
        require_like(trained[name], expected, name)
    text = executor._executable.session.executableText()
    executor.destroy()
    return text


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# Products over few rows are made at once, over many perhaps in parts: the trial decides.
@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [3, 8, 151, 600])
@pytest.mark.parametrize("fusion", ["exact", "off"])
def test_training_equals_eager(fusion, rows, threads, num_stages):
    text = train(lambda: Words(rows), fusion, threads, num_stages)
    assert ("abele::accumulate_product" in text) == ("abele::accumulate_rows" in text) == (fusion == "exact")


def test_double_precision():
    assert "abele::accumulate_product" in train(lambda: Words(8), "exact", 1, dtype=torch.float64)


@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [3, 151, 600])
def test_fast_reorders_sums_within_a_bound(rows, threads, num_stages):
    """A gradient of n micro-batches over k rows differs from eager's by less than twice (n k + n) u of the sum of its
    terms' sizes (kernels/gradient_sums.h, test/unit/device/gradient_sums_test.cc). Three steps of
    AdamW(lr=0.01) turn that into much less than their own length, 0.01 a step."""
    text = train(lambda: Words(rows), "fast", threads, num_stages, bound=1e-3)
    products = [line for line in text.splitlines() if "abele::accumulate_product(" in line]
    assert products
    assert all(", true)" in line for line in products)


def test_fast_joins_the_sums_of_bfloat16():
    text = train(lambda: Words(40), "fast", 1, dtype=torch.bfloat16, bound=0.1)
    assert "abele::accumulate_product(" in text
    text = train(lambda: Words(40), "exact", 1, dtype=torch.bfloat16)
    assert "abele::accumulate_product(" not in text


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(4000, 64), nn.Linear(64, 4000)

    def forward(self, x, target):
        out = self.out(self.table(x))
        return out, poptorch.identity_loss(F.cross_entropy(out, target), "none")

    def batch(self):
        return torch.randint(4000, (ACCUMULATION * 2,)), torch.randint(4000, (ACCUMULATION * 2,))


def test_a_gradient_that_is_added_up_is_not_written_and_read_again():
    counts = {fusion: traffic(train(Wide, fusion, 1)) for fusion in ("exact", "off")}
    table = 4000 * 64 * 4
    logits = 2 * 4000 * 4
    assert counts["off"][0] - counts["exact"][0] == 3
    # The gradient is written by the operator and read by the sum; the sum itself is named either way. The gradient of
    # the log-probabilities is neither written nor read, and they are read once for it.
    assert counts["off"][1] - counts["exact"][1] == 2 * (table + table) + 3 * logits


def test_an_update_for_each_micro_batch_has_nothing_to_add_up():
    torch.manual_seed(0)
    model = Wide()
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    executor(torch.randint(4000, (2,)), torch.randint(4000, (2,)))
    text = executor._executable.session.executableText()
    assert "abele::accumulate(" in text and "abele::accumulate_" not in text


def test_other_levels_are_refused():
    assert poptorch.Options().fusion_level == "exact"
    with pytest.raises(poptorch.Error, match=r'E0702.*there is no fusion "best"(.|\n)*"exact", "fast" or "off"'):
        poptorch.Options().fusion("best")
    for level in ("off", "fast"):
        assert poptorch.Options().fusion(level).fusion_level == level

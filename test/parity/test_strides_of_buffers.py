"""Buffers that forward replaces by tensors with other strides: kernels add them up in another order from then on."""

import abele
import poptorch
import pytest
import torch
import torch.nn.functional as F
from test_state_of_modules import ROWS, WIDTH, Net, optimizer_of, options, train
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")

FORMS = {
    "turned": lambda a: a.t(),
    "turned once": lambda a: a.t().contiguous().t(),
    "with gaps": lambda a: torch.stack([a, a * 0.3], 1)[:, -1],
    "expanded": lambda a: a[0, :, None].expand(65, 65),
}
LASTING = ["turned once", "with gaps", "expanded"]
RAMP = torch.linspace(0, 1, 65)[:, None] * torch.linspace(0, 1, 65)


class Restrided(Net):
    """Keeps a square matrix in a form."""

    def __init__(self, form):
        super().__init__()
        self.form = form
        self.register_buffer("large", torch.rand(65, 65))


class AddsUp(Restrided):
    def middle(self, x):
        z = x + self.large.sum() * 0.01
        self.large = self.form(self.large * 0.9 + x.detach().sum())
        return z


class Chooses(Restrided):
    """Reads single elements."""

    def middle(self, x):
        z = x + self.large[:ROWS, :WIDTH]
        self.large = self.form(torch.tanh(z.detach().sum()) + RAMP)
        return z * (1 + self.large[0, 1])


class ChoosesAgain(Restrided):
    """Backward reads them again."""

    def middle(self, x):
        z = checkpoint(lambda y: torch.tanh(y) * self.large[:ROWS, :WIDTH] + y, x, use_reentrant=False)
        self.large = self.form(x.detach().sum() + self.large.t() * 0.5)
        return z


class Stores(Restrided):
    """Does not read it."""

    def middle(self, x):
        self.large = self.form(x.detach().sum() + RAMP)
        return x


class CutAndChooses(Chooses):
    def forward(self, x, y):
        poptorch.Block.start("first", ipu_id=0)
        x = self.fc(x)
        poptorch.Block.start("second", ipu_id=1)
        z = self.middle(x)
        return z, F.mse_loss(z, y)


STRATEGIES = {
    "one stage": lambda: None,
    "1f1b": lambda: poptorch.PipelinedExecution().schedule("1f1b"),
    "sharded": poptorch.ShardedExecution,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_buffer_that_gets_other_strides(form, tmp_path):
    executor = train(lambda: AddsUp(FORMS[form]), steps=6)
    if form == "turned":
        with pytest.raises(abele.Error, match="forward replaces large by a tensor of .* other strides"):
            executor.save(str(tmp_path / "a.poptorch"))
    else:
        executor.save(str(tmp_path / "a.poptorch"), export_model=False)


@pytest.mark.parametrize("accumulation", [1, 3, 4])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("make", [Chooses, ChoosesAgain, Stores])
def test_strides_that_change_no_result(make, form, accumulation):
    train(lambda: make(FORMS[form]), accumulation=accumulation)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("form", FORMS)
def test_strides_that_change_no_result_of_stages(form, strategy):
    train(lambda: CutAndChooses(FORMS[form]), accumulation=4, strategy=STRATEGIES[strategy]())


@pytest.mark.parametrize("form", FORMS)
def test_strides_that_the_next_micro_batch_would_add_up_are_refused(form):
    model = AddsUp(FORMS[form])
    executor = abele.trainingModel(model, options(accumulation=2), optimizer_of(model))
    with pytest.raises(abele.Error, match=r"E0108 .*large.*other strides") as raised:
        executor(torch.randn(4, WIDTH), torch.randn(4, WIDTH))
    assert "aten::sum" in str(raised.value) and "contiguous()" in str(raised.value)
    assert model.large.is_contiguous()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("form", LASTING)
def test_strides_that_a_native_call_has_given(form, strategy):
    class Cut(AddsUp):
        def forward(self, x, y):
            poptorch.Block.start("first", ipu_id=0)
            x = self.fc(x)
            poptorch.Block.start("second", ipu_id=1)
            z = self.middle(x)
            return z, F.mse_loss(z, y)

    def make():
        model = Cut(FORMS[form])
        model(torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH))
        return model

    train(make, accumulation=3, strategy=STRATEGIES[strategy]())


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_a_buffer_that_the_program_replaces_too(form, accumulation):
    def reset(step, model):
        like = [torch.ones(65, 65), torch.ones(65, 65).t(), torch.ones(65, 2, 65)[:, 1], torch.ones(65).expand(65, 65)]
        model.large = like[step]

    train(lambda: Chooses(FORMS[form]), accumulation=accumulation, between=reset)


def test_micro_batches_in_turn():
    train(lambda: Chooses(FORMS["with gaps"]), accumulation=4, more=lambda opts: opts.dataParallel(2))


@pytest.mark.parametrize("form", LASTING)
def test_an_inference_model(form):
    torch.manual_seed(0)
    model, twin = AddsUp(FORMS[form]), AddsUp(FORMS[form])
    twin.load_state_dict(model.state_dict())
    executor = abele.inferenceModel(model)
    for _ in range(3):
        x, y = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
        with torch.no_grad():
            assert torch.equal(executor(x, y)[0], twin(x, y)[0])
    assert torch.equal(executor.model.large.sum(), twin.large.sum())
    assert executor.model.large.stride() == twin.large.stride()


def test_windows_that_share_memory_are_refused_if_they_are_added_up():
    model = AddsUp(lambda a: a[0, :1].expand(129).clone().unfold(0, 65, 1))
    executor = abele.trainingModel(model, options(), optimizer_of(model))
    with pytest.raises(abele.Error, match="E0108 .*large.*other strides"):
        executor(torch.randn(2, WIDTH), torch.randn(2, WIDTH))


class Gapped(Net):
    """Writes or replaces a buffer with gaps."""

    def __init__(self, replaces):
        super().__init__()
        self.replaces = replaces
        self.register_buffer("rows", torch.zeros(WIDTH, 2, WIDTH)[:, 1])

    def middle(self, x):
        z = x + self.rows[1]
        if self.replaces:
            self.rows = torch.stack([self.rows * 0.5 + x.detach().mean(0)] * 2, 1)[:, 1]
        else:
            self.rows.mul_(0.5).add_(x.detach().mean(0))
        return z


WRITERS = {
    "gaps, written": lambda: Gapped(replaces=False),
    "gaps, replaced": lambda: Gapped(replaces=True),
    "turned, added up": lambda: AddsUp(FORMS["turned"]),
    "turned, single elements": lambda: Chooses(FORMS["turned"]),
}


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("make", WRITERS.values(), ids=WRITERS)
def test_a_buffer_that_training_and_inference_write(make, copies):
    torch.manual_seed(0)
    model, twin = make(), make()
    twin.load_state_dict(model.state_dict())
    training = abele.trainingModel(model, options(), optimizer_of(model))
    inference, theirs = abele.inferenceModel(model), optimizer_of(twin)
    for _ in range(3):
        x, y = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
        z, loss = twin(x, y)
        theirs.zero_grad()
        loss.backward()
        theirs.step()
        assert torch.equal(training(x, y)[0], z)
        with torch.no_grad():
            assert torch.equal(inference(x, y)[0], twin(x, y)[0])
        if copies:
            training.copyWeightsToHost()
    for ours, expected in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("replaces", [False, True])
def test_a_buffer_with_gaps_that_the_program_writes_too(replaces):
    def halve(step, model):
        if step < 2:  # copyWeightsToHost() after the last step replaces what the program writes
            model.rows.mul_(0.5)

    torch.manual_seed(0)
    model, twin = Gapped(replaces), Gapped(replaces)
    twin.load_state_dict(model.state_dict())
    executor = abele.inferenceModel(model)
    for _ in range(3):
        x, y = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
        with torch.no_grad():
            assert torch.equal(executor(x, y)[0], twin(x, y)[0])
        model.rows.mul_(0.5)
        twin.rows.mul_(0.5)
    train(lambda: Gapped(replaces), accumulation=3, steps=3, between=halve)

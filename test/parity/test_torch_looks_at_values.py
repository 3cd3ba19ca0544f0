"""Modules of torch that look at values only to find a faster way compile, and are right for all values."""

import poptorch
import pytest
import torch
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")


def encoder(**kwargs):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    return torch.nn.TransformerEncoder(layer, 2, **kwargs)


CAUSAL = torch.nn.Transformer.generate_square_subsequent_mask(4)


class WithMask(torch.nn.Module):
    """mask: None, when it comes with the call."""

    def __init__(self, mask):
        super().__init__()
        self.encoder = encoder()
        self.register_buffer("mask", mask)

    def forward(self, x, mask=None):
        return self.encoder(x, mask=self.mask if mask is None else mask)


@pytest.mark.parametrize("training", [True, False])
def test_a_causal_mask_that_the_model_holds(training):
    model = WithMask(CAUSAL.clone()).train(training)
    x = torch.randn(2, 4, 8)
    with torch.no_grad():
        assert torch.equal(poptorch.inferenceModel(model)(x), model(x))


def test_a_mask_that_is_causal_at_the_first_call_only():
    model = WithMask(None).eval()
    executor = poptorch.inferenceModel(model)
    x = torch.randn(4, 4, 8)
    other = torch.zeros(4, 4)
    other[0, 3] = float("-inf")
    with torch.no_grad():
        for mask in (CAUSAL, other, torch.zeros(4, 4)):
            assert torch.allclose(executor(x, mask), model(x, mask), atol=1e-6)


class Predicts(torch.nn.Module):
    def __init__(self, part):
        super().__init__()
        torch.manual_seed(0)
        self.part = part()

    def forward(self, x):
        if isinstance(self.part, torch.nn.MultiheadAttention):
            return self.part(x, x, x, need_weights=False)[0]
        return self.part(x)


PARTS = {
    "encoder": encoder,
    "layer": lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0),
    "attention": lambda: torch.nn.MultiheadAttention(8, 2, batch_first=True),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_model_in_training_predicts_by_the_faster_way_too(part):
    """Torch takes it unless a tensor overrides its functions, as the weights of such a model seem to."""
    model, reference = Predicts(PARTS[part]), Predicts(PARTS[part])
    trained = poptorch.trainingModel(WithLoss(model))
    executor = poptorch.inferenceModel(model.eval())
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(3, 4, 8)
            assert torch.equal(executor(x), reference.eval()(x))
    trained.destroy()


class WithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return poptorch.identity_loss(self.model(x).square().mean(), "none")


def test_padding_masks(caplog):
    model = encoder().eval()
    reference = encoder(enable_nested_tensor=False).eval()
    executor = poptorch.inferenceModel(model)
    x = torch.randn(3, 5, 8)
    lengths = torch.tensor([5, 2, 3])
    padding = torch.arange(5)[None] >= lengths[:, None]
    with torch.no_grad():
        for mask in (padding, padding.flip(0), torch.zeros(3, 5, dtype=torch.bool)):
            assert torch.equal(executor(x, src_key_padding_mask=mask), reference(x, src_key_padding_mask=mask))
    assert "enable_nested_tensor=False" in caplog.text
    caplog.clear()
    poptorch.inferenceModel(reference)(x, src_key_padding_mask=padding)
    assert "enable_nested_tensor" not in caplog.text


@pytest.mark.parametrize("function", [torch.nn.functional.gaussian_nll_loss, torch.nn.GaussianNLLLoss()])
def test_the_check_of_variances(function):
    class Model(torch.nn.Module):
        def forward(self, x, y):
            return function(x, y, x.square())

    x, y = torch.randn(4), torch.randn(4)
    assert torch.equal(poptorch.inferenceModel(Model())(x, y), function(x, y, x.square()))
    with pytest.raises(ValueError, match="negative"):  # torch is as it was
        function(x, y, -torch.ones(4))


class AsksWhetherItIsCompiled(torch.nn.Module):
    """Skips a mask that masks nothing, unless a compiler looks; in a part that backward runs again."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.query = torch.nn.Linear(8, 8)
        self.block = torch.nn.Linear(8, 8)

    def attend(self, x, mask):
        if not torch._utils.is_compiling() and not torch.compiler.is_compiling() and mask.all():
            mask = None
        y = torch.nn.functional.scaled_dot_product_attention(self.query(x), x, x, mask)
        torch.func.vmap(torch.sin)(y)  # asks too: torch's own code goes on as in eager
        return y

    def forward(self, x, mask):
        y = torch.utils.checkpoint.checkpoint(self.attend, self.block(x), mask, use_reentrant=False)
        return y, poptorch.identity_loss(y.square().mean(), "none")


@pytest.mark.filterwarnings("ignore:.*is_compiling")
def test_libraries_that_ask_whether_they_are_compiled():
    """They take the way that they take in eager; the answer to their look at a mask is asked again in every step."""
    x, some = torch.randn(2, 4, 8), torch.arange(4).expand(2, 1, 4) < torch.tensor([4, 2])[:, None, None]
    model = poptorch.inferenceModel(AsksWhetherItIsCompiled())
    model(x, some | True)
    with pytest.raises(poptorch.Error, match=r"E0101(?s:.)*captureAsCompiling"):
        model(x, some)


@pytest.mark.filterwarnings("ignore:.*is_compiling")
def test_libraries_that_are_told_that_they_are_compiled():
    ours, theirs = AsksWhetherItIsCompiled(), AsksWhetherItIsCompiled()
    options = poptorch.Options()
    options.captureAsCompiling()
    training = poptorch.trainingModel(ours, options, optimizer=torch.optim.SGD(ours.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    some = torch.arange(4).expand(2, 1, 4) < torch.tensor([4, 2])[:, None, None]
    for mask in (some | True, some, some | True):
        x = torch.randn(2, 4, 8)
        y, loss = theirs(x, mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert all(map(torch.equal, training(x, mask), (y, loss)))
    assert not torch.compiler.is_compiling()
    assert all(map(torch.equal, ours.state_dict().values(), theirs.state_dict().values()))


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batch_norm_that_averages_over_all_batches(layout, recomputes):
    def make():
        torch.manual_seed(0)
        return Averaging().to(memory_format=layout)

    class Averaging(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm2d(3, momentum=None)

        def forward(self, x):
            x = x.contiguous(memory_format=layout)
            y = checkpoint(self.norm, x, use_reentrant=False) if recomputes else self.norm(x)
            return y, poptorch.identity_loss((y**3).mean(), "none")

    ours, theirs = make(), make()
    options = poptorch.Options().deviceIterations(2)
    options.Training.gradientAccumulation(2)
    options.outputMode(poptorch.OutputMode.All)
    training = poptorch.trainingModel(ours, options, optimizer=torch.optim.SGD(ours.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for _ in range(2):
        x = torch.randn(4 * 5, 3, 6, 6)
        outputs = []
        for i, batch in enumerate(x.split(5)):
            y, loss = theirs(batch)
            outputs.append(y.detach())
            (loss / 2).backward()
            if i % 2 == 1:
                optimizer.step()
                optimizer.zero_grad()
        assert torch.equal(training(x)[0], torch.cat(outputs))
    training.copyWeightsToHost()
    for (name, mine), other in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        assert torch.equal(mine, other), name

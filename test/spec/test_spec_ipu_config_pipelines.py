"""abele.ipu_config: pipelines of GroupBERT, and layers in pieces, trained with eager's numbers."""

import copy
import logging

import poptorch
import pytest
import torch
from abele.ipu_config import (
    IncompatibleIPUConfigError,
    IPUConfig,
    OnehotGather,
    PipelinedBertMixin,
    PipelineMixin,
    SerializedEmbedding,
    SerializedLinear,
    SharedEmbedding,
    SplitProjection,
    outline_attribute,
    recomputation_checkpoint,
    register,
    to_pipelined,
)
from poptorch import MatMulSerializationMode

pytestmark = pytest.mark.usefixtures("one_thread")
WORDS, WIDTH, LENGTH = 24, 8, 6


# GroupBERT ------------------------------------------------------------------------------------------------------------
class Embeddings(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.word_embeddings = torch.nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.position_embeddings = torch.nn.Embedding(LENGTH, WIDTH)
        self.LayerNorm = torch.nn.LayerNorm(WIDTH)

    def forward(self, input_ids):
        positions = torch.arange(input_ids.shape[1])
        return self.LayerNorm(self.word_embeddings(input_ids) + self.position_embeddings(positions))


class GroupBertLayer(torch.nn.Module):
    """A grouped convolution, attention and grouped linear layers, each with a residual way."""

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=4)
        self.attention = torch.nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.down = torch.nn.Conv1d(2 * WIDTH, WIDTH, 1, groups=2)
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(self, x):
        x = x + self.convolution(x.transpose(1, 2)).transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.norm(x + self.down(torch.nn.functional.gelu(self.up(x)).transpose(1, 2)).transpose(1, 2))


class Encoder(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layer = torch.nn.ModuleList(GroupBertLayer() for _ in range(layers))

    def forward(self, x):
        for layer in self.layer:
            x = layer(x)
        return x


class Bert(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.embeddings, self.encoder = Embeddings(), Encoder(layers)

    def forward(self, input_ids):
        return self.encoder(self.embeddings(input_ids))


class Predictions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.transform = torch.nn.Linear(WIDTH, WIDTH)
        self.decoder = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, x):
        return self.decoder(torch.tanh(self.transform(x)))


class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.predictions = Predictions()

    def forward(self, x):
        return self.predictions(x)


class GroupBert(torch.nn.Module):
    def __init__(self, layers=4, tied=True):
        super().__init__()
        torch.manual_seed(0)
        self.tied = tied
        self.bert, self.cls = Bert(layers), Head()
        self.tie_weights()

    def tie_weights(self):
        if self.tied:
            self.cls.predictions.decoder.weight = self.bert.embeddings.word_embeddings.weight

    def forward(self, input_ids, labels=None):
        logits = self.cls(self.bert(input_ids))
        if labels is None:
            return logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


@register()
class PipelinedGroupBert(PipelinedBertMixin, GroupBert):
    pass


def words(rows, seed=1):
    return torch.randint(0, WORDS, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))


def train_as_eager(pipelined, reference, config, steps=3):
    """Trains both with the micro-batches of the config; requires equal losses and weights. Returns the executor."""
    pipelined.parallelize()
    options = config.to_options().outputMode(poptorch.OutputMode.All)
    optimizer = poptorch.optim.AdamW(pipelined.parameters(), lr=1e-2, weight_decay=0.0)
    executor = poptorch.trainingModel(pipelined, options, optimizer)
    eager = torch.optim.AdamW(reference.parameters(), lr=1e-2, weight_decay=0.0)
    rows = config.batch_size_factor()
    for step in range(steps):
        inputs, labels = words(rows, step), words(rows, step + 100)
        losses, logits = executor(input_ids=inputs, labels=labels)
        eager.zero_grad()
        for row in range(rows):
            loss, expected = reference(inputs[row : row + 1], labels[row : row + 1])
            assert torch.equal(losses.flatten()[row], loss.detach()) and torch.equal(logits[row], expected[0].detach())
            (loss / rows).backward()
        eager.step()
    executor.copyWeightsToHost()
    for (name, ours), theirs in zip(pipelined.named_parameters(), reference.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    return executor


def devices(executor):
    """The device of each stage, without repetitions."""
    stages = [stage["device"] for stage in executor.report()["stages"]]
    return [device for i, device in enumerate(stages) if i == 0 or stages[i - 1] != device]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"layers_per_ipu": [4]}, [0]),
        ({"layers_per_ipu": [2, 2]}, [0, 1, 0]),
        ({"layers_per_ipu": [0, 1, -1, -1]}, [0, 1, 2, 3, 0]),
        ({"ipus_per_replica": 2, "recompute_checkpoint_every_layer": True}, [0, 1, 0]),
    ],
    ids=str,
)
def test_groupbert_trains_as_eager(settings, expected):
    config = IPUConfig(gradient_accumulation_steps=16, **settings)
    model = to_pipelined(GroupBert(), config)
    assert type(model) is PipelinedGroupBert
    executor = train_as_eager(model, GroupBert(), config)
    assert devices(executor) == expected


@pytest.mark.parametrize("setting", ["embedding_serialization_factor", "projection_serialization_factor"])
def test_groupbert_with_a_serialized_projection(setting):
    config = IPUConfig(layers_per_ipu=[2, 2], gradient_accumulation_steps=8, **{setting: 4})
    model, reference = to_pipelined(GroupBert(), config), to_pipelined(GroupBert(), config)
    before = list(model.state_dict())
    reference.parallelize()
    train_as_eager(model, reference, config)
    decoder = model.cls.predictions.decoder
    assert isinstance(decoder, SerializedLinear) and (decoder.factor, decoder.mode.name) == (4, "OutputChannels")
    assert decoder.weight is model.bert.embeddings.word_embeddings.weight  # tied as before
    assert list(model.state_dict()) == before and isinstance(model.bert.encoder.layer[0], GroupBertLayer)
    model.destroy()
    x = words(2)
    logits = model(x)
    assert model.deparallelize() is model and type(model.cls.predictions.decoder) is torch.nn.Linear
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert list(model.state_dict()) == before and poptorch.module_repr(model).count("BeginBlock") == 0
    torch.testing.assert_close(model(x), logits)


@pytest.mark.parametrize(
    "settings",
    [{"projection_serialization_factor": 4}, {"serialized_projection_splits_per_ipu": [1, 2]}],
    ids=["serialized", "split"],
)
def test_a_bias_that_is_tied_stays_tied(settings):
    """The head's bias is the decoder's too, and tie_weights() says nothing of it."""
    model = GroupBert(tied="projection_serialization_factor" in settings)
    model.cls.predictions.bias = model.cls.predictions.decoder.bias
    config = IPUConfig(layers_per_ipu=[2, 2], gradient_accumulation_steps=8, **settings)
    pipelined = to_pipelined(model, config)
    number = len(list(pipelined.parameters()))
    pipelined.parallelize()
    assert pipelined.cls.predictions.decoder.bias is pipelined.cls.predictions.bias
    pipelined.deparallelize()
    assert type(pipelined.cls.predictions.decoder) is torch.nn.Linear
    assert pipelined.cls.predictions.decoder.bias is pipelined.cls.predictions.bias
    assert len(list(pipelined.parameters())) == number
    assert list(pipelined.state_dict()) == list(model.state_dict())


def test_groupbert_in_pieces_on_several_devices():
    config = IPUConfig(
        layers_per_ipu=[1, 1, 1, 1],
        gradient_accumulation_steps=18,
        serialized_embedding_splits_per_ipu=[2, 1, 0, 0],
        serialized_projection_splits_per_ipu=[0, 0, 1, 2],
    )
    plain = GroupBert(tied=False)
    model = to_pipelined(plain, config)
    reference = to_pipelined(plain, config)
    reference.parallelize()
    executor = train_as_eager(model, reference, config)
    assert devices(executor) == [0, 1, 0, 1, 2, 3, 0, 2, 3]
    executor.destroy()
    before = model(words(2))
    model.deparallelize()
    assert list(model.state_dict()) == list(plain.state_dict())
    torch.testing.assert_close(model(words(2)), before)
    assert model.bert.embeddings.word_embeddings.padding_idx == 0


def test_groupbert_infers_as_eager():
    config = IPUConfig(layers_per_ipu=[2, 2], inference_layers_per_ipu=[1, 1, 2], inference_device_iterations=4)
    model = to_pipelined(GroupBert(), config)
    model.ipu_config.eval()
    model.eval().parallelize()
    x = words(4)
    with torch.no_grad():
        expected = torch.cat([GroupBert().eval()(row[None]) for row in x])
    executor = poptorch.inferenceModel(model, config.to_options(for_inference=True))
    assert torch.equal(executor(x), expected) and devices(executor) == [0, 1, 2, 0]


def test_pieces_of_tied_weights_cannot_be_placed():
    for name in ("embedding", "projection"):
        config = IPUConfig(layers_per_ipu=[2, 2], **{f"serialized_{name}_splits_per_ipu": [1, 1]})
        with pytest.raises(ValueError, match="projection"):
            to_pipelined(GroupBert(), config).parallelize()


def test_the_allocation_is_logged(caplog, monkeypatch):
    monkeypatch.setattr(poptorch.logger, "propagate", True)
    level = poptorch.logger.level
    poptorch.logger.setLevel(logging.INFO)
    try:
        with caplog.at_level(logging.INFO):
            to_pipelined(GroupBert(), IPUConfig(layers_per_ipu=[1, 3])).parallelize()
    finally:
        poptorch.logger.setLevel(level)
    text = caplog.text
    for line in ("Device Allocation", "Embedding  --> IPU 0", "Encoder 0  --> IPU 0", "Encoder 3  --> IPU 1"):
        assert line in text
    assert "Classifier --> IPU 0" in text


def test_layers_that_do_not_fit_the_model():
    with pytest.raises(IncompatibleIPUConfigError, match="4 layers"):
        to_pipelined(GroupBert(), IPUConfig(layers_per_ipu=[2, 3])).parallelize()


# Pipelined models in general ------------------------------------------------------------------------------------------
def test_models_have_a_config():
    model = to_pipelined(GroupBert(), IPUConfig(seed=4))
    assert model.ipu_config.seed == 4
    with pytest.raises(TypeError, match="IPUConfig"):
        model.ipu_config = {}

    class Own(torch.nn.Linear, PipelineMixin):
        pass

    with pytest.raises(AttributeError, match="ipu_config"):
        Own(2, 2).parallelize()
    again = to_pipelined(model, IPUConfig(seed=5))
    assert again is not model and (again.ipu_config.seed, model.ipu_config.seed) == (5, 4)
    model.parallelize().deparallelize().parallelize()
    copy.deepcopy(model)


def test_models_that_are_not_registered():
    with pytest.raises(KeyError, match="Linear"):
        to_pipelined(torch.nn.Linear(2, 2), IPUConfig())
    model = to_pipelined(torch.nn.Linear(2, 2), IPUConfig(), force=True)
    assert isinstance(model, torch.nn.Linear) and isinstance(model, PipelineMixin)
    assert model.parallelize() is model and type(model).__name__ == "PipelinedLinear"
    with pytest.raises(ValueError, match="no base class"):
        register()(type("Nothing", (PipelineMixin,), {}))

    class Plain(torch.nn.Linear):
        pass

    @register(Plain)
    class Other(PipelineMixin, torch.nn.Linear):
        pass

    assert type(to_pipelined(Plain(2, 2), IPUConfig())) is Other


def test_hooks_can_be_taken_away():
    linear = torch.nn.Linear(2, 2)
    x = torch.ones(1, 2)
    handles = [recomputation_checkpoint(linear), *outline_attribute(linear, "name")]
    assert torch.equal(poptorch.inferenceModel(linear)(x), linear(x))
    for handle in handles:
        handle.remove()
    assert not linear._forward_hooks and not linear._forward_pre_hooks

    class Pair(torch.nn.Module):
        def forward(self, x):
            return x, [x + 1, None]

    pair = Pair()
    recomputation_checkpoint(pair)
    first, (second, nothing) = pair(x)
    assert torch.equal(first, x) and torch.equal(second, x + 1) and nothing is None


# Layers in pieces -----------------------------------------------------------------------------------------------------
def gradients(module, x):
    result = module(x)
    weights = torch.linspace(-1, 1, result.numel()).reshape(result.shape)
    module.zero_grad()
    (result * weights).sum().backward()
    return result.detach(), [p.grad for p in module.parameters()]


@pytest.mark.parametrize("factor", [1, 2, 3])
@pytest.mark.parametrize("padding", [None, 0, 3, 5])
def test_serialized_embedding(factor, padding):
    torch.manual_seed(0)
    plain = torch.nn.Embedding(6, 4, padding_idx=padding)
    serialized = SerializedEmbedding.from_model(plain, factor)
    ids = torch.arange(12).reshape(3, 4) % 6
    values, (gradient,) = gradients(plain, ids)
    ours, parts = gradients(serialized, ids)
    assert torch.equal(ours, values) and torch.equal(torch.cat(parts), gradient)
    back = serialized.to_model()
    assert torch.equal(back.weight, plain.weight) and back.padding_idx == padding and back.weight.requires_grad
    assert torch.equal(poptorch.inferenceModel(serialized)(ids), values)
    for wrong in (torch.tensor([6]), torch.tensor([-1])):
        with pytest.raises(IndexError):
            serialized(wrong)


def test_serialized_embedding_of_frozen_and_infinite_weights():
    weight = torch.arange(8.0).reshape(4, 2)
    weight[0] = float("inf")
    serialized = SerializedEmbedding(torch.nn.Embedding.from_pretrained(weight), 2)
    assert torch.equal(serialized(torch.tensor([3, 0])), weight[[3, 0]])
    assert not any(p.requires_grad for p in serialized.parameters())
    assert not serialized.to_model().weight.requires_grad
    with pytest.raises(AssertionError, match="4 rows"):
        SerializedEmbedding(torch.nn.Embedding(4, 2), 3)


@pytest.mark.parametrize("mode", list(MatMulSerializationMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize("bias", [True, False])
def test_serialized_linear(mode, bias):
    torch.manual_seed(0)
    plain = torch.nn.Linear(4, 6, bias=bias)
    serialized = SerializedLinear.from_model(plain, 2, mode)
    x = torch.randn(8, 4)
    values, expected = gradients(plain, x)
    ours, parts = gradients(serialized, x)
    torch.testing.assert_close(ours, values)
    torch.testing.assert_close(parts, expected)
    back = serialized.to_model()
    assert type(back) is torch.nn.Linear and torch.equal(back.weight, plain.weight) and (back.bias is None) != bias
    executor = poptorch.inferenceModel(serialized)
    assert torch.equal(executor(x), ours)
    assert SerializedLinear(4, 6, 2).bias is None and "factor=2" in repr(SerializedLinear(4, 6, 2))


@pytest.mark.parametrize("mode", [MatMulSerializationMode.OutputChannels, MatMulSerializationMode.ReducingDim])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_split_projection(mode, dtype):
    torch.manual_seed(0)
    plain = torch.nn.Linear(4, 6, dtype=dtype)
    split = SplitProjection.from_model(plain, 2, mode)
    x = torch.randn(3, 5, 4, dtype=dtype)
    torch.testing.assert_close(split(x), plain(x))
    back = split.to_model()
    assert torch.equal(back.weight, plain.weight) and torch.equal(back.bias, plain.bias) and back.weight.dtype == dtype
    assert SplitProjection(torch.nn.Linear(4, 6, bias=False), 2, mode).bias is None


def test_split_projection_refuses():
    with pytest.raises(ValueError, match="6 features"):
        SplitProjection(torch.nn.Linear(4, 6), 4)
    with pytest.raises(ValueError, match="4 features"):
        SplitProjection(torch.nn.Linear(4, 6), 3, MatMulSerializationMode.ReducingDim)
    with pytest.raises(ValueError, match="InputChannels|Disabled"):
        SplitProjection(torch.nn.Linear(4, 6), 2, MatMulSerializationMode.Disabled)
    with pytest.raises(ValueError, match="3 pieces of 2"):
        SplitProjection(torch.nn.Linear(4, 6), 2).parallelize([1, 2])


def test_shared_embedding():
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(6, 4)
    shared = SharedEmbedding(embedding)
    a, b = torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])
    encoder, decoder = shared(a, b, encoder_embed_scale=2.0)
    assert torch.equal(encoder, embedding(a) * 2) and torch.equal(decoder, embedding(b))
    encoder, decoder = shared(None, b, decoder_embed_scale=3.0)
    assert encoder is None and torch.equal(decoder, embedding(b) * 3)
    encoder, decoder = shared(a, None)
    assert torch.equal(encoder, embedding(a)) and decoder is None
    with pytest.raises(ValueError, match="input_ids"):
        shared(None, None)


def test_onehot_gather():
    sequence = torch.randn(2, 5, 3)
    positions = torch.tensor([[4, 0], [1, 1]])
    expected = torch.stack([row[where] for row, where in zip(sequence, positions, strict=True)])
    assert torch.equal(OnehotGather()(sequence, positions), expected)
    assert torch.equal(poptorch.inferenceModel(OnehotGather())(sequence, positions), expected)


def test_the_published_groupbert():
    published = pytest.importorskip("optimum.graphcore.models.groupbert.modeling_groupbert")

    class Pipelined(PipelinedBertMixin, published.GroupBertForMaskedLM):
        pass

    settings = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 4, "intermediate_size": 64}
    settings |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    plain = published.GroupBertForMaskedLM(published.GroupBertConfig(vocab_size=WORDS, **settings))
    config = IPUConfig(layers_per_ipu=[2, 2], gradient_accumulation_steps=8, embedding_serialization_factor=2)
    register()(Pipelined)
    model, reference = to_pipelined(plain, config).train(), to_pipelined(plain, config).train()
    reference.parallelize()
    model.parallelize()
    executor = poptorch.trainingModel(
        model,
        config.to_options().outputMode(poptorch.OutputMode.All),
        poptorch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0),
    )
    eager = torch.optim.AdamW(reference.parameters(), lr=1e-3, weight_decay=0.0)
    rows = words(8)
    for _ in range(2):
        losses = executor(input_ids=rows, labels=rows).loss.flatten()
        eager.zero_grad()
        for row in range(8):
            loss = reference(input_ids=rows[row : row + 1], labels=rows[row : row + 1]).loss
            assert torch.equal(losses[row], loss.detach())
            (loss / 8).backward()
        eager.step()
    executor.copyWeightsToHost()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(ours, theirs)

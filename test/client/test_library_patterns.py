"""What training libraries on top of PopTorch do with it, in small: programs of our own in their manner."""

import collections
import copy
import dataclasses
import inspect

import poptorch
import pytest
import torch


class Output(dict):
    """A model's results by name and by attribute."""

    __getattr__ = dict.__getitem__


class Encoder(torch.nn.Module):
    """A transformer as model libraries write them: keyword tensors in, results by name out."""

    def __init__(self, layers=4, width=8):
        super().__init__()
        torch.manual_seed(0)
        self.embeddings = torch.nn.Embedding(12, width)
        self.layer = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True) for _ in range(layers)
        )
        self.head = torch.nn.Linear(width, 3)

    def forward(self, input_ids=None, labels=None, return_dict=None, mask=None):
        hidden = self.embeddings(input_ids)
        for layer in self.layer:
            hidden = layer(hidden)
        logits = self.head(hidden[:, 0])
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        if not return_dict:
            return (loss, logits) if loss is not None else (logits,)
        return Output(loss=loss, logits=logits) if loss is not None else Output(logits=logits)


def pipelined(model):
    poptorch.BeginBlock(model.embeddings, "Embedding", ipu_id=0)
    for index, layer in enumerate(model.layer):
        model.layer[index] = poptorch.BeginBlock(layer, f"Encoder{index}", ipu_id=index // 2)
    poptorch.BeginBlock(model.head, "Head", ipu_id=1)
    return model


def rows(n=48):
    generator = torch.Generator().manual_seed(1)
    return [
        {"input_ids": torch.randint(12, (5,), generator=generator), "labels": torch.tensor(i % 3)} for i in range(n)
    ]


def training_options(accumulation=4):
    options = poptorch.Options().deviceIterations(1).outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(accumulation)
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
    return options


def test_trainer_with_schedule_evaluation_and_checkpoints(tmp_path):
    """A trainer over data sets of dicts: each step sets the optimizer, each epoch evaluates and saves."""
    model = pipelined(Encoder())
    options = training_options()
    loader = poptorch.DataLoader(options, rows(), batch_size=2, shuffle=True, num_workers=0, drop_last=True)
    first = next(iter(loader))
    assert first["input_ids"].shape == (8, 5) and len(loader) == 6

    decay = [p for name, p in model.named_parameters() if "bias" not in name]
    rest = [p for name, p in model.named_parameters() if "bias" in name]
    groups = [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
    optimizer = poptorch.optim.AdamW(groups, lr=5e-3, betas=(0.9, 0.999), eps=1e-8, bias_correction=True)
    assert isinstance(optimizer, poptorch.optim.Optimizer)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 40)

    training = poptorch.trainingModel(model.train(), options, optimizer)
    training.compile(**first, return_dict=True)
    assert training.isCompiled()
    inference = poptorch.inferenceModel(copy.copy(model).eval(), poptorch.Options().deviceIterations(2))
    losses = []
    for _ in range(4):
        for batch in loader:
            result = training(**batch, return_dict=True)
            assert type(result) is Output and result.loss.shape == (4,) and result.logits.shape == (8, 3)
            schedule.step()
            training.setOptimizer(optimizer)
            losses.append(result["loss"].mean().item())
        if training.isAttachedToDevice():
            training.detachFromDevice()
        logits = inference(input_ids=first["input_ids"], return_dict=True).logits
        assert logits.shape == (8, 3)
        inference.detachFromDevice()
        training.attachToDevice()
    assert losses[-1] < losses[0]

    keys = list(model.state_dict())
    torch.save(model.state_dict(), tmp_path / "model.bin")
    for module in model.modules():
        poptorch.removeBlocks(module)
    assert list(model.state_dict()) == keys == list(Encoder().state_dict())
    again = Encoder()
    again.load_state_dict(torch.load(tmp_path / "model.bin"))
    assert torch.equal(again.head.weight, model.head.weight)


def test_framework_that_asks_what_is_compiled():
    """A framework inspects executors and loaders, and makes loaders anew from their arguments."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 2))
    executor = poptorch.inferenceModel(model, poptorch.Options().deviceIterations(2))
    assert not executor.isCompiled() and executor._executable is None
    executor(torch.ones(4, 4))
    assert executor._executable is not None
    executor._options.outputMode  # noqa: B018 (the framework reads it)
    assert executor.options.replication_factor == 1
    executor.train()
    executor.destroy()
    assert not executor.isCompiled()

    named = set(inspect.signature(poptorch.DataLoader.__init__).parameters)
    assert {"options", "dataset", "batch_size", "shuffle", "num_workers", "drop_last"} <= named
    loader = poptorch.DataLoader(poptorch.Options().deviceIterations(2), list(range(10)), 2, sampler=None)
    attributes = {name: getattr(loader, name) for name in ("dataset", "sampler", "num_workers", "collate_fn")}
    again = poptorch.DataLoader(loader.options, batch_size=2, **attributes)
    assert [b.tolist() for b in again] == [b.tolist() for b in loader]


class ConvNet(torch.nn.Module):
    """A residual network with the two halves in blocks of one name in different modules."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
        self.left, self.right = torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.Conv2d(4, 4, 3, padding=1)
        self.fc = torch.nn.Linear(4, 10)

    def forward(self, x):
        with poptorch.Block("B1"):
            x = self.stem(x)
        with poptorch.Block("B2"):
            left = self.left(x)
        with poptorch.Block("B2"):
            return torch.nn.functional.log_softmax(self.fc((left + self.right(x)).mean([2, 3])), 1)


class WithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.loss = model, torch.nn.NLLLoss()

    def forward(self, x, labels=None):
        out = self.model(x)
        if labels is None:
            return out
        with poptorch.Block("B2"):
            return out, self.loss(out, labels)


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_image_classifier(kind):
    """The classic script: a model with its loss, validation of the bare model, accuracy by plain torch."""
    strategy = poptorch.PipelinedExecution(poptorch.Stage("B1").ipu(0), poptorch.Stage("B2").ipu(1))
    options = poptorch.Options().setExecutionStrategy(strategy)
    options.Training.gradientAccumulation(4)
    images = torch.randn(64, 1, 6, 6)
    labels = (images.mean([1, 2, 3]) > 0).long()
    data = torch.utils.data.TensorDataset(images, labels)
    loader = poptorch.DataLoader(options, data, batch_size=4, shuffle=True)
    network = ConvNet()
    model = WithLoss(network).train()
    optimizer = {"SGD": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)}.get(kind) or poptorch.optim.AdamW(
        model.parameters(), lr=0.02
    )
    training = poptorch.trainingModel(model, options, optimizer)
    network.eval()  # does not reach what was wrapped
    losses = [training(x, y)[1].item() for _ in range(8) for x, y in loader]
    assert losses[-1] < losses[0]
    training.copyWeightsToHost()
    validation = poptorch.inferenceModel(network, poptorch.Options().deviceIterations(4).setExecutionStrategy(strategy))
    predicted = validation(images).data.max(dim=1).indices
    assert torch.equal(predicted, torch.cat([network(part).argmax(1) for part in images.split(16)]))


def test_inputs_that_are_no_tensors():
    class Model(torch.nn.Module):
        def forward(self, x, nested, scale=1, mask=None, negate=False):
            out = x * scale + nested["a"][0] * nested["a"][1]
            return -out if negate else out

    model = poptorch.inferenceModel(Model())
    x = torch.tensor([1.0, 2.0])
    nested = {"a": (torch.ones(2), torch.full((2,), 3.0))}
    assert torch.equal(model(x, nested, 2, mask=None, negate=True), torch.tensor([-5.0, -7.0]))


@dataclasses.dataclass
class Sample(collections.OrderedDict):
    """As libraries define results: a dictionary whose items are attributes too, with fields that have no default."""

    sample: torch.Tensor
    extra: torch.Tensor | None = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)


def test_results_that_are_dictionaries_with_required_fields():
    class Model(torch.nn.Module):
        def forward(self, given):
            return Sample(sample=given.sample * 2)

    executor = poptorch.inferenceModel(Model())
    for value in (1.0, 3.0):
        result = executor(Sample(sample=torch.full((2,), value)))
        assert type(result) is Sample
        assert list(result) == ["sample"]
        assert result.extra is None
        assert torch.equal(result.sample, torch.full((2,), 2 * value))
        assert result["sample"] is result.sample

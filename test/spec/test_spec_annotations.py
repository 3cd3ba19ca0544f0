"""spec annotations.md, sections 1 and 3: blocks, scopes, losses."""

import copy
import pickle

import poptorch
import pytest
import torch
import torch.nn.functional as F

spec = pytest.mark.spec
X = torch.linspace(-1, 1, 24).reshape(12, 2)


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(2, 3), torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.second(self.first(x))


class Function(torch.nn.Module):
    """A model made of a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def sharded(**auto):
    return poptorch.Options().setExecutionStrategy(poptorch.ShardedExecution(**auto))


def infer(model, *inputs, opts=None):
    model = model if isinstance(model, torch.nn.Module) else Function(model)
    return poptorch.inferenceModel(model, opts or sharded())(*inputs)


def train(model, *inputs):
    executor = poptorch.trainingModel(model, sharded(), optimizer=poptorch.optim.SGD(model.parameters(), lr=0.5))
    return executor(*inputs)


# 1 --------------------------------------------------------------------------------------------------------------------
@spec("annotations/1/Block", names=["poptorch.Block"])
def test_leaving_a_block_leaves_all():
    assert issubclass(poptorch.Block, torch.nn.Module)

    def nested(x):
        with poptorch.Block("a", ipu_id=0) as entered:
            assert entered is None
            with poptorch.Block("b", ipu_id=0):
                x = x + 1
            return x * 2

    with pytest.raises(poptorch.Error, match="outside every block"):
        infer(nested, X)
    assert torch.equal(infer(lambda x: x * 2, X), X * 2)  # nothing is left active
    assert torch.equal(nested(X), (X + 1) * 2)


@spec("annotations/1/Block", names=["poptorch.Block"])
def test_numbers_of_devices_can_be_texts():
    def model(x):
        for ipu in range(2):
            with poptorch.Block(f"block{ipu}", ipu_id=f"{ipu}"):
                x = x + 1
        return x

    assert torch.equal(infer(model, X), X + 1 + 1)
    layers = torch.nn.Sequential(poptorch.BeginBlock(torch.nn.ReLU(), "a", ipu_id="1"))
    executor = poptorch.inferenceModel(layers, sharded())
    executor(X)
    assert [stage["device"] for stage in executor.report()["stages"]] == [1]
    poptorch.removeBlocks(layers)
    poptorch.BeginBlock(layers[0], "a", ipu_id="first")
    with pytest.raises(poptorch.Error, match="ipu_id is 'first'"):
        infer(layers, X)
    poptorch.removeBlocks(layers)
    poptorch.BeginBlock(layers[0], "a", ipu_id=1 << 40)
    with pytest.raises(poptorch.Error, match="ipu_id is 1099511627776"):
        infer(layers, X)


@spec(
    "annotations/1/Block.start",
    "annotations/1/Block.useAutoId",
    names=["poptorch.Block", "Block.start", "Block.useAutoId"],
)
def test_start_and_automatic_ids():
    def model(x):
        poptorch.Block.useAutoId()
        poptorch.Block.start(ipu_id=0)
        x = x + 1
        poptorch.Block.start(ipu_id=1)
        return x * 2

    assert torch.equal(infer(model, X), (X + 1) * 2)
    executor = poptorch.inferenceModel(Function(model), sharded())
    executor(X)
    assert executor._executable.session.stageDevices() == [0, 1]


@spec("annotations/1/BeginBlock", "annotations/1/removeBlocks", names=["poptorch.BeginBlock", "poptorch.removeBlocks"])
def test_begin_block_survives_and_goes():
    model = Two()
    keys = list(model.state_dict())
    assert poptorch.BeginBlock(model.second, "b", ipu_id=1) is model.second
    with pytest.raises(poptorch.Error):
        poptorch.BeginBlock(model.second, "c")
    with pytest.raises(poptorch.Error):
        poptorch.BeginBlock(3)
    assert type(model.second) is torch.nn.Linear and list(model.state_dict()) == keys
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model)):
        executor = poptorch.inferenceModel(other, sharded())
        assert torch.equal(executor(X), model(X))
        assert executor._executable.session.stageDevices() == [0, 1]
    poptorch.removeBlocks(model)
    assert not model.second._forward_pre_hooks
    with pytest.raises(AssertionError):
        poptorch.removeBlocks("model")


@spec("annotations/1/with_a_plain_callable", names=["poptorch.LegacyBeginBlockFn"])
def test_begin_block_of_a_callable():
    block = poptorch.BeginBlock(lambda x: x + 1, "f", ipu_id=1)
    assert isinstance(block, poptorch.LegacyBeginBlockFn)
    assert (block._user_id, block._ipu_id) == ("f", 1) and callable(block._layer_to_call)
    assert torch.equal(infer(lambda x: block(x * 2), X), X * 2 + 1)


@spec("annotations/1/BlockFunction", names=["poptorch.BlockFunction"])
def test_block_function():
    @poptorch.BlockFunction("f", ipu_id=0)
    def add(x, *, by):
        return x + by

    assert torch.equal(infer(lambda x: add(x, by=3), X), X + 3)
    with pytest.raises(poptorch.Error):
        infer(lambda x: add(x, by=3) * 2, X)


@spec("annotations/1/module_repr", "annotations/1/poptorch.print", names=["poptorch.module_repr", "poptorch.print"])
def test_print(capsys):
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    poptorch.BeginBlock(model[1], "r", ipu_id=4)
    text = poptorch.module_repr(model)
    assert "(1): BeginBlock(user_id=r, ipu_id=4) ReLU()" in text
    poptorch.print(model)
    poptorch.print(5)
    assert capsys.readouterr().out == f"{text}\n{model}\n5\n"


# 1.1 ------------------------------------------------------------------------------------------------------------------
@spec("annotations/1.1/NameScope", names=["poptorch.NameScope"])
def test_name_scope():
    def model(x):
        with poptorch.NameScope("outer"), poptorch.NameScope("inner"):
            return x + 1

    executor = poptorch.inferenceModel(Function(model), sharded())
    assert torch.equal(executor(X), X + 1)
    assert "outer/inner" in executor._executable.session.graphText()
    with pytest.raises(AssertionError):
        poptorch.NameScope(3)


@spec("annotations/1.1/Attribute", names=["poptorch.Attribute"], no_effect="the graph keeps no attributes")
@spec("annotations/10", names=["poptorch.accessAttributes", "poptorch.ATTR_PREFIX", "poptorch.attributes_lists"])
def test_attribute():
    def model(x):
        scope = poptorch.Attribute(__outline={"layer": "embedding"})
        scope.__enter__()
        with poptorch.Attribute(__outline={"more": "x"}):
            x = x + 1
        scope.__exit__(None, None, None)
        return x

    assert torch.equal(infer(model, X), X + 1) and torch.equal(model(X), X + 1)
    poptorch.attributes_lists.append({"a": 1})
    assert poptorch.accessAttributes(f"{poptorch.ATTR_PREFIX}{len(poptorch.attributes_lists) - 1}") == {"a": 1}
    poptorch.attributes_lists.pop()
    assert poptorch.accessAttributes('{"b": 2}') == {"b": 2}
    for wrong in (3, "x"):
        with pytest.raises(ValueError):
            poptorch.accessAttributes(wrong)


@spec(
    "annotations/10", names=["poptorch.flattenTensorStructure", "poptorch.reconstructTensorStructure", "poptorch.ops"]
)
def test_structures_of_tensors():
    one, two = torch.ones(1), torch.zeros(2)
    structure = {"b": [one, "text"], "a": (two,)}
    assert poptorch.flattenTensorStructure(structure)[0] is one
    again = poptorch.reconstructTensorStructure(
        structure, iter([two, one]), lambda value: isinstance(value, torch.Tensor)
    )
    assert poptorch.ops.nop(one) == one
    assert again["b"][0] is two and again["b"][1] == "text" and type(again["a"]) is tuple and again["a"][0] is one


# 3 --------------------------------------------------------------------------------------------------------------------
class Lossy(torch.nn.Module):
    def __init__(self, loss, inputs=2):
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(inputs, 2)
        self.loss = loss

    def forward(self, x, *target):
        y = self.layer(x)
        return y, self.loss(y, *target)


def compare(loss, *target):
    """One step on the device against one of eager."""
    device, eager = Lossy(loss), Lossy(loss)
    _, value = train(device, X, *target)
    expected = eager(X, *target)[1]
    expected.sum().backward()
    assert torch.equal(value.reshape(expected.shape), expected)
    for mine, theirs in zip(device.parameters(), eager.parameters(), strict=True):
        assert torch.allclose(mine, theirs - 0.5 * theirs.grad, rtol=1e-6, atol=1e-7)


@spec("annotations/3", names=["poptorch.identity_loss"])
@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
def test_identity_loss(reduction):
    values = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    reduced = {"sum": values.sum(), "mean": values.mean(), "none": values}[reduction]
    assert torch.equal(poptorch.identity_loss(values, reduction), reduced)
    assert torch.equal(infer(lambda x: poptorch.identity_loss(x, reduction), values), reduced)
    compare(lambda y: poptorch.identity_loss(y.square(), reduction))


@spec("annotations/3", names=["poptorch.identity_loss"])
def test_one_loss_remains():
    with pytest.raises(AssertionError):
        poptorch.identity_loss(X, "max")
    with pytest.raises(AssertionError, match="reduction must be"):
        poptorch.identity_loss(X, ["mean"])
    compare(lambda y: poptorch.identity_loss(F.mse_loss(y, X) + F.l1_loss(y, X), "sum"))
    compare(lambda y: poptorch.identity_loss(poptorch.identity_loss(y.square(), "sum"), "none"))
    for several in (lambda y: F.mse_loss(y, X) + F.l1_loss(y, X), lambda y: (y.sum(), y.mean())):
        with pytest.raises(poptorch.Error):
            train(Lossy(several), X)


SIGNS = torch.tensor([1.0, -1.0]).repeat(12, 1)
CLASSES = torch.arange(12) % 2
LOSSES = {
    "l1": (torch.nn.L1Loss(), (X * 2,)),
    "mse": (torch.nn.MSELoss(), (X * 2,)),
    "cross_entropy": (torch.nn.CrossEntropyLoss(), (CLASSES,)),
    "nll": (lambda y, t: F.nll_loss(F.log_softmax(y, 1), t), (CLASSES,)),
    "bce": (lambda y, t: F.binary_cross_entropy(torch.sigmoid(y), t), ((SIGNS + 1) / 2,)),
    "bce_with_logits": (torch.nn.BCEWithLogitsLoss(), ((SIGNS + 1) / 2,)),
    "kl_div": (lambda y, t: F.kl_div(F.log_softmax(y, 1), t, reduction="batchmean"), (torch.full((12, 2), 0.5),)),
    "poisson": (torch.nn.PoissonNLLLoss(), (X.abs(),)),
    "hinge": (torch.nn.HingeEmbeddingLoss(), (SIGNS,)),
    "smooth_l1": (torch.nn.SmoothL1Loss(), (X * 2,)),
    "soft_margin": (torch.nn.SoftMarginLoss(), (SIGNS,)),
    "cosine": (lambda y, t, s: F.cosine_embedding_loss(y, t, s), (X + 1, SIGNS.reshape(-1)[:12])),
    "margin_ranking": (lambda y, t, s: F.margin_ranking_loss(y, t, s), (X, SIGNS)),
    "triplet": (torch.nn.TripletMarginLoss(), (X, X.flip(0))),
}


@spec("annotations/3", names=["poptorch.identity_loss"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_torch_are_marked(name):
    compare(LOSSES[name][0], *LOSSES[name][1])


@spec("annotations/3", names=["poptorch.identity_loss"])
def test_ctc_loss():
    torch.manual_seed(2)
    targets, sizes, lengths = torch.tensor([[1], [1]]), (1, 1), (6, 6)

    def loss(y):
        return F.ctc_loss(F.log_softmax(y.reshape(6, 2, 2), 2), targets, lengths, sizes)

    compare(loss)


WEIGHT = torch.tensor([0.5, 2.0])
SPEECH = (torch.randn(6, 2, 3).log_softmax(2), torch.tensor([[1], [2]]), torch.tensor([6, 6]), torch.tensor([1, 1]))


@spec("annotations/3", names=["poptorch.identity_loss"])
@pytest.mark.parametrize(
    ("loss", "inputs"),
    [
        (lambda y, t: torch.nn.CrossEntropyLoss(WEIGHT)(y, t), (X, CLASSES)),
        (lambda y, t: F.nll_loss(F.log_softmax(y, 1), t, WEIGHT), (X, CLASSES)),
        (lambda y, *rest: torch.nn.CTCLoss(reduction="none")(y, *rest), SPEECH),
        (lambda y, t, *sizes: F.ctc_loss(y, t.reshape(-1), *sizes), SPEECH),
    ],
)
def test_forms_of_losses_that_the_original_lacked(loss, inputs):
    assert torch.equal(infer(loss, *inputs), loss(*inputs))

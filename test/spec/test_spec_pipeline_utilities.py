"""abele.pipeline: modules placed on devices by their names, as vision_architectures' utilities do."""

import collections
import copy
import inspect
import pickle

import abele
import poptorch
import pytest
import torch
from abele import pipeline
from abele.pipeline import (
    get_device,
    move_to_device,
    parallelize_module,
    parallelize_pipeline,
    unparallelize_module,
    unparallelize_pipeline,
)

pytestmark = pytest.mark.usefixtures("one_thread")
CPU, META = torch.device("cpu"), torch.device("meta")


class Net(torch.nn.Module):
    """A convolution, a shared trunk with a skip connection, and a head; the loss is the outermost module's."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU())
        self.trunk = torch.nn.ModuleDict({"a": torch.nn.Linear(16, 16), "b": torch.nn.Linear(16, 16)})
        self.head = torch.nn.Linear(16, 3)

    def forward(self, image, label=None):
        x = self.stem(image).flatten(1)
        x = x + self.trunk["b"](torch.tanh(self.trunk["a"](x)))
        x = self.head(x)
        return x if label is None else (x, torch.nn.functional.cross_entropy(x, label))


PLACES = {"": "ipu:0", "stem": "ipu:0", "trunk.a": "ipu:1", "trunk.b": "ipu:2", "head": ["ipu:3", "ipu:3"]}
IMAGES = torch.randn(20, 1, 4, 4, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(0, 3, (20,), generator=torch.Generator().manual_seed(2))


def options(strategy=poptorch.PipelinedExecution, auto=poptorch.AutoStage.AutoIncrement):
    result = poptorch.Options().outputMode(poptorch.OutputMode.All).autoRoundNumIPUs(True)
    return result.setExecutionStrategy(strategy(auto))


def takes(function):
    """Its parameters and their defaults, without types."""
    signature = inspect.signature(function)
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def test_the_module_is_part_of_abele():
    assert abele.pipeline is pipeline and set(pipeline.__all__) == {
        "get_device",
        "move_to_device",
        "parallelize_module",
        "parallelize_pipeline",
        "unparallelize_module",
        "unparallelize_pipeline",
    }
    assert list(inspect.signature(parallelize_module).parameters.items())[2][1].default is None
    assert takes(parallelize_pipeline) == "(model, module_to_device)"
    assert takes(unparallelize_pipeline) == "(model, common_device=None)"
    assert takes(unparallelize_module) == "(module, common_device=None)"
    assert takes(move_to_device) == "(data, device)"


# Devices and data -----------------------------------------------------------------------------------------------------
def test_get_device():
    assert get_device("cpu") == CPU and get_device(META) == META and get_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(RuntimeError):
        get_device("no such device")


Point = collections.namedtuple("Point", "x y")


def test_move_to_device_keeps_containers():
    tensor, other = torch.ones(2), object()
    data = {
        "list": [tensor, 1],
        "tuple": (tensor, "text"),
        "named": Point(tensor, None),
        "set": {tensor},
        "dict": collections.OrderedDict(a=tensor),
        "default": collections.defaultdict(list, b=[tensor]),
        "other": other,
    }
    moved = move_to_device(data, "meta")
    assert type(moved) is dict and list(moved) == list(data)
    for key, value in data.items():
        assert type(moved[key]) is type(value)
    tensors = [moved["list"][0], moved["tuple"][0], moved["named"].x, *moved["set"], moved["dict"]["a"]]
    assert all(t.device == META for t in (*tensors, *moved["default"]["b"]))
    assert (moved["list"][1], moved["tuple"][1], moved["named"].y, moved["other"]) == (1, "text", None, other)
    assert moved["default"]["new"] == [] and tensor.device == CPU
    assert move_to_device(tensor, "cpu") is tensor and move_to_device(other, "cpu") is other
    assert move_to_device(tensor, "ipu:3") is tensor  # Abele's devices have the machine's memory


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device exists")
def test_devices_that_the_machine_lacks_are_named_once(capfd):
    pipeline._reachable.pop("cuda:5", None)
    tensor = torch.ones(2)
    assert move_to_device(tensor, "cuda:5") is tensor and move_to_device(tensor, "cuda:5") is tensor
    assert capfd.readouterr().err.count("cuda:5 stands for device 5") == 1


# One module -----------------------------------------------------------------------------------------------------------
def test_a_module_computes_on_its_device():
    linear = torch.nn.Linear(2, 3)
    plain, before = repr(linear), dict(vars(linear))
    assert parallelize_module(linear, "meta", "meta") is linear
    assert linear.weight.device == META
    assert linear(torch.ones(1, 2)).device == META and linear(input=torch.ones(1, 2)).shape == (1, 3)
    assert (
        repr(linear) == "Linear(in_features=2, out_features=3, bias=True, processing_device=meta, output_device=meta)"
    )
    assert unparallelize_module(linear) is linear
    assert repr(linear) == plain and vars(linear).keys() == before.keys() and linear.weight.device == META


def test_what_a_parallelized_module_has():
    linear = torch.nn.Linear(2, 3)
    parallelize_module(linear, "cpu", None)
    assert inspect.getsource(linear.forward).lstrip().startswith("def forward_with_pipeline_parallelization")
    assert linear.forward == linear.forward_with_pipeline_parallelization
    assert linear._forward_without_pipeline_parallelization.__func__ is torch.nn.Linear.forward
    assert str(inspect.signature(linear.forward)) == str(inspect.signature(torch.nn.Linear(2, 3).forward))
    assert "processing_device=cpu, output_device=None" in repr(linear)
    unparallelize_module(linear, "meta")
    assert not hasattr(linear, "forward_with_pipeline_parallelization") and linear.weight.device == META
    assert unparallelize_module(linear) is linear  # nothing to undo
    assert unparallelize_module(torch.nn.ReLU(), "cpu").training


def test_forwards_of_objects_come_back():
    linear = torch.nn.Linear(2, 2)
    own = linear.forward = lambda x: x * 2
    linear.extra_repr = lambda: "own"
    parallelize_module(linear, "cpu")
    assert torch.equal(linear(torch.ones(2)), torch.full((2,), 2.0))
    assert repr(linear) == "Linear(own, processing_device=cpu, output_device=None)"
    unparallelize_module(linear)
    assert linear.forward is own and repr(linear) == "Linear(own)"


def test_a_module_is_parallelized_once():
    linear = parallelize_module(torch.nn.Linear(2, 2), "cpu")
    with pytest.raises(RuntimeError, match="parallelized already"):
        parallelize_module(linear, "cpu")
    assert linear(torch.ones(2)).shape == (2,)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_models_of_their_own(duplicate):
    model = parallelize_pipeline(Net(), PLACES)
    twin = duplicate(model)
    with torch.no_grad():
        twin.head.weight.zero_()
        twin.head.bias.zero_()
    assert torch.equal(model(IMAGES), Net()(IMAGES)) and not twin(IMAGES).any()
    assert str(inspect.signature(twin.forward)) == "(image, label=None)" and repr(twin) == repr(model)
    assert repr(unparallelize_pipeline(twin)) == repr(Net())


# A whole model --------------------------------------------------------------------------------------------------------
def test_outputs_go_to_where_the_module_above_computes():
    model = parallelize_pipeline(
        torch.nn.ModuleDict(
            {
                "a": torch.nn.Sequential(torch.nn.ModuleList([torch.nn.Linear(2, 2)])),
                "b": torch.nn.Linear(2, 2),
                "c": torch.nn.Linear(2, 2),
            }
        ),
        {"a.0.0": "cpu:3", "b": ["cpu:1", "cpu:2"], "": "cpu:0", "a": torch.device("cpu:4"), "c": ("cpu:5", None)},
    )

    def devices(module):
        placement = module.forward.__self__
        return str(placement.processing_device), str(placement.output_device)

    assert devices(model) == ("cpu:0", "None")
    assert devices(model["a"]) == ("cpu:4", "cpu:0") and devices(model["a"][0][0]) == ("cpu:3", "cpu:4")
    assert devices(model["b"]) == ("cpu:1", "cpu:2") and devices(model["c"]) == ("cpu:5", "cpu:0")
    alone = parallelize_pipeline(Net(), {"head": "cpu:1"})
    assert devices(alone.head) == ("cpu:1", "None")


def test_inner_modules_keep_their_own_device():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2)))
    assert parallelize_pipeline(model, {"1.0": "meta", "": "cpu"}) is model
    assert model[0].weight.device == CPU and model[1][0].weight.device == META
    assert unparallelize_pipeline(model, "meta") is model and model[0].weight.device == META
    assert unparallelize_pipeline(model) is model


@pytest.mark.parametrize(
    ("places", "error", "words"),
    [
        ({"": "cpu", "stem.7": "cpu"}, ValueError, "'stem.7'.*'7'"),
        ({"": "cpu", "nothing": "cpu"}, ValueError, "'nothing'"),
        ({"head": ["cpu", "cpu", "cpu"]}, ValueError, "3 devices"),
        ({"head": []}, ValueError, "0 devices"),
        ({"head": "no such device"}, RuntimeError, "device"),
    ],
)
def test_refused_places_change_nothing(places, error, words):
    model = Net()
    with pytest.raises(error, match=words):
        parallelize_pipeline(model, places)
    assert repr(model) == repr(Net())


def test_models_are_parallelized_once():
    model = parallelize_pipeline(Net(), {"head": "cpu"})
    with pytest.raises(RuntimeError, match="head"):
        parallelize_pipeline(model, {"": "cpu", "head": "cpu"})
    assert not hasattr(model, "forward_with_pipeline_parallelization")
    shared = torch.nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="second name"):
        parallelize_pipeline(torch.nn.Sequential(shared, shared), {"0": "cpu", "1": "cpu"})
    parallelize_pipeline(unparallelize_pipeline(model), {"": "cpu", "head": "cpu"})


# On Abele's devices ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("strategy", [poptorch.PipelinedExecution, poptorch.ShardedExecution])
@pytest.mark.parametrize("kind", ["ipu", "cpu", "cuda"])
def test_placed_models_train_as_eager(strategy, kind):
    if kind == "cuda" and torch.cuda.is_available():
        pytest.skip("the model would move to the GPU")
    places = {
        name: [d.replace("ipu", kind) for d in place] if isinstance(place, list) else place.replace("ipu", kind)
        for name, place in PLACES.items()
    }
    model, eager = parallelize_pipeline(Net(), places), Net()
    opts = options(strategy)
    opts.Training.gradientAccumulation(20)
    executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        outputs, losses = executor(IMAGES, label=LABELS)
        optimizer.zero_grad()
        for row in range(20):
            output, loss = eager(IMAGES[row : row + 1], LABELS[row : row + 1])
            assert torch.equal(outputs[row], output[0].detach()) and torch.equal(losses[row], loss.detach())
            (loss / 20).backward()
        optimizer.step()
    executor.copyWeightsToHost()
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    used = [stage["device"] for stage in executor.report()["stages"]]
    assert used == [0, 1, 0, 2, 0, 3]  # tanh and the sum are the outermost module's
    executor.destroy()
    assert torch.equal(unparallelize_pipeline(model)(IMAGES), eager(IMAGES))


def test_outputs_that_stay_need_no_stage_of_their_own():
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(4)))
    x = torch.randn(8, 3)
    expected = torch.cat([model(row[None]) for row in x])
    parallelize_pipeline(model, {"0": "ipu:0", "2": "ipu:1", "3": "ipu:2"})
    executor = poptorch.inferenceModel(model, options(auto=poptorch.AutoStage.SameAsIpu).deviceIterations(8))
    assert torch.equal(executor(x), expected)
    assert [stage["device"] for stage in executor.report()["stages"]] == [0, 1, 2]


def test_the_executor_keeps_its_mode():
    class Modes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)

        def forward(self, x):
            x = self.linear(x)
            return (x, poptorch.identity_loss(x, "sum")) if self.training else x

    model = parallelize_pipeline(Modes(), {"": "ipu:0", "linear": "ipu:0"})
    training = poptorch.trainingModel(model, options(), torch.optim.SGD(model.parameters(), lr=0.1))
    inference = poptorch.inferenceModel(model.eval())
    model.train()
    x = torch.ones(1, 2)
    assert isinstance(inference(x), torch.Tensor)
    model.eval()
    assert len(training(x)) == 2
    training.copyWeightsToHost()
    assert torch.equal(inference(x), model(x))


def test_placed_models_are_saved(tmp_path):
    model = parallelize_pipeline(Net(), PLACES)
    expected = torch.cat([Net()(image[None]) for image in IMAGES])
    executor = poptorch.inferenceModel(model, options().deviceIterations(20))
    executor.compileAndExport(str(tmp_path / "model.poptorch"), IMAGES)
    assert torch.equal(poptorch.load(str(tmp_path / "model.poptorch"))(IMAGES), expected)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    plain = Net()
    plain.load_state_dict(torch.load(tmp_path / "weights.pt"))

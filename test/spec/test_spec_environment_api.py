"""spec environment.md, sections 5 to 8, 10, 12 and 13: channels, custom types, devices, helpers, randomness, limits."""

import json
import os
import pickle
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import poptorch
import poptorch.testing
import pytest
import torch
import torch.nn.functional as F

PYTHON = Path(poptorch.__file__).parents[1]


class Call(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def on_device(function, *args, opts=None):
    return poptorch.inferenceModel(Call(function), opts)(*args)


# Channels -------------------------------------------------------------------------------------------------------------
TRACED = """
    import pickle, poptorch, torch

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return torch.ones(2) * index

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 3)

        def forward(self, x):
            y = self.layer(x)
            return y, poptorch.identity_loss(y.sum(), "none")

    def main():
        model = Model()
        training = poptorch.trainingModel(model, poptorch.Options(), torch.optim.SGD(model.parameters(), 0.1))
        data = Data()
        for batch in poptorch.DataLoader(poptorch.Options(), data, 2):
            training(batch)
        training.setOptimizer(torch.optim.SGD(model.parameters(), 0.2))
        training.copyWeightsToHost()
        training.destroy()
        channel = poptorch.profiling.Channel("mine")
        with channel.tracepoint("work"):
            pass
        thing = channel.instrument(Data(), "__len__")
        assert len(thing) == 4 and isinstance(thing, Data) and type(pickle.loads(pickle.dumps(thing))) is Data
        assert channel.instrument([1], "append") == [1]

    main()
"""


@pytest.mark.spec(
    "environment/5",
    "environment/3/PVTI_OPTIONS",
    names=["poptorch.profiling", "profiling.Channel", "profiling.Channel.tracepoint", "profiling.Channel.instrument"],
)
def test_spans_of_the_package_are_recorded(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(PYTHON)}
    options = json.dumps({"enable": "true", "directory": str(tmp_path / "reports")})
    program = [sys.executable, "-c", textwrap.dedent(TRACED)]
    subprocess.run(program, env={**environment, "PVTI_OPTIONS": options}, check=True, timeout=300)
    (file,) = (tmp_path / "reports").iterdir()
    assert re.fullmatch(r"\w{3}_\w{3}_\d\d_\d\d:\d\d:\d\d_\d{4}_GMT_\d+\.pvti", file.name)
    spans = [event for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X"]
    names = [span["name"] for span in spans]
    for label in ("modelCompilation", "modelExecution"):
        assert f"poptorch.trainingModel.{label}" in names
    assert names.count("poptorch.trainingModel.modelExecution") == 2
    for method in ("setOptimizer", "copyWeightsToHost", "destroy"):
        assert f"poptorch._poplar_executor.PoplarExecutor.{method}" in names
    assert sum(name.endswith("Data.__getitem__") for name in names) == 4
    pid = int(file.name.rpartition("_")[2].removesuffix(".pvti"))
    channels = {"poptorch.trainingModel", "dataset", "poptorch.DataLoader", "mine", "abele.weights"}
    assert {span["cat"] for span in spans if span["pid"] == pid} == channels
    # Of the devices, in groups of their own; nothing is predicted before the third call.
    assert {span["cat"] for span in spans if span["pid"] != pid} == {"host", "forward", "backward", "update"}
    assert "mine.work" in names and all(span["dur"] >= 0 for span in spans)


@pytest.mark.spec(
    "environment/5", names=["profiling.Channel", "profiling.Channel.tracepoint", "profiling.Channel.instrument"]
)
def test_without_tracing_channels_do_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    channel = poptorch.profiling.Channel("c")
    assert poptorch.profiling.Channel("c") is channel
    model = torch.nn.ReLU()
    before = dict(vars(model)), type(model)
    assert channel.instrument(model, "forward", "noSuchMethod") is model
    assert (dict(vars(model)), type(model)) == before
    with channel.tracepoint("t"):
        pass
    assert pickle.loads(pickle.dumps(channel)) is channel and not list(tmp_path.iterdir())


# Custom types ---------------------------------------------------------------------------------------------------------
class Pair:
    def __init__(self, a, b):
        self.a, self.b = a, b


class Named(Pair):
    pass


class PairParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):
        yield struct.a
        yield struct.b

    def reconstruct(self, original_structure, tensor_iterator):
        return type(original_structure)(next(tensor_iterator), next(tensor_iterator))


class SwappedParser(PairParser):
    def yieldTensors(self, struct):
        yield struct.b
        yield struct.a

    def reconstruct(self, original_structure, tensor_iterator):
        b, a = tensor_iterator
        return type(original_structure)(a, b)


@pytest.fixture
def registered():
    types = []

    def register(cls, parser):
        types.append(cls)
        poptorch.registerCustomArgParser(cls, parser)

    yield register
    for cls in types:
        poptorch.registerCustomArgParser(cls, None)


@pytest.mark.spec(
    "environment/6",
    names=[
        "poptorch.ICustomArgParser",
        "poptorch.registerCustomArgParser",
        "ICustomArgParser.yieldTensors",
        "ICustomArgParser.reconstruct",
    ],
)
def test_custom_types_go_in_and_come_out(registered):
    registered(Pair, PairParser())
    model = poptorch.inferenceModel(Call(lambda pair, c: (Pair(pair.a + c, pair.b * c), {"twice": pair.b * 2})))
    for value in (1.0, 3.0):
        pair, extra = model(Pair(torch.tensor([value]), torch.tensor([2.0])), torch.tensor([5.0]))
        assert type(pair) is Pair and pair.a.tolist() == [value + 5] and pair.b.tolist() == [10.0]
        assert extra["twice"].tolist() == [4.0]
    derived = on_device(lambda pair: pair.a - pair.b, Named(torch.tensor([3.0]), torch.tensor([1.0])))
    assert derived.tolist() == [2.0]  # the parser of a base class


@pytest.mark.spec("environment/6", names=["poptorch.registerCustomArgParser"])
def test_which_parser_is_used(registered):
    class Ordered(dict):
        pass

    class DictParser(poptorch.ICustomArgParser):
        seen = 0

        def yieldTensors(self, struct):
            DictParser.seen += 1
            yield struct["x"]

        def reconstruct(self, original_structure, tensor_iterator):
            return Ordered(x=next(tensor_iterator), from_parser=True)

    registered(Ordered, DictParser())  # goes before the handling of dicts
    given = Ordered(x=torch.tensor([1.0]))
    result = on_device(lambda d: Ordered(x=d["x"] + 1), given)
    assert DictParser.seen and result["from_parser"] and result["x"].tolist() == [2.0]
    registered(Pair, PairParser())
    registered(Named, SwappedParser())
    named = Named(torch.tensor([1.0]), torch.tensor([2.0]))
    assert [int(t) for t in poptorch.flattenTensorStructure(named)] == [2, 1]  # the exact type first
    registered(Named, PairParser())  # replaces
    assert [int(t) for t in poptorch.flattenTensorStructure(named)] == [1, 2]
    poptorch.registerCustomArgParser(Named, None)
    poptorch.registerCustomArgParser(Named, None)  # silently
    poptorch.registerCustomArgParser(Pair, None)
    assert poptorch.flattenTensorStructure(named) == []


@pytest.mark.spec("environment/6", names=["poptorch.registerCustomArgParser", "poptorch.ICustomArgParser"])
def test_what_is_no_parser():
    for wrong in (3, object(), PairParser):
        with pytest.raises(poptorch.Error):
            poptorch.registerCustomArgParser(Pair, wrong)
    with pytest.raises(TypeError):
        poptorch.ICustomArgParser()


@pytest.mark.spec("environment/6")
def test_other_types_are_values_of_the_compilation():
    class Scale:
        def __init__(self, factor):
            self.factor = factor

    scale = Scale(3)
    model = poptorch.inferenceModel(Call(lambda x, s: x * s.factor))
    assert model(torch.tensor([2.0]), scale).tolist() == [6.0]
    assert model(torch.tensor([4.0]), scale).tolist() == [12.0]
    with pytest.raises(poptorch.Error):
        model(torch.tensor([4.0]), Scale(3))


@pytest.mark.spec("environment/6", "environment/1", names=["poptorch.registerGeometricCustomArgParsers"])
def test_parsers_of_a_graph_library_are_optional(monkeypatch, tmp_path):
    assert poptorch.registerGeometricCustomArgParsers() is None
    (tmp_path / "poptorch_geometric.py").write_text(
        "called = []\ndef registerCustomArgParsers():\n    called.append(1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "poptorch_geometric", raising=False)
    poptorch.registerGeometricCustomArgParsers()
    assert sys.modules.pop("poptorch_geometric").called == [1]


# Devices --------------------------------------------------------------------------------------------------------------
@pytest.mark.spec("environment/7", names=["poptorch.ipuHardwareIsAvailable", "poptorch.ipuHardwareVersion"])
def test_questions_about_devices(monkeypatch):
    assert poptorch.ipuHardwareVersion() in (2, 21)
    assert poptorch.ipuHardwareIsAvailable() and poptorch.ipuHardwareIsAvailable(num_ipus=4)
    assert not poptorch.ipuHardwareIsAvailable(100000)
    monkeypatch.setenv("ABELE_EMULATED_DEVICES", "4")
    assert poptorch.ipuHardwareIsAvailable(4) and not poptorch.ipuHardwareIsAvailable(8)
    for name in ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL"):
        monkeypatch.setenv(name, "1")
        assert not poptorch.ipuHardwareIsAvailable()
        monkeypatch.delenv(name)
    monkeypatch.setenv("ABELE_EMULATED_DEVICES", "0")
    assert not poptorch.ipuHardwareIsAvailable()
    with pytest.raises(AssertionError):
        poptorch.ipuHardwareVersion()


@pytest.mark.spec("environment/7", names=["poptorch.isRunningOnIpu"])
def test_forward_knows_where_it_runs():
    seen = []
    model = Call(lambda x: seen.append(poptorch.isRunningOnIpu()) or x + 1)
    model(torch.ones(1))
    poptorch.inferenceModel(model)(torch.ones(1))
    assert seen == [False, True] and not poptorch.isRunningOnIpu()


# Helpers --------------------------------------------------------------------------------------------------------------
@pytest.mark.spec("environment/8", names=["testing.allclose"])
def test_nested_results_are_compared():
    a, b = torch.ones(2), torch.zeros(3)
    near = a + 1e-9
    assert poptorch.testing.allclose(a, near) and not poptorch.testing.allclose(a, a + 1)
    assert poptorch.testing.allclose((a, [b, (a,)]), (near, [b, (near,)]))
    for other in ([a, [b, (a,)]], (a, [b]), (a, [b, [a]]), (a, [b + 1, (a,)])):
        assert not poptorch.testing.allclose((a, [b, (a,)]), other)
    with pytest.raises(TypeError):
        poptorch.testing.allclose({"a": a}, {"a": a})


@pytest.mark.spec("environment/10", names=["Options.showCompilationProgressBar"])
def test_the_progress_bar(capsys):
    model = poptorch.inferenceModel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2))
    text = capsys.readouterr().err
    assert re.search(r"Graph compilation: 100%\|█{10}\| 100/100 \[\d\d:\d\d<00:00\]\n$", text)
    shares = [int(share) for share in re.findall(r"(\d+)/100", text)]
    assert shares == sorted(shares) and shares[0] == 0 and text.count("\n") == 1
    assert model.compilationTime().total_seconds() > 0
    model(torch.ones(1, 2))
    assert capsys.readouterr().err == ""
    poptorch.inferenceModel(torch.nn.Linear(2, 2), poptorch.Options().showCompilationProgressBar(False))(
        torch.ones(1, 2)
    )
    assert "Graph compilation" not in capsys.readouterr().err


@pytest.mark.spec("environment/10")
def test_the_bar_of_a_failed_compilation_is_closed(capsys):
    def broken(x):
        raise ValueError("no")

    with pytest.raises(ValueError):
        on_device(broken, torch.ones(1))
    assert capsys.readouterr().err.endswith("\n")


# Randomness -----------------------------------------------------------------------------------------------------------
SHAPE = (20, 500)
DISTRIBUTIONS = {
    "rand": (lambda x: torch.rand(SHAPE), 0.5),
    "randn": (lambda x: torch.randn(SHAPE), 0),
    "normal": (lambda x: torch.normal(x.expand(SHAPE) + 1, 2.0), 1),
    "normal_": (lambda x: torch.empty(SHAPE).normal_(3, 2), 3),
    "uniform_": (lambda x: torch.empty(SHAPE).uniform_(2, 4), 3),
    "bernoulli": (lambda x: torch.bernoulli(torch.full(SHAPE, 0.25)), 0.25),
    "bernoulli_": (lambda x: torch.empty(SHAPE).bernoulli_(0.75), 0.75),
    "exponential_": (lambda x: torch.empty(SHAPE).exponential_(2), 0.5),
    "random_": (lambda x: torch.empty(SHAPE).random_(0, 5), 2),
    "randint": (lambda x: torch.randint(1, 4, SHAPE), 2),
    "randperm": (lambda x: torch.randperm(10001), 5000),
    "Normal": (lambda x: torch.distributions.Normal(1.0, 1.0).sample(SHAPE), 1),
    "Uniform": (lambda x: torch.distributions.Uniform(0.0, 4.0).sample(SHAPE), 2),
    "Bernoulli": (lambda x: torch.distributions.Bernoulli(0.5).sample(SHAPE), 0.5),
    "Exponential": (lambda x: torch.distributions.Exponential(1.0).sample(SHAPE), 1),
    "dropout": (lambda x: F.dropout(torch.ones(SHAPE), 0.3, training=True), 1),
}


@pytest.mark.spec("environment/12", names=["Options.randomSeed"])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_random_numbers(name):
    function, mean = DISTRIBUTIONS[name]
    host = function(torch.zeros(1))

    def make():
        opts = poptorch.Options().outputMode(poptorch.OutputMode.All)
        return poptorch.inferenceModel(Call(lambda x: function(x) + x.to(host.dtype)), opts.randomSeed(5))

    model, again = make(), make()
    first, second = model(torch.zeros(1)), model(torch.zeros(1))
    assert first.numel() == host.numel() and not torch.equal(first, second)
    assert float(first.double().mean()) == pytest.approx(mean, abs=0.1 if mean < 100 else 0.1)
    assert torch.equal(again(torch.zeros(1)), first) and torch.equal(again(torch.zeros(1)), second)


@pytest.mark.spec("environment/12", names=["PoplarExecutor.rng_state"])
def test_the_random_stream_is_saved_and_restored():
    model = poptorch.inferenceModel(Call(lambda x: torch.rand(3) + x))
    model(torch.zeros(1))
    state = model.rng_state
    assert all(isinstance(item, int) for item in state)
    following = [model(torch.zeros(1)) for _ in range(3)]
    model.rng_state = state
    assert all(torch.equal(model(torch.zeros(1)), value) for value in following)


@pytest.mark.spec("environment/12")
def test_seeding_inside_forward_has_no_effect():
    def seeded(x):
        torch.manual_seed(1)
        return torch.rand(4) + x

    model = poptorch.inferenceModel(Call(seeded), poptorch.Options().randomSeed(9))
    plain = poptorch.inferenceModel(Call(lambda x: torch.rand(4) + x), poptorch.Options().randomSeed(9))
    first = model(torch.zeros(1))
    assert not torch.equal(first, model(torch.zeros(1)))
    assert torch.equal(first, plain(torch.zeros(1)))


# Limits of the original -----------------------------------------------------------------------------------------------
LIFTED = {
    "max_pool_indices": lambda x: F.max_pool1d(x, 2, return_indices=True),
    "topk_unsorted": lambda x: torch.topk(x, 2, sorted=False),
    "batch_norm_without_affine": lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4)),
    "matrix_2_norm": lambda x: torch.linalg.matrix_norm(x, 2),
    "nuclear_norm": lambda x: torch.linalg.matrix_norm(x, "nuc"),
    "one_hot": lambda x: F.one_hot(x.argmax(-1), 6),
    "one_hot_of_unknown_size": lambda x: F.one_hot(x.argmax(-1)),
}


@pytest.mark.spec("environment/13")
@pytest.mark.parametrize("name", [name for name in LIFTED if name != "one_hot_of_unknown_size"])
def test_what_the_original_could_not_do(name):
    torch.manual_seed(0)
    x = torch.randn(3, 4, 6)
    expected = LIFTED[name](x)
    expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    got = on_device(LIFTED[name], x)
    got = [got] if isinstance(got, torch.Tensor) else list(got)
    for ours, theirs in zip(got, expected, strict=True):
        assert torch.equal(ours.to(theirs.dtype), theirs)


@pytest.mark.spec("environment/13")
def test_shapes_that_depend_on_values_are_refused():
    with pytest.raises(poptorch.Error):
        on_device(LIFTED["one_hot_of_unknown_size"], torch.randn(3, 4, 6))


@pytest.mark.spec("environment/13")
def test_recurrent_layers_and_embeddings_without_limits():
    torch.manual_seed(0)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(9, 4, padding_idx=0)
            self.lstm = torch.nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True)

        def forward(self, tokens):
            return self.lstm(self.embedding(tokens))[0]

    net, tokens = Net().eval(), torch.tensor([[0, 3, 1, 8], [2, 0, 7, 7]])
    with torch.no_grad():
        expected = net(tokens)
    assert torch.equal(poptorch.inferenceModel(net)(tokens), expected)


@pytest.mark.spec("environment/13")
def test_shapes_are_static():
    model = poptorch.inferenceModel(torch.nn.Linear(2, 2))
    model(torch.ones(2, 2))
    with pytest.raises(poptorch.Error):
        model(torch.ones(3, 2))
    with pytest.raises(poptorch.Error):
        model(torch.ones(2, 2, dtype=torch.float16))


# Profiles -------------------------------------------------------------------------------------------------------------
@pytest.mark.spec("options/2/enableProfiling", "options/2/modelName", names=["Options.enableProfiling"])
def test_profiles_are_written_where_programs_look_for_them(monkeypatch, tmp_path):
    monkeypatch.delenv("POPLAR_ENGINE_OPTIONS", raising=False)
    net, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
    model = poptorch.inferenceModel(net, poptorch.Options().enableProfiling(str(tmp_path / "new" / "folder")))
    model.compile(x)
    file = tmp_path / "new" / "folder" / "inference" / "profile.pop"
    assert json.loads(file.read_text())["execution"] == []
    for _ in range(4):
        model(x)
    profile = json.loads(file.read_text())
    assert profile["format"] == "abele-profile" and profile["compilation"]["compile_s"] > 0 and profile["memory"]
    assert len(profile["execution"]) == 2 and profile["execution"][0]["stages"][0]["device"] == 0

    settings = {"autoReport.outputExecutionProfile": "true", "autoReport.directory": str(tmp_path)}
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", json.dumps(settings))
    poptorch.inferenceModel(net, poptorch.Options().modelName("mine"))(x)
    assert (tmp_path / "mine" / "profile.pop").exists()
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", json.dumps({"autoReport.directory": str(tmp_path / "none")}))
    poptorch.inferenceModel(net)(x)
    assert not (tmp_path / "none").exists()
    monkeypatch.setenv(
        "POPLAR_ENGINE_OPTIONS", json.dumps({"autoReport.all": "true", "autoReport.directory": str(file)})
    )
    with pytest.raises(AssertionError, match="profile cannot be written"):
        poptorch.inferenceModel(net)(x)

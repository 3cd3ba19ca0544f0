"""The code samples of PopTorch's user guide run as printed there: see sample_programs.py."""

import copy
import ctypes
import logging
import pathlib
import re
import sys
import tempfile
import types

import poptorch
import pytest
import torch
from abele import ipu_config
from sample_programs import run, sample_text


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    """Samples write files where they stand, and one of them changes the level of the log."""
    monkeypatch.chdir(tmp_path)
    level = poptorch.logger.level
    yield
    poptorch.logger.setLevel(level)
    sys.modules.pop("documents_sample", None)


class Regression(torch.nn.Module):
    """(out, loss) in training, out in evaluation."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc = torch.nn.Linear(4, 4)
        self.loss = torch.nn.MSELoss()

    def forward(self, x, target=None):
        out = self.fc(x)
        return (out, self.loss(out, target)) if self.training else out


def test_options_from_a_file(tmp_path):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "poptorch.conf").write_text(
        "deviceIterations(1)\nsetExecutionStrategy(poptorch.ShardedExecution())\nreplicationFactor(1)\n"
        "enableSyntheticData(True)\n"
    )
    options = run("01").opts.outputMode(poptorch.OutputMode.All).toDict()
    assert options["device_iterations"] == 1 and options["replication_factor"] == 1
    assert options["syntheticDataMode"]


def test_training_model(capsys):
    module = run("02")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 800 and lines[799].startswith("799: ")
    assert module.loss.item() < 1e-3


def test_inference_model(monkeypatch):
    class MobileNet(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.features = torch.nn.Sequential(
                torch.nn.Conv2d(3, 8, 3, stride=8), torch.nn.BatchNorm2d(8), torch.nn.ReLU6()
            )
            self.classifier = torch.nn.Sequential(torch.nn.Dropout(0.2), torch.nn.Linear(8, 1000))

        def forward(self, x):
            return self.classifier(self.features(x).mean([2, 3]))

    torchvision = types.ModuleType("torchvision")
    torchvision.models = types.SimpleNamespace(mobilenet_v2=lambda pretrained: MobileNet())
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    module = run("03")
    assert torch.equal(module.out_tensor, module.native_out) and module.out.dtype == torch.half


def test_weights_stay_in_step():
    x, target = torch.ones(1, 4), torch.zeros(1, 4)
    seen = []

    def train(model):
        for _ in range(3):
            model(x, target)

    def train_on_cpu(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.zero_grad()
        model(x, target)[1].backward()
        optimizer.step()

    run("04", Model=Regression, train=train, train_on_cpu=train_on_cpu, validate=lambda m: seen.append(m(x).detach()))
    trained_device, trained_host, after_host_training = seen
    assert torch.equal(trained_device, trained_host)
    assert not torch.equal(trained_host, after_host_training)
    assert after_host_training.abs().sum() < trained_host.abs().sum()


def test_is_running_on_ipu():
    module = run("05", my_custom_operator=torch.add, my_torch_implementation=torch.sub)
    network = module.Network()
    assert network(torch.ones(1), torch.ones(1)) == 0
    assert poptorch.inferenceModel(network)(torch.ones(1), torch.ones(1)) == 2


class Sum(torch.nn.Module):
    """Adds, or raises what it was made with."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, x, y):
        if self.error:
            raise self.error
        return x + y


def failing(kind, **fields):
    error = kind("the text")
    vars(error).update(fields)
    return error


@pytest.mark.parametrize(
    "error, expected",
    [
        (None, []),
        (failing(poptorch.RecoverableError, recovery_action="FULL_RESET"), ["reboot"]),
        (failing(poptorch.RecoverableError, recovery_action="IPU_RESET"), ["Need to reset the IPU"]),
        (failing(poptorch.UnrecoverableError), ["Unrecoverable error: machine needs to be taken offline", "shutdown"]),
        (failing(poptorch.Error, message="m", type="t", location="l"), ["Received m from component t, location: l"]),
        (ValueError("of the model"), ["of the model"]),
    ],
)
def test_error_handling(error, expected, capsys):
    run(
        "06",
        PytorchModel=Sum,
        model_param=error,
        reboot_server=lambda: print("reboot"),
        shutdown_system=lambda: print("shutdown"),
    )
    printed = capsys.readouterr().out
    assert all(text in printed for text in expected)
    assert bool(printed) == bool(expected)


class SmallBert(torch.nn.Module):
    """Six layers with the names of a BERT for answering questions."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.bert = torch.nn.Module()
        self.bert.embeddings = torch.nn.Embedding(11, 8)
        self.bert.encoder = torch.nn.Module()
        self.bert.encoder.layer = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(6)
        )
        self.qa_outputs = torch.nn.Linear(8, 2)

    @classmethod
    def from_pretrained(cls, name):
        return cls()

    def forward(self, input_ids, attention_mask, token_type_ids, return_dict=True):
        hidden = self.bert.embeddings(input_ids) + token_type_ids.unsqueeze(-1)
        for layer in self.bert.encoder.layer:
            hidden = layer(hidden, src_key_padding_mask=attention_mask == 0)
        start, end = self.qa_outputs(hidden).unbind(-1)
        return {"start": start, "end": end} if return_dict else (start, end)


def test_begin_block_in_a_model_from_a_hub(monkeypatch, capsys):
    transformers = types.ModuleType("transformers")
    transformers.BertForQuestionAnswering = SmallBert
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    module = run("07")
    assert "TransformerEncoderLayer" in capsys.readouterr().out
    module.model.train()  # in evaluation torch takes a fused path around the layers' parts
    executor = poptorch.inferenceModel(module.model, module.opts)
    inputs = torch.arange(20).reshape(4, 5) % 11, torch.ones(4, 5, dtype=torch.long), torch.zeros(4, 5)
    start, _ = executor(*inputs)
    with torch.no_grad():
        expected = [SmallBert().train()(*(i[k : k + 1] for i in inputs), return_dict=False)[0] for k in range(4)]
    torch.testing.assert_close(start, torch.cat(expected))  # eager runs with more threads than a device
    assert [stage["device"] for stage in executor.report()["stages"]] == [0, 1, 2, 3]


@pytest.mark.parametrize("name, devices", [("08", [0, 1, 2, 3]), ("09", [0, 1])])
def test_blocks_within_forward(name, devices, capsys):
    module = run(name)
    assert "tensor(" in capsys.readouterr().out
    x = torch.rand(4, 5)
    expected = torch.cat([module.model(row[None]) for row in x])
    assert torch.equal(module.poptorch_model(x), expected)
    assert [stage["device"] for stage in module.poptorch_model.report()["stages"]] == devices


def test_phases_and_stages():
    module = run("10")
    strategy = poptorch.SerialPhasedExecution(poptorch.Phase("A"), poptorch.Phase("B"), poptorch.Phase("C"))
    executor = poptorch.inferenceModel(module.Model(), poptorch.Options().setExecutionStrategy(strategy))
    x, y = torch.ones(2), torch.arange(2.0)
    assert all(torch.equal(a, b) for a, b in zip(executor(x, y), (2 * x, 2 * y, 3 * x), strict=True))


def test_annotations_by_strings():
    module = run("11", F=torch.nn.functional)
    before = module.model(module.input, module.target)
    for ours, eager in zip(module.poptorch_model(module.input, module.target), before, strict=True):
        torch.testing.assert_close(ours, eager)


class Chain(torch.nn.Module):
    def __init__(self, names):
        super().__init__()
        self.names = names

    def forward(self, x):
        for i, name in enumerate(self.names):
            with poptorch.Block(name):
                x = x * 2 + i
        return x


@pytest.mark.parametrize("name, names", [("12", ["A", "A2", "B", "B2", "C", "C2"]), ("13", list("012345"))])
def test_phased_strategies(name, names):
    options = run(name, opts=poptorch.Options().autoRoundNumIPUs()).opts
    model = Chain(names)
    assert torch.equal(poptorch.inferenceModel(model, options)(torch.ones(3)), model(torch.ones(3)))


def test_optimizer_attributes():
    model, x, target = Regression(), torch.ones(1, 4), torch.zeros(1, 4)
    eager = copy.deepcopy(model)
    module = run("15", model=model, options=poptorch.Options(), input=x, target=target)
    module.poptorch_model.copyWeightsToHost()
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        eager(x, target)[1].backward()
        optimizer.step()
    assert torch.equal(model.fc.weight, eager.fc.weight)


def test_constant_attributes():
    model = Regression()
    variable = run("16", model=model).opt.variable_attrs
    assert variable.isConstant("dampening") and not variable.isConstant("momentum")
    assert not variable.isConstant("loss_scaling") and not variable.isConstant("lr")
    opt = run("17", model=model).opt
    executor = poptorch.trainingModel(model, optimizer=opt)
    executor(torch.ones(1, 4), torch.zeros(1, 4))
    opt.param_groups[0]["momentum"] = 0.5
    executor.setOptimizer(opt)  # momentum was given, so it is variable
    executor(torch.ones(1, 4), torch.zeros(1, 4))


def test_optimizer_state(tmp_path):
    model, x, target = Regression(), torch.ones(1, 4), torch.zeros(1, 4)
    module = run("18", model=model, input=x, target=target, PATH=tmp_path / "state.pt")
    module.new_poptorch_model(x, target)
    module.new_poptorch_model.copyWeightsToHost()
    eager = Regression()
    optimizer = torch.optim.Adam(eager.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        eager(x, target)[1].backward()
        optimizer.step()
    torch.testing.assert_close(model.fc.weight, eager.fc.weight)


def test_custom_loss():
    model = run("21", ExampleModel=lambda: torch.nn.Linear(4, 4)).ExampleModelWithCustomLoss()
    x, target = torch.ones(2, 4), torch.zeros(2, 4)
    out, loss = poptorch.trainingModel(model)(x, target)
    assert torch.equal(loss, (out * out * 5).mean())


def test_half():
    module = run("22")
    assert torch.equal(module.out, module.model(module.t1))


def test_constants_and_buffers(capsys):
    run("23")
    run("24")
    assert capsys.readouterr().out.split("\n")[:4] == ["tensor([1.])", "tensor([1.])", "tensor([1.])", "tensor([2.])"]


class Files:
    """The samples of section 4.10, in their order."""

    def __init__(self, folder):
        self.filename = str(folder / "model.poptorch")
        self.module = run("29", ipu_target_version=2, filename=self.filename)
        self.x, self.target = self.module.input, self.module.target


@pytest.mark.parametrize("name", ["30", "31"])
def test_export_and_load(tmp_path, name):
    files = Files(tmp_path)
    files.module.poptorch_model.destroy()
    loaded = run(name, into=files.module, input=files.x, target=files.target).poptorch_model
    first = files.module.ExampleModelWithLoss()
    first.load_state_dict(files.module.model.state_dict())
    out, loss = first(files.x, files.target)
    ours = loaded(files.x, files.target)  # the second step: the sample did one
    assert ours[1] < loss and ours[0].shape == out.shape


def test_export_without_the_model(tmp_path):
    files = Files(tmp_path)
    run("32", into=files.module)
    files.module.poptorch_model.destroy()
    module = run("33", into=files.module)
    fresh = copy.deepcopy(module.model)
    out, loss = fresh(module.input, module.target)
    module.poptorch_model(module.input, module.target)
    ours = module.poptorch_model(module.input, module.target)
    assert ours[1] < loss and ours[0].shape == out.shape


def test_implicit_copy(tmp_path):
    module = run("34", into=Files(tmp_path).module, epochs=range(3))
    module.training_model.copyWeightsToHost()
    assert torch.equal(module.prediction, module.model(module.input))


@pytest.mark.parametrize("name", ["36", "37"])
def test_two_exported_models(tmp_path, name, capsys):
    module = run("35", into=Files(tmp_path).module)
    before = copy.deepcopy(module.model).eval()(module.input)
    seen = []
    run(
        name,
        into=module,
        epochs=range(2),
        run_training=lambda model: model(module.input, module.target),
        run_validation=lambda model: seen.append(model(module.input).clone()),
    )
    assert "Epoch  1" in capsys.readouterr().out
    distance = [((out - module.target) ** 2).mean().item() for out in (before, *seen)]
    if name == "37":
        assert distance[0] > distance[1] > distance[2]
    else:  # two files are two models: nothing that trains one reaches the other
        assert distance[0] == distance[1] == distance[2]


class Config:
    """The fields that IPUConfig has in small."""

    mode = "training"
    execute_encoder_on_cpu_for_generation = auto_loss_scaling = False
    replication_factor = inference_replication_factor = 1
    device_iterations, inference_device_iterations = 2, 4
    gradient_accumulation_steps = 3
    output_mode, seed = "all", 42
    optimizer_state_offchip = replicated_tensor_sharding = True
    _matmul_proportion, _ipus_per_replica = 0.2, 2
    executable_cache_dir = "disabled"
    enable_half_partials = explicit_ir_inference = True

    def train(self):
        self.mode = "training"
        return self

    def eval(self):
        self.mode = "inference"
        return self


class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lower = poptorch.BeginBlock(torch.nn.Linear(4, 8), "Lower", ipu_id=0)
        self.upper = poptorch.BeginBlock(torch.nn.Linear(8, 4), "Upper", ipu_id=1)

    def forward(self, x, target=None):
        out = self.upper(torch.relu(self.lower(x)))
        return out if target is None else (out, torch.nn.functional.mse_loss(out, target))


def test_options_of_an_ipu_config():
    import popart

    module = run(
        "38",
        copy=copy,
        popart=popart,
        Options=poptorch.Options,
        OutputMode=poptorch.OutputMode,
        NamedTemporaryFile=tempfile.NamedTemporaryFile,
    )
    options = module._to_options(Config())
    assert options.toDict()["output_mode"] == poptorch.OutputMode.All.value
    assert (options.replication_factor, options.device_iterations, options.Training.gradient_accumulation) == (1, 2, 3)
    model = Tagger()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-2)
    out, loss = poptorch.trainingModel(model, options, optimizer)(torch.ones(6, 4), torch.zeros(6, 4))
    assert out.shape == (6, 4) and loss.shape == (6,) and loss[3] < loss[0]
    inference = poptorch.inferenceModel(model.eval(), module._to_options(Config(), for_inference=True))
    assert inference(torch.ones(4, 4)).shape == (4, 4)
    offline = module._to_options(Config(), compile_only=True)
    assert offline.toDict()["connection_type"] == poptorch.ConnectionType.Never.value


@pytest.mark.parametrize("for_inference", [False, True])
@pytest.mark.parametrize("compile_only", [False, True])
def test_ipu_config_makes_the_samples_options(for_inference, compile_only):
    import popart

    names = {"copy": copy, "popart": popart, "Options": poptorch.Options, "OutputMode": poptorch.OutputMode}
    sample = run("38", NamedTemporaryFile=tempfile.NamedTemporaryFile, **names)
    config = ipu_config.IPUConfig(
        layers_per_ipu=[1, 1],
        replication_factor=2,
        gradient_accumulation_steps=3,
        inference_device_iterations=4,
        matmul_proportion=[0.1, 0.4],
        replicated_tensor_sharding=True,
        optimizer_state_offchip=True,
        auto_loss_scaling=True,
        explicit_ir_inference=True,
        executable_cache_dir="cache",
        output_mode="all",
        seed=3,
    )

    def text(options):
        return re.sub("saveInitializersToFile='[^']*'", "", repr(options))

    expected = text(sample._to_options(config, for_inference, compile_only))
    assert text(config.to_options(for_inference, compile_only)) == expected


class Foundation:
    """What models of optimum-graphcore have beside the transformer: hooks that deparallelize removes."""

    def parallelize(self):
        self._hooks = []


class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.predictions = torch.nn.Module()
        self.predictions.decoder = torch.nn.Linear(8, 12)

    def forward(self, x):
        return self.predictions.decoder(x)


class MaskedLanguageModel(Foundation, torch.nn.Module):
    def __init__(self, config):
        torch.nn.Module.__init__(self)
        torch.manual_seed(0)
        self.config = config
        self.bert = torch.nn.Module()
        self.bert.embeddings = torch.nn.Sequential()
        self.bert.embeddings.add_module("words", torch.nn.Embedding(12, 8))
        self.bert.embeddings.add_module("LayerNorm", torch.nn.LayerNorm(8))
        self.bert.encoder = torch.nn.Module()
        self.bert.encoder.layer = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(4)
        )
        self.cls = Head()

    def tie_weights(self):
        self.cls.predictions.decoder.weight = self.bert.embeddings.words.weight

    def forward(self, input_ids, labels):
        hidden = self.bert.embeddings(input_ids)
        for layer in self.bert.encoder.layer:
            hidden = layer(hidden)
        scores = self.cls(hidden)
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": scores}

    def deparallelize(self):
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for module in self.modules():
            poptorch.removeBlocks(module)


def parallelized(embedding_serialization_factor=1):
    """The sample's method needs the class cell of super(): it is run inside the body of a class."""
    body = "".join(f"    {line}" for line in sample_text("39").splitlines(keepends=True))
    scope = {
        "poptorch": poptorch,
        "MaskedLanguageModel": MaskedLanguageModel,
        "SerializedLinear": ipu_config.SerializedLinear,
        "logger": logging.getLogger("documents"),
        "outline_attribute": ipu_config.outline_attribute,
        "recomputation_checkpoint": ipu_config.recomputation_checkpoint,
        "get_layer_ipu": ipu_config.get_layer_ipu,
    }
    exec(f"class Pipelined(MaskedLanguageModel):\n{body}", scope)
    config = types.SimpleNamespace(hidden_size=8, vocab_size=12)
    model = scope["Pipelined"](config)
    model.ipu_config = ipu_config.IPUConfig(
        embedding_serialization_factor=embedding_serialization_factor,
        recompute_checkpoint_every_layer=True,
        layers_per_ipu=[1, 1, 1, 1],
    )
    return model


@pytest.mark.parametrize("factor", [1, 2])
def test_parallelize_of_a_transformer(factor):
    model = parallelized(factor)
    keys = list(model.state_dict())
    input_ids = torch.arange(40).reshape(8, 5) % 12
    eager = copy.deepcopy(model)
    if factor > 1:
        eager.tie_weights()
    expected = torch.stack([eager(row[None], row[None])["loss"] for row in input_ids])
    model.parallelize()
    assert list(model.state_dict()) == keys and isinstance(
        model.bert.encoder.layer[0], torch.nn.TransformerEncoderLayer
    )
    options = poptorch.Options().outputMode(poptorch.OutputMode.All)
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    options.Training.gradientAccumulation(8)
    options._Popart.set("abele.allowShortPipeline", True)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-3)
    executor = poptorch.trainingModel(model, options, optimizer)
    results = executor(input_ids=input_ids, labels=input_ids)
    torch.testing.assert_close(results["loss"], expected, rtol=1e-5, atol=1e-6)
    assert results["logits"].shape == (8, 5, 12)
    executor.destroy()
    model.deparallelize()
    assert list(model.state_dict()) == keys
    assert model(input_ids, input_ids)["loss"] < expected.mean()
    model.parallelize()
    copy.deepcopy(model)


def needs(name):
    return pytest.mark.skipif(not hasattr(poptorch, name), reason=f"poptorch.{name} is not there yet")


@needs("ctc_beam_search_decoder")
def test_ctc_decoder():
    model = run("19").Model()
    log_probs = torch.log_softmax(torch.randn(5, 2, 4), -1)
    probabilities, lengths, paths = poptorch.inferenceModel(model)(log_probs, torch.tensor([5, 5]))
    assert probabilities.shape == (2, 1) and lengths.shape == (2, 1) and paths.shape == (2, 1, 5)


@needs("ipu_print_tensor")
def test_print_tensor(capfd):
    model = run("20").ExampleModel()
    assert torch.equal(poptorch.inferenceModel(model)(torch.tensor([1.0, 2.0])), torch.tensor([2.0, 3.0]))
    printed = capfd.readouterr().err
    assert "[" in printed and "2" in printed and "3" in printed


@needs("custom_op")
def test_custom_operators_are_named_when_they_are_unknown():
    """The libraries that the samples load are PopART's; without them the operator's name is in the error."""
    module = run("27")
    with pytest.raises(poptorch.Error, match="LeakyRelu"):
        poptorch.inferenceModel(module.Model())(torch.ones(2))
    for name in ("26", "28"):
        run(name, nn=torch.nn)
    with pytest.raises(AssertionError, match="libcustom_cube_op"):
        run("25", pathlib=pathlib, ctypes=ctypes)

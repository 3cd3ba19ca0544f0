"""Programs in the manner of PopTorch, as users port them: optimizers, files, replicas, options of libraries."""

import copy
import re

import popart
import poptorch
import pytest
import torch
from abele import ipu_config
from test_ported_programs import TARGET, Regression, X, in_a_folder_of_its_own, train_in_eager  # noqa: F401


# Optimizers -----------------------------------------------------------------------------------------------------------
def test_optimizer_attributes_change_between_steps():
    model = Regression()
    eager = copy.deepcopy(model)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.01, loss_scaling=2.0, use_combined_accum=False)
    executor = poptorch.trainingModel(model, poptorch.Options(), optimizer)
    executor(X, TARGET)
    optimizer.loss_scaling = 1.0
    optimizer.param_groups[0]["loss_scaling"] = 1.0
    executor.setOptimizer(optimizer)
    executor(X, TARGET)
    executor.copyWeightsToHost()
    train_in_eager(eager, torch.optim.SGD(eager.parameters(), lr=0.01), 2)
    assert torch.equal(model.layer.weight, eager.layer.weight)


def test_which_attributes_are_constant():
    def made(mark=None, **numbers):
        optimizer = poptorch.optim.SGD(Regression().parameters(), lr=0.01, use_combined_accum=False, **numbers)
        if mark:
            getattr(optimizer.variable_attrs, mark[0])(mark[1])
        names = ("lr", "momentum", "dampening", "loss_scaling")
        return {name for name in names if optimizer.variable_attrs.isConstant(name)}

    assert made() == {"momentum", "dampening", "loss_scaling"}
    assert made(momentum=0.0) == {"dampening", "loss_scaling"}
    constant = {"dampening", "loss_scaling"}
    assert made(("markAsConstant", "loss_scaling"), momentum=0.0, loss_scaling=2.0) == constant
    assert made(("markAsVariable", "momentum"), loss_scaling=2.0) == {"dampening"}


def test_momentum_of_torch_is_variable_once_it_is_not_the_default():
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=1.0)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    executor(X, TARGET)
    optimizer.param_groups[0]["momentum"] = 0.5
    executor.setOptimizer(optimizer)
    executor(X, TARGET)

    eager = Regression()
    expected = torch.optim.SGD(eager.parameters(), lr=0.01, momentum=1.0)
    train_in_eager(eager, expected, 1)
    expected.param_groups[0]["momentum"] = 0.5
    train_in_eager(eager, expected, 1)
    executor.copyWeightsToHost()
    assert torch.equal(model.layer.weight, eager.layer.weight)


def test_optimizer_state_goes_through_a_file():
    model = Regression()
    optimizer = poptorch.optim.Adam(model.parameters())
    first = poptorch.trainingModel(model, optimizer=optimizer)
    first(X, TARGET)
    torch.save({"optimizer": optimizer.state_dict()}, "state.pt")
    first.destroy()
    again = poptorch.optim.Adam(model.parameters())
    again.load_state_dict(torch.load("state.pt")["optimizer"])
    second = poptorch.trainingModel(model, optimizer=again)
    second(X, TARGET)
    second.copyWeightsToHost()
    eager = Regression()
    train_in_eager(eager, torch.optim.Adam(eager.parameters()), 2)
    torch.testing.assert_close(model.layer.weight, eager.layer.weight)


# Files ----------------------------------------------------------------------------------------------------------------
def exported(**how):
    model = Regression()
    executor = poptorch.trainingModel(model, poptorch.Options().useOfflineIpuTarget(2))
    executor.compileAndExport("model.poptorch", X, TARGET, **how)
    executor.destroy()
    return model


def steps_down(executor, model):
    """Whether a step, and one more, give what the model gives in eager, and less loss."""
    fresh = copy.deepcopy(model)
    out, loss = fresh(X, TARGET)
    first, second = executor(X, TARGET), executor(X, TARGET)
    assert torch.equal(first[0], out) and torch.equal(first[1], loss)
    return second[1] < loss


@pytest.mark.parametrize("edit", [None, lambda options: options.useIpuId(1)])
def test_export_and_load(edit):
    model = exported()
    loaded = poptorch.load("model.poptorch", edit_opts_fn=edit)
    assert steps_down(loaded, model)


def test_export_without_the_model():
    exported(export_model=False)
    with pytest.raises(AssertionError):
        poptorch.load("model.poptorch")
    model = Regression()
    executor = poptorch.trainingModel(model, poptorch.Options())
    executor.loadExecutable("model.poptorch")
    assert steps_down(executor, Regression())


def test_training_and_validation_share_weights():
    model, options = Regression(), poptorch.Options()
    training = poptorch.trainingModel(model, options)
    model.eval()
    validation = poptorch.inferenceModel(model, options)
    for _ in range(3):
        training(X, TARGET)
    prediction = validation(X)
    training.copyWeightsToHost()
    assert torch.equal(prediction, model(X))


@pytest.mark.parametrize("connected", [False, True])
def test_two_exported_models(connected):
    model = Regression()
    training = poptorch.trainingModel(model, poptorch.Options())
    training.compileAndExport("training.poptorch", X, TARGET)
    model.eval()
    poptorch.inferenceModel(model, poptorch.Options()).compileAndExport("validation.poptorch", X)

    training = poptorch.load("training.poptorch")
    if connected:
        validation = poptorch.inferenceModel(training)
        validation.model.eval()
        validation.loadExecutable("validation.poptorch")
    else:
        validation = poptorch.load("validation.poptorch")
    seen = [Regression().eval()(X)]
    for _ in range(2):
        training(X, TARGET)
        if not connected:  # two files are two models: nothing that trains one reaches the other
            training.copyWeightsToHost()
            validation.copyWeightsToDevice()
        seen.append(validation(X).clone())
    distances = [((out - TARGET) ** 2).mean().item() for out in seen]
    if connected:
        assert distances[0] > distances[1] > distances[2]
    else:
        assert distances[0] == distances[1] == distances[2]


# Replicas -------------------------------------------------------------------------------------------------------------
def test_a_residual_network_on_two_devices_twice():
    class Residual(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.stem = torch.nn.Sequential(
                torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8, track_running_stats=False)
            )
            self.block = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.ReLU(inplace=True))
            self.head = torch.nn.Linear(8, 10)
            self.loss = torch.nn.CrossEntropyLoss()

        def forward(self, x, labels):
            x = self.stem(x)
            out = self.head((x + self.block(x)).mean([2, 3]))
            return out, self.loss(out, labels)

    options = poptorch.Options().replicationFactor(2)
    options.Training.gradientAccumulation(3)
    model = Residual()
    model.block = poptorch.BeginBlock(model.block, ipu_id=1)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    data = torch.utils.data.TensorDataset(torch.randn(24, 3, 8, 8), torch.arange(24) % 10)
    loader = poptorch.DataLoader(options, data, batch_size=2)
    losses = [executor(*batch)[1].mean().item() for _ in range(6) for batch in loader]
    assert losses[-1] < losses[0]


def test_a_weight_that_is_cut_among_replicas():
    pieces, halves, steps = 4, 2, 3  # of the weight's columns; of the batch

    class Square(torch.nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = torch.nn.Parameter(weight)

        def forward(self, x):
            out = x @ self.weight
            return out, poptorch.identity_loss(out**2, reduction="mean")

    torch.manual_seed(0)
    x, whole = torch.randn(12, 20), torch.randn(20, 16) * 0.2
    model = Square(torch.stack(whole.chunk(pieces, dim=1)))
    options = poptorch.Options().replicationFactor(pieces * halves).outputMode(poptorch.OutputMode.All)
    options.inputReplicaGrouping(pieces, poptorch.enums.CommGroupType.Consecutive)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.01))
    executor.weight.replicaGrouping(
        poptorch.enums.CommGroupType.Orthogonal, halves, poptorch.enums.VariableRetrievalMode.OnePerGroup
    )
    losses = [executor(x.reshape(halves, 6, 20))[1].sum().item() / (pieces * halves) for _ in range(steps)]
    assert losses[0] == pytest.approx(((x @ whole) ** 2).mean().item(), rel=1e-4)
    assert losses == sorted(losses, reverse=True)
    final = torch.cat(list(model.weight.detach()), dim=1)
    assert final.shape == whole.shape and not (final == whole).all()


# Published libraries --------------------------------------------------------------------------------------------------
def options_by_hand(training, offline):
    """The options of a library's configuration: two replicas, accumulation of three, half of the settings for IPUs."""
    options = poptorch.Options().autoRoundNumIPUs(True)
    options.replicationFactor(2 if training else 1).deviceIterations(1 if training else 4)
    if training:
        options.Training.gradientAccumulation(3)
        options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
        options.Training.setAutomaticLossScaling(True)
    options.outputMode(poptorch.OutputMode.All).randomSeed(3)
    state = poptorch.TensorLocationSettings().useOnChipStorage(False)
    options.TensorLocations.setOptimizerLocation(state.useReplicatedTensorSharding(training))
    strategy = poptorch.PipelinedExecution if training else poptorch.ShardedExecution
    options.setExecutionStrategy(strategy(poptorch.AutoStage.AutoIncrement))
    if offline:
        options.useOfflineIpuTarget()
    options.setAvailableMemoryProportion({"IPU0": 0.1, "IPU1": 0.4})
    options.enableExecutableCaching("cache")
    options._Popart.set("saveInitializersToFile", "a new name each time")
    options.Precision.enableStochasticRounding(training)
    options.Precision.setPartialsType(torch.float16)
    schedule = popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized
    for name, value in (
        ("disableGradAccumulationTensorStreams", True),
        ("accumulateOuterFragmentSettings.schedule", int(schedule)),
        ("accumulateOuterFragmentSettings.excludedVirtualGraphs", ["0"]),
        ("outlineThreshold", 10.0),
        ("subgraphCopyingStrategy", int(popart.SubgraphCopyingStrategy.JustInTime)),
        ("scheduleNonWeightUpdateGradientConsumersEarly", True),
    ):
        options._Popart.set(name, value)
    patterns = ("TiedGather", "TiedGatherAccumulate", "UpdateInplacePrioritiesForIpu")
    options._Popart.setPatterns(dict.fromkeys(patterns, True))
    if not training:
        options._popart.set("enableExplicitIR", True)
    options._Popart.set("engineOptions", {"opt.useAutoloader": "true", "target.syncReplicasIndependently": "true"})
    return options


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("offline", [False, True])
def test_ipu_config_makes_the_options_that_one_writes_by_hand(training, offline):
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

    def values(options):
        text = re.sub("'?saveInitializersToFile'?[:=] ?'[^']*'", "", repr(options))
        return sorted(re.split(r"[,(){}]+ ?", text))

    assert values(config.to_options(not training, offline)) == values(options_by_hand(training, offline))


def test_options_by_hand_train_and_infer(tmp_path):
    class Tagger(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.lower = poptorch.BeginBlock(torch.nn.Linear(4, 8), "Lower", ipu_id=0)
            self.upper = poptorch.BeginBlock(torch.nn.Linear(8, 4), "Upper", ipu_id=1)

        def forward(self, x, target=None):
            out = self.upper(torch.relu(self.lower(x)))
            return out if target is None else (out, torch.nn.functional.mse_loss(out, target))

    options = options_by_hand(training=True, offline=False)
    options.Training.setAutomaticLossScaling(False)
    assert options.toDict()["output_mode"] == poptorch.OutputMode.All.value
    numbers = (options.replication_factor, options.device_iterations, options.Training.gradient_accumulation)
    assert numbers == (2, 1, 3)
    model = Tagger()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-2)
    executor = poptorch.trainingModel(model, options, optimizer)
    losses = [executor(torch.ones(6, 4), torch.zeros(6, 4))[1] for _ in range(2)]
    assert losses[0].shape == (6,) and losses[1].mean() < losses[0].mean()
    inference = poptorch.inferenceModel(model.eval(), options_by_hand(training=False, offline=False))
    assert inference(torch.ones(4, 4)).shape == (4, 4)
    offline = options_by_hand(training=True, offline=True)
    assert offline.toDict()["connection_type"] == poptorch.ConnectionType.Never.value


class MaskedLanguageModel(torch.nn.Module):
    """A transformer that a library puts blocks into before training, and takes out of them around a save."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(12, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(4)
        )
        self.decoder = torch.nn.Linear(8, 12)
        self.hooks = []

    def forward(self, input_ids, labels):
        hidden = self.norm(self.words(input_ids))
        for layer in self.layers:
            hidden = layer(hidden)
        scores = self.decoder(hidden)
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": scores}

    def parallelize(self, factor):
        if factor > 1:
            mode = poptorch.MatMulSerializationMode.OutputChannels
            serialized = ipu_config.SerializedLinear(8, 12, factor, bias=True, mode=mode)
            serialized.load_state_dict(self.decoder.state_dict())
            self.decoder = serialized
        config = ipu_config.IPUConfig(layers_per_ipu=[1, 1, 1, 1])
        self.hooks.extend(ipu_config.outline_attribute(self.norm, "embeddings"))
        self.words = poptorch.BeginBlock(self.words, "Embedding", ipu_id=0)
        for index, device in enumerate(ipu_config.get_layer_ipu(config, self.layers)):
            self.hooks.append(ipu_config.recomputation_checkpoint(self.layers[index]))
            self.layers[index] = poptorch.BeginBlock(self.layers[index], f"Encoder{index}", ipu_id=device)
        self.decoder = poptorch.BeginBlock(self.decoder, "Classifier", ipu_id=0)
        return self

    def deparallelize(self):
        for hook in self.hooks:
            hook.remove()
        self.hooks = []
        for module in self.modules():
            poptorch.removeBlocks(module)
        return self


@pytest.mark.parametrize("factor", [1, 2])
def test_a_transformer_is_parallelized_trained_and_put_back(factor):
    model = MaskedLanguageModel()
    keys = list(model.state_dict())
    input_ids = torch.arange(40).reshape(8, 5) % 12
    expected = torch.stack([model(row[None], row[None])["loss"] for row in input_ids])
    model.parallelize(factor)
    assert list(model.state_dict()) == keys and isinstance(model.layers[0], torch.nn.TransformerEncoderLayer)
    options = poptorch.Options().outputMode(poptorch.OutputMode.All)
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    options.Training.gradientAccumulation(8)
    options.enforcePipelineMinimum(False)
    executor = poptorch.trainingModel(model, options, poptorch.optim.AdamW(model.parameters(), lr=1e-3))
    results = executor(input_ids=input_ids, labels=input_ids)
    torch.testing.assert_close(results["loss"], expected, rtol=1e-5, atol=1e-6)
    assert results["logits"].shape == (8, 5, 12)
    executor.destroy()
    model.deparallelize()
    assert list(model.state_dict()) == keys
    assert model(input_ids, input_ids)["loss"] < expected.mean()
    copy.deepcopy(model.parallelize(1))

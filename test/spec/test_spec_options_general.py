"""spec options.md, section 2: general options. What the devices do with them is compared with eager PyTorch."""

import json
import logging

import poptorch
import pytest
import torch

spec = pytest.mark.spec
X = torch.arange(24.0).reshape(12, 2)


class Double(torch.nn.Module):
    def forward(self, x):
        return x * 2


class Sum(torch.nn.Module):
    """Trains w on the sum of its inputs."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        out = x * self.w
        return out, poptorch.identity_loss(out, reduction="sum")


def infer(opts, x=X, model=None):
    return poptorch.inferenceModel(model or Double(), opts)(x)


@pytest.fixture
def records(caplog):
    caplog.set_level(logging.DEBUG, poptorch.logger.name)
    return lambda level: [record.getMessage() for record in caplog.records if record.levelno == level]


@spec("options/2/deviceIterations", names=["Options.deviceIterations"])
def test_device_iterations():
    opts = poptorch.Options().deviceIterations(4)
    executor = poptorch.inferenceModel(Double(), opts)
    assert torch.equal(executor(X), X * 2)
    with pytest.raises(AssertionError):
        poptorch.inferenceModel(Double(), opts)(X[:10])  # no multiple of 4
    shapes = []

    class Looks(torch.nn.Module):
        def forward(self, x):
            shapes.append(tuple(x.shape))
            return x

    infer(poptorch.Options().deviceIterations(4), model=Looks())
    assert shapes == [(3, 2)]  # one micro-batch is captured
    with pytest.raises(poptorch.Error, match="E0702"):
        poptorch.Options().deviceIterations(0)
    with pytest.raises(poptorch.Error, match="E0702"):
        infer(poptorch.Options().set(device_iterations=0))


@spec("options/2/inputReplicaGrouping", names=["Options.inputReplicaGrouping"])
def test_input_replica_grouping():
    kinds = poptorch.CommGroupType
    opts = poptorch.Options()
    assert (opts.input_group_size, opts.input_cgt) == (1, kinds.Consecutive)
    for wrong in ((2, kinds.Consecutive), (1, kinds.All), (0, kinds.Consecutive)):
        with pytest.raises(ValueError):
            opts.inputReplicaGrouping(*wrong)
    opts.replicationFactor(6)
    with pytest.raises(ValueError):
        opts.inputReplicaGrouping(4, kinds.Orthogonal)
    opts.inputReplicaGrouping(3, kinds.Orthogonal)
    assert (opts.input_group_size, opts.input_cgt) == (3, kinds.Orthogonal)
    opts.inputReplicaGrouping(3, kinds.NoGrouping)
    assert (opts.input_group_size, opts.input_cgt) == (1, kinds.Consecutive)


@spec("options/2/broadcastBuffers", names=["Options.broadcastBuffers"])
@pytest.mark.parametrize("broadcast", [True, False])
def test_broadcast_buffers(broadcast):
    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count += 1
            return x + self.count

    opts = poptorch.Options().broadcastBuffers(broadcast)
    assert opts.broadcast_buffers is broadcast and poptorch.Options().broadcast_buffers is True
    executor = poptorch.inferenceModel(Counts(), opts)
    assert torch.equal(executor(X), X + 1) and torch.equal(executor(X), X + 2)


@spec("options/2/setExecutionStrategy", names=["Options.setExecutionStrategy"])
def test_set_execution_strategy():
    opts = poptorch.Options()
    assert isinstance(opts._execution_strategy, poptorch.PipelinedExecution)
    for wrong in ("sharded", poptorch.ShardedExecution, None, poptorch.Stage("a")):
        with pytest.raises(AssertionError):
            opts.setExecutionStrategy(wrong)
    for strategy in (
        poptorch.ShardedExecution(),
        poptorch.SerialPhasedExecution("a"),
        poptorch.ParallelPhasedExecution("a"),
    ):
        assert opts.setExecutionStrategy(strategy) is opts


@spec("options/2/setAvailableMemoryProportion", names=["Options.setAvailableMemoryProportion"])
def test_set_available_memory_proportion():
    opts = poptorch.Options()
    assert opts.available_memory_proportion == {}
    opts.setAvailableMemoryProportion({"IPU0": 0.3, "IPU12": 1.0})
    assert opts.available_memory_proportion == {0: 0.3, 12: 1.0}
    for wrong in ({0: 0.1}, {"IPU": 0.1}, {"ipu0": 0.1}, {"IPUx": 0.1}, {"IPU0": 1.5}, {"IPU0": -0.1}, {"IPU0": "a"}):
        with pytest.raises(AssertionError):
            opts.setAvailableMemoryProportion(wrong)
    assert torch.equal(infer(opts), X * 2)


@spec("options/2/outputMode", "options/10/OutputMode", names=["Options.outputMode", "poptorch.OutputMode"])
def test_output_mode(records):
    mode = poptorch.OutputMode
    for wrong in (2, "All", None):
        with pytest.raises(AssertionError):
            poptorch.Options().outputMode(wrong)
    for period in (None, 0, -1):
        with pytest.raises(AssertionError):
            poptorch.Options().outputMode(mode.EveryN, period)
    opts = poptorch.Options().outputMode(mode.Final, 7)
    assert opts.output_return_period == 7 and any("period" in text for text in records(logging.INFO))
    expected = {
        (mode.All,): X * 2,
        (mode.Final,): X[9:] * 2,
        (mode.EveryN, 2): torch.cat([X[3:6], X[9:]]) * 2,
        (mode.Sum,): (X[:3] + X[3:6] + X[6:9] + X[9:]) * 2,
    }
    for arguments, result in expected.items():
        assert torch.equal(infer(poptorch.Options().deviceIterations(4).outputMode(*arguments)), result)


@spec("options/2/defaultOutputMode", names=["Options.defaultOutputMode"])
def test_default_output_mode():
    opts = poptorch.Options()
    assert opts.defaultOutputMode() is True and opts.output_mode == 4
    assert opts.clone().outputMode(poptorch.OutputMode.Sum).defaultOutputMode() is False
    assert torch.equal(infer(poptorch.Options().deviceIterations(4)), X * 2)  # inference: All
    opts.Training.gradientAccumulation(4)
    out, _ = poptorch.trainingModel(Sum(), opts)(X)
    assert torch.equal(out, X[9:])  # training: Final


@spec("options/2/anchorTensor", names=["Options.anchorTensor"])
def test_anchor_tensor():
    opts, mode = poptorch.Options(), poptorch.OutputMode
    opts.anchorTensor("a", "long/a")
    opts.anchorTensor("b", "long/b", mode.EveryN, 5)
    opts.anchorTensor("c", "long/c", mode.Sum, 5)
    assert opts.anchored_tensors["a"][:2] == ["long/a", True]
    assert opts.anchored_tensors["b"] == ["long/b", False, mode.EveryN, 5]
    assert opts.anchored_tensors["c"] == ["long/c", False, mode.Sum, 1]
    assert poptorch.Options().anchored_tensors == {}


class Stages(torch.nn.Module):
    def __init__(self, ipus):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            poptorch.BeginBlock(torch.nn.Linear(2, 2), f"b{i}", ipu_id=ipu) for i, ipu in enumerate(ipus)
        )

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@spec("options/2/autoRoundNumIPUs", "options/9.6", names=["Options.autoRoundNumIPUs"])
def test_number_of_devices(records):
    model = Stages([0, 1, 2])
    with pytest.raises(poptorch.Error, match="power of two"):
        infer(poptorch.Options().deviceIterations(4), model=model)
    with torch.no_grad():
        expected = model(X)
    assert torch.equal(infer(poptorch.Options().deviceIterations(4).autoRoundNumIPUs(), model=model), expected)
    assert any("4" in text and "reserved" in text for text in records(logging.WARNING))
    # The highest id counts, not only how many are used.
    with pytest.raises(poptorch.Error, match="power of two"):
        infer(poptorch.Options().deviceIterations(4), model=Stages([0, 4]))
    with pytest.raises(poptorch.Error):
        infer(poptorch.Options().deviceIterations(4).autoRoundNumIPUs(), model=Stages([0, 64]))

    class Nothing(torch.nn.Module):
        def forward(self, x):
            return x

    assert torch.equal(infer(poptorch.Options(), model=Nothing()), X)


@spec("options/2/useIpuModel", names=["Options.useIpuModel"])
def test_use_ipu_model(monkeypatch):
    opts = poptorch.Options()
    with pytest.raises(AssertionError):
        opts.useIpuModel(1)
    assert torch.equal(infer(opts.useIpuModel(True)), X * 2)
    # Cycles cannot be counted on a model; the option overrides the variable.
    with pytest.raises(poptorch.Error, match="logCycleCount"):
        infer(poptorch.Options().useIpuModel(True).logCycleCount(True))
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")
    with pytest.raises(poptorch.Error, match="logCycleCount"):
        infer(poptorch.Options().logCycleCount(True))
    assert torch.equal(infer(poptorch.Options().useIpuModel(False).logCycleCount(True)), X * 2)


@spec("options/2/useIpuId", names=["Options.useIpuId"])
def test_use_ipu_id():
    with pytest.raises(AssertionError):
        poptorch.Options().useIpuId("0")
    opts = poptorch.Options().useIpuId(3)
    assert opts.ipu_id == 3 and torch.equal(infer(opts), X * 2)


@spec(
    "options/2/useOfflineIpuTarget",
    "options/2/connectionType",
    "options/10/ConnectionType",
    names=["Options.useOfflineIpuTarget", "Options.connectionType", "poptorch.ConnectionType"],
)
def test_offline():
    never = poptorch.ConnectionType.Never
    opts = poptorch.Options().useOfflineIpuTarget()
    assert (opts.ipu_version, opts.connection_type) == (2, never)
    assert poptorch.Options().useOfflineIpuTarget(21).ipu_version == 21
    executor = poptorch.inferenceModel(Double(), opts)
    executor.compile(X)
    assert executor.isCompiled() and not executor.isAttachedToDevice()
    for use in (lambda: executor(X), executor.attachToDevice):
        with pytest.raises(AssertionError):
            use()
    for other in (
        lambda o: o.useIpuModel(True),
        lambda o: o.useIpuId(1),
        lambda o: o.logCycleCount(True),
    ):
        with pytest.raises(poptorch.Error, match="useOfflineIpuTarget"):
            poptorch.inferenceModel(Double(), other(poptorch.Options().useOfflineIpuTarget())).compile(X)
    for wrong in (0, "Never", None):
        with pytest.raises(AssertionError):
            poptorch.Options().connectionType(wrong)
    on_demand = poptorch.inferenceModel(Double(), poptorch.Options().connectionType(poptorch.ConnectionType.OnDemand))
    on_demand.compile(X)
    assert not on_demand.isAttachedToDevice()
    assert torch.equal(on_demand(X), X * 2) and on_demand.isAttachedToDevice()


@spec(
    "options/2/syncPattern",
    "options/10/SyncPattern",
    names=["Options.syncPattern", "poptorch.SyncPattern"],
    no_effect="the runtime orders the devices by counters",
)
def test_sync_pattern():
    for pattern in poptorch.SyncPattern:
        opts = poptorch.Options().syncPattern(pattern)
        assert opts.sync_pattern == pattern and torch.equal(infer(opts), X * 2)
    with pytest.raises(AssertionError):
        poptorch.Options().syncPattern(0)


@spec("options/2/randomSeed", names=["Options.randomSeed"])
def test_random_seed():
    class Noise(torch.nn.Module):
        def forward(self, x):
            return x + torch.rand(2)

    with pytest.raises(AssertionError):
        poptorch.Options().randomSeed(1.0)
    opts = poptorch.Options().randomSeed(11)
    host = torch.rand(3)
    torch.manual_seed(11)
    assert torch.equal(host, torch.rand(3))
    first = poptorch.inferenceModel(Noise(), opts)
    second = poptorch.inferenceModel(Noise(), opts)
    torch.manual_seed(11)
    eager = [Noise()(X) for _ in range(2)]
    for executor in (first, second):
        assert torch.equal(executor(X), eager[0]) and torch.equal(executor(X), eager[1])
    assert not torch.equal(infer(poptorch.Options().randomSeed(12), model=Noise()), eager[0])


@spec("options/2/logDir", "options/2/modelName", names=["Options.logDir", "Options.modelName"])
def test_names_of_files():
    opts = poptorch.Options()
    assert opts.log_dir == "." and not opts.exists("model_name")
    opts.logDir("logs").modelName("mine")
    assert (opts.log_dir, opts.model_name) == ("logs", "mine")
    for wrong in (lambda: opts.logDir(3), lambda: opts.modelName(3)):
        with pytest.raises(AssertionError):
            wrong()


@spec("options/2/maxRepeatLogs", names=["Options.maxRepeatLogs"])
def test_max_repeat_logs():
    opts = poptorch.Options()
    assert opts.max_repeat_logs == 4
    assert opts.maxRepeatLogs(9).max_repeat_logs == 9 and opts.maxRepeatLogs(None).max_repeat_logs == 2**64 - 1


@spec("options/2/enableExecutableCaching", names=["Options.enableExecutableCaching"])
def test_enable_executable_caching(tmp_path, monkeypatch):
    settings = poptorch.Options().enableExecutableCaching("folder")._Popart.options
    assert settings["cachePath"] == "folder" and settings["enableEngineCaching"] is True
    settings = poptorch.Options().enableExecutableCaching("folder").enableExecutableCaching(None)._Popart.options
    assert not settings["enableEngineCaching"] and "cachePath" not in settings
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(tmp_path))
    opts = poptorch.Options()
    assert opts._Popart.options["cachePath"] == str(tmp_path)
    for _ in range(2):
        assert torch.equal(infer(opts.clone()), X * 2)
    monkeypatch.setenv("POPTORCH_CACHE_DIR", "")
    assert "cachePath" not in poptorch.Options()._Popart.options


@spec("options/2/enableStableNorm", names=["Options.enableStableNorm"])
def test_enable_stable_norm():
    opts = poptorch.Options().enableStableNorm(True)
    assert opts._Popart.options["enableStableNorm"] is True
    norm = torch.nn.LayerNorm(2)
    with torch.no_grad():
        assert torch.equal(infer(opts, model=norm), norm(X))


@spec("options/2/enableSyntheticData", names=["Options.enableSyntheticData"])
def test_enable_synthetic_data_stores():
    assert poptorch.Options().enableSyntheticData(True)._Popart.options["syntheticDataMode"] == 2
    assert poptorch.Options().enableSyntheticData(2)._Popart.options["syntheticDataMode"] == 2
    opts = poptorch.Options().enableSyntheticData(False)
    assert opts._Popart.options["syntheticDataMode"] == 0 and torch.equal(infer(opts), X * 2)


@spec("options/2/logCycleCount", names=["Options.logCycleCount"])
def test_log_cycle_count():
    opts = poptorch.Options()
    assert opts._Popart.options["instrumentWithHardwareCycleCounter"] is False
    opts.logCycleCount(True)
    assert opts._Popart.options["instrumentWithHardwareCycleCounter"] is True
    assert torch.equal(infer(opts.useIpuModel(False)), X * 2)


@spec("options/2/enableProfiling", names=["Options.enableProfiling"])
def test_enable_profiling(monkeypatch, records):
    expected = {"debug.allowOutOfMemory": "true", "autoReport.directory": ".", "autoReport.all": "true"}
    monkeypatch.delenv("POPLAR_ENGINE_OPTIONS", raising=False)
    assert poptorch.Options().enableProfiling()._Popart.options["engineOptions"] == expected
    settings = poptorch.Options().enableProfiling("folder")._Popart.options["engineOptions"]
    assert settings == {**expected, "autoReport.directory": "folder"} and not records(logging.WARNING)
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", json.dumps({"autoReport.directory": "elsewhere"}))
    poptorch.Options().enableProfiling()
    assert any("autoReport.directory" in text for text in records(logging.WARNING))


@spec("options/2/disableModuleNamescope", names=["Options.disableModuleNamescope"])
def test_disable_module_namescope():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    texts = []
    for opts in (poptorch.Options(), poptorch.Options().disableModuleNamescope()):
        executor = poptorch.inferenceModel(model, opts)
        executor(X)
        texts.append(executor._executable.session.graphText())
    assert 'scope="0"' in texts[0] and "scope=" not in texts[1]


@spec("options/2/updatableNamedBuffers", names=["Options.updatableNamedBuffers"])
def test_updatable_named_buffers():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(1))
            self.register_buffer("fixed", torch.ones(1))

        def forward(self, x):
            return x * self.scale * self.fixed

    opts = poptorch.Options().updatableNamedBuffers(["scale"])
    assert opts._Popart.options["updatableNamedBuffers"] == ["scale"]
    executor = poptorch.inferenceModel(Scaled(), opts)
    assert torch.equal(executor(X), X)
    executor.scale.fill_(3)
    executor.fixed.fill_(5)
    executor.copyNamedBuffersToDevice()
    assert torch.equal(executor(X), X * 3)


@spec("options/2/relaxOptimizerAttributesChecks", names=["Options.relaxOptimizerAttributesChecks"])
@pytest.mark.parametrize("relax", [True, False])
def test_relax_optimizer_attributes_checks(relax, records):
    opts = poptorch.Options().relaxOptimizerAttributesChecks(relax)
    model = Sum()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, opts, optimizer)
    executor(X)
    optimizer.surprise = 1
    executor.setOptimizer(optimizer)
    warned = any("surprise" in text for text in records(logging.WARNING))
    assert warned is not relax and any("surprise" in text for text in records(logging.DEBUG)) is relax


@spec("options/2/showCompilationProgressBar", names=["Options.showCompilationProgressBar"])
def test_show_compilation_progress_bar(capsys):
    executor = poptorch.inferenceModel(Double(), poptorch.Options())
    executor(X)
    assert "Graph compilation: 100%" in capsys.readouterr().err and executor.compilationTime().total_seconds() > 0
    silent = poptorch.inferenceModel(Double(), poptorch.Options().showCompilationProgressBar(False))
    silent(X)
    assert capsys.readouterr().err == ""
    with pytest.raises(poptorch.Error):
        silent.compilationTime()


@spec(
    "options/2/sourceLocationExcludes",
    names=["Options.sourceLocationExcludes", "Options.appendToLocationExcludes"],
)
def test_source_location_excludes():
    opts = poptorch.Options()
    assert opts.source_location_excludes == ["install/poptorch", "site-packages/torch", "site-packages/poptorch"]
    assert opts.sourceLocationExcludes(["a"]).appendToLocationExcludes("b", "c").source_location_excludes == [
        "a",
        "b",
        "c",
    ]

    def source(opts):
        executor = poptorch.inferenceModel(Double(), opts)
        executor(X)
        return executor._executable.session.graphText()

    assert "test_spec_options_general.py" in source(poptorch.Options())
    hidden = poptorch.Options().appendToLocationExcludes("test_spec_options_general")
    assert "test_spec_options_general.py" not in source(hidden)


@spec("options/2/deviceIterations", names=["poptorch.inferenceModel"])
def test_keys_are_numbers():
    opts = poptorch.Options().deviceIterations(3).replicationFactor(2)
    opts.Training.gradientAccumulation(4)
    assert (opts.device_iterations, opts.replication_factor, opts.Training.gradient_accumulation) == (3, 2, 4)

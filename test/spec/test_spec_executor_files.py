"""spec executor.md section 7.1 and environment.md section 4: files of executors, and the executable cache."""

import multiprocessing
import os

import poptorch
import pytest
import torch
from abele import _files

BATCH = 4


class Net(torch.nn.Module):
    """Two layers with dropout and batch norm: weights, buffers and random numbers all count."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.first = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.second = torch.nn.Linear(8, 3)

    def forward(self, x, target=None):
        out = self.second(torch.nn.functional.dropout(torch.relu(self.norm(self.first(x))), 0.3, self.training))
        if target is None:
            return out
        return {"out": out, "loss": torch.nn.functional.cross_entropy(out, target)}


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, 6, generator=generator), torch.randint(0, 3, (BATCH,), generator=generator)


def options():
    return poptorch.Options().randomSeed(11).deviceIterations(2)


OPTIMIZERS = {
    "torch_sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "poptorch_sgd": lambda p: poptorch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "torch_adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "poptorch_adamw": lambda p: poptorch.optim.AdamW(p, lr=0.01),
    "poptorch_rmsprop": lambda p: poptorch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "poptorch_lamb": lambda p: poptorch.optim.LAMB(p, lr=0.01),
}


def training(optimizer="poptorch_adamw", opts=None):
    model = Net()
    return poptorch.trainingModel(model, opts or options(), OPTIMIZERS[optimizer](model.parameters()))


def steps(executor, number=3):
    return [executor(*batch(seed))["loss"] for seed in range(number)]


def same_weights(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.spec("executor/7.1", "executor/6/save", names=["PoplarExecutor.save", "poptorch.load"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_loaded_executor_continues_bit_for_bit(optimizer, tmp_path):
    executor = training(optimizer)
    steps(executor)
    executor.save(tmp_path / "file.poptorch")
    loaded = poptorch.load(str(tmp_path / "file.poptorch"))
    assert loaded.isCompiled() and loaded.isAttachedToDevice()
    assert type(loaded.model.first.weight) is not torch.nn.Parameter  # wrapped for training
    for expected, found in zip(steps(executor, 4), steps(loaded, 4), strict=True):
        assert torch.equal(expected, found)
    assert same_weights(executor, loaded)


@pytest.mark.spec("executor/7.1", names=["PoplarExecutor.compileAndExport", "poptorch.load", "PoplarExecutor.compile"])
def test_an_exported_program_starts_from_the_weights_of_the_export(tmp_path):
    executor = training()
    executor.compileAndExport(tmp_path / "deep" / "folder" / "file.poptorch", *batch())
    assert executor.isCompiled()
    loaded = poptorch.load(tmp_path / "deep" / "folder" / "file.poptorch")
    for expected, found in zip(steps(executor), steps(loaded), strict=True):
        assert torch.equal(expected, found)


@pytest.mark.spec("executor/7.1", names=["PoplarExecutor.save", "poptorch.load"])
def test_inference_keeps_its_results(tmp_path):
    model = Net().eval()
    executor = poptorch.inferenceModel(model, options())
    x = batch()[0]
    expected = executor(x)
    executor.save(tmp_path / "file.poptorch")
    loaded = poptorch.load(tmp_path / "file.poptorch")
    assert torch.equal(loaded(x), expected)
    with pytest.raises(poptorch.Error):
        loaded(x[:2])
    # It is not connected to the first one.
    with torch.no_grad():
        model.second.bias += 1
    executor.copyWeightsToDevice()
    assert torch.equal(loaded(x), expected)
    assert not torch.equal(executor(x), expected)


@pytest.mark.spec("executor/7.1", "executor/6/compile", names=["PoplarExecutor.loadExecutable"])
def test_load_executable_uses_the_weights_of_the_model_that_loads(tmp_path):
    executor = training()
    steps(executor)
    executor.save(tmp_path / "file.poptorch", export_model=False)
    with pytest.raises(AssertionError):
        poptorch.load(tmp_path / "file.poptorch")
    fresh, expected = training(), training()
    fresh.loadExecutable(tmp_path / "file.poptorch")
    assert fresh.isCompiled()
    for a, b in zip(steps(expected), steps(fresh), strict=True):
        assert torch.equal(a, b)
    assert same_weights(expected, fresh)


@pytest.mark.spec("executor/7.1", names=["PoplarExecutor.loadExecutable"])
def test_a_program_of_another_model_or_with_other_options_is_refused(tmp_path):
    executor = poptorch.inferenceModel(torch.nn.Linear(3, 2))
    executor.compile(torch.zeros(1, 3))
    executor.save(tmp_path / "file.poptorch")
    other = poptorch.inferenceModel(torch.nn.Linear(3, 4))
    with pytest.raises(poptorch.Error, match="E0712"):
        other.loadExecutable(tmp_path / "file.poptorch")
    assert not other.isCompiled() and other(torch.zeros(1, 3)).shape == (1, 4)
    other = poptorch.inferenceModel(torch.nn.Linear(3, 2), poptorch.Options().deviceIterations(2))
    with pytest.raises(poptorch.Error, match="E0712"):
        other.loadExecutable(tmp_path / "file.poptorch")


@pytest.mark.spec("executor/7.1", names=["PoplarExecutor.loadExecutable", "poptorch.load"])
def test_files_of_other_versions_and_damaged_ones_are_refused(tmp_path):
    path = tmp_path / "file.poptorch"
    executor = poptorch.inferenceModel(torch.nn.Linear(3, 2))
    executor.compile(torch.zeros(1, 3))
    executor._poptorch_version = "0.0-other"
    executor.save(path)
    with pytest.raises(AssertionError, match="0.0-other"):
        poptorch.load(path)
    with pytest.raises(poptorch.Error, match="version"):
        poptorch.inferenceModel(torch.nn.Linear(3, 2)).loadExecutable(path)
    good = path.read_bytes()
    for damaged in (b"", good[:100], good[:-1], good[:200] + bytes([good[200] ^ 1]) + good[201:]):
        path.write_bytes(damaged)
        with pytest.raises(poptorch.Error):
            poptorch.load(path)
    with pytest.raises(poptorch.Error):
        poptorch.load(tmp_path / "absent")


@pytest.mark.spec("executor/7.1", names=["PoplarExecutor.save"])
def test_names_of_files(tmp_path, caplog):
    executor = poptorch.inferenceModel(torch.nn.Linear(3, 2))
    with pytest.raises(poptorch.Error):
        executor.save(tmp_path / "file.poptorch")
    executor.compile(torch.zeros(1, 3))
    (tmp_path / "plain").write_text("a file")
    with pytest.raises(AssertionError):
        executor.save(tmp_path / "plain" / "file.poptorch")
    poptorch.logger.propagate = True
    with caplog.at_level("WARNING", logger=poptorch.logger.name):
        executor.save(str(tmp_path))
    assert "model.poptorch" in caplog.text
    assert (tmp_path / "model.poptorch").is_file()
    assert poptorch.load(tmp_path / "model.poptorch").isCompiled()
    executor.save(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_file()
    executor.save(f"{tmp_path}/new/")
    assert (tmp_path / "new" / "model.poptorch").is_file()
    executor.save(f"{tmp_path}/new/")


@pytest.mark.spec("executor/7.1", names=["PoplarExecutor.save"])
def test_a_model_that_cannot_be_pickled_is_refused_only_when_exported(tmp_path):
    class Local(torch.nn.Module):
        def forward(self, x):
            return x + 1

    executor = poptorch.inferenceModel(Local())
    executor.compile(torch.zeros(1, 3))
    with pytest.raises(poptorch.Error, match="export_model=False"):
        executor.save(tmp_path / "file.poptorch")
    assert not (tmp_path / "file.poptorch").exists()
    executor.save(tmp_path / "file.poptorch", export_model=False)
    loading = poptorch.inferenceModel(Local())
    loading.loadExecutable(tmp_path / "file.poptorch")
    assert torch.equal(loading(torch.zeros(1, 3)), torch.ones(1, 3))


@pytest.mark.spec("executor/7.1", names=["poptorch.load"])
def test_options_are_edited_when_a_file_is_loaded(tmp_path):
    executor = poptorch.inferenceModel(Net().eval(), options())
    x = batch()[0]
    executor.compileAndExport(tmp_path / "file.poptorch", x)
    seen = []

    def edit(opts):
        seen.append(opts.device_iterations)
        opts.outputMode(poptorch.OutputMode.Final)

    loaded = poptorch.load(tmp_path / "file.poptorch", edit)
    assert seen == [2]
    assert torch.equal(loaded(x), executor(x)[BATCH // 2 :])


@pytest.mark.spec("executor/7.1", names=["poptorch.load"])
def test_options_of_the_program_are_ignored_when_a_file_is_loaded(tmp_path, capfd):
    path = tmp_path / "model.poptorch"
    model = Net().eval()
    poptorch.inferenceModel(model, options()).compileAndExport(path, batch()[0])

    def edit(opts):
        opts.deviceIterations(7).replicationFactor(2).anchorTensor("loss", "loss")
        opts.setExecutionStrategy(poptorch.ShardedExecution())
        opts.Training.gradientAccumulation(3)
        opts._Popart.set("enableOutlining", False)
        opts.useIpuId(1).logDir(str(tmp_path))

    loaded = poptorch.load(path, edit_opts_fn=edit)
    warning = capfd.readouterr().err
    for name in (
        "device_iterations",
        "replication_factor",
        "anchored_tensors",
        "gradient_accumulation",
        "enableOutlining",
    ):
        assert name in warning
    assert "ipu_id" not in warning and "log_dir" not in warning and "strategy" in warning
    assert (loaded.options.ipu_id, loaded.options.device_iterations) == (1, 2)
    assert torch.equal(loaded(batch()[0]), poptorch.inferenceModel(model, options())(batch()[0]))


@pytest.mark.spec(
    "executor/7.1",
    "executor/7/attachToDevice",
    "options/2/useOfflineIpuTarget",
    names=["PoplarExecutor.compileAndExport"],
)
def test_an_offline_target_compiles_and_another_process_runs(tmp_path):
    executor = poptorch.inferenceModel(Net().eval(), options().useOfflineIpuTarget())
    x = batch()[0]
    with pytest.raises(AssertionError):
        executor(x)
    executor.compileAndExport(tmp_path / "file.poptorch", x)
    assert executor.isCompiled() and not executor.isAttachedToDevice()
    with pytest.raises(AssertionError):
        executor(x)
    with pytest.raises(AssertionError):
        executor.attachToDevice()
    loaded = poptorch.load(tmp_path / "file.poptorch")
    assert loaded.isAttachedToDevice()
    assert loaded.options.connection_type == poptorch.ConnectionType.Always
    assert not loaded.options.exists("ipu_version")
    assert torch.equal(loaded(x), poptorch.inferenceModel(Net().eval(), options())(x))


@pytest.mark.spec("executor/7.1", names=["PoplarExecutor.save"])
def test_rng_state_is_kept_only_when_asked_for(tmp_path):
    class Noise(torch.nn.Module):
        def forward(self, x):
            return x + torch.randn_like(x)

    executor = poptorch.inferenceModel(Noise(), poptorch.Options().randomSeed(3))
    x = torch.zeros(1, 5)
    first = executor(x)
    executor.save(tmp_path / "file", export_model=False, save_rng_state=True)
    assert _files.read(tmp_path / "file").rng_state is not None
    executor.save(tmp_path / "without", export_model=False, save_rng_state=False)
    assert _files.read(tmp_path / "without").rng_state is None
    fresh = poptorch.inferenceModel(Noise(), poptorch.Options().randomSeed(3))
    fresh.loadExecutable(tmp_path / "without")
    assert torch.equal(fresh(x), first)


@pytest.mark.spec(names=["poptorch.importPoptorchMetadataFromFile", "poptorch.poptorch_core"])
def test_metadata_is_bytes_and_the_weights_are_kept_once(tmp_path):
    executor = poptorch.inferenceModel(torch.nn.Linear(500, 500))
    executor.compile(torch.zeros(1, 500))
    executor.save(tmp_path / "file")
    metadata = poptorch.importPoptorchMetadataFromFile(str(tmp_path / "file"))
    assert isinstance(metadata, bytes) and metadata
    assert metadata == poptorch.poptorch_core.importPoptorchMetadataFromFile(str(tmp_path / "file"))
    weights = 4 * (500 * 500 + 500)
    assert weights < (tmp_path / "file").stat().st_size < 1.2 * weights


def test_tied_weights_stay_tied(tmp_path):
    executor = poptorch.trainingModel(Tied(), options())
    x = torch.ones(BATCH, 4)
    executor.compileAndExport(tmp_path / "file", x)
    loaded = poptorch.load(tmp_path / "file")
    assert loaded.model.a.weight is loaded.model.b.weight
    assert torch.equal(loaded(x), executor(x))
    assert same_weights(loaded, executor)


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x):
        return poptorch.identity_loss(self.b(self.a(x)), reduction="mean")


# --- the cache -------------------------------------------------------------------------------------------------------


def cached(path, **changes):
    opts = poptorch.Options().randomSeed(11).deviceIterations(changes.get("iterations", 2))
    opts.enableExecutableCaching(str(path))
    return opts


@pytest.mark.spec("environment/4", "options/2/enableExecutableCaching", names=["Options.enableExecutableCaching"])
def test_equal_programs_share_one_file_and_results_do_not_change(tmp_path):
    cache = tmp_path / "not" / "there"
    plain = steps(training())
    for number in range(2):
        executor = training(opts=cached(cache))
        assert all(torch.equal(a, b) for a, b in zip(plain, steps(executor), strict=True))
        assert len(os.listdir(cache)) == 1
        assert executor.report()["from_cache"] == (number == 1)
    other = training(opts=cached(cache, iterations=1))
    steps(other)
    assert len(os.listdir(cache)) == 2
    assert not other.report()["from_cache"]


@pytest.mark.spec("environment/4", "executor/6/compile", names=["Options.enableExecutableCaching"])
def test_a_cached_start_uploads_the_weights_of_the_moment(tmp_path):
    x = torch.ones(2, 3)
    for value in (1.0, 5.0):
        model = torch.nn.Linear(3, 1, bias=False)
        torch.nn.init.constant_(model.weight, value)
        executor = poptorch.inferenceModel(model, cached(tmp_path))
        assert torch.equal(executor(x), torch.full((2, 1), 3 * value))
    assert executor.report()["from_cache"]


class Doubled(torch.nn.Module):
    def forward(self, x):
        return x * 2


@pytest.mark.spec("environment/4", names=["Options.enableExecutableCaching"])
def test_the_line_that_calls_the_executor_is_no_part_of_the_program(tmp_path):
    x = torch.ones(2, 3)
    first, second = (poptorch.inferenceModel(Doubled(), cached(tmp_path)) for _ in range(2))
    first(x)
    second.compile(x)
    assert second.report()["from_cache"]
    assert not any("Empty" in name for name in first.getTensorNames())


class Constant(torch.nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = torch.full((3,), float(value))

    def forward(self, x):
        return x + self.value


@pytest.mark.spec("environment/4", names=["Options.enableExecutableCaching"])
def test_constants_and_host_values_are_those_of_the_program_at_hand(tmp_path):
    for value in (1, 2):
        executor = poptorch.inferenceModel(Constant(value), cached(tmp_path))
        assert torch.equal(executor(torch.zeros(2, 3)), torch.full((2, 3), float(value)))


@pytest.mark.spec("environment/4", names=["Options.enableExecutableCaching"])
def test_a_damaged_entry_is_compiled_again(tmp_path):
    expected = steps(training(opts=cached(tmp_path)))
    (entry,) = tmp_path.iterdir()
    good = entry.read_bytes()
    for damaged in (b"", good[: len(good) // 2], good[:-1] + bytes([good[-1] ^ 1])):
        entry.write_bytes(damaged)
        executor = training(opts=cached(tmp_path))
        assert all(torch.equal(a, b) for a, b in zip(expected, steps(executor), strict=True))
        assert not executor.report()["from_cache"]
        assert [file.read_bytes() for file in tmp_path.iterdir()] == [good]


@pytest.mark.spec("environment/4", names=["Options.enableExecutableCaching"])
def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    executor = training(opts=cached(tmp_path / "file" / "cache"))
    with pytest.raises(AssertionError, match="E0712"):
        executor.compile(*batch())
    assert not executor.isCompiled()


@pytest.mark.spec("environment/3/POPTORCH_CACHE_DIR", "options/2/enableExecutableCaching")
def test_the_environment_and_none(tmp_path, monkeypatch):
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(tmp_path / "cache"))
    opts = poptorch.Options().enableExecutableCaching(None)
    poptorch.inferenceModel(torch.nn.Linear(3, 2), opts)(torch.zeros(1, 3))
    assert not (tmp_path / "cache").exists()
    poptorch.inferenceModel(torch.nn.Linear(3, 2))(torch.zeros(1, 3))
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.spec("environment/4")
def test_the_simulator_is_not_cached(tmp_path):
    poptorch.inferenceModel(torch.nn.Linear(3, 2), cached(tmp_path, iterations=1).useIpuModel(True))(torch.zeros(1, 3))
    assert list(tmp_path.iterdir()) == []


def _compile_in_process(folder, queue):
    torch.set_num_threads(1)
    executor = training(opts=cached(folder))
    queue.put([loss.tolist() for loss in steps(executor)])


@pytest.mark.spec("environment/4", names=["Options.enableExecutableCaching"])
def test_processes_write_at_once(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=_compile_in_process, args=(tmp_path, queue), daemon=True) for _ in range(3)]
    for process in processes:
        process.start()
    results = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert results[0] == results[1] == results[2]
    assert len(list(tmp_path.iterdir())) == 1

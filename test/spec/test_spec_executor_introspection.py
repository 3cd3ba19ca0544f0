"""spec executor.md section 8: names of tensors, anchors, times; and the options that they need."""

import datetime

import poptorch
import pytest
import torch

D, A, BATCH = 2, 3, 2
LR = 0.1


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.fc1 = torch.nn.Linear(4, 5)
        self.fc2 = torch.nn.Linear(5, 2)

    def forward(self, x, target=None):
        out = self.fc2(torch.relu(self.fc1(x)))
        if target is None:
            return out
        return out, torch.nn.functional.mse_loss(out, target)


def data(parts=D * A):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(parts * BATCH, 4, generator=generator), torch.randn(parts * BATCH, 2, generator=generator)


def options(mode=None, period=None):
    opts = poptorch.Options().deviceIterations(D)
    opts.Training.gradientAccumulation(A)
    if mode is not None:
        opts.outputMode(mode, period)
    return opts


def training(opts):
    model = Net()
    return poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=LR))


def eager():
    """Gradients and hidden values of each micro-batch, and fc2.bias after each."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    xs, targets = (tensor.chunk(D * A) for tensor in data())
    gradients, hidden, biases, losses = [], [], [], []
    for k, (x, target) in enumerate(zip(xs, targets, strict=True)):
        hidden.append(torch.relu(model.fc1(x)).detach())
        loss = model(x, target)[1]
        losses.append(loss.detach())
        gradients.append(torch.autograd.grad(loss / A, model.fc2.bias, retain_graph=True)[0])
        (loss / A).backward()
        if k % A == A - 1:
            optimizer.step()
            optimizer.zero_grad()
        biases.append(model.fc2.bias.detach().clone())
    return gradients, hidden, biases, losses


@pytest.mark.spec("executor/8/getTensorNames", names=["PoplarExecutor.getTensorNames"])
def test_names_of_tensors():
    executor = training(options())
    with pytest.raises(AssertionError):
        executor.getTensorNames()
    executor.compile(*data())
    names = executor.getTensorNames()
    assert all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    for start in (
        "input",
        "loss",
        "fc1.weight",
        "fc1.bias",
        "fc2.weight",
        "Gradient___fc1.weight",
        "Gradient___fc2.bias",
        "UpdatedVar___fc1.weight",
        "scaledLearningRate",
        "weightDecayScaleFactor",
        "fc1/",
        "fc2/MatMul",
        "Relu",
    ):
        assert any(name.startswith(start) for name in names), start
    inference = poptorch.inferenceModel(Net())
    inference.compile(torch.zeros(1, 4))
    names = inference.getTensorNames()
    assert not any(name.startswith(("Gradient", "UpdatedVar", "loss")) for name in names)
    assert {"input", "fc1.weight"} <= set(names)


@pytest.mark.spec(
    "executor/8/getAnchoredTensor",
    "options/2/anchorTensor",
    names=["PoplarExecutor.getAnchoredTensor", "Options.anchorTensor"],
)
@pytest.mark.parametrize(
    ("mode", "period", "rows"),
    [
        (poptorch.OutputMode.All, 1, [0, 1, 2, 3, 4, 5]),
        (poptorch.OutputMode.Final, 1, [5]),
        (poptorch.OutputMode.EveryN, 2, [1, 3, 5]),
        (poptorch.OutputMode.Sum, 1, None),
        (None, 1, [2, 5]),  # the model's own mode
    ],
)
def test_anchors_hold_the_values_of_the_last_call(mode, period, rows):
    opts = options(poptorch.OutputMode.EveryN, 3)
    if mode is None:
        opts.anchorTensor("grad", "Gradient___fc2.bias")
        opts.anchorTensor("hidden", "Relu:0")
        opts.anchorTensor("bias", "UpdatedVar___fc2.bias")
        opts.anchorTensor("loss", "loss")
    else:
        opts.anchorTensor("grad", "Gradient___fc2.bias", mode, period)
        opts.anchorTensor("hidden", "Relu:0", mode, period)
        opts.anchorTensor("bias", "UpdatedVar___fc2.bias", mode, period)
        opts.anchorTensor("loss", "loss", mode, period)
    executor = training(opts)
    executor(*data())
    for name, values in zip(("grad", "hidden", "bias", "loss"), eager(), strict=True):
        if rows is None:
            expected = values[0].clone()
            for value in values[1:]:
                expected = expected + value
        else:
            chosen = [values[k] for k in rows]
            one = len(chosen) == 1
            expected = chosen[0] if one else torch.stack(chosen) if chosen[0].dim() == 0 else torch.cat(chosen)
        found = executor.getAnchoredTensor(name)
        assert found.shape == expected.shape, name
        torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=name)


@pytest.mark.spec("executor/8/getAnchoredTensor", names=["PoplarExecutor.getAnchoredTensor"])
def test_anchors_that_do_not_exist_are_refused():
    opts = poptorch.Options()
    opts.anchorTensor("mine", "no/such:0")
    with pytest.raises(poptorch.Error, match="no/such:0"):
        poptorch.inferenceModel(Net(), opts)(torch.zeros(1, 4))
    opts = poptorch.Options()
    opts.anchorTensor("mine", "fc1.bias")
    executor = poptorch.inferenceModel(Net(), opts)
    with pytest.raises(AssertionError):
        executor.getAnchoredTensor("mine")
    executor.compile(torch.zeros(1, 4))
    with pytest.raises(AssertionError):
        executor.getAnchoredTensor("mine")
    executor(torch.zeros(1, 4))
    assert torch.equal(executor.getAnchoredTensor("mine"), Net().fc1.bias)
    with pytest.raises(AssertionError):
        executor.getAnchoredTensor("other")
    # Adding one later does not change an executor that exists.
    opts.anchorTensor("late", "fc2.bias")
    with pytest.raises(AssertionError):
        executor.getAnchoredTensor("late")


@pytest.mark.spec("executor/8/getAnchoredTensor", names=["PoplarExecutor.getAnchoredTensor"])
def test_anchors_are_narrowed_as_results_are():
    class Best(torch.nn.Module):
        def forward(self, x):
            return x.argmax(1) + 1

    opts = poptorch.Options()
    opts.anchorTensor("best", "Argmax:0")
    executor = poptorch.inferenceModel(Best(), opts)
    x = torch.eye(3)
    assert torch.equal(executor(x) - 1, executor.getAnchoredTensor("best"))
    assert executor.getAnchoredTensor("best").dtype == torch.int32


KEYS = ("input", "input_complete", "output", "output_complete")


@pytest.mark.spec("executor/8/getPerfCounters", names=["PoplarExecutor.getPerfCounters"])
@pytest.mark.parametrize(
    ("mode", "period", "number"),
    [
        (poptorch.OutputMode.All, None, D * A),
        (poptorch.OutputMode.EveryN, 2, D * A // 2),
        (poptorch.OutputMode.Final, None, 1),
        (poptorch.OutputMode.Sum, None, 1),
    ],
)
def test_perf_counters(mode, period, number):
    executor = training(options(mode, period))
    assert executor.getPerfCounters() == {key: [[]] for key in KEYS}
    executor(*data())
    counters = executor.getPerfCounters()
    assert set(counters) == set(KEYS)
    assert [len(times) for times in counters["input"]] == [D * A] * 2
    assert [len(times) for times in counters["output"]] == [number] * 2
    for begin, end in (("input", "input_complete"), ("output", "output_complete")):
        for a, b in zip(counters[begin], counters[end], strict=True):
            assert len(a) == len(b) and all(0 <= x <= y for x, y in zip(a, b, strict=True))


@pytest.mark.spec(
    "executor/8/getHostIpuLatency",
    names=[
        "PoplarExecutor.getHostIpuLatency",
        "PoplarExecutor.getComputeLatency",
        "PoplarExecutor.getIpuHostLatency",
        "PoplarExecutor.getLatency",
    ],
)
@pytest.mark.parametrize("mode", [poptorch.OutputMode.All, poptorch.OutputMode.Final])
def test_latencies(mode):
    executor = training(options(mode))
    functions = [
        executor.getHostIpuLatency,
        executor.getComputeLatency,
        executor.getIpuHostLatency,
        executor.getLatency,
    ]
    assert [function() for function in functions] == [(0.0, 0.0, 0.0)] * 4
    executor(*data())
    values = [function() for function in functions]
    for low, high, average in values:
        assert 0 <= low <= average <= high
    whole = values[3]
    assert all(low > 0 for low, _, _ in values)
    assert all(part[1] <= whole[1] for part in values[:3])


@pytest.mark.spec("options/2/enableSyntheticData", "executor/8/getPerfCounters", names=["Options.enableSyntheticData"])
def test_synthetic_data_replaces_the_inputs():
    class Look(torch.nn.Module):
        def forward(self, x, index):
            return x, index

    executor = poptorch.inferenceModel(Look(), poptorch.Options().enableSyntheticData(True))
    x, index = executor(torch.full((100, 10), 9.0), torch.full((5,), 7, dtype=torch.int32))
    assert x.shape == (100, 10) and not (x == 9).any() and abs(x.mean()) < 0.2 and 0.8 < x.std() < 1.2
    assert torch.equal(index, torch.zeros(5, dtype=torch.int32))
    counters = executor.getPerfCounters()
    assert counters["input"] == [[], []] and counters["output"] == [[], []]
    assert executor.getLatency() == (0.0, 0.0, 0.0)
    plain = poptorch.inferenceModel(Look(), poptorch.Options().enableSyntheticData(False))
    assert (plain(torch.full((2, 3), 9.0), torch.zeros(5, dtype=torch.int32))[0] == 9).all()


@pytest.mark.spec("options/5")
@pytest.mark.parametrize("mode", [1, 2, 3])
def test_synthetic_data_has_several_forms(mode):
    class Look(torch.nn.Module):
        def forward(self, x, half, index):
            return x, half, index

    def run():
        opts = poptorch.Options()
        opts._Popart.set("syntheticDataMode", mode)
        executor = poptorch.inferenceModel(Look(), opts)
        inputs = torch.full((100, 10), 9.0), torch.full((100,), 9.0).half(), torch.full((5,), 7, dtype=torch.int32)
        first = executor(*inputs)
        assert all(map(torch.equal, first, executor(*inputs)))  # made once
        return first

    x, half, index = first = run()
    assert all(map(torch.equal, first, run()))  # the same in each program
    assert half.dtype == torch.half and torch.equal(index, torch.zeros(5, dtype=torch.int32))
    for value in (x, half.float()):
        if mode == 1:
            assert not value.any()
        elif mode == 2:
            assert (value < 0).any() and abs(value.mean()) < 0.4 and 0.7 < value.std() < 1.3
        else:
            assert 0 <= value.min() < 0.1 and 0.9 < value.max() <= 1 and abs(value.mean() - 0.5) < 0.2


@pytest.mark.spec(
    "executor/8/cycleCount", "options/2/logCycleCount", names=["PoplarExecutor.cycleCount", "Options.logCycleCount"]
)
def test_cycles(monkeypatch):
    x = torch.zeros(1, 4)
    executor = poptorch.inferenceModel(Net(), poptorch.Options())
    executor(x)
    with pytest.raises(poptorch.Error, match="logCycleCount"):
        executor.cycleCount()
    opts = poptorch.Options().logCycleCount(True)
    executor = poptorch.inferenceModel(Net(), opts)
    with pytest.raises(poptorch.Error):
        executor.cycleCount()
    executor.compile(x)
    with pytest.raises(poptorch.Error, match="once"):
        executor.cycleCount()
    executor(x)
    assert isinstance(executor.cycleCount(), int) and executor.cycleCount() > 0
    with pytest.raises(poptorch.Error):
        poptorch.inferenceModel(Net(), opts.clone().useIpuModel(True)).compile(x)
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")
    with pytest.raises(poptorch.Error):
        poptorch.inferenceModel(Net(), opts.clone()).compile(x)


@pytest.mark.spec(
    "executor/8/compilationTime",
    "options/2/showCompilationProgressBar",
    names=["PoplarExecutor.compilationTime", "Options.showCompilationProgressBar"],
)
def test_compilation_time():
    executor = poptorch.inferenceModel(Net(), poptorch.Options())
    with pytest.raises(poptorch.Error):
        executor.compilationTime()
    executor(torch.zeros(1, 4))
    assert isinstance(executor.compilationTime(), datetime.timedelta)
    assert executor.compilationTime() > datetime.timedelta()
    executor = poptorch.inferenceModel(Net(), poptorch.Options().showCompilationProgressBar(False))
    executor(torch.zeros(1, 4))
    with pytest.raises(poptorch.Error):
        executor.compilationTime()


@pytest.mark.spec("executor/8/poptorch.getIpuTensorId", names=["poptorch.getIpuTensorId"])
def test_tensor_ids():
    host = torch.zeros(2)
    seen = {}

    class Ask(torch.nn.Module):
        def forward(self, x):
            y = x + 1
            seen["x"], seen["y"] = poptorch.getIpuTensorId(x), poptorch.getIpuTensorId(y)
            seen["again"] = poptorch.getIpuTensorId(y)
            with pytest.raises(poptorch.Error):
                poptorch.getIpuTensorId(host)
            return y

    poptorch.inferenceModel(Ask())(torch.zeros(2))
    assert all(isinstance(value, int) for value in seen.values())
    assert seen["x"] != seen["y"] == seen["again"]
    with pytest.raises(poptorch.Error):
        poptorch.getIpuTensorId(host)


@pytest.mark.spec(
    "options/2/useOfflineIpuTarget",
    "options/2/useIpuModel",
    "options/2/useIpuId",
    names=["Options.useOfflineIpuTarget", "Options.useIpuModel", "Options.useIpuId"],
)
def test_targets_that_contradict_each_other(caplog):
    x = torch.zeros(1, 4)
    for setting in (
        lambda o: o.useIpuModel(True),
        lambda o: o.useIpuId(1),
        lambda o: o.logCycleCount(True),
    ):
        opts = poptorch.Options().useOfflineIpuTarget()
        setting(opts)
        with pytest.raises(poptorch.Error):
            poptorch.inferenceModel(Net(), opts).compile(x)
    poptorch.inferenceModel(Net(), poptorch.Options().useIpuModel(True))(x)


@pytest.mark.spec("options/2/useIpuId", names=["Options.useIpuId"])
def test_the_chosen_group_needs_as_many_devices_as_the_model(monkeypatch, caplog):
    monkeypatch.setenv("ABELE_EMULATED_DEVICES", "4")  # ids 0-3: one device each, 4-5: pairs, 6: all four

    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = poptorch.BeginBlock(torch.nn.Linear(4, 4), ipu_id=0)
            self.b = poptorch.BeginBlock(torch.nn.Linear(4, 4), ipu_id=1)

        def forward(self, x):
            return self.b(self.a(x))

    x = torch.zeros(2, 4)
    opts = poptorch.Options().deviceIterations(2)
    poptorch.logger.propagate = True
    poptorch.inferenceModel(Two(), opts.clone().useIpuId(4))(x)
    assert "group" not in caplog.text
    poptorch.inferenceModel(Two(), opts.clone().useIpuId(6))(x)
    assert "group 6 has 4 devices" in caplog.text
    for bad in (0, 7):
        with pytest.raises(poptorch.Error):
            poptorch.inferenceModel(Two(), opts.clone().useIpuId(bad))(x)

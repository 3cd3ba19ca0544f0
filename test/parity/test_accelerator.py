"""A compiled step on an accelerator, the simulated one, beside the same step of plain PyTorch on it: the same bits, and
no missing wait between streams."""

import copy

import networks
import poptorch
import pytest
import torch
from abele._native import core
from against_eager import MICRO_BATCH, OPTIMIZERS, SEED, cut, eager, options, require_same
from on_accelerator import judged, on_device, require_equals_eager
from support import simulated

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.own_process]

STRATEGIES = {
    "pipeline": poptorch.PipelinedExecution,
    "gpipe": lambda: poptorch.PipelinedExecution().schedule("gpipe"),
    "zero-bubble": lambda: poptorch.PipelinedExecution().schedule("zero-bubble"),
    "sharded": poptorch.ShardedExecution,
}


@pytest.fixture(autouse=True)
def _findings():
    yield from judged(delays=1)


def train(network, strategy, num_stages, optimizer, accumulation=7, steps=3, device="simulated:0", graphs=True):
    """Beside eager on the first of the devices. Returns the text of the plan."""
    torch.manual_seed(0)
    model = networks.NETWORKS[network]()
    reference = on_device(model, device.split(",")[0])
    before = {name: (value.data_ptr(), value.clone()) for name, value in model.state_dict().items()}
    cut(model, num_stages)
    opts = options(STRATEGIES[strategy], accumulation)
    opts.deviceType(device)
    opts.deviceGraphs(graphs)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS[optimizer](model.parameters()))
    torch.manual_seed(1)
    batches = [model.batch(MICRO_BATCH * accumulation) for _ in range(steps)]
    executor.compile(*batches[0])
    for name, value in model.state_dict().items():  # where it was, as it was
        assert value.device.type == "cpu" and value.data_ptr() == before[name][0]
        assert torch.equal(value, before[name][1])
    ours = [executor(*batch) for batch in batches]
    executor.copyWeightsToHost()
    theirs = OPTIMIZERS[optimizer](reference.parameters())
    require_equals_eager(model, ours, reference, theirs, batches, accumulation)
    plan = executor._executable.session.planText()
    executor.destroy()
    return plan


@pytest.mark.parametrize("num_stages", [1, 4])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies_and_schedules(strategy, num_stages):
    train("ResidualMlp", strategy, num_stages, "adamw")


# "simulated": a device for each of the model's; a list: they begin it again, and those on one device share its memory.
@pytest.mark.parametrize("device", ["simulated", "simulated:3,simulated:1"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies_and_schedules_on_several_accelerators(strategy, device):
    assert "  receive " in train("ResidualMlp", strategy, 4, "adamw", device=device)


# Encoder draws random numbers in each stage.
@pytest.mark.skipif(not simulated.has_graphs(), reason="this torch has no graphs of devices")
@pytest.mark.parametrize("device", ["simulated:0", "simulated:0,simulated:0,simulated:2"])
@pytest.mark.parametrize("network", ["Encoder", "ResNet"])
def test_graphs_of_the_device_are_replayed(network, device):
    before = simulated.graphs()
    train(network, "pipeline", 3, "adamw", device=device, graphs=False)
    assert simulated.graphs() == before
    train(network, "pipeline", 3, "adamw", device=device, steps=6)
    captures, replays = (now - then for now, then in zip(simulated.graphs(), before, strict=True))
    assert captures > 0 and replays >= 5 * captures  # the first step at the latest is without


class Seeded(torch.autograd.Function):
    """As attention's kernels: a number that backward needs stays in the host's memory."""

    @staticmethod
    def forward(ctx, x):
        y, seed = torch.ops.abele_test.seeded(x)
        ctx.save_for_backward(seed)
        return y

    @staticmethod
    def backward(ctx, gradient):
        return torch.ops.abele_test.seeded_backward(gradient, *ctx.saved_tensors)


class WithSeeds(networks.Network):
    def __init__(self):
        super().__init__([torch.nn.Linear(networks.WIDTH, networks.WIDTH) for _ in range(5)])

    def forward(self, x, target):
        for part in self.parts:
            x = Seeded.apply(part(x))
        return x[:, :4], torch.nn.functional.cross_entropy(x[:, :4], target)


@pytest.fixture
def seeded_operators(monkeypatch):
    def forward(x):
        assert x.data_ptr() % 512 == 0  # as torch's allocators give it
        return x * 0.5, torch.empty((), device="cpu").copy_(x[0, 0])

    def backward(gradient, seed):
        assert seed.is_cpu
        return gradient * float(seed)

    library = torch.library.Library("abele_test", "DEF")
    library.define("seeded(Tensor x) -> (Tensor, Tensor)")
    library.define("seeded_backward(Tensor gradient, Tensor seed) -> Tensor")
    library.impl("seeded", forward, "PrivateUse1")
    library.impl("seeded_backward", backward, "PrivateUse1")
    monkeypatch.setitem(networks.NETWORKS, "WithSeeds", WithSeeds)
    yield
    library._destroy()


@pytest.mark.usefixtures("seeded_operators")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("device", ["simulated:0", "simulated"])
def test_results_that_a_kernel_leaves_on_the_host(strategy, device):
    train("WithSeeds", strategy, 3, "adamw", device=device, steps=5)


# As CUDA's RNNs do, to see whether their weights are one piece of memory.
def test_a_tensor_that_looks_at_the_memory_of_a_weight():
    class Looking(networks.Network):
        def forward(self, x, target):
            weight = self.parts[0].weight
            whole = torch.empty(0, device=weight.device).set_(weight.untyped_storage())
            assert whole.numel() == weight.numel()
            return super().forward(x, target)

    torch.manual_seed(0)
    model = Looking([torch.nn.Linear(networks.WIDTH, networks.WIDTH) for _ in range(5)])
    reference = copy.deepcopy(model)
    opts = options(STRATEGIES["pipeline"], accumulation=3)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS["sgd"](model.parameters()))
    batches = [model.batch(3 * MICRO_BATCH) for _ in range(3)]
    ours = [executor(*batch) for batch in batches]
    executor.copyWeightsToHost()
    require_equals_eager(model, ours, reference, OPTIMIZERS["sgd"](reference.parameters()), batches, 3)


@pytest.mark.usefixtures("seeded_operators")
def test_operators_on_the_host_are_refused():
    class Reading(WithSeeds):
        def forward(self, x, target):
            y, seed = torch.ops.abele_test.seeded(self.parts[0](x))
            return y, (seed * 2).to(y.device) * y.sum()

    opts = options(STRATEGIES["pipeline"], accumulation=3)
    opts.deviceType("simulated:0")
    model = Reading()
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS["sgd"](model.parameters()))
    with pytest.raises(poptorch.Error, match=r"E0105(.|\n)*device cpu"):
        executor(*model.batch(3 * MICRO_BATCH))


# Torch keeps the seeds that a program sets before it uses a device, until Python sets the device up.
def test_a_device_is_set_up_before_its_seed_is_asked_for(monkeypatch):
    simulated.load()
    monkeypatch.setattr(torch.simulated, "_lazy_init", lambda: simulated.seed(SEED))
    model = networks.NETWORKS["Encoder"]()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    opts = poptorch.Options().outputMode(poptorch.OutputMode.All)
    opts.deviceType("simulated:0")
    batch = model.batch(MICRO_BATCH)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS["sgd"](model.parameters()))
    ours = executor(*batch)[1]
    reference = networks.NETWORKS["Encoder"]()
    reference.load_state_dict(before)
    reference = on_device(reference)
    simulated.seed(SEED)
    _, expected = eager(reference, OPTIMIZERS["sgd"](reference.parameters()), [t.to("simulated:0") for t in batch], 1)
    assert torch.equal(ours.reshape(-1), expected.cpu())


class LentGraph:
    """As torch.cuda.CUDAGraph, for any device."""

    captures = 0

    def capture_begin(self, pool=None, capture_error_mode="global"):
        self.graph = torch.accelerator.Graph(pool=pool, capture_error_mode=capture_error_mode)
        self.graph.capture_begin()

    def capture_end(self):
        self.graph.capture_end()
        type(self).captures += 1

    def replay(self):
        self.graph.replay()

    def pool(self):
        return self.graph.pool()


# As for CUDA with a torch before 2.13.
@pytest.mark.skipif(not simulated.has_graphs(), reason="this torch has no graphs of devices")
def test_graphs_that_python_lends():
    simulated.load()
    core().lendDeviceGraphs("simulated", LentGraph)
    try:
        before = simulated.graphs()[0]
        train("Encoder", "pipeline", 3, "adamw", steps=6)
        assert LentGraph.captures == simulated.graphs()[0] - before > 0
    finally:
        core().lendDeviceGraphs("simulated", None)


# The simulated accelerator has no fused cells, which torch asks devices other than the CPU for.
@pytest.mark.parametrize("device", ["simulated:0", "simulated"])
@pytest.mark.parametrize("network", sorted(networks.NETWORKS.keys() - {"Lstm", "Gru"}))
def test_networks(network, device):
    train(network, "pipeline", 4, "sgd", device=device)


# Replicas have streams of their own, and share weights and devices. With separate memories on one device there are more
# workers than streams in its pool.
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("num_stages", [1, 3])
@pytest.mark.parametrize("strategy", ["pipeline", "sharded"])
@pytest.mark.parametrize("device", ["simulated:1", "simulated"])
def test_replicas(strategy, num_stages, device, separate):
    replicas, accumulation, steps = 2, 5, 3
    torch.manual_seed(0)
    model = networks.NETWORKS["Encoder"]()
    reference = on_device(model, device)
    cut(model, num_stages)
    opts = options(STRATEGIES[strategy], accumulation).replicationFactor(replicas).broadcastBuffers(False)
    opts.separateMemory(separate)
    opts.deviceType(device)
    opts.deviceGraphs(True)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS["adamw"](model.parameters()))
    torch.manual_seed(1)
    batches = [model.batch(MICRO_BATCH * accumulation * replicas) for _ in range(steps)]
    ours = [executor(*batch) for batch in batches]
    executor.copyWeightsToHost()
    theirs = OPTIMIZERS["adamw"](reference.parameters())
    require_equals_eager(model, ours, reference, theirs, batches, accumulation, replicas)
    executor.destroy()


# The kernels of the simulated accelerator are the CPU's with one thread, so eager on it is the measure here too.
@pytest.mark.parametrize("strategy", ["pipeline", "zero-bubble", "sharded"])
@pytest.mark.parametrize("devices", ["simulated:0,cpu,simulated:1", "simulated:1,simulated:1,cpu,cpu"])
def test_stages_on_the_cpu_between_accelerators(strategy, devices):
    assert "  receive " in train("Decoder", strategy, 4, "adamw", device=devices)


@pytest.mark.parametrize("network", ["Tied", "ResNet"])
def test_tied_weights_and_statistics_on_the_cpu_and_accelerators(network):
    train(network, "pipeline", 3, "adamw", device="simulated:1,cpu")


def test_random_numbers_of_a_stage_on_the_cpu_are_refused():
    model = networks.NETWORKS["ResidualMlp"]()
    cut(model, 2)
    opts = options(STRATEGIES["pipeline"], accumulation=3)
    opts.deviceType("simulated:1,cpu")
    opts.deviceGraphs(True)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS["sgd"](model.parameters()))
    with pytest.raises(poptorch.Error, match=r"E0711.*draws random numbers in a CPU stage(.|\n)*networks.py"):
        executor(*model.batch(3 * MICRO_BATCH))


def test_another_number_of_smoothed_targets_with_weights_is_refused():
    class Loss(torch.nn.Module):
        def forward(self, x, target):
            weight = torch.ones(4, device=x.device)
            return torch.nn.functional.cross_entropy(x, target, weight, label_smoothing=0.1)

    executor = poptorch.inferenceModel(Loss(), poptorch.Options().deviceType("simulated:0"))
    x = torch.randn(3, 4)
    executor(x, torch.tensor([0, 1, 2]))
    with pytest.raises(poptorch.Error, match="E0101"):
        executor(x, torch.tensor([0, -100, 2]))


def test_clipping_looks_at_the_gradients_of_all_devices():
    def train_clipped(device):
        torch.manual_seed(0)
        model = networks.NETWORKS["Tied"]()
        cut(model, 3)
        opts = options(STRATEGIES["pipeline"], accumulation=5)
        opts.deviceType(device)
        opts.deviceGraphs(True)
        optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01, max_grad_norm=0.1)
        executor = poptorch.trainingModel(model, opts, optimizer)
        torch.manual_seed(1)
        losses = [executor(*model.batch(5 * MICRO_BATCH))[1] for _ in range(3)]
        executor.copyWeightsToHost()
        return torch.cat(losses), model.state_dict()

    (losses, state), (expected, expected_state) = train_clipped("simulated"), train_clipped("simulated:0")
    assert torch.equal(losses, expected)
    require_same(state, expected_state)


@pytest.mark.parametrize("device", ["simulated:0", "simulated"])
def test_memory_is_taken_once(device):
    model = networks.NETWORKS["Decoder"]()
    cut(model, 2)
    opts = options(STRATEGIES["pipeline"], accumulation=3)
    opts.deviceType(device)
    opts.deviceGraphs(True)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS["sgd"](model.parameters()))
    batch = model.batch(3 * MICRO_BATCH)
    executor(*batch)
    assert executor.report()["heap_allocations"] > 0  # pinned memory, at least
    for _ in range(3):
        executor(*batch)
    for _ in range(3):
        executor(*batch)
        assert executor.report()["heap_allocations"] == 0


@pytest.mark.skipif(not simulated.has_graphs(), reason="this torch has no graphs of devices")
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("device", ["simulated:0", "simulated"])
def test_reports_have_what_graphs_take(device, graphs):
    model = networks.NETWORKS["Encoder"]()
    cut(model, 2)
    opts = options(STRATEGIES["pipeline"], accumulation=3)
    opts.deviceType(device)
    opts.deviceGraphs(graphs)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS["sgd"](model.parameters()))
    batch = model.batch(3 * MICRO_BATCH)
    for _ in range(6):
        executor(*batch)
    for stage in executor.report()["stages"]:
        assert (stage["resident_bytes"] > stage["mapped_bytes"]) == graphs
    executor.destroy()


@pytest.mark.parametrize("device", ["simulated:2", "simulated:1,simulated:3"])
def test_a_model_that_is_on_a_device_already(device):
    model, reference = (torch.manual_seed(0) and networks.NETWORKS["ResNet"]().to("simulated:0") for _ in range(2))
    cut(model, 2)
    opts = options(STRATEGIES["pipeline"], accumulation=3)
    opts.deviceType(device)
    opts.deviceGraphs(True)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS["adamw"](model.parameters()))
    batch = [t.to("simulated:3") for t in model.batch(3 * MICRO_BATCH)]
    _, loss = executor(*batch)
    _, expected = eager(reference, OPTIMIZERS["adamw"](reference.parameters()), [t.to("simulated:0") for t in batch], 3)
    assert torch.equal(loss.reshape(-1).cpu(), expected.cpu())
    executor.copyWeightsToHost()
    require_same(
        {name: value.cpu() for name, value in model.state_dict().items()},
        {name: value.cpu() for name, value in reference.state_dict().items()},
    )


class Slopes(torch.nn.Module):
    """In float16; the gradients of the weights are of the size of x, times the factor of the loss."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(torch.ones(6, dtype=torch.half)) for _ in range(2))

    def forward(self, x):
        with poptorch.Block("first", ipu_id=0):
            y = self.first * x
        with poptorch.Block("second", ipu_id=1):
            return poptorch.identity_loss(self.second * y, reduction="sum")


# Gradients of all sizes, and some that overflow: updates are skipped then.
@pytest.mark.parametrize("device", ["simulated:0", "simulated", "simulated:1,cpu"])
def test_automatic_loss_scaling_counts_what_the_cpu_counts(device):
    def factors(device):
        model = Slopes()
        opts = options(STRATEGIES["pipeline"], accumulation=3)
        opts.Training.setAutomaticLossScaling(True)
        opts._Popart.set("automaticLossScalingSettings.thresholdUpperCountProportion", 0.3)
        opts.deviceType(device)
        opts.deviceGraphs(True)
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.01, loss_scaling=2048.0)
        executor = poptorch.trainingModel(model, opts, optimizer)
        found = []
        for step in range(8):
            x = torch.linspace(-1, 1, 18).reshape(3, 6).half() * 3 ** (step % 4 + 1)
            losses = executor(x)
            found.append((optimizer.state_dict()["ipu_state"]["lossScaleUpdateFactor"].item(), losses.tolist()))
        executor.copyWeightsToHost()
        return found, model.state_dict()

    (ours, state), (expected, expected_state) = factors(device), factors("cpu")
    assert ours == expected and len({factor for factor, _ in expected}) > 2
    require_same(state, expected_state)


def test_loss_scaling_has_the_bits_of_the_cpu():
    def losses(device):
        torch.manual_seed(0)
        model = networks.NETWORKS["Tied"]()
        cut(model, 2)
        opts = options(STRATEGIES["pipeline"], accumulation=3)
        opts.deviceType(device)
        opts.deviceGraphs(True)
        optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01, loss_scaling=1000.0)
        executor = poptorch.trainingModel(model, opts, optimizer)
        torch.manual_seed(1)
        return torch.cat([executor(*model.batch(3 * MICRO_BATCH))[1] for _ in range(3)])

    assert torch.equal(losses("simulated"), losses("cpu"))


def test_a_model_that_is_on_the_device_already():
    torch.manual_seed(0)
    model = networks.NETWORKS["Encoder"]().to("simulated")
    reference = copy.deepcopy(model)
    cut(model, 2)
    opts = options(STRATEGIES["pipeline"], accumulation=3)
    opts.deviceType("simulated")
    opts.deviceGraphs(True)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS["adamw"](model.parameters()))
    batch = [t.to("simulated") for t in model.batch(3 * MICRO_BATCH)]
    _, loss = executor(*batch)
    simulated.seed(SEED)
    _, expected = eager(reference, OPTIMIZERS["adamw"](reference.parameters()), batch, 3)
    assert torch.equal(loss.reshape(-1).cpu(), expected.cpu())
    executor.copyWeightsToHost()
    require_same(
        {name: value.cpu() for name, value in model.state_dict().items()},
        {name: value.cpu() for name, value in reference.state_dict().items()},
    )


NOT_YET = {
    "floating-point exceptions": lambda opts: opts.Precision.enableFloatingPointExceptions(True),
    "stochastic rounding": lambda opts: opts.Precision.enableStochasticRounding(True),
}


@pytest.mark.parametrize("what", NOT_YET)
@pytest.mark.parametrize("device", ["simulated:1", "simulated"])
def test_what_accelerators_cannot_do_yet_is_refused(what, device):
    model = networks.NETWORKS["Tied"]()
    cut(model, 2)
    opts = options(STRATEGIES["pipeline"], accumulation=3)
    opts.deviceType(device)
    opts.deviceGraphs(True)
    NOT_YET[what](opts)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS["sgd"](model.parameters()))
    with pytest.raises(poptorch.Error, match=f"E0711.*{what} is not available on accelerators"):
        executor(*model.batch(3 * MICRO_BATCH))


def test_replicas_that_exchange_values_are_refused():
    class Total(torch.nn.Module):
        def forward(self, x):
            return poptorch.custom_op([x], "ReplicatedAllReduce", "ai.graphcore", 1, [x])[0]

    opts = poptorch.Options().replicationFactor(2)
    opts.deviceType("simulated")
    with pytest.raises(poptorch.Error, match="E0711.*exchange of values between replicas"):
        poptorch.inferenceModel(Total(), opts)(torch.ones(4))


class WithRecurrentKernel(networks.Network):
    """A recurrent layer as an accelerator's library has it: one operator, and one for its gradient."""

    def __init__(self):
        super().__init__([torch.nn.Linear(networks.WIDTH, networks.WIDTH)])

    def forward(self, x, target):
        weight = self.parts[0].weight
        given = [weight], 0, None, x, None, 0, networks.WIDTH, 0, 1, False, 0.0, self.training, False, [], None
        x = torch._cudnn_rnn(x, *given)[0]
        return x[:, :4], torch.nn.functional.cross_entropy(x[:, :4], target)


@pytest.fixture
def recurrent_kernels():
    def forward(x, weight, *rest):
        return x @ weight[0], x.clone(), x.new_empty(0), x.new_empty(0), x.new_empty(0)

    def backward(x, weight, stride, buffer, hx, cx, output, gradient, *rest):
        return gradient @ weight[0].T, x.new_zeros(x.shape), None, [x.T @ gradient]

    library = torch.library.Library("aten", "IMPL")
    library.impl("_cudnn_rnn", forward, "PrivateUse1")
    library.impl("_cudnn_rnn_backward", backward, "PrivateUse1")
    yield
    library._destroy()


@pytest.mark.usefixtures("recurrent_kernels")
def test_recurrent_layers_whose_gradients_no_device_has_shown_right_are_refused(monkeypatch):
    def executor(wrap=poptorch.trainingModel):
        opts = poptorch.Options()
        opts.deviceType("simulated:0")
        return wrap(WithRecurrentKernel(), opts)

    batch = WithRecurrentKernel().batch(MICRO_BATCH)
    with pytest.raises(poptorch.Error, match=r"E0711.*recurrent layers(.|\n)*_cudnn_rnn_backward"):
        executor()(*batch)
    executor(lambda model, opts: poptorch.inferenceModel(model.eval(), opts))(*batch)
    monkeypatch.setenv("ABELE_UNPROVEN_KERNELS", "1")
    assert executor()(*batch)[1].isfinite()


@pytest.mark.parametrize("device", ["cpu,simulated:9", "simulated,,cpu", "simulated:1,cuda"])
def test_a_list_with_a_device_that_is_not_there(device):
    opts = poptorch.Options()
    opts.deviceType(device)
    opts.deviceGraphs(True)
    with pytest.raises(poptorch.Error, match="E0702.*there is no device(.|\\n)*4 of simulated"):
        poptorch.inferenceModel(torch.nn.Linear(2, 2), opts)(torch.ones(1, 2))


def test_another_device_than_the_first():
    train("Tied", "pipeline", 2, "adamw", device="simulated:2")


def test_inference():
    torch.manual_seed(0)
    model = networks.NETWORKS["ResNet"]().eval()
    reference = on_device(model, "simulated")
    cut(model, 3)
    opts = poptorch.Options().deviceIterations(5).autoRoundNumIPUs(True)
    opts.deviceType("simulated")
    opts.deviceGraphs(True)
    executor = poptorch.inferenceModel(model, opts)
    batch = model.batch(5 * MICRO_BATCH)
    output, _ = executor(*batch)
    with torch.no_grad():
        rows = [[t[k : k + MICRO_BATCH].to("simulated") for t in batch] for k in range(0, 5 * MICRO_BATCH, MICRO_BATCH)]
        expected = torch.cat([reference(*part)[0].cpu() for part in rows])
    assert torch.equal(output, expected)


def test_the_environment_names_the_device(monkeypatch):
    monkeypatch.setenv("ABELE_DEVICE", "simulated:1")
    model = torch.nn.Linear(2, 2)
    jobs = simulated.load().simulated_jobs()
    poptorch.inferenceModel(model)(torch.ones(1, 2))
    assert simulated.load().simulated_jobs() > jobs


def test_a_device_that_is_not_there():
    opts = poptorch.Options()
    opts.deviceType("cuda")
    with pytest.raises(poptorch.Error, match="E0702.*there is no device cuda(.|\n)*4 of simulated"):
        poptorch.inferenceModel(torch.nn.Linear(2, 2), opts)(torch.ones(1, 2))

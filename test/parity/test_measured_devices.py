"""AutoSplit.devices("measured"): the bits of eager PyTorch, whatever is chosen; and what was measured is kept."""

import copy

import abele
import networks
import poptorch
import pytest
import torch
from against_eager import OPTIMIZERS, options, train_equally

pytestmark = pytest.mark.usefixtures("one_thread")


def measured():
    return poptorch.PipelinedExecution(poptorch.AutoStage.AutoSplit).devices("measured")


def train(network, cache=None, optimizer="adamw", accumulation=4):
    """Trains as eager does. Returns the devices used, and explain()'s rows: [(devices, "taken" or a difference)]."""
    torch.manual_seed(0)
    model = networks.NETWORKS[network]()
    reference = copy.deepcopy(model)
    opts = options(measured, accumulation)
    if cache:
        opts.enableExecutableCaching(str(cache))
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS[optimizer](model.parameters()))
    train_equally(executor, model, reference, OPTIMIZERS[optimizer](reference.parameters()), accumulation)
    program = executor._executable.session.executableText()
    devices = sum(line.strip().startswith("worker ") for line in program.splitlines())
    text = "" if executor.report()["from_cache"] else abele.explain(executor)
    executor.destroy()
    rows = [line for line in text.splitlines() if " a call, " in line]
    return devices, [(int(row.split()[0]), row.rsplit(", ", 1)[1]) for row in rows]


@pytest.mark.parametrize("network", networks.NETWORKS)
def test_training_equals_eager(network):
    devices, rows = train(network)
    assert rows[0][0] == 1
    assert [number for number, verdict in rows if verdict == "taken"] == [devices]


def test_trials_leave_the_model_and_its_random_numbers_alone():
    class Dropping(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)

        def forward(self, x):
            return poptorch.identity_loss(self.norm(self.linear(torch.dropout(x, 0.5, True))).square().mean(), "none")

    def trained(strategy):
        torch.manual_seed(3)
        model = Dropping()
        opts = options(lambda: strategy, accumulation=4)
        executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        losses = [executor(torch.randn(8, 8)) for _ in range(3)]
        return [*losses, *executor.state_dict().values()]

    one = poptorch.PipelinedExecution(poptorch.AutoStage.AutoSplit).devices(1)
    for ours, expected in zip(trained(measured()), trained(one), strict=True):
        assert torch.equal(ours, expected)


def test_a_long_call():
    """Its trials run some of its micro-batches."""

    class Wide(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(2)))

        def forward(self, x):
            hidden = self.layers(x)
            return poptorch.identity_loss(hidden.square().mean(), "none"), hidden[:, :2]

    torch.manual_seed(2)
    model, x = Wide(), torch.randn(200 * 128, 512)
    reference = copy.deepcopy(model)
    opts = options(measured, accumulation=200).outputMode(poptorch.OutputMode.EveryN, 100)
    opts.anchorTensor("hidden", "layers/0/MatMul:0", poptorch.OutputMode.EveryN, 50)
    executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    losses, hidden = executor(x)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    expected = []
    for rows in x.split(128):
        loss, _ = reference(rows)
        (loss / 200).backward()
        expected.append(loss.detach())
    optimizer.step()
    assert torch.equal(losses, torch.stack(expected[99::100]))
    assert len(hidden) == 128 * 200 // 100
    assert len(executor.getAnchoredTensor("hidden")) == 128 * 200 // 50
    for name, value in executor.state_dict().items():
        assert torch.equal(value, reference.state_dict()[name]), name


def test_arguments_that_forward_writes_are_written_once():
    class Counting(torch.nn.Module):
        def forward(self, x, count):
            count += 1
            return x * 2

    model = poptorch.inferenceModel(Counting(), options(measured, 1, iterations=4))
    count = torch.zeros(8, 1)
    model(torch.ones(8, 3), count)
    assert torch.equal(count, torch.ones(8, 1))


def test_the_program_is_captured_once_for_all_trials():
    calls = []

    class Told(torch.nn.Module):
        def forward(self, x):
            calls.append(len(x))
            return x * 2

    poptorch.inferenceModel(Told(), options(measured, 1, iterations=4))(torch.ones(8, 3))
    assert calls == [2]


def test_what_was_measured_is_kept(tmp_path, capfd):
    devices, rows = train("Encoder", tmp_path)
    (kept,) = tmp_path.glob("*.placement")
    before = kept.read_text()
    for number, _ in rows:
        way = " in turn" if number > 1 else ""
        assert f"devices {number}{way} threads 1 step_ns " in before
    assert train("Encoder", tmp_path) == (devices, [])
    assert kept.read_text() == before
    assert "measured again" not in capfd.readouterr().err

    kept.write_text(before.replace("step_ns ", "step_ns 1"))
    train("Encoder", tmp_path)
    assert "devices are measured again: the file is damaged" in capfd.readouterr().err
    assert kept.read_text() != before.replace("step_ns ", "step_ns 1")


def test_programs_that_call_the_host_are_not_tried(capfd):
    class Printing(torch.nn.Module):
        def forward(self, x):
            return poptorch.ipu_print_tensor(x, "x") + 1

    model = poptorch.inferenceModel(Printing(), options(measured, 1, iterations=4))
    assert torch.equal(model(torch.zeros(8, 2)), torch.ones(8, 2))
    out, err = capfd.readouterr()
    assert "the number of devices cannot be measured, since the program calls functions of the host or prints" in err
    assert (out + err).count("x: (") == 4  # micro-batches, once


def test_options():
    strategy = measured()
    assert repr(strategy) == 'PipelinedExecution(AutoStage.AutoSplit).devices("measured")'
    again = poptorch.Options().setExecutionStrategy(strategy).clone()
    assert 'devices("measured")' in repr(again)
    with pytest.raises(AssertionError, match="AutoSplit"):
        poptorch.PipelinedExecution().devices("measured")
    with pytest.raises(AssertionError, match="measured"):
        poptorch.PipelinedExecution(poptorch.AutoStage.AutoSplit).devices("most")

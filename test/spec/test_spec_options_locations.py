"""spec options.md, sections 5, 6 and 9.4: tensor locations have an effect on memory, and none on results."""

import poptorch
import pytest
import torch

spec = pytest.mark.spec
BATCH = torch.arange(32.0).reshape(2, 16)


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

    def forward(self, x):
        with poptorch.Block("0"):
            x = self.first(x)
        with poptorch.Block("1"):
            return poptorch.identity_loss(self.second(x), reduction="mean")


def train(strategy, configure=lambda opts: None):
    """The weights after two steps of AdamW, and the report."""
    model = Two()
    opts = poptorch.Options().setExecutionStrategy(strategy)
    configure(opts)
    executor = poptorch.trainingModel(model, opts, torch.optim.AdamW(model.parameters(), lr=0.1))
    for _ in range(2):
        executor(BATCH)
    report = executor.report()
    executor.destroy()
    return [p.detach().clone() for p in model.parameters()], report


def location(*uses, on_chip=False, least=None):
    settings = poptorch.TensorLocationSettings().useOnChipStorage(on_chip)
    if least is not None:
        settings.minElementsForOffChip(least)

    def configure(opts):
        for use in uses:
            getattr(opts.TensorLocations, f"set{use}Location")(settings)

    return configure


def sharded():
    return poptorch.ShardedExecution("0", "1")


def serial(liveness=poptorch.Liveness.AlwaysLive):
    return poptorch.SerialPhasedExecution("0", "1").setTensorsLiveness(liveness)


WEIGHTS = 2 * (16 * 16 * 4 + 16 * 4)  # bytes; what lies in a group begins at multiples of 64


@spec("options/6/keys", names=["TensorLocationSettings.useOnChipStorage"])
@pytest.mark.parametrize(
    ("use", "expected"), [("Weight", WEIGHTS), ("Optimizer", 2 * WEIGHTS), ("Accumulator", WEIGHTS)]
)
def test_each_use_leaves_the_device(use, expected):
    before, on_chip = train(sharded())
    after, report = train(sharded(), location(use))
    assert on_chip["off_chip_bytes"] == 0
    assert expected <= report["off_chip_bytes"] <= expected + 2 * 4 * 64  # AdamW's state has small tensors
    assert all(map(torch.equal, before, after))


@spec("options/6/keys", names=["TensorLocations.setActivationLocation"])
def test_activations_leave_the_device():
    before, _ = train(sharded())
    after, report = train(sharded(), location("Activation"))
    assert report["off_chip_bytes"] >= 2 * 16 * 4 and all(map(torch.equal, before, after))


@spec("options/6/keys", names=["TensorLocationSettings.minElementsForOffChip"])
def test_small_tensors_stay():
    assert train(sharded(), location("Weight", least=16))[1]["off_chip_bytes"] == WEIGHTS
    assert train(sharded(), location("Weight", least=17))[1]["off_chip_bytes"] == WEIGHTS - 2 * 16 * 4
    assert train(sharded(), location("Weight", least=257))[1]["off_chip_bytes"] == 0


@spec("options/5", "options/9.4", names=["poptorch.SerialPhasedExecution", "poptorch.ParallelPhasedExecution"])
def test_phased_strategies_put_all_off_chip():
    before, _ = train(sharded())
    for strategy in (serial(), poptorch.ParallelPhasedExecution("0", "1")):
        after, report = train(strategy)
        assert report["off_chip_bytes"] >= 4 * WEIGHTS  # weights, sums, two moments
        assert all(map(torch.equal, before, after))
    stays = location("Weight", "Optimizer", "Accumulator", "Activation", on_chip=True)
    after, report = train(serial(), stays)
    assert report["off_chip_bytes"] == 0 and all(map(torch.equal, before, after))


@spec("options/9.4", "options/10/Liveness", names=["poptorch.Liveness"])
def test_liveness_says_when_activations_leave():
    reports = {liveness: train(serial(liveness)) for liveness in poptorch.Liveness}
    live = poptorch.Liveness
    weights = reports[live.AlwaysLive][0]
    assert all(all(map(torch.equal, weights, after)) for after, _ in reports.values())
    bytes_of = {liveness: report["off_chip_bytes"] for liveness, (_, report) in reports.items()}
    peak_of = {liveness: report["stages"][0]["peak_bytes"] for liveness, (_, report) in reports.items()}
    assert bytes_of[live.AlwaysLive] < bytes_of[live.OffChipAfterFwd] == bytes_of[live.OffChipAfterEachPhase]
    # Without overlap a device holds the tensors of one action.
    assert peak_of[live.OffChipAfterFwdNoOverlap] < peak_of[live.OffChipAfterFwd]


def test_host_memory_up_to_a_limit_and_a_file_beyond(tmp_path):
    place = location("Weight", "Optimizer")

    def limited(opts):
        place(opts)
        opts.offChipMemoryLimit(2 * WEIGHTS).offChipFolder(tmp_path)

    before, unlimited = train(sharded(), place)
    after, report = train(sharded(), limited)
    assert unlimited["off_chip_file_bytes"] == 0 < report["off_chip_file_bytes"]
    assert report["off_chip_bytes"] == unlimited["off_chip_bytes"] and all(map(torch.equal, before, after))
    assert list(tmp_path.iterdir()) == []


def test_checks_of_the_limit():
    opts = poptorch.Options()
    assert opts.offChipMemoryLimit(1 << 30).offChipFolder("/tmp") is opts
    assert opts.off_chip_memory_limit == 1 << 30 and opts.off_chip_folder == "/tmp"
    assert "off_chip_memory_limit=1073741824" in repr(opts)
    values = opts.outputMode(poptorch.OutputMode.All).toDict()
    poptorch.poptorch_core._validateOptions(values)
    assert values["off_chip_folder"] == "/tmp"
    with pytest.raises(poptorch.Error, match="E0702"):
        opts.offChipMemoryLimit(-1)
    with pytest.raises(AssertionError):
        opts.offChipMemoryLimit("1 GB")

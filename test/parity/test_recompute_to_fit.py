"""PipelinedExecution.recompute("fit"): the bits of eager PyTorch within any limit that can be kept."""

import poptorch
import pytest
import torch
from against_eager import MICRO_BATCH, options, require_same
from test_matrix import NETWORKS, OPTIMIZERS, expected, make_batches, make_model, make_strategy

pytestmark = pytest.mark.usefixtures("one_thread")


STAGES, ACCUMULATION = 2, 3


def executor_with(network, recompute, limit, schedule="1f1b", num_stages=STAGES, checkpoint=False):
    model = make_model(network)
    for stage in range(num_stages):
        poptorch.BeginBlock(model.parts[stage * len(model.parts) // num_stages], str(stage))
    if checkpoint:
        model.parts[1].register_forward_hook(lambda module, given, result: poptorch.recomputationCheckpoint(result))
    opts = options(lambda: make_strategy(schedule, num_stages, False).recompute(recompute), ACCUMULATION)
    if limit is not None:
        opts.deviceMemoryLimit(limit)
    return model, poptorch.trainingModel(model, opts, OPTIMIZERS["adamw"](model.parameters()))


def run(network, recompute, limit, **rest):
    model, executor = executor_with(network, recompute, limit, **rest)
    batches = make_batches(model, MICRO_BATCH * ACCUMULATION)
    results = [executor(*batch) for batch in batches]
    peaks = {f"IPU{s['device']}": s["peak_bytes"] for s in executor.report()["stages"]}
    text = executor._executable.session.graphText()
    executor.destroy()
    return results, model.state_dict(), peaks, text


def forwards_made_again(text):
    """Forward operators that stand in backward; too many by those that backward has anyway."""
    return sum("dir=bwd" in line for line in text.splitlines())


@pytest.mark.parametrize("share", (0.9, 0.5, 0.0))
@pytest.mark.parametrize("network", NETWORKS)
def test_equals_eager_and_fits(network, share):
    """Limits between what all of recompute() needs and what none of it does."""
    _, _, all_kept, text_kept = run(network, False, None)
    _, _, all_again, _ = run(network, True, None)
    limit = {}
    for device, kept in all_kept.items():
        again = min(kept, all_again[device])
        limit[device] = again + int((kept - again) * share)
    results, state, peaks, text = run(network, "fit", limit)
    assert all(peaks[device] <= limit[device] for device in limit)
    if any(limit[device] < all_kept[device] for device in limit):
        assert forwards_made_again(text) > forwards_made_again(text_kept)
    steps, expected_state = expected(network, "adamw", ACCUMULATION, 1)
    for (output, loss), (expected_output, expected_loss) in zip(results, steps, strict=True):
        assert torch.equal(loss.reshape(-1), expected_loss) and torch.equal(output, expected_output)
    require_same(state, expected_state)


@pytest.mark.parametrize("limit", (None, 1 << 30))
def test_nothing_is_made_again_without_need(limit):
    kept, fit = run("Transformer", False, None), run("Transformer", "fit", limit)
    assert fit[2] == kept[2] and fit[3] == kept[3]


def test_tighter_limits_cost_more_and_are_deterministic():
    _, _, kept, text = run("Transformer", False, None)
    _, _, again, _ = run("Transformer", True, None)
    again = {device: min(again[device], kept[device]) for device in kept}
    counts = [forwards_made_again(text)]
    for share in (0.75, 0.25, 0.0):
        limit = {device: again[device] + int((kept[device] - again[device]) * share) for device in kept}
        first, second = run("Transformer", "fit", limit), run("Transformer", "fit", limit)
        assert first[3] == second[3]
        counts.append(forwards_made_again(first[3]))
    assert counts == sorted(counts) and counts[0] < counts[1] < counts[-1]


@pytest.mark.parametrize("schedule", ("gpipe", "zero-bubble", "interleaved"))
def test_other_schedules(schedule):
    _, _, kept, _ = run("ResNet", False, None, schedule=schedule)
    _, _, again, _ = run("ResNet", True, None, schedule=schedule)
    limit = {device: (min(again[device], kept[device]) + kept[device]) // 2 for device in kept}
    results, state, peaks, _ = run("ResNet", "fit", limit, schedule=schedule)
    assert all(peaks[device] <= limit[device] for device in limit)
    steps, expected_state = expected("ResNet", "adamw", ACCUMULATION, 1)
    assert torch.equal(results[-1][0], steps[-1][0])
    require_same(state, expected_state)


def test_checkpoints_are_kept():
    _, _, kept, _ = run("Transformer", False, None)
    _, _, again, _ = run("Transformer", True, None)
    limit = {device: (min(again[device], kept[device]) + kept[device]) // 2 for device in kept}
    results, state, peaks, _ = run("Transformer", "fit", limit, checkpoint=True)
    assert all(peaks[device] <= limit[device] for device in limit)
    _, expected_state = expected("Transformer", "adamw", ACCUMULATION, 1)
    require_same(state, expected_state)


def test_what_cannot_fit_is_an_error():
    model, executor = executor_with("Transformer", "fit", 20000)
    with pytest.raises(poptorch.Error, match="E0405 device-memory") as raised:
        executor(*make_batches(model, MICRO_BATCH * ACCUMULATION)[0])
    assert 'recompute("fit")' not in str(raised.value)
    executor.destroy()


def test_words():
    strategy = poptorch.PipelinedExecution()
    assert strategy.recompute("fit") is strategy and '.recompute("fit")' in repr(strategy)
    with pytest.raises(AssertionError, match="fit"):
        strategy.recompute("least")

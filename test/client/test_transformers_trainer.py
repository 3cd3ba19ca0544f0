"""abele.transformers.AbeleTrainer: losses and weights of eager PyTorch, bit for bit; logs, checkpoints, evaluation.

Skipped where transformers and accelerate are not installed. To be tried in a folder of its own:
  pip install --no-deps --target FOLDER -r requirements-trainers.txt
  PYTHONPATH=FOLDER python -m pytest test/client/test_transformers_trainer.py
"""

import copy
import re

import abele
import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="5")
pytest.importorskip("accelerate")
from abele.transformers import AbeleTrainer  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
ROWS, LENGTH, BATCH = 32, 12, 8


def gpt(use_cache=False):
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50, "n_positions": 16}
    dropouts = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **dropouts, use_cache=use_cache))


def texts():
    torch.manual_seed(1)
    rows = torch.randint(50, (ROWS, LENGTH)).cumsum(1) % 50
    left_out = [
        torch.arange(LENGTH) < i % LENGTH // 2 for i in range(ROWS)
    ]  # so that rows have uneven numbers of tokens
    return [{"input_ids": row, "labels": row.masked_fill(out, -100)} for row, out in zip(rows, left_out, strict=True)]


def arguments(folder, **settings):
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "logging_steps": 1}
    numbers = {"learning_rate": 0.01, "per_device_train_batch_size": BATCH, "max_steps": 6, "max_grad_norm": 0.0}
    return transformers.TrainingArguments(folder, **{**quiet, **numbers, **settings})


def trained(folder, devices=1, micro_batches=1, resume=None, **settings):
    model = gpt()
    options = abele.Options()
    options.threadsPerDevice(1)
    trainer = AbeleTrainer(
        model,
        arguments(folder, **settings),
        train_dataset=texts(),
        eval_dataset=texts(),
        devices=devices,
        micro_batches=micro_batches,
        options=options,
    )
    trainer.train(resume_from_checkpoint=resume)
    return model, trainer


@pytest.mark.parametrize("norm", [0.0, 0.5])
def test_one_micro_batch_is_transformers_own_trainer(norm, tmp_path):
    model, trainer = trained(tmp_path, max_grad_norm=norm)
    theirs = gpt()
    settings = arguments(tmp_path, optim="adamw_torch", max_grad_norm=norm)
    eager = transformers.Trainer(theirs, settings, train_dataset=texts())
    eager.train()
    losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    assert losses == [log["loss"] for log in eager.state.log_history if "loss" in log] and len(losses) == 6
    for mine, wanted in zip(model.parameters(), theirs.parameters(), strict=True):
        # The norm adds the parameters in the order of the optimizer's groups; AdamW turns rounding in gradients that
        # are zero but for it (the biases of keys) into steps of their own.
        assert torch.equal(mine, wanted) if norm == 0 else torch.allclose(mine, wanted, atol=1e-4)


def test_micro_batches_weigh_by_their_tokens(tmp_path):
    """As transformers' own accumulation does: one update of 8 rows, in 4 parts or in one."""
    (whole, one), (parts, several) = trained(tmp_path), trained(tmp_path, 2, 4)
    for a, b in zip(one.state.log_history, several.state.log_history, strict=True):
        assert ("loss" in a) == ("loss" in b) and a.get("loss", 0) == pytest.approx(b.get("loss", 0), rel=1e-4)
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_a_pipeline_evaluates_logs_and_clips(tmp_path):
    model, trainer = trained(tmp_path, 2, 4, eval_strategy="steps", eval_steps=3, max_grad_norm=0.5)
    logs = trainer.state.log_history
    assert sum("eval_loss" in log for log in logs) == 2
    assert all(0 <= log[f"stage{i}_busy"] <= 1 for log in logs if "loss" in log for i in range(2))
    losses = [log["loss"] for log in logs if "loss" in log]
    assert isinstance(trainer.optimizer.optimizer, abele.optim.AdamW) and losses[-1] < losses[0]
    eager = transformers.Trainer(model, arguments(tmp_path), eval_dataset=texts())
    assert trainer.evaluate()["eval_loss"] == eager.evaluate()["eval_loss"]


def found(trainer):
    """Metrics of an evaluation, but for times, and what predict() returns: with a last batch that is smaller."""
    metrics = {name: value for name, value in trainer.evaluate().items() if not re.search("runtime|second|time", name)}
    predicted = trainer.predict(texts()[: BATCH + 3])
    return metrics, predicted.predictions, predicted.label_ids, predicted.metrics["test_loss"]


class Metrics:
    """Whether every token is right. Notes the texts that it saw."""

    def __call__(self, predicted):
        right = predicted.predictions.argmax(-1)[:, :-1] == predicted.label_ids[:, 1:]
        return {"right": right.mean().item(), "sum": predicted.predictions.astype("float64").sum().item()}


@pytest.mark.parametrize("settings", [{}, {"label_smoothing_factor": 0.1}, {"prediction_loss_only": True}], ids=str)
@pytest.mark.parametrize("devices", [1, 2])
def test_evaluation_is_transformers_own(devices, settings, tmp_path):
    """Losses, predictions and metrics, bit for bit; by compiled programs."""
    model = gpt(use_cache=True)
    common = {"eval_dataset": texts()[: 2 * BATCH + 3], "compute_metrics": Metrics()}
    eager = transformers.Trainer(model, arguments(tmp_path, **settings), **common)
    theirs = found(eager)
    options = abele.Options()
    options.threadsPerDevice(1)
    trainer = AbeleTrainer(model, arguments(tmp_path, **settings), devices=devices, options=options, **common)
    captures = []
    with abele.registerPreCompileHook(lambda: captures.append(1)):
        ours = found(trainer)
        assert len(captures) == 4  # two shapes in each of two loops
        assert ours[0] == theirs[0] and ours[3] == theirs[3]
        for mine, wanted in zip(ours[1:3], theirs[1:3], strict=True):
            assert (mine is None) == (wanted is None) and (mine is None or (mine == wanted).all())
        AbeleTrainer(model, arguments(tmp_path), compile_evaluation=False, **common).evaluate()
        assert len(captures) == 4
    with torch.no_grad():
        model.transformer.wte.weight.mul_(0.5)  # of which nobody tells the trainer
    changed = trainer.evaluate()["eval_loss"]
    assert changed != theirs[0]["eval_loss"] and changed == eager.evaluate()["eval_loss"]


def test_evaluation_in_a_training_sees_its_weights(tmp_path):
    """The same losses as of transformers' own trainer, which evaluates between the same steps."""
    evaluating = {"eval_strategy": "steps", "eval_steps": 2}
    _, trainer = trained(tmp_path, **evaluating)
    eager = transformers.Trainer(
        gpt(), arguments(tmp_path, optim="adamw_torch", **evaluating), train_dataset=texts(), eval_dataset=texts()
    )
    eager.train()
    ours, theirs = (
        [log["eval_loss"] for log in each.state.log_history if "eval_loss" in log] for each in (trainer, eager)
    )
    assert ours == theirs and len(set(ours)) == 3


def test_checkpoints_go_on(tmp_path):
    whole, _ = trained(tmp_path / "whole")
    trained(tmp_path / "parts", save_strategy="steps", save_steps=3)
    resumed, trainer = trained(tmp_path / "parts", resume=str(tmp_path / "parts" / "checkpoint-3"))
    assert trainer.state.global_step == 6
    for mine, wanted in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, wanted)


def test_batches_with_and_without_padding(tmp_path):
    rows = [{**row, "attention_mask": torch.ones(LENGTH, dtype=torch.long)} for row in texts()]
    for row in rows[:2]:
        row["attention_mask"][LENGTH // 2 :] = 0  # of four batches one or two have them
    options = abele.Options()
    options.threadsPerDevice(1)
    ours, theirs = gpt(), gpt()
    AbeleTrainer(ours, arguments(tmp_path), train_dataset=rows, options=options).train()
    transformers.Trainer(theirs, arguments(tmp_path, optim="adamw_torch"), train_dataset=rows).train()
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))


@pytest.mark.parametrize("settings", [{"gradient_accumulation_steps": 2}], ids=str)
def test_what_a_compiled_step_cannot_do_is_refused(settings, tmp_path):
    with pytest.raises(abele.Error) as refused:
        AbeleTrainer(gpt(), arguments(tmp_path, **settings), train_dataset=texts())
    assert refused.value.code == "E0711"


def test_a_model_is_not_changed_by_being_given(tmp_path):
    model = gpt()
    before = copy.deepcopy(model.state_dict())
    AbeleTrainer(model, arguments(tmp_path), train_dataset=texts())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())

"""abele.lightning.AbeleStrategy: what Lightning trains, validates, logs and saves equals eager PyTorch, bit for bit.

Skipped where Lightning 2 is not installed. To be tried in a folder of its own:
  pip install --no-deps --target FOLDER -r requirements-lightning.txt
  PYTHONPATH=FOLDER python -m pytest test/client/test_lightning_strategy.py
"""

import copy
import csv
import importlib.util

import abele
import pytest
import torch

if importlib.util.find_spec("lightning") is not None:
    import lightning.pytorch as pl
else:
    pl = pytest.importorskip("pytorch_lightning", minversion="2")
from abele.lightning import AbeleStrategy

pytestmark = pytest.mark.usefixtures("one_thread")
ROWS, BATCH, EPOCHS = 64, 16, 2


class Classifier(pl.LightningModule):
    """Knows nothing of Abele."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 2)
        self.losses = []

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))

    def training_step(self, batch, _index):
        loss = torch.nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log_dict({"double": 2 * loss, "seven": 7})
        return loss

    def validation_step(self, batch, _index):
        self.log("right", (self(batch[0]).argmax(-1) == batch[1]).float().mean())

    test_step = validation_step

    def predict_step(self, batch, _index):
        return self(batch[0])

    def on_train_batch_end(self, outputs, batch, _index):
        self.losses.append(outputs["loss"].item())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


def points(rows=ROWS):
    torch.manual_seed(0)
    x = torch.randn(rows, 8)
    return torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())


def loader(rows=ROWS):
    return torch.utils.data.DataLoader(points(rows), batch_size=BATCH)


def trainer(folder, strategy, epochs=EPOCHS, **settings):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "log_every_n_steps": 1}
    return pl.Trainer(
        default_root_dir=folder,
        max_epochs=epochs,
        strategy=strategy,
        **{"enable_checkpointing": False, **quiet, **settings},
    )


def eagerly(module, micro_batches, epochs=EPOCHS):
    x, labels = points()[:]
    [optimizer], [scheduler] = module.configure_optimizers()
    means = []
    for _ in range(epochs):
        for rows, wanted in zip(x.split(BATCH), labels.split(BATCH), strict=True):
            optimizer.zero_grad()
            losses = []
            for piece, label in zip(rows.chunk(micro_batches), wanted.chunk(micro_batches), strict=True):
                losses.append(torch.nn.functional.cross_entropy(module(piece), label))
                (losses[-1] / micro_batches).backward()
            optimizer.step()
            means.append(torch.stack(losses).mean().item())
        scheduler.step()
    return means


def made():
    torch.manual_seed(1)
    module = Classifier()
    return module, copy.deepcopy(module)


def one_thread_options():
    options = abele.Options()
    options.threadsPerDevice(1)
    return options


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("devices", "micro_batches"), [(1, 1), (2, 4)])
def test_fit_validate_test_and_predict(devices, micro_batches, tmp_path):
    module, eager = made()
    strategy = AbeleStrategy(devices=devices, micro_batches=micro_batches, options=one_thread_options())
    ours = trainer(tmp_path, strategy)
    ours.fit(module, loader(), loader(ROWS - 3))
    losses = eagerly(eager, micro_batches)
    assert module.losses == losses and losses[-1] < losses[0]
    for mine, theirs in zip(module.parameters(), eager.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    x, labels = points(ROWS - 3)[:]
    right = [
        (eager(rows).argmax(-1) == wanted).float().mean() * len(rows)
        for rows, wanted in zip(x.split(BATCH), labels.split(BATCH), strict=True)
    ]
    assert ours.callback_metrics["right"].item() == pytest.approx((sum(right) / len(x)).item())
    assert ours.callback_metrics["loss_step"].item() == losses[-1]
    assert (
        ours.callback_metrics["double"].item() == pytest.approx(2 * losses[-1]) and ours.callback_metrics["seven"] == 7
    )
    (tested,) = ours.test(module, loader(), verbose=False)
    assert tested["right"] > 0.6
    predictions = torch.cat(ours.predict(module, loader()))
    with torch.no_grad():
        assert torch.equal(predictions, torch.cat([eager(rows) for rows in points()[:][0].split(BATCH)]))


@pytest.mark.filterwarnings("ignore")
def test_it_is_a_pipeline_and_can_be_looked_at(tmp_path):
    stages = []

    class Look(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            stages.append(trainer.strategy.model_of().report()["stages"])

    ours = trainer(tmp_path, AbeleStrategy(devices=2, micro_batches=4), callbacks=[Look()])
    ours.fit(made()[0], loader())
    assert [stage["device"] for stage in stages[-1]] == [0, 1]


@pytest.mark.filterwarnings("ignore")
def test_checkpoints_go_on(tmp_path):
    """Two epochs, and one, a checkpoint and another: the same weights, so the devices' moments are in the file."""
    whole, parts = made()
    resumed = copy.deepcopy(parts)
    trainer(tmp_path, AbeleStrategy(), epochs=2).fit(whole, loader())
    first = trainer(tmp_path, AbeleStrategy(), epochs=1, enable_checkpointing=True)
    first.fit(parts, loader())
    path = tmp_path / "run.ckpt"
    first.save_checkpoint(path)
    second = trainer(tmp_path, AbeleStrategy(), epochs=2)
    second.fit(resumed, loader(), ckpt_path=first.checkpoint_callback.best_model_path)
    for mine, theirs in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.filterwarnings("ignore")
def test_loggers_get_each_step(tmp_path):
    logger = pl.loggers.CSVLogger(tmp_path)
    module, _ = made()
    trainer(tmp_path, AbeleStrategy(devices=2, micro_batches=2), logger=logger).fit(module, loader())
    with open(f"{logger.log_dir}/metrics.csv", newline="") as file:
        logged = [float(row["loss_step"]) for row in csv.DictReader(file) if row["loss_step"]]
    assert logged == pytest.approx(module.losses)


class LooksAtTheIndex(Classifier):
    def training_step(self, batch, index):
        return super().training_step(batch, index) * (2.0 if index == 0 else 1.0)


class ByHand(Classifier):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class ReturnsNothing(Classifier):
    def training_step(self, batch, index):
        super().training_step(batch, index)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "settings", "code"),
    [
        (LooksAtTheIndex, {}, "E0101"),
        (ByHand, {}, "E0711"),
        (ReturnsNothing, {}, "E0711"),
        (Classifier, {"accumulate_grad_batches": 2}, "E0711"),
        (Classifier, {"gradient_clip_val": 1.0}, "E0711"),
    ],
    ids=["index", "manual", "nothing", "accumulation", "clipping"],
)
def test_what_a_compiled_step_cannot_do_is_refused(kind, settings, code, tmp_path):
    with pytest.raises(abele.Error) as refused:
        trainer(tmp_path, AbeleStrategy(), **settings).fit(kind(), loader())
    assert refused.value.code == code

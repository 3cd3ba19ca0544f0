"""PyTorch Lightning's strategies for IPUs, unmodified: weights and predictions are those of eager PyTorch.

Skipped where they are not installed. Three packages have such a strategy, each to be tried in a folder of its own:
  pip install --no-deps --target FOLDER -r requirements-clients.txt                  Lightning 1.9
  pip install --no-deps --target OTHER pytorch-lightning==2.0.9 lightning-graphcore==0.1.0
  PYTHONPATH=FOLDER python -m pytest test/client/test_published_lightning.py         or PYTHONPATH=OTHER:FOLDER
"""

import copy

import pytest
import torch

lightning = pytest.importorskip("pytorch_lightning")

ROWS, BATCH, EPOCHS = 64, 8, 4


class Classifier(lightning.LightningModule):
    """Knows nothing of IPUs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(32, 16), torch.nn.Linear(16, 2)
        self.losses, self.rows_of_calls = [], set()

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))

    def training_step(self, batch, _index):
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, _index):
        return (self(batch[0]).argmax(-1) == batch[1]).float().mean()

    def test_step(self, batch, _index):
        return (self(batch[0]).argmax(-1) == batch[1]).float().mean()

    def predict_step(self, batch, _index, _loader=0):
        return self(batch[0])

    def on_train_batch_end(self, outputs, batch, _index):
        self.rows_of_calls.add(len(batch[0]))
        self.losses.append(outputs["loss"].mean().item())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]


def native_strategy():
    from pytorch_lightning import strategies

    if not hasattr(strategies, "IPUStrategy"):
        pytest.skip("this Lightning has no strategy for IPUs")
    return {"accelerator": "ipu", "strategy": strategies.IPUStrategy()}


def lightning_graphcore():
    package = pytest.importorskip("lightning_graphcore")
    from lightning_graphcore.precision import IPUPrecision

    plugins = [IPUPrecision("32-true")]
    return {"accelerator": package.IPUAccelerator(), "strategy": package.IPUStrategy(), "plugins": plugins}


def points():
    torch.manual_seed(0)
    x = torch.randn(ROWS, 32)
    return torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())


def train_eagerly(module, batch, groups):
    """Each update takes `groups` micro-batches of `batch` rows. Returns their losses."""
    x, labels = points()[:]
    [optimizer], [scheduler] = module.configure_optimizers()
    losses = []
    for _ in range(EPOCHS):
        for start in range(0, ROWS, batch * groups):
            optimizer.zero_grad()
            for k in range(groups):
                rows = slice(start + k * batch, start + (k + 1) * batch)
                loss = module.training_step((x[rows], labels[rows]), 0)
                losses.append(loss.item())
                (loss / groups).backward()
            optimizer.step()
        scheduler.step()
    return losses


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("settings", [{}, {"devices": 2}, {"accumulate_grad_batches": 4}], ids=str)
@pytest.mark.parametrize("make", [native_strategy, lightning_graphcore])
def test_fit_test_and_predict(make, settings, tmp_path):
    groups = settings.get("devices", 1) * settings.get("accumulate_grad_batches", 1)
    arguments = {"devices": 1, **make(), **settings}
    torch.manual_seed(1)
    module = Classifier()
    eager = copy.deepcopy(module)
    trainer = lightning.Trainer(
        default_root_dir=str(tmp_path),
        max_epochs=EPOCHS,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        logger=False,
        **arguments,
    )
    loader = torch.utils.data.DataLoader(points(), batch_size=BATCH, drop_last=True)
    trainer.fit(module, loader, loader)
    # lightning-graphcore leaves the loader as it is, so that an executor cuts each batch of it into pieces.
    [rows] = module.rows_of_calls
    losses = train_eagerly(eager, rows // groups, groups)
    assert losses[-1] < losses[0]
    if groups == 1:  # else Lightning 2 divides what it shows
        assert module.losses == losses
    for ours, theirs in zip(module.parameters(), eager.parameters(), strict=True):
        # Replicas add their gradients in an order of their own.
        assert torch.equal(ours, theirs) if "devices" not in settings else torch.allclose(ours, theirs)
    trainer.test(module, loader, verbose=False)
    predictions = torch.cat(trainer.predict(module, loader))
    x = points()[:][0]
    expected = torch.cat([eager(rows) for rows in x.split(BATCH)])
    torch.testing.assert_close(predictions, expected)

"""mmcv 1.x trains a small classifier through its runner for IPUs, unmodified: weights and losses are eager PyTorch's.

Skipped where it is not installed. It is published as source, and is built without its extensions:
  pip install --no-deps --target FOLDER addict yapf opencv-python-headless packaging pyyaml pillow platformdirs
  pip install --no-deps --no-build-isolation --target FOLDER mmcv==1.7.2 setuptools==69.0.0
  PYTHONPATH=FOLDER python -m pytest test/client/test_published_mmcv.py
"""

import copy
import importlib.machinery
import logging
import sys
import types

import pytest
import torch

# mmcv asks torchvision for its version, and for the addresses of weights, which nothing here wants.
_torchvision = types.ModuleType("torchvision")
_torchvision.__spec__ = importlib.machinery.ModuleSpec("torchvision", None)
_torchvision.__version__ = "0.28.0"


@pytest.fixture(scope="module", autouse=True)
def without_torchvision():
    yield
    if sys.modules.get("torchvision") is _torchvision:
        del sys.modules["torchvision"]


sys.modules.setdefault("torchvision", _torchvision)
ipu = pytest.importorskip("mmcv.device.ipu")
if not hasattr(ipu, "IPUEpochBasedRunner"):
    pytest.skip("this mmcv has no runner for IPUs", allow_module_level=True)

ROWS, BATCH, CLASSES, EPOCHS, ACCUMULATION = 48, 4, 5, 3, 2


class Classifier(torch.nn.Module):
    """As models of its family are: forward gives losses or predictions, train_step what a runner wants."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.backbone = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
        self.head = torch.nn.Linear(8, CLASSES)

    def forward(self, img, gt_label=None, img_metas=None, return_loss=True, post_process=True):
        scores = self.head(self.backbone(img).mean((2, 3)))
        return {"loss": torch.nn.functional.cross_entropy(scores, gt_label)} if return_loss else scores

    def _parse_losses(self, losses):
        return losses["loss"].mean(), {"loss": losses["loss"].mean().item()}

    def train_step(self, data, optimizer=None):
        loss, log_vars = self._parse_losses(self(**data))
        return {"loss": loss, "log_vars": log_vars, "num_samples": len(data["img"])}

    val_step = train_step


class Images(torch.utils.data.Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(2)
        self.images = torch.randn(ROWS, 3, 8, 8, generator=generator)
        self.labels = torch.randint(CLASSES, (ROWS,), generator=generator)

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return {"img": self.images[index], "gt_label": self.labels[index]}


class Losses:
    """A hook that keeps the losses of a run."""

    def __new__(cls):
        from mmcv.runner import Hook

        class Keeping(Hook):
            def __init__(self):
                self.losses, self.rates = [], []

            def after_train_iter(self, runner):
                self.losses.append(runner.outputs["loss"].item())
                self.rates.append(runner.current_lr()[0])

        return Keeping()


def train_eagerly(model):
    """The losses of the last micro-batches, and the learning rates."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    losses, rates, data = [], [], Images()
    for epoch in range(EPOCHS):
        for group in optimizer.param_groups:
            group["lr"] = 0.5 * 0.1 ** (epoch >= 2)
        for start in range(0, ROWS, BATCH * ACCUMULATION):
            optimizer.zero_grad()
            for first in range(start, start + BATCH * ACCUMULATION, BATCH):
                rows = slice(first, first + BATCH)
                loss = model(data.images[rows], data.labels[rows])["loss"]
                (loss / ACCUMULATION).backward()
            optimizer.step()
            losses.append(loss.item())
            rates.append(optimizer.param_groups[0]["lr"])
    return losses, rates


@pytest.mark.filterwarnings("ignore")
def test_a_runner_trains_and_evaluates(tmp_path):
    model, eager = Classifier(), Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    train = {"Training": {"gradientAccumulation": ACCUMULATION}}
    runner = ipu.IPUEpochBasedRunner(
        model,
        optimizer=optimizer,
        options_cfg={"randomSeed": 888, "train_cfg": train, "eval_cfg": {}},
        work_dir=str(tmp_path),
        logger=logging.getLogger("mmcv"),
        max_epochs=EPOCHS,
    )
    assert runner.options["training"]._values["random_seed"] == 888
    kept = Losses()
    runner.register_training_hooks(
        {"policy": "step", "step": [2]}, ipu.IPUFp16OptimizerHook(loss_scale=1.0), {"interval": EPOCHS}
    )
    runner.register_hook(kept, priority="VERY_LOW")
    loader = ipu.IPUDataLoader(Images(), None, batch_size=BATCH, num_workers=0, persistent_workers=False)
    runner.run([loader], [("train", 1)])

    losses, rates = train_eagerly(eager)
    assert kept.losses == losses and kept.rates == rates
    runner.model.copyWeightsToHost()
    for name, value in eager.state_dict().items():
        assert torch.equal(model.state_dict()[name].to(value.dtype), value), name
    saved = torch.load(tmp_path / f"epoch_{EPOCHS}.pth", weights_only=False)["state_dict"]
    assert torch.equal(saved["head.weight"], eager.head.weight)

    runner.model.eval()
    images = Images().images[:BATCH]
    predictions = runner.model(images, return_loss=False)
    assert torch.equal(predictions, copy.deepcopy(eager).eval()(images, return_loss=False))
    assert runner.model._is_attached and not runner.model._train_executor._is_attached

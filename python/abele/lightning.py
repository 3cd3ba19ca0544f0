"""Abele as a strategy of Lightning: `Trainer(strategy=AbeleStrategy(devices=4, micro_batches=8))`.

The steps of a LightningModule are compiled: training_step with its backward and the optimizer's update, and the steps
of validation, test and prediction. Loops, callbacks, loggers, checkpoints and schedulers are Lightning's.

Source: lightning.pytorch.strategies.Strategy; ours.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import torch

from ._errors import user_error
from ._models import inferenceModel, staged_options, trainingModel
from .enums import OutputMode
from .losses import identity_loss
from .options import Options

if TYPE_CHECKING or importlib.util.find_spec("lightning") is not None:
    from lightning.pytorch.accelerators import CPUAccelerator
    from lightning.pytorch.strategies import SingleDeviceStrategy
else:
    from pytorch_lightning.accelerators import CPUAccelerator
    from pytorch_lightning.strategies import SingleDeviceStrategy

__all__ = ["AbeleStrategy"]


def _refused(what, remedy):
    return user_error("E0711", f"AbeleStrategy: {what}", remedy=remedy)


def _metrics_of(module):
    """(name, metric, number of its updates) of the metrics of torchmetrics in a module."""
    kind = getattr(sys.modules.get("torchmetrics"), "Metric", ())
    return [(name, each, each._update_count) for name, each in module.named_modules() if isinstance(each, kind)]


class _Step(torch.nn.Module):
    """A step of a LightningModule as a forward. Values that the step logs are results, and every call logs them
    again."""

    def __init__(self, module, name, context):
        super().__init__()
        self.module = module
        self._name = name
        self._context = context
        self._settings = {}  # name of a logged value -> arguments of log()

    def forward(self, batch, *indices):
        logged, metrics = {}, _metrics_of(self.module)

        def log(name, value, **settings):
            if not isinstance(value, (torch.Tensor, int, float)):
                raise _refused(
                    f"{self._name} logs {name!r}, a {type(value).__name__}", "log tensors or numbers of this batch"
                )
            is_number = not isinstance(value, torch.Tensor)
            self._settings[name] = (settings, value if is_number else None)
            if not is_number:
                logged[name] = value.detach()

        self.module.log = log
        try:
            with self._context():
                result = getattr(self.module, self._name)(batch, *indices)
        finally:
            del self.module.log
        for name, metric, count in metrics:
            if metric._update_count != count:
                raise _refused(
                    f"{self._name} updates the metric {name!r}, whose state is no part of the program",
                    "return the predictions, and update the metric in on_..._batch_end",
                )
        return self._marked(result), logged

    def _marked(self, result):
        """The result. In training its loss is marked."""
        if self._name != "training_step":
            return result
        if isinstance(result, torch.Tensor):
            return identity_loss(result, "none")
        if isinstance(result, dict) and isinstance(result.get("loss"), torch.Tensor):
            return {**result, "loss": identity_loss(result["loss"], "none")}
        raise _refused(
            f"training_step returns {type(result).__name__}", "return the loss, or a dict with the loss as 'loss'"
        )

    def log_again(self, logged):
        """Logs the results of a call. For several micro-batches it logs their mean."""
        for name, (settings, number) in self._settings.items():
            if number is not None:
                self.module.log(name, number, **settings)
            elif name in logged:
                self.module.log(name, logged[name].float().mean(), **settings)


class AbeleStrategy(SingleDeviceStrategy):
    """Runs the steps of a LightningModule as compiled programs, pipelined over several devices.

    Args:
        devices: number of stages, each on its own device; Abele chooses the cuts. None: the model has blocks.
        micro_batches: pieces of each training batch, whose mean gradient makes one update. The rows of a batch must be
            a multiple of it (`drop_last=True`). Batches of validation, test and prediction are not split.
        options: further options of Abele, for training and for inference.
    """

    strategy_name = "abele"

    def __init__(
        self,
        devices: int | None = 1,
        micro_batches: int = 1,
        options: Options | None = None,
        **settings: Any,
    ) -> None:
        settings.setdefault("accelerator", CPUAccelerator())
        super().__init__("cpu", **settings)
        self._num_devices = devices
        self._micro_batches = micro_batches
        self._options = options
        self._models: dict[str, Any] = {}
        self._numbers: Any = None  # the optimizer's numbers that the devices have

    def setup(self, trainer: Any) -> None:
        """Refuses settings of the trainer that a compiled step cannot follow."""
        if trainer.accumulate_grad_batches != 1:
            raise _refused(
                f"accumulate_grad_batches={trainer.accumulate_grad_batches}",
                "AbeleStrategy(micro_batches=n), with batches n times as large",
            )
        if trainer.gradient_clip_val:
            raise _refused(
                f"gradient_clip_val={trainer.gradient_clip_val}",
                "an optimizer of abele.optim with max_grad_norm=...",
            )
        if getattr(self.precision_plugin, "scaler", None) is not None:
            raise _refused("a precision with a gradient scaler", "an optimizer of abele.optim with loss_scaling=...")
        if self.lightning_module is not None and not self.lightning_module.automatic_optimization:
            raise _refused("manual optimization", "automatic_optimization = True")
        super().setup(trainer)
        if len(self.optimizers) > 1:
            raise _refused(f"{len(self.optimizers)} optimizers", "one optimizer, with parameter groups")

    def training_step(self, batch: Any, *indices: Any) -> Any:
        """Runs forward, backward and update."""
        optimizer = self.optimizers[0]
        model = self._model_of("training_step", self.precision_plugin.train_step_context, optimizer)
        numbers = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        if numbers != self._numbers:
            model.setOptimizer(optimizer)
            self._numbers = numbers
        result = self._run(model, batch, indices, self._micro_batches)
        if isinstance(result, dict):
            return {**result, "loss": result["loss"].mean()}
        return result.mean()

    def validation_step(self, batch: Any, *indices: Any) -> Any:
        """Runs a whole batch."""
        return self._run(self._model_of("validation_step", self.precision_plugin.val_step_context), batch, indices, 1)

    def test_step(self, batch: Any, *indices: Any) -> Any:
        """Runs a whole batch."""
        return self._run(self._model_of("test_step", self.precision_plugin.test_step_context), batch, indices, 1)

    def predict_step(self, batch: Any, *indices: Any) -> Any:
        """Runs a whole batch."""
        return self._run(self._model_of("predict_step", self.precision_plugin.predict_step_context), batch, indices, 1)

    def backward(self, closure_loss: Any, *args: Any, **kwargs: Any) -> Any:
        """Does nothing, because the step includes backward."""
        return closure_loss

    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> Any:
        """Only runs the closure, because the step updates the weights itself."""
        return closure()

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """The optimizer's state, with the devices' moments."""
        if "training_step" in self._models and self._models["training_step"].isCompiled():
            self._models["training_step"].copyWeightsToHost()
        return super().optimizer_state(optimizer)

    def model_of(self, step: str = "training_step") -> Any:
        """The compiled model of a step, for report(), trace() and simulate(). Raises KeyError before its first
        batch."""
        return self._models[step]

    def teardown(self) -> None:
        """Copies the weights to the host and releases the devices."""
        if "training_step" in self._models and self._models["training_step"].isCompiled():
            self._models["training_step"].copyWeightsToHost()
        for model in self._models.values():
            model.destroy()
        self._models.clear()
        self._numbers = None
        super().teardown()

    def _model_of(self, name: str, context: Any, optimizer: Any = None) -> Any:
        if name not in self._models:
            step = _Step(self.lightning_module, name, context)
            step.train(self.lightning_module.training)
            trains = optimizer is not None
            options = staged_options(self._options, self._num_devices, self._micro_batches if trains else 1)
            options.outputMode(OutputMode.All if trains else OutputMode.Final)
            self._models[name] = trainingModel(step, options, optimizer) if trains else inferenceModel(step, options)
        return self._models[name]

    @staticmethod
    def _run(model: Any, batch: Any, indices: Any, micro_batches: int) -> Any:
        # Indices are tensors, so that a step that reads one is refused (E0101). A number would become a constant.
        result, logged = model(batch, *(torch.full((micro_batches,), index) for index in indices))
        model.model.log_again(logged)
        return result

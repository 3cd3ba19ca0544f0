"""Abele under the Trainer of transformers: `AbeleTrainer(model, args, ..., devices=4, micro_batches=8)`.

A training step, its backward and the optimizer's update are one compiled program, pipelined over several devices. So is
the forward of evaluation and prediction.
Loops, data, callbacks, loggers, schedulers and files are those of transformers.

Source: transformers.Trainer; ours.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Trainer

from . import optim
from ._errors import user_error
from ._models import inferenceModel, staged_options, trainingModel
from .enums import OutputMode
from .losses import identity_loss
from .options import Options

__all__ = ["AbeleTrainer"]


def _refused(what, remedy):
    return user_error("E0711", f"AbeleTrainer: {what}", remedy=remedy)


class _Loss(torch.nn.Module):
    """The loss of a trainer, as a forward."""

    def __init__(self, model, compute_loss):
        super().__init__()
        self.model = model
        self._compute_loss = compute_loss

    def forward(self, inputs, items=None):
        """items: divisor of the loss instead of its own number of items. Shapes: [1]."""
        return identity_loss(self._compute_loss(self.model, inputs, None if items is None else items[0]), "none")


class _Forward(torch.nn.Module):
    """A model's own forward without results that are not used, because caches of keys and values are large."""

    def __init__(self, model, context, ignored):
        super().__init__()
        self.model = model
        self._context = context
        self._ignored = ignored

    def forward(self, inputs, items=None):
        """items: of the batch, as in _Loss. Shapes: [1]."""
        numbers = {} if items is None else {"num_items_in_batch": items[0]}
        with self._context():
            outputs = self.model(**inputs, **numbers)
        if not isinstance(outputs, dict):
            return outputs
        return type(outputs)(**{name: value for name, value in outputs.items() if name not in self._ignored})


class _Compiled:
    """A model whose calls run a compiled program."""

    def __init__(self, model, program):
        self._model, self._program = model, program

    def __call__(self, num_items_in_batch=None, **inputs):
        items = [] if num_items_in_batch is None else [torch.as_tensor(num_items_in_batch).reshape(1)]
        return self._program(inputs, *items)

    def __getattr__(self, name):
        return getattr(self._model, name)


class AbeleTrainer(Trainer):  # type: ignore[misc]  # transformers may be missing where types are checked
    """A Trainer whose steps of training, evaluation and prediction are compiled programs.

    Args:
        args, kwargs: transformers.Trainer's.
        devices: number of stages, each on its own device; Abele chooses the cuts. None: the model has blocks.
        micro_batches: pieces of each batch, whose mean gradient makes one update. `per_device_train_batch_size` must be
            a multiple of it. An incomplete last batch is an error: set `dataloader_drop_last=True`. Batches of
            evaluation and prediction are not split.
        options: further options of Abele.
        compile_evaluation: False: evaluation and prediction run in eager PyTorch, on the same weights, for models that
            cannot be captured in those modes.
    """

    def __init__(
        self,
        *args: Any,
        devices: int | None = 1,
        micro_batches: int = 1,
        options: Options | None = None,
        compile_evaluation: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if self.args.gradient_accumulation_steps != 1:
            raise _refused(
                f"gradient_accumulation_steps={self.args.gradient_accumulation_steps}",
                "AbeleTrainer(micro_batches=n), with per_device_train_batch_size n times as large",
            )
        if self.args.world_size > 1 or self.args.n_gpu > 1:
            raise _refused("several processes or GPUs", "AbeleTrainer(devices=n) in one process, with use_cpu=True")
        if self.accelerator.scaler is not None:
            raise _refused("fp16 with a gradient scaler", "bf16=True, or abele.optim.AdamW(loss_scaling=...)")
        self._num_devices = devices
        self._micro_batches = micro_batches
        self._abele_options = options
        self._compiled: Any = None
        self._numbers: Any = None  # the optimizer's numbers that the devices have
        self._compile_evaluation = compile_evaluation
        self._evaluators: dict[tuple[str, ...], Any] = {}  # keyed by the results that they leave out

    @property
    def compiled_model(self) -> Any:
        """The training model, for report(), trace() and simulate(). None before the first step."""
        return self._compiled

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """If no optimizer was given: AdamW with the arguments' numbers, which clips gradients by max_grad_norm."""
        if self.optimizer is None:
            decayed = self.get_decay_parameter_names(self.model)
            named = [(name, each) for name, each in self.model.named_parameters() if each.requires_grad]
            groups = [
                {
                    "params": [each for name, each in named if (name in decayed) == is_decayed],
                    "weight_decay": self.args.weight_decay if is_decayed else 0.0,
                }
                for is_decayed in (True, False)
            ]
            self.optimizer = optim.AdamW(
                [group for group in groups if group["params"]],
                lr=self.args.learning_rate,
                betas=(self.args.adam_beta1, self.args.adam_beta2),
                eps=self.args.adam_epsilon,
                max_grad_norm=self.args.max_grad_norm or float("inf"),
            )
        return self.optimizer

    def training_step(self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Runs forward, backward and update. The loss is the mean over the micro-batches."""
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)  # accelerate wraps it
        if self._compiled is None:
            self.model.train()
            options = self._options_of(self._micro_batches).outputMode(OutputMode.All)
            loss = _Loss(self.model, self._loss_of)
            self._compiled = trainingModel(loss, options, optimizer)
        numbers = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        if numbers != self._numbers:
            self._compiled.setOptimizer(optimizer)
            self._numbers = numbers
        return self._compiled(dict(self._prepare_inputs(inputs)), self._items(num_items_in_batch)).mean()

    def _options_of(self, micro_batches: int) -> Options:
        options: Options = staged_options(self._abele_options, self._num_devices, micro_batches)
        # One program serves batches with and without padding: models that know of a compiler keep every mask.
        if not options.exists("capture_as_compiling"):
            options.captureAsCompiling()
        return options

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: Any,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> Any:
        """Runs a whole batch."""
        if self._compile_evaluation:
            config = getattr(self.model, "config", None)
            default = getattr(config, "keys_to_ignore_at_inference", ["past_key_values"] if config else [])
            ignored = tuple(default if ignore_keys is None else ignore_keys)
            if ignored not in self._evaluators:
                forward = _Forward(self.model, self.compute_loss_context_manager, ignored)
                options = self._options_of(1).outputMode(OutputMode.Final)
                self._evaluators[ignored] = inferenceModel(forward.eval(), options)
            model = _Compiled(model, self._evaluators[ignored])  # type: ignore[assignment]
        return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys=ignore_keys)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers. Its program lives as long as a training, or otherwise for this loop, so weights may be
        changed between loops."""
        try:
            return super().evaluation_loop(*args, **kwargs)
        finally:
            if not self.is_in_train:
                self._end_evaluation()

    def _end_evaluation(self) -> None:
        for evaluator in self._evaluators.values():
            evaluator.destroy()
        self._evaluators.clear()

    def _items(self, number: Any) -> torch.Tensor | None:
        """The number of items of a batch as an argument of the program, if the model's loss takes it."""
        if number is None or not self.model_accepts_loss_kwargs:
            return None
        each = torch.as_tensor(number).reshape(1)
        if self._micro_batches > 1:  # because the step takes the mean over them
            each = each / self._micro_batches
        return each.repeat(self._micro_batches)

    def _loss_of(self, model: torch.nn.Module, inputs: Any, items: torch.Tensor | None) -> torch.Tensor:
        with self.compute_loss_context_manager():
            loss: torch.Tensor = self.compute_loss(model, inputs, num_items_in_batch=items)
        return loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Adds the share of the last step that each of several stages worked: `stage0_busy`, ..."""
        if "loss" in logs and self._compiled is not None:
            stages = self._compiled.report()["stages"]
            for i, stage in enumerate(stages if len(stages) > 1 else []):
                logs[f"stage{i}_busy"] = round(stage["busy_ns"] / max(1, stage["busy_ns"] + stage["waiting_ns"]), 3)
        super().log(logs, *args, **kwargs)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers. Afterwards weights and optimizer state are on the host."""
        try:
            return super().train(*args, **kwargs)
        finally:
            if self._compiled is not None:
                self._compiled.destroy()
                self._compiled, self._numbers = None, None
            self._end_evaluation()

    def _clip_grad_norm(self, model: torch.nn.Module) -> None:
        """Does nothing, because the optimizer clips inside the step."""

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> None:
        """Unknown, because gradients stay on the devices."""

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self._compiled is not None and self._compiled.isCompiled():
            self._compiled.copyWeightsToHost()
        super()._save_optimizer_and_scheduler(output_dir)

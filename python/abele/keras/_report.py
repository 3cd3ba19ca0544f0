"""Reports the last execution of a model."""

from __future__ import annotations

from typing import Any

from .._errors import refused
from ._model import state_of


def execution_report(model: Any, mode: str = "train") -> dict[str, Any]:
    """Figures of the last execution of a model.

    Args:
        model: a model that was made under a strategy.
        mode: "train" (fit), "test" (evaluate) or "predict".
    Returns: {"stages": [{"name", "device", "replica", "busy_ns", ...}, ...], "schedule", ...}, as the report of a
        compiled program of abele. For fit also "update": "device", or "host: " and the reason; docs/guide/keras.md.
    Raises:
        ValueError: an unknown mode, or the model did not run in it since its last change.
    """
    modes = ("train", "test", "predict")
    if mode not in modes:
        raise refused(ValueError, f"There is no mode {mode!r}; known: {', '.join(modes)}.")
    execution = state_of(model).executions.get(mode)
    session = None if execution is None else execution.session
    if session is None:
        raise refused(
            ValueError, f"The model `{model.name}` has not run in the mode {mode!r} since it was compiled or changed."
        )
    report: dict[str, Any] = session.report()
    if mode == "train":
        reason = execution.updates.reason
        report["update"] = "device" if reason is None else f"host: {reason}"
    return report

"""Convolutions grouped into one; a hint that does not change results.

Source: spec annotations.md, section 2.
"""

from typing import Any, Self

import torch

from ._errors import refused, user_error
from ._native import core, isCapturing
from .enums import MultiConvPlanType


class MultiConv:
    """Context manager: the convolutions inside form one multi-convolution."""

    _is_active = False

    def __init__(self) -> None:
        self._settings = {}
        self._before = 0

    def _set(self, name, value):
        self._settings[name] = value
        return self

    def availableMemoryProportions(self, value: Any) -> Self:
        """Share of memory for each convolution: None, a float, or a list of them."""
        if value is not None and not isinstance(value, float):
            if not (isinstance(value, (list, tuple)) and value):
                raise refused(AssertionError, "expected None, a float or a list of floats")
            if not all(isinstance(item, float) for item in value):
                raise refused(AssertionError, "expected floats")
        return self._set("availableMemoryProportions", value)

    def partialsTypes(self, value: Any) -> Self:
        """Type of partial sums: torch.float or torch.half, or a list of them."""
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if item not in (torch.float32, torch.float16):
                raise refused(ValueError, f"partialsTypes takes torch.float or torch.half, got {item!r}")
        return self._set("partialsTypes", value)

    def enableConvDithering(self, value: Any) -> Self:
        """None, a bool, or a list of them."""
        items = value if isinstance(value, (list, tuple)) else [value]
        if value is not None and not all(isinstance(item, bool) for item in items):
            raise refused(ValueError, f"enableConvDithering takes None, a bool or a list of bools, got {value!r}")
        return self._set("enableConvDithering", value)

    def planType(self, value: Any) -> Self:
        """A MultiConvPlanType, or None."""
        if not (value is None or isinstance(value, MultiConvPlanType)):
            raise refused(AssertionError, "expected a MultiConvPlanType")
        return self._set("planType", value)

    def perConvReservedTiles(self, value: Any) -> Self:
        """Tiles reserved for each convolution."""
        if not isinstance(value, int):
            raise refused(AssertionError, "expected an int")
        return self._set("perConvReservedTiles", value)

    def cycleBackOff(self, value: Any) -> Self:
        """Share of cycles given up to save memory."""
        if not isinstance(value, float):
            raise refused(AssertionError, "expected a float")
        return self._set("cycleBackOff", value)

    def __enter__(self) -> Self:
        if isCapturing():
            if MultiConv._is_active:
                raise user_error("E0710", "a MultiConv inside a MultiConv")
            MultiConv._is_active = True
            self._before = core().numOperators("convolution")
        return self

    def __exit__(self, exc_type: type[BaseException] | None, value: BaseException | None, traceback: Any) -> None:
        if not isCapturing():
            return
        MultiConv._is_active = False
        if exc_type is not None:
            return
        count = core().numOperators("convolution") - self._before
        if count == 0:
            raise user_error("E0710", "a MultiConv without a convolution inside")
        for name, setting in self._settings.items():
            if isinstance(setting, (list, tuple)) and len(setting) != count:
                raise user_error(
                    "E0710",
                    f"MultiConv.{name} has {len(setting)} values for {count} convolutions",
                    expected="one value, or one for each convolution",
                )

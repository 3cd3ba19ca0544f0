"""Comparison of nested results. Source: spec environment.md, section 8."""

import torch
from abele._errors import refused


def allclose(ref, other):
    """torch.allclose for tensors; tuples and lists element by element, of the same type and length."""
    if isinstance(ref, torch.Tensor):
        return torch.allclose(ref, other)
    if isinstance(ref, (list, tuple)):
        return (
            type(ref) is type(other)
            and len(ref) == len(other)
            and all(allclose(a, b) for a, b in zip(ref, other, strict=True))
        )
    raise refused(TypeError, f"allclose compares tensors, tuples and lists, got {type(ref).__name__}")

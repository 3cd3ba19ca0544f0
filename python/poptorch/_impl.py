"""See _library_names.py."""

from abele._native import isCapturing as isDispatchTracing

from ._library_names import rewrapModelIfNecessary, unwrapModelIfNecessary

__all__ = ["isDispatchTracing", "rewrapModelIfNecessary", "unwrapModelIfNecessary"]

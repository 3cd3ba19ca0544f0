"""Tracing channels. Spans are recorded only by a tracing library; without one a channel does nothing.

Source: spec environment.md, section 5.
"""

import contextlib


class Channel:
    """A named source of spans. No tracing library exists in this version, so nothing is recorded."""

    def __init__(self, name):
        self._name = name

    def tracepoint(self, name):
        """A context manager around the span `<channel>.<name>`."""
        return contextlib.nullcontext()

    def instrument(self, obj, *method_names):
        """Wraps these methods of obj in spans. Returns: obj."""
        for name in method_names:
            getattr(obj, name)
        return obj


__all__ = ["Channel"]

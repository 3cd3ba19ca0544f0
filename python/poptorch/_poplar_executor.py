"""Names that existing programs import from here. Source: spec clients.md, point 11."""

from .executor import PoplarExecutor

__all__ = ["PoplarExecutor"]

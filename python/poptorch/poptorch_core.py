"""Names that existing programs import from the native module. Source: spec environment.md, section 1."""

from . import _native
from ._errors import Error, RecoverableError, UnrecoverableError

isCompilingWithDispatcher = _native.isCapturing

__all__ = ["Error", "RecoverableError", "UnrecoverableError", "isCompilingWithDispatcher"]

"""Names that existing programs import from the native module. Source: spec environment.md 1, executor.md 10."""

import enum

from abele import _native
from abele._errors import _NATIVE, Error, RecoverableError, UnrecoverableError, makeError
from abele._files import importPoptorchMetadataFromFile
from abele._options_validation import validateOptions

_validateOptions = validateOptions
isCompilingWithDispatcher = _native.isCapturing


class TestErrorType(enum.IntEnum):
    """Errors that _throwTestError raises."""

    __test__ = False  # no test class of pytest

    Poptorch = 0
    Popart = 1
    PopartInternal = 2
    Poplibs = 3
    PoplarUnrecoverable = 4
    PoplarUnknown = 5
    PoplarRecoverableFullReset = 6
    PoplarLinkError = 7


_TEST_ERRORS = {
    TestErrorType.Poptorch: (Error, "poptorch_cpp_error"),
    TestErrorType.Popart: (Error, "popart_exception"),
    TestErrorType.PopartInternal: (Error, "popart_internal_exception"),
    TestErrorType.Poplibs: (Error, "poplibs_exception"),
    TestErrorType.PoplarUnrecoverable: _NATIVE["unrecoverable"],
    TestErrorType.PoplarUnknown: (Error, "poplar_unknown_runtime_error"),
    TestErrorType.PoplarRecoverableFullReset: _NATIVE["recoverable"],
    TestErrorType.PoplarLinkError: (Error, "poplar_link_error"),
}


def _throwTestError(kind):
    """Raises the error of this kind, as a device or compiler would. For tests of programs that handle errors."""
    cls, type_name = _TEST_ERRORS[TestErrorType(kind)]
    raise makeError(
        cls,
        f"test error {TestErrorType(kind).name}",
        type_name,
        location="while running _throwTestError",
        recovery_action="FULL_RESET" if cls is RecoverableError else "",
    )


__all__ = [
    "Error",
    "RecoverableError",
    "TestErrorType",
    "UnrecoverableError",
    "importPoptorchMetadataFromFile",
    "isCompilingWithDispatcher",
]

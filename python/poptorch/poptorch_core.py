"""Names that existing programs import from the native module. Source: spec environment.md 1, executor.md 10."""

import enum

from abele import _native
from abele._errors import user_error
from abele._exceptions import NATIVE, Error, RecoverableError, UnrecoverableError, make_error
from abele._files import importPoptorchMetadataFromFile

isCompilingWithDispatcher = _native.isCapturing


# Kind of a value in the table of options -> its types in Python. Other kinds are enumerations.
_TYPES = {"bool": bool, "str": str, "list": list, "dict": dict, "bytes": (int, dict), "TensorLocationSettings": dict}
_OF_STRATEGIES = {"execution_mode": "int", "separate_backward_phase": "bool", "tensors_liveness": "int"}


def _validateOptions(values):
    """Raises poptorch.Error for values that Options.toDict() cannot have made: an unknown name or a wrong type."""
    if not isinstance(values, dict):
        raise user_error("E0708", f"options are a {type(values).__name__}", expected="a dict")
    kinds = {**_native.core().optionKeys(), **_OF_STRATEGIES}
    settings = {}
    for key, value in values.items():
        expected = _TYPES.get(kinds[key], int) if key in kinds else None
        if not isinstance(key, str) or (expected is None and callable(value) and key != "compilation_progress_bar_fn"):
            raise user_error("E0701", f"an option {key!r} is set to {value!r}")
        if expected is None and not callable(value):
            settings[key] = value
        elif expected is not None and not isinstance(value, expected):
            raise user_error("E0702", f"option {key} is {value!r}", expected=f"of type {expected}")
    _native.core().validateExpert(settings)


class TestErrorType(enum.IntEnum):
    """Errors that _throwTestError raises."""

    __test__ = False  # not a test class of pytest

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
    TestErrorType.PoplarUnrecoverable: NATIVE["unrecoverable"],
    TestErrorType.PoplarUnknown: (Error, "poplar_unknown_runtime_error"),
    TestErrorType.PoplarRecoverableFullReset: NATIVE["recoverable"],
    TestErrorType.PoplarLinkError: (Error, "poplar_link_error"),
}


def _throwTestError(kind):
    """Raises the error of this kind, as a device or compiler would. For tests of programs that handle errors."""
    cls, type_name = _TEST_ERRORS[TestErrorType(kind)]
    raise make_error(
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

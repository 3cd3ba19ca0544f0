"""Names that existing programs import from the native module. Source: spec environment.md 1, executor.md 10."""

import enum

from . import _native
from ._errors import _NATIVE, Error, RecoverableError, UnrecoverableError, _fill, userError
from ._options_generated import DEFAULTS, POPART_KINDS
from .options import _kindOf

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
    text = f"test error {TestErrorType(kind).name}"
    error = cls(f"{type_name}: {text}")
    if cls is RecoverableError:
        error = cls(f"{type_name}: {text}\nrecovery action: FULL_RESET")
        error.recovery_action = "FULL_RESET"
    raise _fill(error, text, type_name, "_throwTestError")


def _validateOptions(options):
    """Raises poptorch.Error for a name that is no option, or a value of the wrong kind. Takes Options.toDict()."""
    known = {name: value for group in DEFAULTS.values() for name, value in group.items()}
    for name, value in options.items():
        if name in POPART_KINDS:
            kind = _kindOf(name, value)
            if POPART_KINDS[name] != kind:
                raise userError("E0701", "unknown-option", f"Unknown {kind} option {name}", found=repr(value))
        elif name not in known and name not in _UNLISTED:
            raise userError("E0701", "unknown-option", f"Unknown {_kindOf(name, value)} option {name}")


# Values that Options holds beside those of its table.
_UNLISTED = frozenset(
    (
        "execution_mode",
        "separate_backward_phase",
        "tensors_liveness",
        "input_cgt",
        "output_return_period",
        "num_distributed_processes",
        "distributed_process_id",
        "ipuof_configs",
        "num_io_tiles",
        "location_activation",
        "location_weight",
        "location_optimizer",
        "location_accumulator",
        "random_seed",
        "use_model",
        "ipu_id",
        "ipu_version",
    )
)

__all__ = ["Error", "RecoverableError", "TestErrorType", "UnrecoverableError", "isCompilingWithDispatcher"]

"""Overlap of host input and output with computation: a hint, whose rules are checked when a model is compiled.

Source: spec annotations.md, section 4.
"""

import contextlib

from ._errors import user_error
from ._native import core, isCapturing
from .enums import OutputMode, OverlapMode
from .strategies import PipelinedExecution
from .structures import flattenTensorStructure, reconstructTensorStructure

_marks = []  # marks of the running capture: (is an input, tensor)


def _mark(structure, mode, is_input):
    function = "set_overlap_for_input" if is_input else "set_overlap_for_output"
    if not isinstance(mode, OverlapMode):
        raise user_error("E0708", f"{function}: mode is a {type(mode).__name__}", expected="an OverlapMode")
    tensors = flattenTensorStructure(structure)
    if not tensors:
        raise user_error("E0708", f"{function} of a {type(structure).__name__}", expected="tensors")
    if not isCapturing() or mode is OverlapMode.NoOverlap:
        return structure
    marked = []
    for tensor in tensors:
        result = tensor.clone()
        _marks.append((is_input, tensor if is_input else result))
        if is_input and not core().isArgument(tensor):
            raise _refuse("set_overlap_for_input of a tensor that is no input of the model")
        marked.append(result)
    return reconstructTensorStructure(structure, marked)


def set_overlap_for_input(input_tensors, mode):
    """Returns the same tensors. Their transfer from the host may overlap with computation."""
    return _mark(input_tensors, mode, is_input=True)


def set_overlap_for_output(output_tensors, mode):
    """Returns the same tensors. Their transfer to the host may overlap with computation."""
    return _mark(output_tensors, mode, is_input=False)


def _refuse(what, expected=""):
    return user_error("E0710", what, expected=expected)


@contextlib.contextmanager
def checked_overlaps(options):
    """Surrounds a forward that is captured. Yields a function to call with the results of forward."""

    def check(result):
        if not _marks:
            return
        if isinstance(options._execution_strategy, PipelinedExecution):
            raise _refuse("overlap of input or output with a pipelined strategy", "ShardedExecution")
        if not options.TensorLocations.exists("num_io_tiles"):
            raise _refuse("overlap of input or output without IO tiles", "opts.TensorLocations.numIOTiles(n)")
        returned = [id(t) for t in flattenTensorStructure(result)]
        for is_input, tensor in _marks:
            if not is_input:
                _require_returned_once(options, tensor, returned)
            elif core().numReaders(tensor) > 1:
                raise _refuse("an input marked for overlap is also used directly")

    _marks.clear()
    try:
        yield check
    finally:
        _marks.clear()


def _require_returned_once(options, tensor, returned):
    times = returned.count(id(tensor))
    if times != 1:
        raise _refuse(f"an output marked for overlap is returned {times} times", "once")
    in_inference = () if core().isTraining() else (OutputMode.Default,)
    if options.output_mode not in (OutputMode.All, OutputMode.Sum, *in_inference):
        raise _refuse("overlap of outputs that are not all returned", "OutputMode.All or OutputMode.Sum")

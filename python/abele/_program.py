"""A compiled program's arguments and results: their structures, and how results get the form that forward gave them."""

import torch

from . import _forms, structures
from ._arguments import NARROW, requireSame, signatureOf
from ._results import markReturned


class Program:
    """What a native program does not know of its calls. Threads: one caller at a time."""

    def __init__(self, arguments, signature, dtypes, result=None, written=(), constants=None):
        self.arguments = arguments  # structure of the call, with empty tensors
        self.signature = signature  # the same with types, for later calls
        self.dtypes = dtypes  # of the tensor arguments, as the device takes them
        self.result = result  # structure of the result, with empty tensors
        self.written = written  # tensor arguments that forward writes into
        self.constants = constants or {}  # index of a result that is the same for all inputs and weights -> its shape

    @classmethod
    def of(cls, given, tensors):
        """Of a call that is about to be compiled.

        Args:
            given: the call's (positional, named) arguments as the user gave them.
            tensors: its tensors, as the device takes them.
        """
        return cls(structures.skeleton(given), signatureOf(given), [tensor.dtype for tensor in tensors])

    def description(self):
        """The arguments of another one like it, for files."""
        return {
            "arguments": self.arguments,
            "signature": self.signature,
            "dtypes": self.dtypes,
            "result": self.result,
            "written": self.written,
            "constants": self.constants,
        }

    def forms(self):
        """Arguments and result as C++ reads them."""
        return _forms.formOfCall(*self.arguments), _forms.formOfResult(self.result)

    def requireSame(self, given):
        """Raises E0704 unless the call fits this program."""
        requireSame("positional arguments", self.signature[0], given[0])
        requireSame("named arguments", self.signature[1], given[1])

    def resultsOf(self, given, tensors, outputs, policy):
        """The outputs of a step in the structure that forward returned; arguments that it wrote have their values.

        Args:
            given, tensors: the call's arguments, and its tensors as the step took them.
        """
        if self.written:
            # The session wrote into its inputs; those that had to be converted are copies of the caller's.
            originals = structures.flattenTensorStructure(given, self.arguments)
            with torch.no_grad():
                for index in self.written:
                    if originals[index].data_ptr() != tensors[index].data_ptr():
                        value, dtype = tensors[index], originals[index].dtype
                        is_narrow = dtype == NARROW.get(value.dtype)
                        if is_narrow:
                            value = policy.narrowed(value, f"tensor argument {index}")
                        originals[index].copy_(value)
        outputs = policy.results(outputs, self.constants)
        markReturned(outputs)
        if isinstance(self.result, torch.Tensor):
            return outputs[0]
        return structures.reconstructTensorStructure(self.result, outputs)

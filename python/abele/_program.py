"""A compiled program's arguments and results: their structures, and how results get the form that forward gave them."""

import torch

from . import _forms, structures
from ._arguments import requireSame, signatureOf
from ._results import markReturned


class Program:
    """What a native program does not know of its calls. Threads: one caller at a time."""

    def __init__(self, arguments, signature, result=None):
        self.arguments = arguments  # structure of the call, with empty tensors
        self.signature = signature  # the same with types, for later calls
        self.result = result  # structure of the result, with empty tensors
        self.frozen = None  # Frozen: the model as it was; None: not compiled here

    @classmethod
    def of(cls, given):
        """Of a call that is about to be compiled. given: its (positional, named) arguments as the user gave them."""
        return cls(structures.skeleton(given), signatureOf(given))

    def description(self):
        """The arguments of another one like it, for files."""
        return {"arguments": self.arguments, "signature": self.signature, "result": self.result}

    def forms(self):
        """Arguments and result as C++ reads them."""
        return _forms.formOfCall(*self.arguments), _forms.formOfResult(self.result)

    def requireSame(self, given):
        """Raises E0704 unless the call fits this program."""
        requireSame("positional arguments", self.signature[0], given[0])
        requireSame("named arguments", self.signature[1], given[1])

    def resultOf(self, outputs):
        """The outputs of a step in the structure that forward returned."""
        markReturned(outputs)
        if isinstance(self.result, torch.Tensor):
            return outputs[0]
        return structures.reconstructTensorStructure(self.result, outputs)

"""What the Python front end keeps in a .poptorch file beside the native program: options, structures, model, optimizer.

The native file holds the weights once; the pickled part names them. Source: spec executor.md, section 7.1.
"""

import io
import pickle

import torch

from . import wrapping
from ._native import core


def _namedTensors(model):
    """(name, tensor, is a parameter): parameters, then buffers; tied ones once."""
    return [(name, wrapping.unwrapped(tensor), True) for name, tensor in model.named_parameters()] + [
        (name, wrapping.unwrapped(tensor), False) for name, tensor in model.named_buffers()
    ]


class _Pickler(pickle.Pickler):
    """Writes the name instead of the memory where a weight of the file has the same memory."""

    def __init__(self, out, tensors):
        super().__init__(out, protocol=pickle.HIGHEST_PROTOCOL)
        self._names = {
            tensor.untyped_storage()._cdata: name
            for name, tensor, _ in tensors
            if tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        }

    def persistent_id(self, obj):
        if isinstance(obj, torch.storage.TypedStorage):
            return self._names.get(obj._untyped_storage._cdata)
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, data, tensors):
        super().__init__(io.BytesIO(data))
        self._tensors = {name: tensor for name, tensor, _ in tensors}

    def persistent_load(self, pid):
        tensor = self._tensors[pid]
        return torch.storage.TypedStorage(wrap_storage=tensor.untyped_storage(), dtype=tensor.dtype, _internal=True)


def write(path, metadata, program, *, version, model=None, optimizer_state=None, rng_state=None):
    """Writes the file.

    Args:
        metadata: dict that can be pickled.
        program: bytes of the native program.
        model: the module whose tensors go into the file; None: none do.
    """
    file = core().ProgramFile()
    file.version = version
    file.program = program
    tensors = []
    if model is not None:
        tensors = _namedTensors(model)
        file.has_model = True
        file.tensors = [(name, tensor.detach(), is_parameter) for name, tensor, is_parameter in tensors]
        file.optimizer_state = optimizer_state
    if rng_state is not None:
        file.rng_state = rng_state
    out = io.BytesIO()
    _Pickler(out, tensors).dump(metadata)
    file.metadata = out.getvalue()
    file.write(path)


def read(path):
    """The native ProgramFile."""
    return core().ProgramFile.read(str(path))


def metadataOf(file):
    """The pickled dict of a file. Requires: it was written by this version."""
    return _Unpickler(file.metadata, file.tensors).load()


def importPoptorchMetadataFromFile(filename):
    """The front end's part of a .poptorch file, as bytes."""
    return read(filename).metadata

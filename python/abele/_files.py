"""What the Python front end keeps in a .poptorch file beside the native program: options, structures, model, optimizer.

The native file holds the weights once. Options and structures are read without running anything (plain_pickle); the
module and the optimizer are a pickle of their own, which names the weights and which only load() reads.
Source: spec executor.md, section 7.1.
"""

import io
import pickle

import torch

from . import _plain_pickle as plain_pickle
from . import wrapping
from ._errors import userError
from ._native import core
from ._whole_files import nativePath


def _namedTensors(model):
    """(name, tensor, is a parameter): parameters, then buffers; tied ones once."""
    return [(name, wrapping.unwrapped(tensor), True) for name, tensor in model.named_parameters()] + [
        (name, wrapping.unwrapped(tensor), False) for name, tensor in model.named_buffers()
    ]


class _WeightPickler(pickle.Pickler):
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


class _WeightUnpickler(pickle.Unpickler):
    def __init__(self, data, tensors):
        super().__init__(io.BytesIO(data))
        self._tensors = {name: tensor for name, tensor, _ in tensors}

    def persistent_load(self, pid):
        tensor = self._tensors[pid]
        return torch.storage.TypedStorage(wrap_storage=tensor.untyped_storage(), dtype=tensor.dtype, _internal=True)


def write(path, metadata, program, forms, *, version, model=None, optimizer=None, optimizer_state=None, rng_state=None):
    """Writes the file.

    Args:
        metadata: dict of options and structures, which plain_pickle takes.
        program: bytes of the native program.
        forms: of a call's arguments and of the result, for C++.
        model: the module whose tensors go into the file, and which is pickled; None: none is.
        optimizer: pickled with it.
    """
    file = core().ProgramFile()
    file.version = version
    file.program = program
    file.metadata = plain_pickle.dumps(metadata)
    file.form, file.result_form = forms
    if model is not None:
        tensors = _namedTensors(model)
        for name, tensor, _ in tensors:
            core().requireMemory(tensor, name)
        file.has_model = True
        file.tensors = [(name, tensor.detach(), is_parameter) for name, tensor, is_parameter in tensors]
        file.optimizer_state = optimizer_state
        out = io.BytesIO()
        _WeightPickler(out, tensors).dump({"model": model, "optimizer": optimizer})
        file.objects = out.getvalue()
    if rng_state is not None:
        file.rng_state = rng_state
    file.write(nativePath(path))


def read(path):
    """The native ProgramFile. Nothing of it runs."""
    return core().ProgramFile.read(nativePath(path))


def metadataOf(file, path=""):
    """Options and structures of a file. Nothing of it runs. Requires: it was written by this version.

    Raises:
        poptorch.Error: E0712 for contents that are no options and structures.
    """
    try:
        return plain_pickle.loads(file.metadata)
    except plain_pickle.UnknownClass as error:
        raise userError(
            "E0712",
            "file",
            f"the file names {error}, which is nothing that a program is described by",
            at=str(path),
            remedy="import the module of a class of yours before you load, and name it in "
            "torch.serialization.add_safe_globals",
        ) from None
    except Exception as error:
        raise userError("E0712", "file", f"the file cannot be read: {error}", at=str(path)) from error


def objectsOf(file):
    """The pickled module and optimizer of a file: {"model", "optimizer"}. Whoever wrote the file chooses what runs."""
    return _WeightUnpickler(file.objects, file.tensors).load()


def importPoptorchMetadataFromFile(filename):
    """The front end's part of a .poptorch file, as bytes."""
    return read(filename).metadata

"""What the Python front end keeps in a .poptorch file beside the native program: options, structures, model, optimizer.

The native file holds the weights once. Options and structures are read without running anything (plain_pickle); the
module and the optimizer are a pickle of their own, which names the weights and which only load() reads.
Source: spec executor.md, section 7.1.
"""

import io
import pickle

import torch

from . import _plain_pickle as plain_pickle
from ._errors import userError
from ._native import core
from ._whole_files import nativePath


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


def pickled(value, tensors):
    """Bytes of the value, which name the tensors of the file instead of holding their memory.

    Args:
        tensors: (name, tensor, is a parameter) of the file.
    """
    out = io.BytesIO()
    _WeightPickler(out, tensors).dump(value)
    return out.getvalue()


def read(path):
    """The native ProgramFile. Nothing of it runs."""
    return core().ProgramFile.read(nativePath(path))


def requireVersion(file, path, expected, of_what, remedy="compile and export again"):
    """Raises E0712 for a file that another version wrote.

    Args:
        expected: the version that may read it.
        of_what: "version", and of what.
    """
    if file.version != expected:
        raise userError(
            "E0712",
            f"the file was written by another {of_what}",
            at=str(path),
            found=file.version,
            expected=expected,
            remedy=remedy,
        )


def metadataOf(file, values, path):
    """Options and structures of a file. Nothing of it runs. Requires: it was written by this version.

    Args:
        values: native ones of its options.
    Raises:
        poptorch.Error: E0712 for contents that are no options and structures.
    """
    try:
        return plain_pickle.loads(file.metadata, values)
    except plain_pickle.UnknownClass as error:
        raise userError(
            "E0712",
            f"the file names {error}, which is nothing that a program is described by",
            at=str(path),
            remedy="import the module of a class of yours before you load, and name it in "
            "torch.serialization.add_safe_globals",
        ) from None
    except Exception as error:
        raise userError("E0712", f"the file cannot be read: {error}", at=str(path)) from error


def objectsOf(file, tensors):
    """The pickled (module, optimizer) of a file. Whoever wrote the file chooses what runs.

    Args:
        tensors: (name, tensor, is a parameter) that the pickle names.
    """
    objects = _WeightUnpickler(file.objects, tensors).load()
    return objects["model"], objects["optimizer"]


def importPoptorchMetadataFromFile(filename):
    """The front end's part of a .poptorch file, as bytes."""
    return read(filename).metadata

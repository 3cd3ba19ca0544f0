"""The Python front end's part of a .poptorch file, beside the native program: options, structures, model, optimizer.

The native file holds the weights once. Reading options and structures runs no code (plain_pickle). The module and the
optimizer are a separate pickle, which refers to the weights by name and which only load() reads.
Source: spec executor.md, section 7.1.
"""

import io
import pickle

import torch

from . import _plain_pickle as plain_pickle
from ._errors import user_error
from ._native import core
from ._whole_files import native_path


class _WeightPickler(pickle.Pickler):
    """Writes a name instead of the memory of tensors that share it with a weight of the file."""

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
    """Bytes of the value. They refer to the tensors of the file by name instead of holding their memory.

    Args:
        tensors: (name, tensor, is a parameter) of the file.
    """
    out = io.BytesIO()
    _WeightPickler(out, tensors).dump(value)
    return out.getvalue()


def read(path):
    """The native ProgramFile. Runs none of its code."""
    return core().ProgramFile.read(native_path(path))


def require_version(file, path, expected, of_what, remedy="compile and export again"):
    """Raises E0712 for a file of another version.

    Args:
        expected: the version that may read it.
        of_what: "version" and what has this version.
    """
    if file.version != expected:
        raise user_error(
            "E0712",
            f"the file was written by another {of_what}",
            at=str(path),
            found=file.version,
            expected=expected,
            remedy=remedy,
        )


def metadata_of(file, values, path):
    """Options and structures of a file. Runs none of its code. Requires: this version wrote the file.

    Args:
        values: the native values of its options.
    Raises:
        poptorch.Error: E0712 for contents that are not options and structures.
    """
    try:
        return plain_pickle.loads(file.metadata, values)
    except plain_pickle.UnknownClass as error:
        raise user_error(
            "E0712",
            f"the file names {error}, which is nothing that a program is described by",
            at=str(path),
            remedy="import the module of a class of yours before you load, and name it in "
            "torch.serialization.add_safe_globals",
        ) from None
    except Exception as error:
        raise user_error("E0712", f"the file cannot be read: {error}", at=str(path)) from error


def objects_of(file, tensors):
    """The pickled (module, optimizer) of a file. This runs code that the file's author chose.

    Args:
        tensors: (name, tensor, is a parameter) of the tensors that the pickle names.
    """
    objects = _WeightUnpickler(file.objects, tensors).load()
    return objects["model"], objects["optimizer"]


def importPoptorchMetadataFromFile(filename):
    """The front end's part of a .poptorch file, as bytes."""
    return read(filename).metadata

"""The Python front end's part of a .poptorch file, beside the native program: options, structures, model, optimizer.

The native file holds the weights once. Reading options and structures runs no code (plain_pickle). The module and the
optimizer are a separate pickle, which refers to the weights by name and which only load() reads. A file of C++ has
nothing of Python: what it says of its program stands for it.
Source: spec executor.md, section 7.1; include/abele/model.h, save().
"""

import inspect
import io
import pickle

import torch

from . import _plain_pickle as plain_pickle
from . import optim
from ._errors import user_error
from ._native import core
from ._optimizer_spec import optimizer_rows
from ._options_text import saved_values
from ._program import arguments_of, result_of
from ._replica_grouping import Groupings
from ._whole_files import native_path
from .options import Options

_TYPES = ("accum_type", "first_order_momentum_accum_type", "second_order_momentum_accum_type")
_FLAGS = ("nesterov", "centered")


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
    """Bytes of the value. They refer to the tensors of the file by name instead of holding their memory."""
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


def importPoptorchMetadataFromFile(filename):
    """The front end's part of a .poptorch file, as bytes."""
    return read(filename).metadata


# Programs of either language ------------------------------------------------------------------------------------------
def version_of():
    """The version that C++ writes into its files."""
    return f"abele {core().version}"


class SavedProgram(torch.nn.Module):
    """Parameters and buffers of a program that was loaded without its module, by their names.

    It runs compiled only: there is no forward to capture or to run natively.
    """

    def __init__(self, tensors, trained):
        super().__init__()
        for name, tensor, is_parameter in tensors:
            path, _, last = name.rpartition(".")
            owner = self
            for part in path.split(".") if path else ():
                if part not in owner._modules:
                    owner.add_module(part, torch.nn.Module())
                owner = owner._modules[part]
            if is_parameter:
                owner.register_parameter(last, torch.nn.Parameter(tensor, requires_grad=name in trained))
            else:
                owner.register_buffer(last, tensor)

    def forward(self, *arguments):
        raise user_error(
            "E0705",
            "a program that was loaded without its module has no forward",
            remedy="load the file again, or wrap the module and call executor.loadExecutable(filename)",
        )


def optimizer_of(spec, parameters):
    """The optimizer that a program was compiled with, or None. parameters: by name."""
    if spec.kind == core().OptimizerKind.None_:
        return None
    first = next((parameters[name].dtype for name in spec.group_of), None)
    types = {name: dtype or first for name, dtype in zip(_TYPES, spec.types, strict=True)}
    whole = {
        **types,
        "velocity_accum_type": types["first_order_momentum_accum_type"],
        "loss_scaling": spec.loss_scaling,
        "max_grad_norm": spec.max_grad_norm,
        "bias_correction": all(group["bias_correction"] for group in spec.groups),
        "use_tf_variant": any(group["use_tf_variant"] for group in spec.groups),
    }
    if any(group.get("maximize") for group in spec.groups):
        whole["maximize"] = True
    kind = getattr(optim, spec.kind.name)
    taken = inspect.signature(kind).parameters
    names = [*optimizer_rows()[spec.kind.name].numbers, "centered"]
    groups = []
    for group in spec.groups:
        values = {name: bool(group[name]) if name in _FLAGS else group[name] for name in names if name in taken}
        if "betas" in taken:
            values["betas"] = (group["beta1"], group["beta2"])
        if not (values.get("momentum") or spec.momentum_varies):
            values.pop("momentum", None)  # the optimizer would take it for one that may change
        groups.append(values)
    listed = [{"params": [], **values} for values in groups]
    for name, index in spec.group_of.items():
        listed[index]["params"].append(parameters[name])
    return kind(listed, **groups[0], **{name: value for name, value in whole.items() if name in taken})


def contents_of(file, path):
    """Options, structures and groupings of a file of either language. Runs none of its code.

    Args:
        file: native ProgramFile. If Python wrote it, this version did.
    Raises:
        poptorch.Error: E0712 for contents that are none of these, and for a file of C++ of another version.
    """
    if not file.metadata:
        require_version(file, path, version_of(), "version of Abele in C++", "compile and save again")
    said = core().describeProgram(file.program)
    groupings = Groupings()
    groupings.adopt(said["groupings"])
    contents = {"training": said["training"], "processes": said["processes"], "groupings": groupings}
    values = saved_values(file.options)
    if file.metadata:
        return {**contents, **metadata_of(file, values, path)}
    arguments, signature = arguments_of(file.form, said["input_types"])
    result = result_of(file.result_form)
    program = {
        "arguments": arguments,
        "signature": signature,
        "result": result,
        "keys_are_sorted": True,
        "constants": {},
    }
    return {**contents, "options": Options._of(values), "program": program, "rng_seed": 0}


def objects_of(file, tensors):
    """The (module, optimizer) of a file. Unpickling them runs code that the file's author chose. For a file of C++, a
    module and an optimizer that replace those of C++.

    Args:
        tensors: (name, tensor, is a parameter) of the file.
    """
    if file.metadata:
        objects = _WeightUnpickler(file.objects, tensors).load()
        return objects["model"], objects["optimizer"]
    spec = core().describeProgram(file.program)["optimizer"]
    model = SavedProgram(tensors, spec.group_of)
    return model, optimizer_of(spec, dict(model.named_parameters()))

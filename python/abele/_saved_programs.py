"""What a .poptorch file says of its program, also where C++ wrote it and nothing of Python is in it.

Source: include/abele/model.h, save().
"""

import inspect

import torch

from . import _forms, optim
from ._errors import user_error
from ._files import metadata_of, require_version
from ._native import core
from ._optimizer_spec import optimizer_rows
from ._options_text import saved_values
from ._replica_grouping import Groupings
from .options import Options

_TYPES = ("accum_type", "first_order_momentum_accum_type", "second_order_momentum_accum_type")
_FLAGS = ("nesterov", "centered")


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
    """The optimizer that a program was compiled with, or None.

    Args:
        spec: native OptimizerSpec.
        parameters: name -> parameter.
    """
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
    """Options, structures and groupings of a file, whoever wrote it. Nothing of it runs.

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
    arguments, signature = _forms.arguments_of(file.form, said["input_types"])
    result = _forms.result_of(file.result_form)
    program = {
        "arguments": arguments,
        "signature": signature,
        "result": result,
        "keys_are_sorted": True,
        "constants": {},
    }
    return {**contents, "options": Options._of(values), "program": program, "rng_seed": 0}


def objects_of(file, tensors):
    """(module, optimizer) that stand for those of C++.

    Args:
        tensors: (name, tensor, is a parameter) of the module.
    """
    spec = core().describeProgram(file.program)["optimizer"]
    model = SavedProgram(tensors, spec.group_of)
    return model, optimizer_of(spec, dict(model.named_parameters()))

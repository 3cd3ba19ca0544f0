"""Programs that C++ saved: what a .poptorch file without anything of Python says of them.

Source: include/abele/model.h, save().
"""

import inspect

import torch

from . import _forms, optim
from ._errors import userError
from ._native import core
from ._optimizer_spec import optimizerRows
from ._replica_grouping import Groupings
from .enums import CommGroupType
from .options import Options

_TYPES = {"f16": torch.float16, "f32": torch.float32}


def versionOf():
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
        raise userError(
            "E0705",
            "not-compiled",
            "a program that was loaded without its module has no forward",
            remedy="load the file again, or wrap the module and call executor.loadExecutable(filename)",
        )


def _optionsOf(said):
    options = Options()
    options.deviceIterations(said["device_iterations"]).replicationFactor(said["replicas"])
    options.Training.gradientAccumulation(said["gradient_accumulation"])
    if said["input_group_size"] > 1:
        options.inputReplicaGrouping(said["input_group_size"], CommGroupType[said["input_grouping"].name])
    return options


def _groupValues(kind, hypers, rules):
    values = {}
    for name in optimizerRows()[kind].numbers:
        if name == "beta1":
            values["betas"] = (hypers["beta1"], hypers["beta2"])
        elif name == "nesterov":
            values[name] = bool(hypers[name])
        elif name != "beta2" and (name != "momentum" or rules.momentum):
            values[name] = hypers[name]
    if kind == "RMSprop":
        values["centered"] = rules.centered
    return values


def optimizerOf(spec, parameters):
    """The optimizer that a program was compiled with, or None.

    Args:
        spec: native OptimizerSpec.
        parameters: name -> parameter.
    """
    kind = spec.kind.name
    if kind == "None_":
        return None
    names = [[] for _ in spec.groups]
    for name, index in spec.group_of.items():
        names[index].append(name)
    groups = [_groupValues(kind, *each) for each in zip(spec.groups, spec.group_rules, strict=True)]
    types = [_TYPES.get(name, next((parameters[each].dtype for each in spec.group_of), None)) for name in spec.types]
    fixed = {
        "loss_scaling": spec.loss_scaling,
        "accum_type": types[0],
        "velocity_accum_type": types[1],
        "first_order_momentum_accum_type": types[1],
        "second_order_momentum_accum_type": types[2],
        "max_grad_norm": spec.max_grad_norm,
        "bias_correction": all(rules.bias_correction for rules in spec.group_rules),
        "use_tf_variant": any(rules.tf_variant for rules in spec.group_rules),
    }
    if any(hypers.get("maximize") for hypers in spec.groups):
        fixed["maximize"] = True
    kind_of_optimizer = getattr(optim, kind)
    taken = inspect.signature(kind_of_optimizer).parameters
    fixed = {name: value for name, value in fixed.items() if name in taken}
    listed = [
        {"params": [parameters[name] for name in each], **values} for each, values in zip(names, groups, strict=True)
    ]
    return kind_of_optimizer(listed, **groups[0], **fixed)


def metadataOf(file):
    """What Python would have kept in the file: options, structures, groupings.

    Args:
        file: native ProgramFile that C++ wrote.
    """
    said = core().describeProgram(file.program)
    arguments, signature = _forms.argumentsOf(file.form, said["input_types"])
    groupings = Groupings()
    groupings.adopt(said["groupings"])
    return {
        "options": _optionsOf(said),
        "program": {
            "arguments": arguments,
            "signature": signature,
            "dtypes": [dtype for dtype, _ in said["input_types"]],
            "result": _forms.resultOf(file.result_form),
            "written": said["written"],
            "constants": {},
        },
        "groupings": groupings,
        "rng_seed": 0,
        "training": said["training"],
    }


def modelOf(file):
    """(module, optimizer) that stand for those of C++."""
    spec = core().describeProgram(file.program)["optimizer"]
    model = SavedProgram(file.tensors, spec.group_of)
    return model, optimizerOf(spec, dict(model.named_parameters()))

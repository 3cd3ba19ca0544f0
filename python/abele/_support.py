"""From Options to the native options of a program. src/compile/from_options.cc interprets them."""

import itertools

import torch

from . import enums
from ._errors import user_error
from ._native import core


def comm_group(comm_group_type):
    """The native form of a CommGroupType."""
    return getattr(core().CommGroup, enums.CommGroupType(comm_group_type).name)


def to_program_options(options, *, training, policy):
    """The native options of one compiled program. policy: the native Policy.

    Raises:
        poptorch.Error: options contradict each other, or would change what the model does.
    """
    return options._native.programOptions(training, policy)


def require_shapes(model):
    """Raises poptorch.Error for parameters and buffers of lazy modules that have no shape yet."""
    lazy = [
        name
        for name, value in itertools.chain(model.named_parameters(), model.named_buffers())
        if torch.nn.parameter.is_lazy(value)
    ]
    if lazy:
        raise user_error(
            "E0708",
            f"{', '.join(lazy)} of the model {'has' if len(lazy) == 1 else 'have'} no shape yet",
            expected="tensors of known shapes",
            remedy="call the model once with an example of its inputs before it is wrapped",
        )


def extent_of(tensor):
    """Number of elements from the first to the last of a strided tensor, gaps included. Requires: it is not empty."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def require_own_gaps(model):
    """Raises poptorch.Error for trained parameters with gaps if other tensors share the memory.

    The devices have the elements of such a parameter, but not the bytes between them.
    """
    for name, value in model.named_parameters():
        if not value.requires_grad or value.layout != torch.strided or value.is_nested or value.numel() == 0:
            continue
        if extent_of(value) <= value.numel():
            continue
        storage = value.untyped_storage()
        if torch._C._storage_Use_Count(storage._cdata) > 2:  # the parameter and `storage`
            raise user_error(
                "E0105",
                f"parameter {name} is trained, is a part of a larger tensor, and shares its memory with other tensors",
                found=f"shape {list(value.shape)}, strides {list(value.stride())}",
                expected="memory that the parameter has for itself",
                remedy="make the parameter of a copy: torch.nn.Parameter(tensor.clone())",
            )

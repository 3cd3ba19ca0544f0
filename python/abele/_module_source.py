"""The native model's access to a module (src/model/module_source.h): its tensors, its options, and its capture."""

import contextlib
import itertools
import types
import weakref

import torch

from . import _objects, _process_group, structures, wrapping
from ._arguments import type_text
from ._errors import user_error
from ._native import PACKAGE_FOLDERS, core
from ._program import Program
from ._random_states import drawn_source
from ._results import warn_of_held_tensors, warn_of_hidden_tensors, warn_of_host_tensors, warn_of_subclasses
from ._tracing import CaptureMode, around_compile, around_program, call_forward


def model_tensors(model):
    """(name, tensor, is a parameter) of all parameters and buffers; tied ones once."""
    return [(name, tensor, True) for name, tensor in model.named_parameters()] + [
        (name, tensor, False) for name, tensor in model.named_buffers()
    ]


_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)


_asks_for_mode = weakref.WeakKeyDictionary()  # by class


def _names_training(kind):
    """Whether code of the class names `training`. Code of torch.nn.Module does not count."""
    if kind not in _asks_for_mode:
        methods = [one for base in kind.__mro__ if base is not torch.nn.Module for one in vars(base).values()]
        codes = [one.__code__ for one in methods if isinstance(one, types.FunctionType)]
        _asks_for_mode[kind] = any("training" in code.co_names for code in codes)
    return _asks_for_mode[kind]


def _kind_of(module):
    attributes, plain, hooks = vars(module), [], 0
    for name, value in attributes.items():
        if isinstance(value, dict):
            hooks += len(value) if name.endswith("_hooks") else 0
        elif name[0] != "_" and isinstance(value, _PLAIN) and (name != "training" or _names_training(type(module))):
            plain.append(f"{name}={value!r}")
    for one in attributes.get("_parameters", {}).values():
        hooks += len(one._backward_hooks or ()) if one is not None else 0
    return f"{type(module).__qualname__}({', '.join([*plain, f'{hooks} hooks' if hooks else 'no hooks'])})"


def is_output(tensor):
    """Whether the tensor is a value of the program that is being captured."""
    return core().valueId(tensor) >= 0


def join_processes(options, *, training):
    """Connects with the other processes if programs with these options work with some."""
    distributed = options.Distributed
    works_with_others = training or distributed.devices_per_process > 0
    if works_with_others and distributed.numProcesses > 1:
        _process_group.join(distributed.processId, distributed.numProcesses)


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


def require_own_gaps(model):
    """Raises poptorch.Error for trained parameters with gaps if other tensors share the memory.

    The devices have the elements of such a parameter, but not the bytes between them.
    """
    # Sizes are enough, so this neither brings weights from devices nor runs functions of the program.
    with wrapping.without_pull(), torch._C.DisableTorchFunctionSubclass():
        for name, value in model.named_parameters():
            if not value.requires_grad or value.layout != torch.strided or value.is_nested or value.is_contiguous():
                continue
            # From the first element to the last, gaps included.
            extent = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
            if extent <= value.numel():
                continue
            storage = value.untyped_storage()
            if torch._C._storage_Use_Count(storage._cdata) > 2:  # the parameter and `storage`
                raise user_error(
                    "E0105",
                    f"parameter {name} is trained, is a part of a larger tensor, and shares its memory with other "
                    "tensors",
                    found=f"shape {list(value.shape)}, strides {list(value.stride())}",
                    expected="memory that the parameter has for itself",
                    remedy="make the parameter from a copy: torch.nn.Parameter(tensor.clone())",
                )


# Names of tensors ----------------------------------------------------------------------------------------------------
_DEPTH = 4  # levels of containers and objects below an attribute that are searched


def _inside(value, path, depth, seen):
    """(path, tensor) of the tensors in an attribute."""
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    if depth == 0 or id(value) in seen or isinstance(value, (str, bytes, type)):
        return
    seen.add(id(value))
    if isinstance(value, torch.nn.Module):
        yield from ((f"{path}.{name}", tensor) for name, tensor in value.named_parameters())
        yield from ((f"{path}.{name}", tensor) for name, tensor in value.named_buffers())
    if isinstance(value, dict):
        items = [(f"{path}[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"{path}[{i}]", item) for i, item in enumerate(value)]
    else:
        attributes = getattr(value, "__dict__", {})
        items = [(f"{path}.{key}", item) for key, item in attributes.items() if not key.startswith("__")]
    for where, item in items:
        yield from _inside(item, where, depth - 1, seen)


def paths_in(model):
    """{number of torch's storage: "encoder.cache"} of tensors in attributes of the model, or of modules in it."""
    seen, found = set(), {}
    for name, module in model.named_modules():
        for key, value in module.__dict__.items():
            if key in ("_parameters", "_buffers", "_modules"):
                continue
            for path, tensor in _inside(value, f"{name}.{key}" if name else key, _DEPTH, seen):
                if tensor.layout == torch.strided:
                    found.setdefault(tensor.untyped_storage()._cdata, path)
    return found


class ModuleSource:
    """A module without an optimizer, which no other model trains. Threads: the one that holds the model's lock.

    Args:
        around: makes a context around forward and backward while they are captured, from their FunctionRules.
    """

    _reshapes = False  # whether buffers that have another type after a call are put into the module

    def __init__(self, model, options, *, training, policy, around=contextlib.nullcontext):
        self._model = model
        self._options = options
        self._training = training
        self._policy = policy
        self._around = around

    def tensors(self):
        """See model_tensors."""
        with wrapping.without_pull():
            return model_tensors(self._model)

    def options(self, given):
        """The native options of the program that is compiled next.

        Args:
            given: the call's (positional, named) arguments; None if the program is loaded.
        Raises:
            poptorch.Error: options contradict each other, or would change what the model does.
        """
        return self._options._native.programOptions(self._training, self._policy)

    def claim(self):
        """The model trains the module from now on."""

    def join(self):
        """Connects with the other processes if the program works with some."""
        join_processes(self._options, training=self._training)

    def release(self):
        """The model no longer trains the module."""

    def typeText(self, tensor):
        """Type and shape, for messages."""
        with wrapping.without_pull():
            return type_text(tensor)

    def trainers(self):
        """Native models that train some of the tensors."""
        return []

    def modules(self):
        """(path, description without tensors) of each module: its class, numbers and flags, and its number of hooks."""
        with wrapping.without_pull(), torch._C.DisableTorchFunctionSubclass():  # only hooks are read
            return [(path, _kind_of(module)) for path, module in self._model.named_modules()]

    def capture(self, given, compile, progress=None):
        """Compiles for a call: prepares everything that a capture of forward needs, and captures it.

        Args:
            progress: called as progress(done, total) while compiling.
        Returns: a Program.
        """
        model, options = self._model, self._options
        program = Program.of(given)
        excludes = [*options.source_location_excludes, *PACKAGE_FOLDERS]
        returned = None
        has_run = False  # the capture that checks it calls it again
        names = None  # storage: attribute that holds it after forward; found when something asks

        def forward(micro_batch):
            nonlocal returned, has_run, names
            names = None
            arguments = structures.reconstructTensorStructure(program.arguments, micro_batch)
            positional, named, built = _objects.close_call(*arguments)
            objects = None
            with built.as_given() if has_run and built is not None else contextlib.nullcontext():
                result, replaced, reshaped = call_forward(
                    model,
                    positional,
                    named,
                    training=self._training,
                    policy=self._policy,
                    options=options,
                    excludes=excludes,
                    reshapes=self._reshapes,
                )
                if self._policy.many_programs:
                    result, objects = _objects.open_result(result, built, is_output)
            flat = structures.flattenTensorStructure(result)
            if objects is not None:
                flat += objects.tensors
            flat += reshaped
            if has_run:
                return flat
            has_run, returned, program.objects, program.replaced = True, result, objects, replaced
            warn_of_host_tensors(flat)
            warn_of_hidden_tensors(result)
            warn_of_held_tensors((positional, named), are_opened=self._policy.many_programs)
            return flat

        def name_of(storage):
            nonlocal names
            names = paths_in(model) if names is None else names
            return names.get(storage, "")

        warn_of_subclasses(structures.flattenTensorStructure(given))
        with (
            around_compile(model) as require_not_reassigned,
            around_program(model, options, self._around, self._policy, training=self._training),
        ):
            compile(
                forward,
                CaptureMode(),
                excludes,
                name_of,
                progress,
                lambda stage_devices: options._native.requireDevices(self._policy, stage_devices),
                lambda: core().generatorsOf((model, given)),
                drawn_source,
                self._training,
            )
            require_not_reassigned()  # by backward, which may run parts of forward again
        program.buffers = {name for name, _ in model.named_buffers()}
        program.result = structures.skeleton(returned)  # here: its tensors would be part of the program
        program.held.note_forward(given)
        if program.objects is not None:
            program.objects.release()
        return program

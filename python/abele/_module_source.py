"""A module as the native model asks for it (src/model/module_source.h): its tensors, options, and its capture."""

import contextlib
import types
import weakref

import torch

from . import _objects, _process_group, structures, wrapping
from ._arguments import type_text
from ._host_random import drawn_source
from ._native import PACKAGE_FOLDERS, core
from ._program import Program
from ._results import warn_of_held_tensors, warn_of_hidden_tensors, warn_of_host_tensors, warn_of_subclasses
from ._support import to_program_options
from ._tensor_paths import paths_in
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
    attributes = vars(module)
    plain = [
        f"{name}={value!r}"
        for name, value in attributes.items()
        if name[0] != "_" and isinstance(value, _PLAIN) and (name != "training" or _names_training(type(module)))
    ]
    hooks = sum(len(value) for name, value in attributes.items() if name.endswith("_hooks") and isinstance(value, dict))
    hooks += sum(
        len(one._backward_hooks or ()) for one in attributes.get("_parameters", {}).values() if one is not None
    )
    return f"{type(module).__qualname__}({', '.join([*plain, f'{hooks} hooks' if hooks else 'no hooks'])})"


def is_output(tensor):
    """Is it a value of the program that is being captured?"""
    return core().valueId(tensor) >= 0


def join_processes(options, *, training):
    """Finds the other processes, where a program with these options works with some."""
    distributed = options.Distributed
    works_with_others = training or distributed.devices_per_process > 0
    if works_with_others and distributed.numProcesses > 1:
        _process_group.join(distributed.processId, distributed.numProcesses)


class ModuleSource:
    """A module without an optimizer, that no other model trains. Threads: whoever has a turn of the model.

    Args:
        policy: the native Policy.
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
            given: the call's (positional, named) arguments; None: of a program that is loaded.
        """
        return to_program_options(self._options, training=self._training, policy=self._policy)

    def claim(self):
        """The model trains the module from now on."""

    def join(self):
        """Finds the other processes, where the program works with some."""
        join_processes(self._options, training=self._training)

    def release(self):
        """It no longer does."""

    def typeText(self, tensor):
        """Type and shape, for messages."""
        with wrapping.without_pull():
            return type_text(tensor)

    def trainers(self):
        """Native models that train some of the tensors."""
        return []

    def modules(self):
        """(path, what it is beside its tensors) of each: its class, numbers and flags, and how many hooks it has."""
        with wrapping.without_pull():
            return [(path, _kind_of(module)) for path, module in self._model.named_modules()]

    def capture(self, given, compile, progress=None):
        """Compiles for a call: captures forward while all stands around it that it needs.

        Args:
            given: the call's (positional, named) arguments.
            compile: the native compiler.
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

"""The executor: what trainingModel and inferenceModel of a package return.

Source: spec executor.md.
"""

import collections
import contextlib
import copy
import functools
import operator
import os
import reprlib
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from . import _files, _objects, optim, profiling, structures, wrapping
from ._arguments import Binding, form_and_tensors, has_dict, order_of
from ._errors import AT_COMPILE, Error, createPoptorchError, refused, user_error
from ._executor_files import Files
from ._executor_introspection import Introspection
from ._executor_state import StateSync
from ._logging import logger
from ._module_source import ModuleSource, require_own_gaps, require_shapes
from ._native import core
from ._one_at_a_time import one_at_a_time
from ._progress import ProgressBar
from ._replaced_buffers import ReplacedBuffers
from ._replica_grouping import Groupings, ParameterProxy
from ._version import POPTORCH_VERSION
from ._whole_files import native_path
from .annotations import module_repr
from .enums import OutputMode
from .options import Options
from .strategies import PipelinedExecution

_TRACED = ("copyWeightsToHost", "copyWeightsToDevice", "setOptimizer", "compile", "destroy")


def _traced_from(module, *, copies):
    """The module with its present class, which does not change if the module is wrapped later.

    Args:
        copies: it has its own attributes, as after copy.copy; otherwise both share theirs.
    """
    placement = getattr(module.__dict__.get("forward"), "__self__", None)
    is_placed = hasattr(placement, "place_copy")  # abele.pipeline: its forward has the module's own `training`
    shares = not copies and not is_placed
    if hasattr(type(module), "__copy__") and not shares:
        result = copy.copy(module)
    else:
        result = type(module).__new__(type(module))  # copy.copy needs a module that can be pickled
        object.__setattr__(result, "__dict__", module.__dict__ if shares else dict(module.__dict__))
    if is_placed:
        placement.place_copy(result)
    return result


_Executable = collections.namedtuple("_Executable", "program session")
_Executor = TypeVar("_Executor", bound="Executor")


class _Source(ModuleSource):
    """The module of an executor, which it does not keep alive."""

    def __init__(self, executor, model):
        how = {"training": executor._training, "policy": executor._policy, "around": executor._around}
        super().__init__(model, executor._options, **how)
        self._executor = weakref.ref(executor)

    _reshapes = True

    def options(self, given):
        executor = self._executor()
        native = super().options(given)
        native.setGroupings(executor._groupings.native())
        if given is not None:
            positional, named = given
            if not executor._policy.many_programs and has_dict([*positional, *named.values()]):
                executor._native.warnOnce(
                    "Dicts as inputs only have partial support: a dict must have the same keys at every call"
                )
            self._options._native.requireTarget()
            require_shapes(self._model)
            if self._training:
                require_own_gaps(self._model)
        return native

    def claim(self):
        executor = self._executor()
        wrapping.claim(executor._user_model, executor)

    def release(self):
        executor = self._executor()
        executor._release_state()
        if self._training:
            wrapping.unwrap_model(executor._user_model)

    def trainers(self):
        return [executor._native for executor in wrapping.training_executors(self._model)]

    def capture(self, given, compile, progress=None):
        bar = ProgressBar() if self._options.show_compilation_progress_bar else None
        try:
            with self._executor()._channel.tracepoint("modelCompilation"):
                program = super().capture(given, compile, bar)
            self._executor()._replaced.note(program)
            return program
        except Exception as error:
            builtin = AT_COMPILE.get(getattr(error, "code", ""))
            if builtin is not None:
                raise refused(builtin, error.message) from error
            raise
        finally:
            if bar is not None:
                bar.close()


class Executor(StateSync, Files, Introspection):
    """A wrapped model: calling it runs one step on the devices. A package derives its own class and passes a policy.

    Threads: safe; calls of several threads run one after another, each with the weights of the previous one.
    """

    # A context around forward and backward while they are captured; called with their FunctionRules.
    _around = staticmethod(contextlib.nullcontext)
    _profiling_name = "poptorch._poplar_executor.PoplarExecutor"  # the prefix of its methods in a trace
    _parser_of = staticmethod(lambda model: Binding(model.forward))  # binds the arguments of calls
    _traces_copies = False  # whether forward sees the outermost module's attributes as they were at wrapping
    _calls_watch = None  # of all executors: told of modules that are wrapped for training, and of calls before they run

    def __init__(self, model, options, training, poptorch_version, optimizer=None, user_model=None, *, policy):
        if isinstance(model, Executor):
            model = model._user_model
        if not isinstance(model, torch.nn.Module):
            raise user_error(
                "E0708", f"the model is a {type(model).__name__}", expected="a torch.nn.Module or an executor"
            )
        options = Options() if options is None else options
        if not isinstance(options, Options):
            raise user_error("E0708", f"options are a {type(options).__name__}", expected="poptorch.Options")
        self._policy = policy
        self._training = training
        self._options = _wrapping_options(options, training)
        if training:
            user_model = model if user_model is None else user_model
            if Executor._calls_watch is not None:
                Executor._calls_watch.wraps(user_model)
            wrapping.release(user_model)
        self._args_parser = self._parser_of(model)
        self._model = _traced_from(model, copies=self._traces_copies)
        self._user_model = self._model if user_model is None else user_model
        self._poptorch_version = poptorch_version
        self._native = core().Model(_Source(self, self._model), training, self._options, policy)
        self._lock = self._native.turns
        self._groupings = Groupings()
        self._replaced = ReplacedBuffers()
        self._has_model = False  # it is the one that trains the model
        self._rng_cache = None
        self._optimizer = None
        self._native_optimizer = None  # which reads it
        self._host_updates = None  # HostUpdates; None: the devices update
        self._watch = None
        self._reads_weights_only = False  # inside of copyWeightsToHostIfNeeded
        if training:
            require_shapes(model)
            parameters = list(model.parameters())
            if optimizer is None and parameters:
                optimizer = optim.SGD(parameters, lr=0.01)
            if optimizer is not None:
                self._use_optimizer(optimizer)
            wrapping.claim(user_model, self)
        self._release_state = wrapping.guard_state(model, self)
        self._options._freeze()
        self._channel = profiling.Channel("poptorch.trainingModel" if training else "poptorch.inferenceModel")
        self._channel.instrument(self, *_TRACED)

    # Calls -----------------------------------------------------------------------------------------------------------
    @one_at_a_time
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one step; the first call compiles. Takes the arguments of the model's forward."""
        return self._run(args, kwargs)

    def _run(self, args, kwargs):
        if Executor._calls_watch is not None:
            Executor._calls_watch.called(self, args, kwargs)
        given, originals, tensors, opened, form = self._prepare(args, kwargs)
        self._follow_buffers()
        form += self._replaced.form()
        if not self._native.isReady(tensors, form):
            self._native.requireDevice()
            self._native.choose(tensors, form, given)
            self._native.refresh()
        with self._channel.tracepoint("modelExecution"):
            outputs = self._native.step(originals, tensors)
            if self._program.replaced:
                outputs = self._take_buffers(outputs)
            result = self._program.result_of(outputs, opened)
            if self._host_updates is not None:
                with wrapping.without_pull():
                    self._native.updateOnHost(self._optimizer.step)
        self._rng_cache = None
        if self._optimizer is not None:
            self._optimizer._opt_called = True  # what torch's schedulers ask for before they step
        return result

    @one_at_a_time
    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Captures and compiles for these arguments, and uploads the weights, without running."""
        if self.isCompiled() and not self._policy.many_programs:
            logger.warning("compile() has no effect: the model is compiled already")
            return
        given, _, tensors, _, form = self._prepare(args, kwargs)
        self._follow_buffers()
        self._native.choose(tensors, form + self._replaced.form(), given)

    def _prepare(self, args, kwargs):
        """The call's (positional, named) arguments, its tensors, these tensors in the device's form, its objects, and
        the form that distinguishes it from calls of other programs."""
        given, opened = self._args_parser.bind(args, kwargs), None
        if self._policy.many_programs:
            given, opened = _objects.open_call(given)
            form, tensors = form_and_tensors(given)
        else:
            program = self._program
            form = order_of(given) if program is None else program.order_of(given)
            like = program.arguments if program is not None and program.keys_are_sorted else None
            tensors = structures.flattenTensorStructure(given, like)
        return given, tensors, self._native.deviceInputs(tensors), opened, form

    # Compilation -----------------------------------------------------------------------------------------------------
    def _follow_buffers(self):
        written = self._replaced.follow(self._program)
        session = self._native.session() if written else None
        if session is not None:
            session.copyBuffersToDevice([path for path in written if path in self._program.buffers])

    def _take_buffers(self, outputs):
        download = functools.partial(self._native.download, with_state=False)
        outputs, is_new = self._replaced.take(self._program, outputs, download)
        if is_new and self._training:
            wrapping.wrap_tensors(self._user_model, self)
        if is_new:
            self._native.noteTensors()
        return outputs

    # Life cycle, and the random stream --------------------------------------------------------------------------------
    def isCompiled(self) -> bool:
        """True between compilation and destroy()."""
        return self._native.isCompiled()

    def isAttachedToDevice(self) -> bool:
        """True while the program is on its devices."""
        return self._native.isAttached()

    @one_at_a_time
    def attachToDevice(self) -> None:
        """Attaches to the devices and uploads weights and optimizer state. A call does this itself if needed."""
        self._native.attach()

    @one_at_a_time
    def detachFromDevice(self) -> None:
        """Reads random state, weights and optimizer state back and releases the devices."""
        if self._native.isAttached():
            self.rng_state  # noqa: B018  (reads the state, which is kept while the executor is detached)
            self.copyWeightsToHostIfNeeded()
        self._native.detach()

    def _is_of_parent(self):
        """True if the program was compiled before this process was forked off. Then the devices are the parent's."""
        return self.isCompiled() and self._native.session().isOfParent()

    @one_at_a_time
    def destroy(self) -> None:
        """Reads weights and optimizer state back and releases the program. A training model gets its class back.

        In a forked child it reads nothing back, because the devices are its parent's.
        """
        self._has_model = False
        if not self.isCompiled():
            return  # as in PopTorch, the class stays wrapped until the model is wrapped again
        if self._is_of_parent():
            self._native.forget()
        else:
            self.copyWeightsToHostIfNeeded()
        self._native.destroy()

    def __del__(self):
        # The device has the only copy of weights that were not read since the last step.
        native = self.__dict__.get("_native")
        if native is not None and native.isStale() and not sys.is_finalizing() and not self._is_of_parent():
            try:
                self.copyWeightsToHostIfNeeded()
            except Error as error:  # for example, a process that has a part of them has ended
                logger.warning("weights of the last step are lost with their model: %s", error)

    @property
    @one_at_a_time
    def rng_state(self) -> list[int]:
        """Seed and state of the device's random numbers, a list of ints. Assigning a saved list repeats the numbers."""
        session = self._native.compiled("rng_state")
        if self._rng_cache is None:
            seed = self._options.random_seed if self._options.exists("random_seed") else 0
            self._rng_cache = [seed, *session.rngState().tolist()]
        return list(self._rng_cache)

    @rng_state.setter
    @one_at_a_time
    def rng_state(self, state: torch.Tensor | list[int]) -> None:
        session = self._native.compiled("rng_state")
        try:
            seed, *numbers = (operator.index(number) for number in state)
            session.setRngState(torch.tensor(numbers, dtype=torch.uint8))
        except (TypeError, ValueError, RuntimeError) as error:
            raise user_error(
                "E0708",
                "rng_state is set to something that rng_state did not return",
                found=reprlib.repr(state),
                expected="the list of ints that rng_state of this or an equal model returned",
            ) from error
        self._rng_cache = [seed, *numbers]

    # Views -----------------------------------------------------------------------------------------------------------
    @property
    def _program(self):
        """The structures of the current program. None: not compiled."""
        return self._native.structure()

    @property
    def _executable(self):
        """The current program, for code that inspects an executor; None if nothing is compiled, as in PopTorch."""
        session = self._native.session()
        return None if session is None else _Executable(self._program, session)

    @property
    def model(self) -> Any:
        """The user's model (training) or its shallow copy (inference)."""
        return self._user_model

    @property
    def options(self) -> Options:
        """The options, frozen."""
        return self._options

    def __getattr__(self, name: str) -> Any:
        model = self.__dict__.get("_user_model")
        if model is None:
            raise AttributeError(name)
        value = getattr(model, name)
        if isinstance(value, torch.nn.Parameter) and not self._training and name in model._parameters:
            return ParameterProxy(self, name, value)
        return value

    if TYPE_CHECKING:  # the model's, whose types checkers should know

        def parameters(self, recurse: bool = True) -> Iterator[torch.nn.Parameter]: ...
        def named_parameters(
            self, prefix: str = "", recurse: bool = True
        ) -> Iterator[tuple[str, torch.nn.Parameter]]: ...

    @one_at_a_time
    def _group_parameter(self, tensor, comm_group_type, shards, variable_retrieval_mode):
        """replicaGrouping for a parameter that this executor wraps."""
        for name, parameter in self._model._parameters.items():
            if parameter is tensor:
                self._groupings.add(self, name, comm_group_type, shards, variable_retrieval_mode)
                return
        raise createPoptorchError("replicaGrouping is for parameters that are attributes of the wrapped module itself")

    def __repr__(self):
        return module_repr(self._user_model)

    def __reduce__(self):
        if self.isCompiled():
            raise createPoptorchError("a compiled executor cannot be pickled: call destroy() first")
        return _rebuild, (type(self), self._user_model, self._options, self._training, self._optimizer)


def _rebuild(cls, model, options, training, optimizer):
    return cls(model, options, training, POPTORCH_VERSION, optimizer)


def _wrapping_options(options, training):
    """Freezes the caller's options. Returns: an unfrozen clone with the output mode resolved."""
    if not training and options.Training.gradient_accumulation != 1:
        pipelined = isinstance(options._execution_strategy, PipelinedExecution)
        raise user_error(
            "E0702",
            f"gradientAccumulation is {options.Training.gradient_accumulation} for an inference model",
            expected="1",
            remedy="opts.deviceIterations(n)" if pipelined else "leave opts.Training.gradientAccumulation at 1",
        )
    options._freeze()
    result = options.clone()
    if result.defaultOutputMode():
        result.outputMode(OutputMode.Final if training else OutputMode.All)
    return result


def load_as(
    cls: type[_Executor],
    filename: str | os.PathLike[str],
    edit_opts_fn: Callable[[Options], Any] | None = None,
    *,
    trust: bool = True,
) -> _Executor:
    """An executor of this class from a file that an executor saved. Checks everything else before it runs code of the
    file.

    Args:
        filename, edit_opts_fn: see load() of the packages.
        trust: whether to read the file's pickled module.
    """
    file = _files.read(filename)
    if file.metadata:
        _require_loadable(file, filename, trust)
    contents = _files.contents_of(file, filename)
    options = contents["options"]
    saved_place = _place_of(contents["processes"], options)
    if file.metadata:  # a program without its module cannot be compiled for other processes
        options._native.takePlaceHere(contents["process"], contents["processes"])
    if edit_opts_fn is not None:
        compiled = options.clone()
        edit_opts_fn(options)
        options._keep_compiled(compiled)
    if file.metadata:
        logger.warning(
            "load(): %s holds a pickled module, and reading it runs what its author put there: load only files that "
            "you trust; loadExecutable() runs nothing of a file",
            filename,
        )
    parts = file.readParts(native_path(filename)) if file.parts else None
    tensors = file.tensors if parts is None else file.tensorsOf(parts)
    model, optimizer = _files.objects_of(file, tensors)
    executor = cls(model, options, contents["training"], POPTORCH_VERSION, optimizer)
    if parts is not None:
        executor._take_parts(parts)
    is_same_place = _place_of(options.Distributed.numProcesses, options) == saved_place
    may_adopt = is_same_place or not file.metadata
    if not (may_adopt and executor._adopt_program(file, contents, may_compile=bool(file.metadata))):
        logger.info(
            "load(): %s was %s, and is compiled again when it is called",
            filename,
            "divided for another machine" if is_same_place else "saved by other processes than these",
        )
    executor._adopt_state(file, contents, parts)
    return executor


def _place_of(processes, options):
    """What a compiled program depends on, of the place among other processes."""
    devices = options.Distributed.devices_per_process
    return (processes, devices, options.Distributed.processes_per_replica) if devices else None


def _require_loadable(file, filename, trust):
    """Raises where load() does not read what Python wrote into a file."""
    if file.version != POPTORCH_VERSION:
        raise refused(
            AssertionError,
            f"{filename} was written by version {file.version}, this is {POPTORCH_VERSION}: compile and export again",
        )
    if not file.objects:
        raise refused(
            AssertionError,
            f"{filename} holds no module (export_model=False): wrap the module with poptorch.inferenceModel or "
            "poptorch.trainingModel, then call executor.loadExecutable(filename)",
        )
    if not trust:
        raise user_error(
            "E0712",
            "the module of a file is a pickle, which runs what its author put there",
            at=str(filename),
            remedy="wrap the module and call loadExecutable(filename), or abele.load(filename, trust=True)",
        )

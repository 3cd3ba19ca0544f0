"""One compiled program of a model: the native session, and how calls and results map to it."""

import torch

from . import _forms, _process_group, structures, wrapping
from ._arguments import NARROW, requireSame, signatureOf, typeText
from ._errors import userError
from ._native import PACKAGE_FOLDERS, core
from ._results import markReturned, warnOfHiddenTensors, warnOfHostTensors
from ._tensor_paths import pathOf
from ._tracing import CaptureMode, aroundCompile, aroundProgram, callForward


class Program:
    """A compiled executable. Threads: one caller at a time."""

    def __init__(self, native, options, *, training, policy, groupings=(), owner=0):
        """native: of toProgramOptions. policy: of the package that runs it. owner: id of whoever runs one of its
        programs at a time."""
        native.setGroupings(list(groupings))
        native.setWeightsOwner(owner)
        self.session = core().Session(native)
        is_one_of_several = training or options.Distributed.devices_per_process > 0
        if is_one_of_several and options.Distributed.numProcesses > 1:
            _process_group.join(options.Distributed.processId, options.Distributed.numProcesses)
        self._options = options
        self._training = training
        self._policy = policy
        self._arguments = None  # structure of the call, with empty tensors
        self._signature = None  # the same with types, for later calls
        self._result = None  # structure of the result, with empty tensors
        self._written = []  # tensor arguments that forward writes into
        self._dtypes = []  # of the tensor arguments, as the device takes them
        self._tensors = {}  # name -> the parameter or buffer that the session copies from and to
        self._constants = {}  # index of a result that is the same for all inputs and weights -> its shape

    def compile(self, model, given, tensors, spec, progress=None, check_devices=None):
        """Captures and compiles.

        Args:
            model: the module to trace.
            given: the call's (positional, named) arguments as the user gave them.
            tensors: its tensors, as the device takes them.
            spec: native OptimizerSpec.
            progress: called as progress(done, total) while compiling.
            check_devices: called with the stages' devices; refuses those that cannot be had.
        """
        self._arguments = structures.skeleton(given)
        self._signature = signatureOf(given)
        self._dtypes = [tensor.dtype for tensor in tensors]
        options, mode = self._options, CaptureMode()
        excludes = [*options.source_location_excludes, *PACKAGE_FOLDERS]
        returned = None

        def forward(micro_batch):
            nonlocal returned
            positional, named = structures.reconstructTensorStructure(self._arguments, micro_batch)
            versions = [tensor._version for tensor in micro_batch]
            result = returned = callForward(
                model,
                positional,
                named,
                training=self._training,
                options=options,
                excludes=excludes,
                scopes=options.module_namescope_enabled,
            )
            self._written = [i for i, tensor in enumerate(micro_batch) if tensor._version != versions[i]]
            flat = structures.flattenTensorStructure(result)
            warnOfHostTensors(flat)
            warnOfHiddenTensors(result)
            self._constants = {i: tensor.shape for i, tensor in enumerate(flat) if not core().mayVary(tensor)}
            return flat

        model_tensors = _modelTensors(model)
        with aroundCompile(model), aroundProgram(model, self._policy):
            self.session.compile(
                forward,
                model_tensors,
                tensors,
                spec,
                mode,
                excludes,
                lambda storage: pathOf(model, storage),
                progress,
                check_devices,
            )
        self._tensors = {name: tensor for name, tensor, _ in model_tensors}
        self._result = structures.skeleton(returned)  # here: its tensors would be part of the program
        self._policy.noteCompiled(self.session)

    def description(self):
        """What load() needs beside the native program."""
        return {
            "arguments": self._arguments,
            "signature": self._signature,
            "dtypes": self._dtypes,
            "result": self._result,
            "written": self._written,
            "constants": self._constants,
        }

    def forms(self):
        """Arguments and result as C++ reads them."""
        return _forms.formOfCall(*self._arguments), _forms.formOfResult(self._result)

    def load(self, program, description, model):
        """Takes over a program that another process compiled.

        Args:
            program: native bytes.
            description: of description().
            model: the module whose weights it uses.
        """
        with wrapping.withoutPull():
            model_tensors = _modelTensors(model)
            self.session.load(program, model_tensors)
        self._tensors = {name: tensor for name, tensor, _ in model_tensors}
        self._arguments = description["arguments"]
        self._signature = description["signature"]
        self._dtypes = description["dtypes"]
        self._result = description["result"]
        self._written = description["written"]
        self._constants = description["constants"]

    def copyWeightsToHost(self, model):
        """Copies the device's weights into the tensors of the model."""
        self._requireMemory(model)
        self.session.copyWeightsToHost()
        for _, held, current in self._replacedTensors(model):
            current.copy_(held)

    def copyWeightsToDevice(self, model):
        """Copies the tensors of the model to the device.

        Raises:
            poptorch.Error: one was replaced by another of a different form, or its memory was freed.
        """
        self._requireMemory(model)
        for name, held, current in self._replacedTensors(model):
            if (held.shape, held.dtype) != (current.shape, current.dtype):
                raise userError(
                    "E0704",
                    "input-changed",
                    f"{name} differs from the tensor that the model was compiled with",
                    found=typeText(current),
                    expected=typeText(held),
                    remedy="call destroy() before the next call, so that the model is compiled again",
                )
            held.copy_(current)
        self.session.copyWeightsToDevice()

    def _requireMemory(self, model):
        """Raises E0708 where somebody freed the storage of a parameter or buffer."""
        with wrapping.withoutPull():
            for name, tensor, _ in _modelTensors(model):
                core().requireMemory(tensor, name)

    def _replacedTensors(self, model):
        """(name, tensor that the session knows, tensor that the model has by now), both detached."""
        with wrapping.withoutPull():
            pairs = [(name, self._tensors.get(name), tensor) for name, tensor, _ in _modelTensors(model)]
            return [
                (name, held.detach(), current.detach())
                for name, held, current in pairs
                if held is not None and held is not current
            ]

    def requireSame(self, given):
        """Raises E0704 unless the call fits this program."""
        requireSame("positional arguments", self._signature[0], given[0])
        requireSame("named arguments", self._signature[1], given[1])

    def run(self, given, tensors):
        """One call. Returns the results in the structure that forward returned."""
        tensors = self._policy.inputs(tensors, self._dtypes)
        outputs = self.session.run(tensors)
        if self._written:
            # The session wrote into its inputs; those that had to be converted are copies of the caller's.
            originals = structures.flattenTensorStructure(given, self._arguments)
            with torch.no_grad():
                for index in self._written:
                    if originals[index].data_ptr() != tensors[index].data_ptr():
                        value, dtype = tensors[index], originals[index].dtype
                        is_narrow = dtype == NARROW.get(value.dtype)
                        if is_narrow:
                            value = self._policy.narrowed(value, f"tensor argument {index}")
                        originals[index].copy_(value)
        outputs = self._policy.results(outputs, self._constants)
        markReturned(outputs)
        if isinstance(self._result, torch.Tensor):
            return outputs[0]
        return structures.reconstructTensorStructure(self._result, outputs)


def _modelTensors(model):
    """(name, tensor, is a parameter) of all parameters and buffers; tied ones once."""
    return [(name, tensor, True) for name, tensor in model.named_parameters()] + [
        (name, tensor, False) for name, tensor in model.named_buffers()
    ]

"""PopTorch's limits: what its devices and its executors do not do, though Abele could."""

import os

import torch
from abele import wrapping
from abele._arguments import NARROW
from abele._devices import requireDevices
from abele._errors import userError
from abele._logging import logger
from abele._native import core
from abele._policy import Policy
from abele._target import requireGroup

from ._device_name import redirectedCalls

_DEVICE_DTYPES = frozenset(
    (
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bool,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    )
)


class PopTorchPolicy(Policy):
    """One program per executor, 32-bit results, numbers of devices that can be reserved, and the device name "ipu"."""

    many_programs = False
    shares_weights = False
    short_pipelines = False
    torch_updates = False

    def requireType(self, tensor):
        if tensor.dtype not in _DEVICE_DTYPES:
            raise userError(
                "E0708",
                "arguments",
                f"an input of type {tensor.dtype}",
                expected=", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in _DEVICE_DTYPES)),
            )

    def input(self, tensor, model, warn_once):
        if not tensor.is_contiguous():
            warn_once(
                "an input tensor is not contiguous: the program is made for the strides of its first call, and "
                "tensors with other strides are copied into these"
            )
        if tensor.dtype == torch.float64 and not _hasFloat64(model):
            warn_once("float64 inputs are converted to float32")
            tensor = tensor.float()
        return tensor

    def inputs(self, tensors, dtypes):
        # Results of the last call are narrower than the arguments that they came from.
        return [tensor.to(dtype) for tensor, dtype in zip(tensors, dtypes, strict=True)]

    def narrowed(self, value, name):
        """The tensor in the type that the original devices have for it.

        Raises:
            poptorch.Error: E0609 for an integer that the narrow type does not hold.
        """
        if value.dtype not in NARROW:
            return value
        result = value.to(NARROW[value.dtype])
        if value.dtype == torch.int64 and not torch.equal(result.to(torch.int64), value):
            found = value[result.to(torch.int64) != value].flatten()[0] if value.dim() else value
            raise userError(
                "E0609",
                "integer-range",
                f"{name} holds an integer that int32 does not: poptorch narrows int64 as PopTorch does",
                found=str(found.item()),
                expected="-2147483648 to 2147483647",
                remedy="wrap the model with abele.inferenceModel or abele.trainingModel, which return int64 as int64",
            )
        return result

    def results(self, values, constants):
        values = [self.narrowed(value, f"result {index}") for index, value in enumerate(values)]
        for index, shape in constants.items():
            if values[index].shape != shape:
                values[index] = _ofOneMicroBatch(values[index], shape)
        return values

    def noteCompiled(self, session):
        if session.usesFloat64():
            logger.warning("forward computes in float64: its results are narrowed to float32")

    def requireDevices(self, options, stage_devices):
        _requireDeviceCount(options, stage_devices)
        requireGroup(options, len(set(stage_devices)) or 1)

    def splitDevices(self, options):
        here = options.replication_factor * core().localProcesses(options.Distributed.numProcesses)
        cores = max(1, len(os.sched_getaffinity(0)) // here)
        return 1 << (cores.bit_length() - 1)  # PopTorch reserves powers of two

    def aroundProgram(self):
        return redirectedCalls()


def _hasFloat64(model):
    with wrapping.withoutPull():
        return any(tensor.dtype == torch.float64 for tensor in model.parameters())


def _ofOneMicroBatch(value, shape):
    """The first of the equal parts of a result, one per micro-batch."""
    return value[: shape[0]] if shape else value[0]


def _requireDeviceCount(options, stage_devices):
    """Raises poptorch.Error if the number of devices is none that PopTorch can reserve."""
    if not stage_devices:
        return
    replicas = options.replication_factor
    number = max(len(set(stage_devices)), max(stage_devices) + 1) * replicas
    uses = f"the model uses {number} devices" + (f" ({replicas} replicas)" if replicas > 1 else "")
    if number > 64:
        raise userError("E0402", "device-range", uses, expected="at most 64")
    if number & (number - 1):
        rounded = 1 << number.bit_length()
        if not options.auto_round_num_ipus:
            raise userError(
                "E0402",
                "device-range",
                uses,
                expected="a power of two",
                remedy="opts.autoRoundNumIPUs(True) reserves more devices than the model uses",
            )
        logger.warning("the model uses %d devices; %d are reserved (autoRoundNumIPUs)", number, rounded)
        number = rounded
    requireDevices(options, number)

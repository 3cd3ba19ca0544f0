"""Enumerations of the public API. Values are part of the contract: saved options and toDict() hold them.

Source: spec options.md, section 10.
"""

import enum


class OutputMode(enum.IntEnum):
    """Which micro-batch results a call returns."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4


class ConnectionType(enum.IntEnum):
    """When an executor attaches to its devices."""

    Always = 0
    OnDemand = 1
    Never = 2


class SyncPattern(enum.IntEnum):
    """Synchronisation between devices; a hint."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class ReductionType(enum.IntEnum):
    """How gradients are reduced over accumulation steps and replicas."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class MeanReductionStrategy(enum.IntEnum):
    """When a mean reduction divides. Same result in exact arithmetic."""

    Running = 0
    Post = 1
    PostAndLoss = 2


class HalfFloatCastingBehavior(enum.IntEnum):
    """Deprecated: mixed operands follow torch's promotion rules."""

    FloatDowncastToHalf = 0
    HalfUpcastToFloat = 1
    Default = 2


class AutoStage(enum.IntEnum):
    """How blocks that no stage lists become stages. AutoSplit (ours, not PopTorch's) ignores them and cuts the program
    where its predicted step is shortest."""

    SameAsIpu = 0
    AutoIncrement = 1
    AutoSplit = 2


class Liveness(enum.IntEnum):
    """Where tensors live between phases."""

    AlwaysLive = 0
    OffChipAfterFwd = 1
    OffChipAfterFwdNoOverlap = 2
    OffChipAfterEachPhase = 3


class DataLoaderMode(enum.IntEnum):
    """How a DataLoader produces batches."""

    Sync = 0
    Async = 1
    AsyncRebatched = 2


class SharingStrategy(enum.IntEnum):
    """How a data set reaches the worker of an asynchronous loader."""

    SharedMemory = 0
    FileSystem = 1
    Fork = 2
    ForkServer = 3


class MultiConvPlanType(enum.IntEnum):
    """How the convolutions of a MultiConv are planned; a hint."""

    Parallel = 0
    Serial = 1


class CommGroupType(enum.IntEnum):
    """Which replicas form a group."""

    All = 0
    Consecutive = 1
    Orthogonal = 2
    NoGrouping = 3


class VariableRetrievalMode(enum.IntEnum):
    """Which replicas' values are read back for a grouped parameter."""

    OnePerGroup = 0
    AllReplicas = 2


class OverlapMode(enum.Enum):
    """Overlap of host input and output with computation; a hint."""

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"


class MatMulSerializationMode(enum.Enum):
    """The dimension along which a matrix product is split."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"


__all__ = [name for name, value in list(vars().items()) if isinstance(value, type) and issubclass(value, enum.Enum)]

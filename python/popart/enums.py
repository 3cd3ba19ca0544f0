"""Values are those of PopART's session options: programs convert them to int."""

import enum

_MEMBERS = {
    "AccumulateOuterFragmentSchedule": ["Scheduler", "Serial", "OverlapCycleOptimized", "OverlapMemoryOptimized"],
    "BatchSerializationBatchSchedule": ["Scheduler", "Isomorphic", "OverlapOnIo", "OverlapOnCompute"],
    "BatchSerializationMethod": ["UnrollDynamic", "UnrollStatic", "Loop"],
    "BatchSerializationTransformContext": ["Fwd", "Bwd"],
    "ExecutionPhaseIOSchedule": ["Preload", "OnDemand"],
    "ExecutionPhaseSchedule": ["Interleaving", "Batch", "BatchClusteredIO"],
    "Instrumentation": ["Outer", "Inner"],
    "MeanReductionStrategy": ["Running", "Post"],
    "MergeVarUpdateType": ["None", "All", "AutoLoose", "AutoTight"],
    "RecomputationType": ["None", "Standard", "NormOnly", "Pipeline", "RecomputeAll"],
    "ReplicatedTensorSharding": ["Off", "On"],
    "SubgraphCopyingStrategy": ["OnEnterAndExit", "JustInTime"],
    "SyntheticDataMode": ["Off", "Zeros", "RandomNormal", "RandomUniform"],
    "TensorStorage": ["OnChip", "OffChip"],
    "TileSet": ["Compute", "IO"],
    "VirtualGraphMode": ["Off", "Manual", "Auto", "ExecutionPhases"],
}

for _name, _members in _MEMBERS.items():
    globals()[_name] = enum.IntEnum(_name, {member: value for value, member in enumerate(_members)}, module=__name__)

__all__ = list(_MEMBERS)

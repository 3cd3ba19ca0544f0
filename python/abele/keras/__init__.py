"""Keras 3 models as pipelines on several devices, in the style of Keras for IPUs. Optional: needs keras with the torch
backend. After `import abele.keras` the package is also `keras.ipu`.

    from abele import keras as ipu
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 2
    config.configure_ipu_system()
    with ipu.ipu_strategy.IPUStrategy().scope():
        with ipu.PipelineStage(0): ...

Raises, at import:
    ImportError: keras is missing, too old, or has another backend.
"""

import sys

from ._require import require_keras

require_keras()

from .._native import start as _start  # noqa: E402
from . import config, gradient_accumulation, ipu_strategy, pipelining_ops  # noqa: E402
from ._assignments import (  # noqa: E402
    FunctionalLayerPipelineStageAssignment,
    FunctionalNestedModelPipelineStageAssignment,
    SequentialLayerPipelineStageAssignment,
)
from ._report import execution_report  # noqa: E402
from ._stages import PipelineStage  # noqa: E402
from .config import (  # noqa: E402
    DeviceConnectionType,
    IPUConfig,
    SchedulingAlgorithm,
    SelectionOrder,
    reset_ipu_configuration,
)
from .gradient_accumulation import GradientAccumulationReductionMethod  # noqa: E402
from .ipu_strategy import IPUStrategy  # noqa: E402
from .pipelining_ops import PipelineSchedule, RecomputationMode  # noqa: E402

__all__ = [
    "DeviceConnectionType",
    "FunctionalLayerPipelineStageAssignment",
    "FunctionalNestedModelPipelineStageAssignment",
    "GradientAccumulationReductionMethod",
    "IPUConfig",
    "IPUStrategy",
    "PipelineSchedule",
    "PipelineStage",
    "RecomputationMode",
    "SchedulingAlgorithm",
    "SelectionOrder",
    "SequentialLayerPipelineStageAssignment",
    "config",
    "execution_report",
    "gradient_accumulation",
    "ipu_strategy",
    "pipelining_ops",
    "reset_ipu_configuration",
]


def _publish():
    """Makes this package keras.ipu, and its modules those of keras.ipu."""
    import keras

    keras.ipu = sys.modules["keras.ipu"] = sys.modules[__name__]
    for module in (config, gradient_accumulation, ipu_strategy, pipelining_ops):
        sys.modules[f"keras.ipu.{module.__name__.rpartition('.')[2]}"] = module


_start()
_publish()

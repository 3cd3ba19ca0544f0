"""A model's settings for its pipeline and its updates. Source: spec keras.md, section 2."""

from .._errors import refused
from .gradient_accumulation import GradientAccumulationReductionMethod
from .pipelining_ops import PipelineSchedule, RecomputationMode

_REFUSED = {
    "gradient_accumulation_count": "use `gradient_accumulation_steps_per_replica`",
    "repeat_count": "use `steps_per_execution` of `Model.compile()`",
    "batch_serialization_iterations": "it cannot be used with Keras models",
}


def positive(name, value):
    """The value.

    Raises:
        ValueError: not a positive integer.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise refused(ValueError, f"Expected `{name}` to be a positive integer, but got {value} instead.")
    return value


def _refuse(method, kwargs):
    for name in kwargs:
        if name in _REFUSED:
            raise refused(ValueError, f"Found `{name}` key in `{method}`. This is not supported: {_REFUSED[name]}.")


class Settings:
    """The settings of one model, at first with their defaults."""

    _FILED = ("accumulation", "reduction", "device_mapping", "schedule", "recomputation")

    def __init__(self):
        self.accumulation = None
        self.reduction = GradientAccumulationReductionMethod.MEAN
        self.device_mapping = None
        self.schedule = PipelineSchedule.Grouped
        self.recomputation = None
        self.prefetch_depth = None  # prefetch depth of the infeed queue
        self.outfeed = {}
        self.others = {}  # settings of the original hardware

    def _set_accumulation(self, steps, method):
        if steps is not None:
            self.accumulation = positive("gradient_accumulation_steps_per_replica", steps)
        if method is not None:
            self.reduction = GradientAccumulationReductionMethod.parse(method)

    def set_gradient_accumulation(self, steps, method, others):
        """See set_gradient_accumulation_options."""
        _refuse("set_gradient_accumulation_options", others)
        self._set_accumulation(steps, method)
        self.others.update(others)

    def set_pipelining(self, steps, device_mapping, method, schedule, recomputation, others):
        """See set_pipelining_options."""
        _refuse("set_pipelining_options", others)
        if device_mapping is not None and (
            not isinstance(device_mapping, list)
            or any(isinstance(device, bool) or not isinstance(device, int) or device < 0 for device in device_mapping)
        ):
            raise refused(
                ValueError, f"Expected `device_mapping` to be a list of integers, but got {device_mapping!r} instead."
            )
        for name, value, kind in (
            ("pipeline_schedule", schedule, PipelineSchedule),
            ("recomputation_mode", recomputation, RecomputationMode),
        ):
            if value is not None and not isinstance(value, kind):
                raise refused(TypeError, f"Expected `{name}` to be a {kind.__name__}, but got {value!r} instead.")
        self._set_accumulation(steps, method)
        if device_mapping is not None:
            self.device_mapping = list(device_mapping)
        if schedule is not None:
            self.schedule = schedule
        if recomputation is not None:
            self.recomputation = recomputation
        self.others.update(others)

    def to_plain(self):
        """The settings for a file: only those that differ from a new model's."""
        default = Settings()
        return {
            name: getattr(value, "name", value)
            for name in self._FILED
            if (value := getattr(self, name)) != getattr(default, name)
        }

    def from_plain(self, values):
        """Sets what to_plain() returned."""
        kinds = {
            "reduction": GradientAccumulationReductionMethod,
            "schedule": PipelineSchedule,
            "recomputation": RecomputationMode,
        }
        for name in self._FILED:
            if name in values:
                value = values[name]
                setattr(self, name, kinds[name][value] if name in kinds else value)

"""How gradients of the micro-batches of a weight update are combined. Source: spec keras.md, section 2."""

import enum

from .._errors import refused


class GradientAccumulationReductionMethod(enum.Enum):
    """SUM adds them up; MEAN divides the sum by their number; RUNNING_MEAN is the same mean."""

    SUM = "sum"
    MEAN = "mean"
    RUNNING_MEAN = "running_mean"

    @classmethod
    def parse(cls, value):
        """A member, from itself or from its name in any case.

        Raises:
            ValueError: an unknown method.
            TypeError: neither a member nor a string.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, str):
            raise refused(
                TypeError,
                "Expected `gradient_accumulation_reduction_method` to be a GradientAccumulationReductionMethod or its "
                f"name, but got {value!r} instead.",
            )
        try:
            return cls[value.upper()]
        except KeyError:
            names = ", ".join(member.name for member in cls)
            raise refused(
                ValueError, f"Cannot parse {value!r} as one of the gradient accumulation reduction methods {names}."
            ) from None

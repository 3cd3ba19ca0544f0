"""Attaching, detaching and destroying an executor, and its random stream.

Source: spec executor.md, section 7.
"""

import operator
import reprlib
import sys

import torch

from ._errors import Error, user_error
from ._logging import logger
from ._one_at_a_time import one_at_a_time


class LifeCycle:
    """Part of Executor."""

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

"""Programs of a Keras model that work in the same memory."""

from .._module_source import ModuleSource


class OwnedSource(ModuleSource):
    """Programs of one owner never run at once, so that they may share the memory of variables.

    owner: an object that stands for them, and does not hold them.
    """

    def __init__(self, *args, owner, **kwargs):
        super().__init__(*args, **kwargs)
        self._owner = owner

    def options(self, given):
        native = super().options(given)
        native.setWeightsOwner(id(self._owner))
        return native


def sharesAll(session, variables):
    """Whether the devices of a program work in the memory of all these variables, which are its parameters."""
    needed = sum(variable._value.numel() * variable._value.element_size() for variable in variables)
    return session.report()["shared_weight_bytes"] >= needed

"""Programs of a Keras model that use the same memory."""

from .._module_source import ModuleSource


class OwnedSource(ModuleSource):
    """Programs of one owner never run at once, so they may share the memory of variables.

    owner: an object that identifies the programs and does not hold them.
    """

    def __init__(self, *args, owner, **kwargs):
        super().__init__(*args, **kwargs)
        self._owner = owner

    def options(self, given):
        native = super().options(given)
        native.setWeightsOwner(id(self._owner))
        return native


def shares_all(session, variables):
    """Whether the devices of a program use the memory of all these variables, which are its parameters."""
    needed = sum(variable._value.numel() * variable._value.element_size() for variable in variables)
    return session.report()["shared_weight_bytes"] >= needed

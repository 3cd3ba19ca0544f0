"""What the package that makes an executor asks for beyond Abele's own rules."""

import contextlib


class Policy:
    """Abele's own rules. A package with others gives its executors an instance of a subclass.

    Threads: safe; a policy has no state.
    """

    many_programs = True  # one program per signature of the inputs, instead of an error for another signature
    shares_weights = True  # devices work in the model's own memory, where abele.shareWeights does not say otherwise
    short_pipelines = True  # pipelines may have fewer micro-batches than stages
    torch_updates = True  # updates are torch's, also where PopTorch's rules are others

    def requireType(self, tensor):
        """Refuses an input whose type the devices do not take."""

    def input(self, tensor, model, warn_once):
        """The input as the devices take it.

        Args:
            model: the wrapped module.
            warn_once: logs a text once per executor.
        """
        return tensor

    def inputs(self, tensors, dtypes):
        """The inputs of a call in the types that the program was compiled for."""
        return tensors

    def narrowed(self, value, name):
        """A value as callers get it. name: what messages call it."""
        return value

    def results(self, values, constants):
        """The results of a call as callers get them.

        Args:
            constants: index of a result that is the same for all inputs and weights -> its shape in forward.
        """
        return values

    def noteCompiled(self, session):
        """Called when a program was compiled."""

    def requireDevices(self, options, stage_devices):
        """Refuses devices of stages that cannot be had."""

    def splitDevices(self, options):
        """How many devices an AutoSplit is for that names no number; 0: as many as there are cores."""
        return 0

    def aroundProgram(self):
        """A context around forward and backward while they are captured."""
        return contextlib.nullcontext()

"""Saving an executor, and taking over a saved program.

Source: spec executor.md, section 7.1.
"""

import os
import pickle

from . import _files, _saved_programs
from . import _plain_pickle as plain_pickle
from ._errors import createPoptorchError, refused
from ._logging import logger
from ._native import core
from ._one_at_a_time import oneAtATime
from ._program import Program
from ._tracing import withHooks
from ._whole_files import nativePath


def _pathOf(filename):
    """The file to write, as the native module takes it."""
    given = nativePath(filename)
    path = core().fileToSave(given)
    if path != given:
        logger.warning("save(): %s is a folder, the file is %s", filename, os.fsdecode(path))
    folder = os.path.dirname(path)
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise refused(AssertionError, f"save(): {os.fsdecode(folder)} is a file, not a folder")
    return path


class Files:
    """Part of Executor."""

    @oneAtATime
    def compileAndExport(self, filename, *args, export_model=True, **kwargs):
        """compile(*args, **kwargs), then save(filename, export_model)."""
        with self._channel.tracepoint("compileAndExport"):
            self.compile(*args, **kwargs)
            self.save(filename, export_model)

    @oneAtATime
    def save(self, filename, export_model=True, save_rng_state=True):
        """Writes a file that poptorch.load or loadExecutable continue from.

        Args:
            filename: the file, or a folder: then <folder>/model.poptorch. Missing folders are made.
            export_model: also keep the model, its weights, the optimizer and its state. The model must be picklable.
            save_rng_state: also keep the state of the device's random numbers.
        Raises:
            poptorch.Error: not compiled.
            AssertionError: the parent of the file is a file.
        """
        self._requireCompiled("save")
        path = _pathOf(filename)
        metadata = {
            "options": self._options,
            "program": {**self._program.description(), "constants": self._native.constants()},
            "groupings": self._groupings,
            "rng_seed": self.rng_state[0] if save_rng_state else None,
            "training": self._training,
        }
        if export_model:
            self.copyWeightsToHostIfNeeded()
        form, result_form = self._program.forms()
        objects = {"model": self._user_model, "optimizer": self._optimizer}
        try:
            with self._channel.tracepoint("saveExecutableToFile"):
                self._native.save(
                    path=path,
                    version=self._poptorch_version,
                    metadata=plain_pickle.dumps(metadata),
                    form=form,
                    result_form=result_form,
                    objects=lambda tensors: _files.pickled(objects, tensors),
                    with_model=export_model,
                    with_random_state=save_rng_state,
                )
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise createPoptorchError(
                f"the model cannot be saved: {error}\n  try       define its classes at the top of a module, or save "
                "with export_model=False"
            ) from error

    @oneAtATime
    def loadExecutable(self, filename):
        """Takes over the program that Python or C++ saved from an equal model; the weights are this model's own.

        No code of the file runs: it is data, whoever wrote it.

        Raises:
            poptorch.Error: the file was written by another version, or for another model or other options.
        """
        if self.isCompiled():
            raise createPoptorchError("loadExecutable: the executor is compiled already; destroy() it first")
        file = _files.read(filename)
        if file.metadata:
            _files.requireVersion(file, filename, self._poptorch_version, "version")
            metadata = _files.metadataOf(file, filename)
        else:
            metadata = _saved_programs.metadataOf(file, filename)
        self._adoptProgram(file, metadata)

    def _adoptProgram(self, file, metadata):
        """Makes the program of a file this executor's own."""
        self._groupings = metadata["groupings"]
        description = dict(metadata["program"])
        constants = description.pop("constants")
        program = Program(**description)
        with self._channel.tracepoint("loadExecutable"), withHooks():
            self._native.load(
                program=file.program,
                form=repr(program.signature) if self._policy.many_programs else "",
                structure=program,
                constants=constants,
                numbers_vary=not file.metadata,  # C++ fixes no number of an optimizer; the core checks the rest
            )

    def _adoptState(self, file, metadata):
        """Optimizer state and random numbers as they were when the file was written."""
        self._native.resume(file)
        if file.rng_state is not None:
            self._rng_cache = [metadata["rng_seed"], *file.rng_state.tolist()]

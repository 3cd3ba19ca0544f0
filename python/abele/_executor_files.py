"""Saves an executor, and loads a saved program into one.

Source: spec executor.md, section 7.1.
"""

import os
import pickle
from typing import Any

from . import _files, _optimizer_spec, wrapping
from . import _plain_pickle as plain_pickle
from ._errors import createPoptorchError, format_message, refused, user_error
from ._hooks import called_hooks
from ._logging import logger
from ._module_source import join_processes
from ._native import core
from ._one_at_a_time import one_at_a_time
from ._process_group import any_of
from ._program import Program
from ._whole_files import native_path


def _path_of(filename):
    """The file to write, as the native module takes it."""
    given = native_path(filename)
    if os.fsdecode(filename).endswith(os.sep) and not given.endswith(b"/"):
        given += b"/"  # it names a folder, which may not be there yet
    path = core().fileToSave(given)
    if path != given:
        logger.warning("save(): %s is a folder, the file is %s", filename, os.fsdecode(path))
    folder = os.path.dirname(path)
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise refused(
            AssertionError,
            format_message(
                "E0712",
                "a file cannot be written",
                at=os.fsdecode(path),
                found=f"{os.fsdecode(folder)} is a file, not a folder",
                remedy="save to a path whose parents are folders",
            ),
        )
    return path


class Files:
    """Part of Executor."""

    @one_at_a_time
    def compileAndExport(
        self, filename: str | os.PathLike[str], *args: Any, export_model: bool = True, **kwargs: Any
    ) -> None:
        """compile(*args, **kwargs), then save(filename, export_model)."""
        with self._channel.tracepoint("compileAndExport"):
            self.compile(*args, **kwargs)
            self.save(filename, export_model)

    @one_at_a_time
    def save(self, filename: str | os.PathLike[str], export_model: bool = True, save_rng_state: bool = True) -> None:
        """Writes a file for poptorch.load and loadExecutable.

        Args:
            filename: the file, or a folder for <folder>/model.poptorch. Missing folders are made.
            export_model: also save the model, its weights, the optimizer and its state. The model must be picklable. If
                several processes hold its stages, all call this, and the first one writes. If the model is on the meta
                device, each process writes its part beside the file.
            save_rng_state: also save the state of the device's random numbers.
        Raises:
            poptorch.Error: the model is not compiled.
            AssertionError: the parent of the file is a file.
        """
        session = self._native.compiled("save")
        bound = [each.path for each in self._program.replaced if each.is_reshaped or each.is_bound]
        if bound:
            raise createPoptorchError(
                f"save(): forward replaces {bound[0]} by a tensor of another shape or with other "
                "strides, so the next call needs another program, and a file holds one\n"
                "  try       write into the buffer: copy_(new_value)"
            )
        if self._program.has_objects():
            raise createPoptorchError(
                "save(): the arguments or results of the program are objects with tensors inside, whose classes a file "
                "does not hold\n  try       pass and return tuples, lists and dictionaries of tensors"
            )
        path = _path_of(filename)
        metadata = {
            "options": self._options,
            "process": self._options.Distributed.processId,
            "program": {**self._program.description(), "constants": self._native.constants()},
            "rng_seed": self.rng_state[0] if save_rng_state else None,
            "updates": self._native.updates,
        }
        if export_model:
            self.copyWeightsToHostIfNeeded()
        form, result_form = self._program.forms()
        is_in_parts = export_model and session.hasOwnWeightsAlone()
        objects = {"model": self._user_model, "optimizer": self._optimizer}

        def pickled(tensors):
            with wrapping.without_pull():  # the newest weights are here
                if is_in_parts and self._optimizer is not None:
                    objects["optimizer"] = _optimizer_spec.without_state(self._optimizer)
                return _files.pickled(objects, tensors)

        try:
            with self._channel.tracepoint("saveExecutableToFile"):
                self._native.save(
                    path=path,
                    version=self._poptorch_version,
                    options=self._options._native.textOfSaved(),
                    metadata=plain_pickle.dumps(metadata),
                    form=form,
                    result_form=result_form,
                    objects=pickled,
                    with_model=export_model,
                    with_random_state=save_rng_state,
                )
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise createPoptorchError(
                f"the model cannot be saved: {error}\n  try       define its classes at the top of a module, or save "
                "with export_model=False"
            ) from error

    @one_at_a_time
    def loadExecutable(self, filename: str | os.PathLike[str]) -> None:
        """Loads the program that Python or C++ saved from an equal model, and keeps this model's weights.

        No code of the file runs, so its author need not be trusted.

        Raises:
            poptorch.Error: the file was written by another version, or for another model or other options.
        """
        if self.isCompiled():
            raise createPoptorchError("loadExecutable: the executor is compiled already; destroy() it first")
        file = _files.read(filename)
        if file.metadata:
            _files.require_version(file, filename, self._poptorch_version, "version")
        self._adopt_program(file, _files.contents_of(file, filename))

    def _adopt_program(self, file, contents, *, may_compile=False):
        """Loads the program of a file into this executor.

        Args:
            may_compile: returns False, instead of an error, if operators were divided for another machine.
        """
        self._groupings = contents["groupings"]
        description = dict(contents["program"])
        constants = description.pop("constants")
        program = Program(**description)
        with self._channel.tracepoint("loadExecutable"), called_hooks():
            return self._native.load(
                program=file.program,
                form=program.form + self._replaced.form() if self._policy.many_programs else program.order,
                structure=program,
                constants=constants,
                numbers_vary=not file.metadata,  # C++ fixes no number of an optimizer; the core checks the rest
                may_compile=may_compile,
            )

    def _take_parts(self, parts):
        """Loads the weights in the files beside a file: each process reads those of its devices.

        The processes share the check of all parts. If one finds damage, all of them raise an error.
        """
        self._require_fits(parts)
        join_processes(self._options, training=self._training)
        failure = None
        try:
            self._native.requireWhole(parts)
        except Exception as error:
            failure = error
        is_refused = any_of(failure is not None)
        if failure is not None:
            raise failure
        if is_refused:
            raise user_error(
                "E0712",
                "another process could not read the parts beside the file",
                remedy="see what that process says; nothing was loaded in any of them",
            )
        self._native.takeWeights(parts)

    def _adopt_state(self, file, contents, parts=None):
        """Sets optimizer state and random numbers to those in the file."""
        self._native.resume(file, parts, contents.get("updates"))
        if file.rng_state is not None and self.isCompiled():
            self._rng_cache = [contents["rng_seed"], *file.rng_state.tolist()]

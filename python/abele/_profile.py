"""The profile that enableProfiling or POPLAR_ENGINE_OPTIONS asks for: a JSON file per executor (docs/tracing.md).

Source: spec tools.md, PopVision.
"""

import json
import os

from . import _environment
from ._errors import userError
from ._version import __version__
from ._whole_files import writeText

_SWITCHES = ("autoReport.outputGraphProfile", "autoReport.outputExecutionProfile")


class Profile:
    """`<directory>/<model name>/profile.pop` of one compiled program. Written at compile and after the first runs."""

    def __init__(self, path, session, max_runs):
        report = session.report()
        self._path = path
        self._runs_left = max_runs
        self._content = {
            "format": "abele-profile",
            "version": 1,
            "abele": __version__,
            "compilation": {name: report[name] for name in ("capture_s", "compile_s", "from_cache")},
            "memory": json.loads(session.memoryJson()),
            "execution": [],
        }
        self._write()

    def noteRun(self, session):
        """Adds the last run, as long as runs are recorded."""
        if self._runs_left <= 0:
            return
        self._runs_left -= 1
        report = session.report()
        times = ("name", "device", "replica", "busy_ns", "waiting_ns")
        self._content["execution"].append(
            {
                "step_ns": report["step_ns"],
                "bubble": report["bubble"],
                "stages": [{name: stage[name] for name in times} for stage in report["stages"]],
            }
        )
        self._write()

    def _write(self):
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            writeText(self._path, json.dumps(self._content, indent=1))
        except OSError as error:
            raise userError(
                "E0712",
                "file",
                f"the profile cannot be written: {error.strerror}",
                at=self._path,
                remedy="opts.enableProfiling(folder) with a folder that can be written",
            ) from error


def profileOf(options, training, session):
    """The Profile of a program that was just compiled or loaded; None if nothing asks for one."""
    engine = _environment.engineOptions(options)
    everything = engine.get("autoReport.all", "false")
    if not any(engine.get(name, everything) == "true" for name in _SWITCHES):
        return None
    name = options.model_name if options.exists("model_name") else "training" if training else "inference"
    path = os.path.join(engine.get("autoReport.directory") or ".", name, "profile.pop")
    runs = engine.get("autoReport.executionProfileProgramRunCount", "2")
    return Profile(os.path.abspath(path), session, int(runs) if runs.isdecimal() else 2)

"""The profile that enableProfiling or POPLAR_ENGINE_OPTIONS asks for: a JSON file per executor (docs/tracing.md).

Source: spec tools.md, PopVision.
"""

import os

from . import _environment

_SWITCHES = ("autoReport.outputGraphProfile", "autoReport.outputExecutionProfile")


def startProfile(options, training, session):
    """Lets the session of a program that was just compiled or loaded write its profile, if something asks for one.

    Returns: whether it does.
    Raises:
        abele.Error: E0712, the file cannot be written.
    """
    engine = _environment.engineOptions(options)
    everything = engine.get("autoReport.all", "false")
    if not any(engine.get(name, everything) == "true" for name in _SWITCHES):
        return False
    name = options.model_name if options.exists("model_name") else "training" if training else "inference"
    path = os.path.join(engine.get("autoReport.directory") or ".", name, "profile.pop")
    runs = engine.get("autoReport.executionProfileProgramRunCount", "2")
    session.startProfile(path, int(runs) if runs.isdecimal() else 2)
    return True

"""Reads profiles and traces, with the names of PopVision's analysis library (docs/tracing.md).

The files are those that Abele writes. Values without a counterpart on a CPU are derived from the file by a documented
rule, or refused (E0711). Source: spec tools.md, PopVision.
"""

from ._report import OnTileExecute, ProgramVisitor, Report, openReport
from ._trace import Event, Process, Thread, Trace, openTrace

__all__ = [
    "Event",
    "OnTileExecute",
    "Process",
    "ProgramVisitor",
    "Report",
    "Thread",
    "Trace",
    "openReport",
    "openTrace",
]

"""Reading profiles and traces, by the names of PopVision's analysis library (docs/tracing.md).

The files are those that Abele writes. What a CPU has no counterpart of is derived from what the file says, by a rule
that stands beside it, or refused (E0711). Source: spec tools.md, PopVision.
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

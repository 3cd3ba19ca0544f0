"""abele report: a trace as a page that needs no network."""

import argparse
import sys
from pathlib import Path

from abele import Error, _report_page


def main(arguments=None):
    """The console script abele-report. Returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="abele report",
        description="Writes a trace as one HTML page: timeline, times by action, and where the time goes.",
        epilog="In a program, model.report(path) writes one with memory, stages and advice, too.",
        allow_abbrev=False,
    )
    parser.add_argument("run", metavar="RUN", help="what model.trace(path) or PVTI_OPTIONS wrote")
    parser.add_argument("-o", "--out", metavar="FILE", help="the page; default: RUN with .html in place of its suffix")
    options = parser.parse_args(arguments)
    out = Path(options.out) if options.out else Path(options.run).with_suffix(".html")
    try:
        trace = _report_page.readTrace(options.run)
        _report_page.write(out, Path(options.run).name, trace)
    except Error as error:
        print(error, file=sys.stderr)
        return 1
    print(out)
    return 0

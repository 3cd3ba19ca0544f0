"""The slowest tests of a run, from what googletest, ctest and pytest leave."""

import re
from pathlib import Path
from xml.etree import ElementTree

SHOWN = 20
CASE = re.compile(r"^\[       OK \] (\S+) \((\d+) ms\)$", re.MULTILINE)


def cpp(log: Path) -> list[tuple[float, str]]:
    """Seconds and name of each googletest case in ctest's log."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return [(int(ms) / 1000, name) for name, ms in CASE.findall(text)]


def python(report: Path) -> list[tuple[float, str]]:
    """Those of each test in a report of pytest --junitxml, fixtures included."""
    cases = ElementTree.parse(report).iter("testcase") if report.exists() else ()
    return [(float(case.get("time")), f"{case.get('classname')}::{case.get('name')}") for case in cases]


def show(tests: list[tuple[float, str]]) -> None:
    print(f"the slowest of {len(tests)} tests, in seconds:")
    for seconds, name in sorted(tests, reverse=True)[:SHOWN]:
        print(f"{seconds:9.1f}  {name}")

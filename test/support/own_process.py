"""Files of tests that take a process of their own, for what changes torch for good. A pytest plugin.

A file with the mark own_process runs once, in a child, with the tests that were selected; their results are reported
one by one, as those of other tests.
"""

import functools
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

import pytest

_IS_CHILD = "ABELE_TEST_OWN_PROCESS"


@functools.cache
def _results(names):
    """Name of each test -> ("passed" | "skipped" | "failed", text)."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        child = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report.name}", *names],
            env={**os.environ, _IS_CHILD: "1"},
            capture_output=True,
            text=True,
        )
        text = report.read()
    results = {}
    for case in ElementTree.fromstring(text).iter("testcase") if text else ():
        bad = [part for part in case if part.tag in ("failure", "error")]
        skipped = case.find("skipped")
        if bad:
            outcome = "failed", "\n".join(part.text or "" for part in bad)
        elif skipped is not None:
            outcome = "skipped", skipped.get("message", "")
        else:
            outcome = "passed", None
        results[case.get("name")] = outcome
    return (
        results,
        f"the child ended with {child.returncode} before this test\n{child.stdout[-4000:]}{child.stderr[-4000:]}",
    )


def _is_apart(item):
    return _IS_CHILD not in os.environ and item.get_closest_marker("own_process") is not None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    if not _is_apart(item):
        return None
    names = tuple(f"{other.path}::{other.name}" for other in item.session.items if other.path == item.path)
    results, ended = _results(names)
    outcome, text = results.get(item.name, ("failed", ended))
    if outcome == "skipped":
        text = str(item.path), 0, text
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for when in ("setup", "call", "teardown"):
        is_call = when == "call"
        report = pytest.TestReport(
            item.nodeid, item.location, {}, outcome if is_call else "passed", text if is_call else None, when
        )
        item.ihook.pytest_runtest_logreport(report=report)
    # What the test before left set up and the next one does not need: no teardown of this item ends it.
    item.session._setupstate.teardown_exact(nextitem)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True

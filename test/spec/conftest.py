"""The specification's tests: which rows and names they cover, and a summary line that says so.

A test names the rows of rows.txt that it holds, and the public names of docs/spec/index.md whose behaviour it shows:

    @pytest.mark.spec("options/3/gradientAccumulation", names=["Training.gradientAccumulation"])

A row or name counts as covered when a test that names it passed and none that names it failed. A name whose use is
refused on purpose is marked with refused="why"; one whose behaviour differs from the original with differs="how"; one
that is accepted, checked, and then changes nothing with no_effect="why". The texts go to docs/compatibility.md.
"""

import json
import os
import re
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


SPECIFICATION = HERE.parents[1] / "docs" / "spec"
ROWS = [line for line in (HERE / "rows.txt").read_text().splitlines() if line and not line.startswith("#")]
NAMES = {
    f"{owner}.{name}": priority
    for owner, name, priority in re.findall(
        r"^\| (\S+) \| `(.+?)` \| .* \| ([ABC]) \|$", (SPECIFICATION / "index.md").read_text(), re.MULTILINE
    )
}
RESULTS = pytest.StashKey[dict]()


def pytest_configure(config):
    config.stash[RESULTS] = {"rows": {}, "names": {}, "notes": {}}


def pytest_collection_modifyitems(items):
    for item in items:
        for mark in item.iter_markers("spec"):
            unknown = [row for row in mark.args if row not in ROWS]
            unknown += [name for name in mark.kwargs.get("names", ()) if name not in NAMES]
            if unknown:
                raise pytest.UsageError(
                    f"{item.nodeid}: no such row in rows.txt or name in docs/spec/index.md: {', '.join(unknown)}"
                )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call" or report.outcome != "passed":
        results = item.config.stash[RESULTS]
        for mark in item.iter_markers("spec"):
            names = mark.kwargs.get("names", ())
            for kind, keys in (("rows", mark.args), ("names", names)):
                for key in keys:
                    results[kind].setdefault(key, []).append(report.outcome)
            for note in ("refused", "differs", "no_effect"):
                if note in mark.kwargs:
                    results["notes"].update(dict.fromkeys(names, (note, mark.kwargs[note])))
    return report


def _covered(outcomes):
    return {key for key, seen in outcomes.items() if "passed" in seen and "failed" not in seen}


def pytest_terminal_summary(terminalreporter, config):
    results = config.stash[RESULTS]
    if not results["rows"]:
        return
    rows, names = _covered(results["rows"]), _covered(results["names"])
    terminalreporter.section("specification")
    terminalreporter.line(f"covered rows / rows: {len(rows)} / {len(ROWS)}")
    for priority in "ABC":
        wanted = {name for name, p in NAMES.items() if p == priority}
        terminalreporter.line(f"covered names of priority {priority}: {len(names & wanted)} / {len(wanted)}")
    path = os.environ.get("ABELE_SPEC_JSON")  # written for docs/compatibility.md
    if path:
        state = {
            "rows": {row: row in rows for row in ROWS},
            "names": {name: {"priority": p, "covered": name in names} for name, p in NAMES.items()},
            "notes": results["notes"],
        }
        Path(path).write_text(json.dumps(state, indent=1) + "\n")

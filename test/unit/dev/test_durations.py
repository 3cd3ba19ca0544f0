"""The slowest tests, of what a run of pytest and a log of ctest say."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

from devtool import durations  # noqa: E402

LOG = """1/2 Testing: unit_base
[ RUN      ] Turns.Wait
[       OK ] Turns.Wait (91500 ms)
[ RUN      ] Turns.Fail
[  FAILED  ] Turns.Fail (99000 ms)
[       OK ] Every/Plan.Ring/3 (250 ms)
[==========] 3 tests from 2 test suites ran. (2300 ms total)
"""


def test_the_slowest_of_both_languages_are_shown_in_order(tmp_path, capsys):
    (tmp_path / "test_some.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', range(30))\ndef test_some(n): pass\n"
    )
    report, log = tmp_path / "report.xml", tmp_path / "LastTest.log"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", report, tmp_path]
    subprocess.run(command, check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)
    log.write_text(LOG)
    tests = durations.python(report) + durations.cpp(log)
    assert len(tests) == 32
    durations.show(tests)
    head, first, *others = capsys.readouterr().out.splitlines()
    assert head == "the slowest of 32 tests, in seconds:"
    assert first.split() == ["91.5", "Turns.Wait"]
    assert len(others) == 19 and others[-1].split()[1].startswith("test_some::test_some[")


def test_a_run_that_left_nothing_has_no_tests(tmp_path):
    assert durations.python(tmp_path / "none.xml") == durations.cpp(tmp_path / "none.log") == []

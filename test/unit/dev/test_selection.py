"""Which tests `./dev test PATH... -k EXPR` selects, and what it builds for them."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

from devtool import selection  # noqa: E402


def test_source_file_is_its_cases_of_one_program():
    chosen = selection.select(["test/unit/base/turns_test.cc"])
    assert list(chosen.programs) == ["unit_base"]
    assert all(case.startswith(("Turns.", "Home")) for case in chosen.programs["unit_base"].split(":"))
    assert chosen.targets() == ["unit_base"]
    assert not chosen.files


def test_folder_is_the_whole_program():
    chosen = selection.select(["test/unit/plan"])
    assert chosen.programs == {"unit_plan": "*"}


def test_nested_folders_are_programs_of_their_own():
    programs = selection.select(["test/unit/device"]).programs
    assert {"unit_device", "unit_device_cpu"} <= set(programs)


def test_golden_files_need_the_tools_that_they_run():
    chosen = selection.select(["test/golden/passes/dce"])
    assert chosen.targets() == ["abele-opt"]
    assert "test/golden/passes/dce/dead.air" in chosen.files
    assert selection.select(["test/golden/tools/simulate.air"]).targets() == ["abele-sim"]
    assert {"abele-opt", "abele-sim"} <= set(selection.select(["test/golden"]).targets())


def test_python_files_need_the_module():
    assert selection.select(["test/error/test_E0712_file.py"]).targets() == ["abele_python"]
    assert selection.select(["test/unit/dev"]).targets() == []


def test_fuzz_targets_and_seeds_name_their_replay():
    for path in (
        "test/fuzz/targets/plan_text.cc",
        "test/fuzz/corpus/plan_text",
        "test/fuzz/corpus/plan_text/off_chip.plan",
    ):
        assert selection.select([path]).ctests == ["fuzz_plan_text"]
    assert selection.select(["test/fuzz/mutations_test.cc"]).ctests == ["mutations"]


def test_expression_picks_cases_and_files():
    chosen = selection.select([], "AreGivenInTheOrder")
    assert chosen.programs == {"unit_base": "Turns.AreGivenInTheOrderInWhichTheyWereAskedFor"}
    assert chosen.files == ["test/unit/dev/test_selection.py"]


@pytest.mark.parametrize(
    ("expression", "name", "matches"),
    [
        ("turns", "Turns.Wait", True),
        ("turns and not wait", "Turns.Wait", False),
        ("(dce or views) and not random", "dce/views", True),
        ("(dce or views) and not random", "dce/random", False),
        ("not turns", "Plan.Ring", True),
    ],
)
def test_expressions_read_as_those_of_pytest(expression, name, matches):
    assert selection.matcher(expression)(name) is matches


def test_words_after_not_leave_no_file_out():
    everything = len(selection.select(["test/golden"]).files)
    assert len(selection.select(["test/golden"], "not dce").files) == everything
    assert 0 < len(selection.select(["test/golden"], "dce and not random").files) < everything


@pytest.mark.parametrize("path", ["test/unit/nothing", "src/plan"])
def test_paths_that_hold_no_tests_are_refused(path, capsys):
    with pytest.raises(SystemExit) as left:
        selection.select([path])
    assert left.value.code == 2
    assert path in capsys.readouterr().err


def test_every_program_of_the_build_is_found():
    """A folder of sources is a program of test/CMakeLists.txt."""
    named = (ROOT / "test/CMakeLists.txt").read_text()
    for program in selection.select(["test/unit"]).programs:
        folder = next(p.parent for p in ROOT.glob("test/unit/**/*.cc") if selection._program(p) == program)
        assert f"abele_unit({folder.relative_to(ROOT / 'test/unit').as_posix()} " in named

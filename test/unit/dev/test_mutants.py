"""The list of `./dev mutants`: each fault can be put into the sources, comes out again, and names tests that exist."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

from devtool import mutants, selection  # noqa: E402

MUTANTS = mutants.read()


@pytest.mark.parametrize("name", MUTANTS)
def test_its_tests_exist(name):
    words = MUTANTS[name]["tests"]
    chosen = selection.select([words[0]], words[2] if words[1:] else None)
    assert chosen.files or chosen.programs


@pytest.mark.parametrize("name", MUTANTS)
def test_its_line_is_in_the_file_once(name):
    mutant = MUTANTS[name]
    assert (ROOT / mutant["file"]).read_text().count(mutant["line"]) == 1
    assert mutant["becomes"] != mutant["line"]


def test_a_file_is_as_before_after_its_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    file = tmp_path / "a.cc"
    file.write_text("one\ntwo\n")
    with pytest.raises(KeyboardInterrupt), mutants.mutated({"file": "a.cc", "line": "two", "becomes": "three"}):
        assert file.read_text() == "one\nthree\n"
        raise KeyboardInterrupt
    assert file.read_text() == "one\ntwo\n"
    with pytest.raises(SystemExit), mutants.mutated({"file": "a.cc", "line": "four", "becomes": ""}):
        pass

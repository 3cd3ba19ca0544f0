"""Numbers that documents repeat are those of the code, and results of benchmarks name no folder of a machine."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
VERSIONS = {
    "File (.abx)": ("src/exe/fields.h", "kExecutableVersion"),
    "Compiled program": ("src/compile/compiled_program.h", "kProgramVersion"),
    ".poptorch file": ("src/files/program_file.h", "kProgramFileVersion"),
}


@pytest.mark.parametrize("name", VERSIONS)
def test_the_page_of_a_format_has_its_version(name):
    header, constant = VERSIONS[name]
    (written,) = re.findall(rf"{constant} = (\d+)", (ROOT / header).read_text())
    sections = re.findall(r"^## (.+), version (\d+)$", (ROOT / "docs" / "executable.md").read_text(), re.M)
    assert [version for title, version in sections if title.startswith(name)] == [written]


def test_results_have_no_paths_of_the_machine():
    results = sorted((ROOT / "bench" / "results").glob("*.json"))
    assert results
    assert [path.name for path in results if re.search(r'"/(?!usr/)\w+/', path.read_text())] == []

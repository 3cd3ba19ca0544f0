"""The cost of compiling: what a build took, what it would take elsewhere, and whether a change makes it grow."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

from devtool import timing  # noqa: E402

NINJA = shutil.which("ninja", path=f"{Path(sys.executable).parent}:/usr/bin")
RULES = """rule cc
  command = c++ $flags -MD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
build CMakeFiles/small.dir/a.cc.o: cc ../src/a.cc
build CMakeFiles/pch.dir/cmake_pch.hxx.gch: cc CMakeFiles/pch.dir/cmake_pch.hxx
  flags = -x c++-header
build CMakeFiles/large.dir/b.cc.o: cc ../src/b.cc | CMakeFiles/pch.dir/cmake_pch.hxx.gch
  flags = -include CMakeFiles/pch.dir/cmake_pch.hxx
build test/CMakeFiles/unit.dir/t.cc.o: cc ../src/a.cc
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A project of two units, one with a precompiled header, and a test; built. Returns its build folder."""
    build = tmp_path / "build"
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.cc").write_text("int a() { return 1; }\n")
    (tmp_path / "src" / "b.cc").write_text("#include <cstdint>\nstd::int64_t b() { return 1; }\n")
    (build / "CMakeFiles" / "pch.dir").mkdir(parents=True)
    (build / "CMakeFiles" / "pch.dir" / "cmake_pch.hxx").write_text("#include <cstdint>\n")
    (build / "build.ninja").write_text(RULES)
    (build / "CMakeFiles" / "3.31").mkdir()
    (build / "CMakeFiles" / "3.31" / "CMakeCXXCompiler.cmake").write_text(
        'set(CMAKE_CXX_COMPILER_ID "GNU")\nset(CMAKE_CXX_COMPILER_VERSION "12.2.0")\n'
    )
    header = f"-include {build}/CMakeFiles/pch.dir/cmake_pch.hxx"
    entries = [
        ("a.cc", "small.dir/a.cc.o", ""),
        ("b.cc", "large.dir/b.cc.o", header),
        ("p.cxx", "pch.dir/cmake_pch.hxx.gch", header),
    ]
    rows = [(name, f"CMakeFiles/{output}", words) for name, output, words in entries]
    rows.append(("a.cc", "test/CMakeFiles/unit.dir/t.cc.o", ""))
    (build / "compile_commands.json").write_text(
        json.dumps(
            [
                {"output": output, "file": f"{tmp_path}/src/{name}", "command": f"c++ {words} -c x"}
                for name, output, words in rows
            ]
        )
    )
    monkeypatch.setattr(timing, "ROOT", tmp_path)
    monkeypatch.setattr(timing, "LEDGER", tmp_path / "ledger.txt")
    timing.LEDGER.write_text("# comment\n")
    make(build)
    return build


def make(build):
    timing._megabytes.cache_clear()
    subprocess.run([NINJA, "-C", build], check=True, stdout=subprocess.DEVNULL)


def found(build):
    return timing.units(build, NINJA)


def test_units_and_sums_of_targets_are_shown(tree, capsys):
    timing.show(found(tree))
    units, _, targets = capsys.readouterr().out.partition("\n\n")
    assert sorted(line.split()[-1] for line in units.splitlines()[1:]) == [
        "CMakeFiles/large.dir/b.cc.o",
        "CMakeFiles/pch.dir/cmake_pch.hxx.gch",
        "CMakeFiles/small.dir/a.cc.o",
    ]  # no test
    rows = [line.split() for line in targets.splitlines()[1:]]
    assert sorted(row[3] for row in rows[:-1]) == ["large", "pch", "small"]
    assert rows[-1][2:] == ["3", "all"]
    assert float(rows[-1][0]) == pytest.approx(sum(float(row[0]) for row in rows[:-1]), abs=0.2)


def test_an_estimate_counts_what_is_read_and_written(tree):
    estimates = {unit.target: unit.estimate for unit in found(tree)}
    assert 0 < estimates["small"] < 0.02  # no header
    half = timing.PRECOMPILED / timing.READ
    assert half * estimates["pch"] < estimates["large"] < estimates["pch"]  # read as it was precompiled
    before = timing.estimate(found(tree))
    for source in (tree.parent / "src").iterdir():
        source.touch()
    make(tree)
    assert timing.estimate(found(tree)) == before  # the clock is not part of it


def test_growth_takes_a_word(tree):
    timing.accept(found(tree), tree, "the first figure")
    last = timing.LEDGER.read_text().splitlines()[-1]
    assert last == f"{timing.estimate(found(tree)):.1f} GNU-12.2.0 the first figure"
    assert timing.growth(found(tree), tree) is None

    source = tree.parent / "src" / "a.cc"
    source.write_text("#include <vector>\nint a() { return int(std::vector<int>(3).size()); }\n")
    make(tree)
    complaint = timing.growth(found(tree), tree)
    assert "% above the" in complaint and "./dev timing --accept" in complaint
    timing.accept(found(tree), tree, "a matcher")
    assert timing.growth(found(tree), tree) is None

    timing.LEDGER.write_text("1 GNU-99.0.0 of another compiler\n")
    assert timing.growth(found(tree), tree) is None


def test_what_cannot_be_compared_is_refused(tree, tmp_path, capsys):
    def refused(call):
        with pytest.raises(SystemExit):
            call()
        return capsys.readouterr().err

    assert "--accept takes the reason in words" in refused(lambda: timing.accept(found(tree), tree, " "))
    assert "nothing was built yet" in refused(lambda: timing.units(tmp_path, NINJA))
    (tree / "CMakeFiles" / "large.dir" / "b.cc.o").unlink()
    assert "units that are not built yet: 1" in refused(lambda: timing.accept(found(tree), tree, "why"))
    assert timing.LEDGER.read_text() == "# comment\n"


def test_a_folder_that_two_releases_of_cmake_configured_names_the_last_compiler(tmp_path):
    for when, version in ((1, "12.2.0"), (2, "14.1.0")):
        told = tmp_path / "CMakeFiles" / f"3.{when}" / "CMakeCXXCompiler.cmake"
        told.parent.mkdir(parents=True)
        told.write_text(f'set(CMAKE_CXX_COMPILER_ID "GNU")\nset(CMAKE_CXX_COMPILER_VERSION "{version}")\n')
        os.utime(told, (when, when))
    assert timing.compiler(tmp_path) == "GNU-14.1.0"

"""The cost of compiling: seconds of the last build, and an estimate that is the same on every machine.

A clock depends on the machine, on others that use it, and on ccache. The estimate counts what a unit reads and writes.
./dev check holds it against the last line of cmake/compile_seconds.txt.
"""

import functools
import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .shell import ROOT, fail

LEDGER = ROOT / "cmake" / "compile_seconds.txt"
GROWTH = 1.05  # the sum may grow by less without a word in the ledger

# Seconds for a MB of a unit's precompiled header (its sources), of other files that it reads, and of code that it
# writes. They were fitted to a cold build: 410 units, 1,910 s, g++ 12.2, -O1, AMD EPYC. The sums of the large targets
# are within a third of the clock's; a single unit may be off by more (R^2 0.8).
PRECOMPILED, READ, WRITTEN = 0.34, 0.64, 35.0


@dataclass
class Unit:
    output: str
    seconds: float
    estimate: float

    @property
    def target(self) -> str:
        return re.search(r"(?:^|/)CMakeFiles/([^/]+)\.dir/", self.output)[1]


def units(folder: Path, ninja: str) -> list[Unit]:
    """The built ones of libraries, the Python module and tools. Tests and benchmarks may grow: they do not count."""
    if not (folder / ".ninja_log").exists():
        fail(f"{os.path.relpath(folder, ROOT)}: nothing was built yet")
    seconds, files, headers = _seconds(folder), _files(folder, ninja), _library(folder)
    built = sorted(headers.keys() & seconds.keys() & files.keys())
    built = [output for output in built if (folder / output).exists()]
    code = _code(folder, [output for output in built if output.endswith(".o")])
    found = []
    for output in built:
        inside = files.get(headers[output], set())
        read = PRECOMPILED * sum(map(_megabytes, inside)) + READ * sum(map(_megabytes, files[output] - inside))
        found.append(Unit(output, seconds[output], read + WRITTEN * code.get(output, 0.0)))
    return found


def _seconds(folder: Path) -> dict[str, float]:
    """Each output of the last builds, by ninja's log."""
    rows = [line.split("\t") for line in (folder / ".ninja_log").read_text().splitlines()[1:]]
    return {output: (int(end) - int(begin)) / 1000 for begin, end, _, output, _ in rows}


def _library(folder: Path) -> dict[str, str]:
    """Each unit that counts, and the precompiled header that it takes, or no name."""
    found = {}
    for each in json.loads((folder / "compile_commands.json").read_text()):
        output, source = each["output"], os.path.relpath(each["file"], ROOT)
        if not output.startswith(("test/", "examples/")) and not source.startswith("bench/"):
            header = re.search(r"-include (\S+/cmake_pch\.hxx)", each["command"])
            own = header is None or output.endswith(".gch")
            found[output] = "" if own else f"{os.path.relpath(header[1], folder)}.gch"
    return found


def _files(folder: Path, ninja: str) -> dict[str, set[str]]:
    """Each output, and the files that its compiler has read, but for those that a precompiled header had read."""
    command, found = [ninja, "-C", str(folder), "-t", "deps"], {}
    listed = subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True).stdout
    for block in listed.split("\n\n"):
        head, *paths = block.removeprefix(f"ninja: Entering directory `{folder}'\n").splitlines() or [""]
        found[head.partition(": #deps")[0]] = {os.path.normpath(folder / path.strip()) for path in paths}
    return found


def _code(folder: Path, objects: list[str]) -> dict[str, float]:
    """MB of code and constants in each object."""
    if not objects:
        return {}
    told = subprocess.run(["size", *objects], cwd=folder, text=True, stdout=subprocess.PIPE, check=True).stdout
    return {row.split()[5]: int(row.split()[0]) / 1e6 for row in told.splitlines()[1:]}


@functools.cache
def _megabytes(path: str) -> float:
    return os.path.getsize(path) / 1e6 if os.path.exists(path) else 0.0


def show(found: list[Unit]) -> None:
    """The ten worst units, and the sums of all targets."""
    print("  seconds  estimate         unit (ccache's hits take no time; the estimate is that of a cold build)")
    for unit in sorted(found, key=lambda unit: -unit.seconds)[:10]:
        print(f"{unit.seconds:9.1f} {unit.estimate:9.1f}         {unit.output}")
    print("\n  seconds  estimate  units  target")
    targets = [[unit for unit in found if unit.target == target] for target in {unit.target for unit in found}]
    sums = [(sum(u.seconds for u in each), estimate(each), len(each), each[0].target) for each in targets]
    for row in [*sorted(sums, reverse=True), (sum(u.seconds for u in found), estimate(found), len(found), "all")]:
        print("{:9.1f} {:9.1f} {:6}  {}".format(*row))


def estimate(found: list[Unit]) -> float:
    return sum(unit.estimate for unit in found)


def compiler(folder: Path) -> str:
    """As the ledger names it: GNU-12.2.0."""
    # Each release of CMake that has configured the folder left one.
    told = max(folder.glob("CMakeFiles/*/CMakeCXXCompiler.cmake"), key=lambda path: path.stat().st_mtime)
    return "-".join(re.findall(r'^set\(CMAKE_CXX_COMPILER_(?:ID|VERSION) "(.+)"\)', told.read_text(), re.M))


def accept(found: list[Unit], folder: Path, why: str) -> None:
    """Adds a line to the ledger."""
    if missing := len(_library(folder)) - len(found):
        fail(f"units that are not built yet: {missing}\n  try: ./dev build, then again", 2)
    if not why.strip():
        fail("--accept takes the reason in words", 2)
    with LEDGER.open("a", encoding="utf-8") as ledger:
        ledger.write(f"{estimate(found):.1f} {compiler(folder)} {why}\n")


def growth(found: list[Unit], folder: Path) -> str | None:
    """The complaint, where the estimate is above the ledger's; of another compiler it says nothing."""
    seconds, known, _ = LEDGER.read_text().splitlines()[-1].split(" ", 2)
    now, before = estimate(found), float(seconds)
    if known != compiler(folder) or now <= GROWTH * before:
        return None
    return (
        f"compile time: an estimate of {now:.0f} s, {100 * now / before - 100:.0f} % above the {seconds} s of "
        f'{LEDGER.relative_to(ROOT)}\n  try: ./dev timing names the worst units; ./dev timing --accept "WHY"'
    )

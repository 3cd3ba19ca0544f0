"""`./dev mutants` puts small faults into the sources one by one. A test must notice each of them.

test/mutants.toml lists them. A fault that survives is a test that is missing.
"""

import subprocess
import sys
import tomllib
from contextlib import contextmanager

from . import commands, selection
from . import setup as machine
from .shell import ROOT, fail, step

LIST = ROOT / "test" / "mutants.toml"


def read() -> dict[str, dict]:
    """Name -> file, line (a text that the file has once), becomes, tests (words after ./dev test)."""
    return tomllib.loads(LIST.read_text())


@contextmanager
def mutated(mutant: dict):
    """The file with the fault; afterwards as it was."""
    path = ROOT / mutant["file"]
    before = path.read_text()
    if before.count(mutant["line"]) != 1:
        fail(f"{LIST.name}: {mutant['file']} does not have this text once: {mutant['line']}")
    try:
        path.write_text(before.replace(mutant["line"], mutant["becomes"]))
        yield
    finally:
        path.write_text(before)


def _pass(tools: machine.Toolchain, tests: list[str]) -> bool:
    """Whether these tests pass. A build that fails ends dev, because only a test may notice a fault."""
    paths = [word for word in tests if word.startswith("test/")]
    targets = selection.select(paths).targets()
    if targets:
        commands.configure_and_build(tools, targets=targets)
    done = subprocess.run([sys.executable, ROOT / "dev", "test", *tests], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 5:
        fail(f"no test was selected: {' '.join(tests)}")
    return done.returncode == 0


def run(options) -> None:
    tools = machine.setup_tests()
    mutants = read()
    if unknown := set(options.names) - mutants.keys():
        fail(f"no mutant named {', '.join(sorted(unknown))}; there are: {', '.join(mutants)}", 2)
    survived = []
    for name in options.names or mutants:
        mutant = mutants[name]
        if not _pass(tools, mutant["tests"]):
            fail(f"{name}: its tests fail without the fault: ./dev test {' '.join(mutant['tests'])}")
        with mutated(mutant):
            is_noticed = not _pass(tools, mutant["tests"])
        step(f"{'noticed ' if is_noticed else 'SURVIVED'}  {name}")
        survived += [] if is_noticed else [name]
    if survived:
        fail(f"no test noticed: {', '.join(survived)}")
    step("mutants: all noticed")

#!/usr/bin/env python3
"""Tries Abele with each compiler and each CPython of this machine, and writes what it found to docs/platforms.md.

    scripts/try_platforms.py                                  builds the Python module for every pair; many minutes each
    scripts/try_platforms.py --compilers clang++-19 --pythons python3.11 --targets unit_plan abele_python
    scripts/try_platforms.py --check                          only checks the syntax of every unit, tests included
    scripts/try_platforms.py --check --torch FOLDER           with the headers of the package torch in a folder

The table of the page has a row for each system, compiler and release of torch, and a column for each CPython. A row of
another machine or call stays. A compiler or a CPython that is not here changes no row. Of the targets, test programs
are run; with the Python module, a small pipeline trains. A CPython without torch is only checked, with the headers of
the torch of the interpreter that runs this script. Each pair has a build folder below build/platforms.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from devtool import setup as machine  # noqa: E402 (scripts/ is known from here on)
from devtool.shell import quiet  # noqa: E402
from devtool.wheels import VERSIONS  # noqa: E402

PAGE = ROOT / "docs" / "platforms.md"
COMPILERS = ("g++-12", "g++-13", "g++-14", "clang++-16", "clang++-17", "clang++-18", "clang++-19")
PYTHONS = tuple("python{}.{}".format(*version) for version in VERSIONS)
KEYS = ("system", "compiler", "torch")
UNTRIED = "not tried"


def probe(python):
    """Facts about an interpreter for set-up, and its path; {} if it is not installed."""
    own = python == f"python{sys.version_info.major}.{sys.version_info.minor}"
    path = sys.executable if own else shutil.which(python)
    status, text = quiet([path, "-c", machine.PROBE]) if path else (1, "")
    return {**json.loads(text.splitlines()[-1]), "path": path} if status == 0 else {}


def logged(command, log, env):
    """Whether a command succeeds; what it prints is in the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        return subprocess.run(command, cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT).returncode == 0


def check(folder, jobs):
    """Compiles precompiled headers, and checks the syntax of all units. Returns the result in words."""
    headers, units = [], []
    for each in json.loads((folder / "compile_commands.json").read_text()):
        if Path(each["file"]).exists():  # else it is of a generated source
            (headers if each["output"].endswith((".pch", ".gch")) else units).append(each)

    def compile_one(each):
        words = [] if each in headers else ["-fsyntax-only"]
        command = [*shlex.split(each["command"]), *words]
        done = subprocess.run(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.stdout:
            print(f"{each['output']}\n{done.stdout}", flush=True)
        return done.returncode == 0, done.stdout.count(" warning: ")

    with ThreadPoolExecutor(jobs) as pool:
        results = [*pool.map(compile_one, headers), *pool.map(compile_one, units)]
    failed, warnings = sum(not good for good, _ in results), sum(count for _, count in results)
    return f"{failed} of {len(results)} units fail" if failed else f"{len(units)} units checked, {warnings} warnings"


def attempt(compiler, info, torch, args):
    """Builds, and runs all that can run. Returns the result in words."""
    folder = ROOT / "build" / "platforms" / "-".join([Path(compiler).name, *map(str, info["version"]), torch])
    env, own = dict(os.environ), info["torch"] and not args.torch
    if not own:
        env["PYTHONPATH"] = str(args.torch or importlib.metadata.distribution("torch").locate_file(""))
    choices = {"CMAKE_CXX_COMPILER": compiler, "Python_EXECUTABLE": info["path"]}
    tools = Path(sys.executable).parent
    env["PATH"] = os.pathsep.join([str(tools), env["PATH"]])
    words = [f"-D{name}={value}" for name, value in choices.items()]
    if not logged(["cmake", "--preset", "dev", "-B", folder, *words], folder / "configuring.log", env):
        return f"configuring fails: {folder.relative_to(ROOT)}/configuring.log"
    if args.check or not own:
        return check(folder, args.jobs)
    build = ["cmake", "--build", folder, "-j", str(args.jobs), "--target", *args.targets]
    runs = [[folder / "test" / each, "--gtest_brief=1"] for each in args.targets if each.startswith("unit_")]
    if "abele_python" in args.targets:
        runs.append([info["path"], "-m", "abele.cli.environment"])
        env["PYTHONPATH"] = str(ROOT / "python")
    for what, command in [("compiling", build), *(("running", each) for each in runs)]:
        if not logged(command, folder / f"{what}.log", env):
            return f"{what} fails: {folder.relative_to(ROOT)}/{what}.log"
    return f"runs: {' '.join(args.targets)}"


def version_of(compiler):
    return re.search(r"\d+\.\d+\.\d+", quiet([compiler, "-dumpfullversion", "--version"])[1])[0]


def read_rows(page):
    """Rows of the page's table by their keys: a cell for each CPython."""
    rows = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == len(KEYS) + len(VERSIONS) and cells[0] not in (KEYS[0], "---"):
            rows[tuple(cells[: len(KEYS)])] = cells[len(KEYS) :]
    return rows


def write_rows(page, rows):
    """The page with these rows."""
    heads = [*KEYS, *("CPython {}.{}".format(*version) for version in VERSIONS)]
    lines = [heads, ["---"] * len(heads), *([*key, *cells] for key, cells in sorted(rows.items()))]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return re.sub(r"^\| system .*?(?=\n[^|]|\Z)", lambda _: table, page, flags=re.M | re.S)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compilers", nargs="+", default=COMPILERS)
    parser.add_argument("--pythons", nargs="+", default=PYTHONS)
    parser.add_argument("--targets", nargs="+", default=["abele_python"])
    parser.add_argument("--check", action="store_true", help="only check the syntax")
    parser.add_argument("--torch", type=Path, help="a folder with the package torch, of which headers are enough")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    system, failed = platform.freedesktop_os_release()["PRETTY_NAME"], False
    for compiler in filter(shutil.which, args.compilers):
        for info in filter(None, map(probe, args.pythons)):
            torch = (
                re.search(r"__version__ = '([\d.]+)", (args.torch / "torch/version.py").read_text())[1]
                if args.torch
                else (info["torch"] or importlib.metadata.version("torch")).partition("+")[0]
            )
            result = attempt(compiler, info, torch, args)
            failed |= "fail" in result
            print(f"{compiler}, {info['version']}, {torch}: {result}", flush=True)
            rows = read_rows(PAGE.read_text())
            kind = re.sub(r"-\d+$", "", Path(compiler).name)
            cells = rows.setdefault((system, f"{kind} {version_of(compiler)}", torch), [UNTRIED] * len(VERSIONS))
            cells[VERSIONS.index(tuple(info["version"]))] = result
            PAGE.write_text(write_rows(PAGE.read_text(), rows))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

"""The command line of ./dev."""

import argparse

from . import commands, mutants
from .shell import ROOT


def parse(argv: list[str]) -> argparse.Namespace:
    """Options: function, the command's own, and, of demo and bench, rest: words for the program that they start."""
    parser = argparse.ArgumentParser(prog="./dev", description="Set up, build, test and look at Abele.")
    sub = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name, function, text, **kwargs):
        command = sub.add_parser(name, help=text, description=text, **kwargs)
        command.set_defaults(function=function)
        return command

    def add_preset(command):
        command.add_argument("--preset", default="dev", choices=["dev", "debug", "release", "asan", "tsan"])

    add("setup", commands.setup, "Prepare this machine: packages, .venv, import path.")
    build = add("build", commands.build, "Set up, configure and build.")
    add_preset(build)
    build.add_argument("--werror", action="store_true", help="warnings are errors")
    build.add_argument("targets", nargs="*", help="ninja targets (all)")
    test = add("test", commands.test, "Set up, build and run tests: all, C++ first, or those that are named.")
    test.add_argument("paths", nargs="*", metavar="PATH", help="only tests of these files and folders below test/")
    test.add_argument("-k", metavar="EXPR", help="only tests whose name matches, as of pytest -k; of googletest too")
    test.add_argument("--sanitizers", action="store_true", help="run the C++ tests under ASan, UBSan and TSan instead")
    test.add_argument(
        "--long",
        action="store_true",
        help="run instead the fuzzers, ten minutes each, 1,000 kills of writers and 200 of training processes, and the "
        "whole matrix of trainings in several processes",
    )
    test.add_argument("--seconds", type=int, default=600, help="of each fuzzer, with --long")
    test.add_argument("--models", action="store_true", help="run the walk over published models instead")
    faults = add(
        "mutants", mutants.run, "Put small faults in one by one, as test/mutants.toml lists: a test must notice."
    )
    faults.add_argument("names", nargs="*", metavar="NAME", help="only these")
    golden = add("golden", commands.golden, "Run the golden tests.")
    golden.add_argument("--update", action="store_true", help="rewrite the files marked # GENERATED")
    golden.add_argument("-k", metavar="EXPR")
    add("format", commands.format_, "Format all C++ and Python files.")
    add("lint", commands.lint, "Check format, style, layers, and names in comments; change nothing.")
    add("demo", commands.demo, "Set up, build and run the demonstration, with its options; --help.", add_help=False)
    add("check", commands.check, "What must hold before a change lands: lint, generated files, build, fast tests.")
    bench = add("bench", commands.bench, "Build and run a benchmark, bench/NAME.py; NAME --help says what it takes.")
    names = sorted(path.stem for path in (ROOT / "bench").glob("*.py"))
    bench.add_argument("name", choices=names, metavar="NAME", help=f"one of {', '.join(names)}")
    bench.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="its options")
    wheel = add("wheel", commands.wheel, "Build Release wheels into build/wheels, one for each Python that has torch.")
    wheel.add_argument("pythons", nargs="*", metavar="PYTHON", help=".venv's and those of 3.11 to 3.13 in PATH")
    wheel.add_argument("--manylinux", action="store_true", help="name them for the oldest systems that they run on")
    docs = add("docs", commands.docs, "Write the generated files anew and build the documentation, build/docs/html.")
    docs.add_argument("--check", action="store_true", help="only say which generated files are stale")
    docs.add_argument("--generated", action="store_true", help="only write the generated files")
    timing = add("timing", commands.timing, "The slowest compile units of the last build, and sums by target.")
    add_preset(timing)
    timing.add_argument("--accept", metavar="WHY", help="compiling may take as long as this build's: ./dev check knows")
    options, unknown = parser.parse_known_args(argv)
    if options.function is commands.demo:
        options.rest = unknown
    elif unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return options


def main(argv: list[str]) -> None:
    options = parse(argv)
    options.function(options)

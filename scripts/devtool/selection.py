"""Which tests `./dev test PATH... -k EXPR` means: programs to build, cases of them, files of pytest.

Nothing is compiled or imported to find out: C++ cases are read from the sources, Python files by their text.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .shell import ROOT, fail

# What Python tests run, by folder or file; the longest that fits counts.
NEEDS = {
    "test": ["abele_python"],
    "test/client/test_commands.py": ["abele_python", "abele_tools"],
    "test/client/test_cpp_consumer.py": ["all"],
    "test/client/test_cpp_continues.py": ["abele_python", "continue_training", "cpp_blocks"],
    "test/client/test_cpp_examples.py": ["abele_python", "examples/cpp/all"],
    "test/client/test_digits.py": ["abele_python", "example_digits"],
    "test/client/test_monitor.py": ["abele_python", "abele_tools"],
    "test/client/test_run_command.py": ["abele_python", "abele-env", "abele_tools"],
    "test/error/test_E0606_processes.py": ["abele_python", "poprun"],
    "test/error/test_E0713_processes_differ.py": ["abele_python", "poprun"],
    "test/multi": ["abele_python", "poprun"],
    "test/parity": ["abele_python", "operator_sequence", "simulated_accelerator"],
    "test/unit/dev": [],
    "test/unit/python/test_explain.py": ["abele_python", "abele-sim"],
    "test/unit/python/test_report_page.py": ["abele_python", "abele_tools"],
    "test/unit/python/test_scale_page.py": ["abele-sim"],
    "test/unit/python/test_simulate.py": ["abele_python", "abele-sim"],
    "test/unit/python/test_simulated_accelerator.py": ["simulated_accelerator"],
}
# Tests of ctest that take what another program makes.
CTEST_NEEDS = {"mutations": ["make_executables"], "file_mutations": ["make_programs"]}
GOLDEN_SUFFIXES = (".air", ".plan", ".abt")
RUN = re.compile(r"# RUN: (?:not )?(\S+)")  # the tool that a line of a golden file starts
CASE = re.compile(r"^\s*(TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.MULTILINE)
# How googletest calls the cases that a macro makes.
CASE_NAMES = {
    "TEST": "{suite}.{name}",
    "TEST_F": "{suite}.{name}",
    "TEST_P": "*{suite}.{name}/*",
    "TYPED_TEST": "{suite}/*.{name}",
    "TYPED_TEST_P": "*{suite}/*.{name}",
}


@dataclass
class Selection:
    """programs: googletest binary -> filter of its cases. ctests: names of other tests of ctest."""

    programs: dict[str, str] = field(default_factory=dict)
    ctests: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def targets(self) -> list[str]:
        """Targets of ninja; empty: nothing is to be built; "all": everything."""
        wanted = [*self.programs, *self.ctests]
        for test in self.ctests:
            wanted += CTEST_NEEDS.get(test, [])
        for file in self.files:
            golden = file.endswith(GOLDEN_SUFFIXES)
            wanted += RUN.findall((ROOT / file).read_text()) if golden else NEEDS[_longest(NEEDS, file)]
        return ["all"] if "all" in wanted else sorted(set(wanted))


def _longest(folders: Iterable[str], file: str) -> str:
    return max((f for f in folders if file == f or file.startswith(f + "/")), key=len)


def matcher(expression: str | None) -> Callable[[str], bool]:
    """As pytest -k: words are parts of names, without regard to case; and, or, not, parentheses."""
    if not expression:
        return lambda name: True
    tokens = re.findall(r"\(|\)|[^\s()]+", expression)
    code = " ".join(t if t in ("and", "or", "not", "(", ")") else f"has({t.lower()!r})" for t in tokens)
    try:
        compiled = compile(code, "-k", "eval")
    except SyntaxError:
        fail(f"-k {expression!r}: expected words with and, or, not and parentheses", 2)
    return lambda name: eval(compiled, {"__builtins__": {}, "has": lambda word: word in name.lower()})


def _words(expression: str) -> list[str]:
    """The words without a `not` before them: a name must have one of these. Empty: any name may match."""
    tokens = re.findall(r"\(|\)|[^\s()]+", expression)
    if "not" in tokens and "(" in tokens:
        return []
    words = [
        t for i, t in enumerate(tokens) if t not in ("and", "or", "not", "(", ")") and tokens[i - 1 :][:1] != ["not"]
    ]
    return [word.lower() for word in words]


def cases(source: Path) -> list[str]:
    """The googletest cases of a source file, as filters that match all of their instances."""
    return [CASE_NAMES[kind].format(suite=suite, name=name) for kind, suite, name in CASE.findall(source.read_text())]


def _expand(paths: list[str]) -> list[Path]:
    files = []
    for text in paths or ["test"]:
        path = Path(text) if Path(text).is_absolute() else ROOT / text
        if not path.exists():
            fail(f"{text}: there is no such file or folder", 2)
        if not path.resolve().is_relative_to(ROOT / "test"):
            fail(f"{text}: tests are below test/ (test/README.md)", 2)
        files += [path] if path.is_file() else [p for p in sorted(path.rglob("*")) if p.is_file()]
    return list(dict.fromkeys(files))


def select(paths: list[str], expression: str | None = None) -> Selection:
    """paths: files and folders below test/; none: all. expression: as of matcher()."""
    chosen, matches = Selection(), matcher(expression)
    words = _words(expression) if expression else []
    filters: dict[str, list[str]] = {}
    for path in _expand(paths):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("test/models/"):
            continue  # --models
        if name.startswith("test/fuzz/") and path.suffix != ".py":
            test = _fuzz_test(name)
            if test and test not in chosen.ctests and matches(test):
                chosen.ctests.append(test)
        elif name.startswith("test/unit/") and path.suffix == ".cc":
            here = [case for case in cases(path) if matches(f"{path.stem}/{case}")]
            if here:
                filters.setdefault(program_of(name), []).extend(here)
        elif _is_python_test(path) and _may_match(path, name, words):
            chosen.files.append(name)
    chosen.programs = {program: _filter(program, here) for program, here in sorted(filters.items())}
    return chosen


def _filter(program: str, chosen: list[str]) -> str:
    everything = [
        case for source in ROOT.glob("test/unit/**/*.cc") if _program(source) == program for case in cases(source)
    ]
    return "*" if len(chosen) == len(everything) else ":".join(chosen)


def _program(source: Path) -> str:
    return program_of(source.relative_to(ROOT).as_posix())


def program_of(name: str) -> str:
    """test/unit/exe/build/build_test.cc -> unit_exe_build (test/CMakeLists.txt)."""
    return "_".join(Path(name).parts[1:-1])


def _fuzz_test(name: str) -> str | None:
    """A source of test/fuzz, or a seed, -> the test of ctest that runs it."""
    parts = Path(name).parts[2:]
    if parts[0] == "targets":
        return f"fuzz_{Path(name).stem}"
    if parts[0] == "corpus":
        return f"fuzz_{parts[1]}" if len(parts) > 2 else None
    return parts[0].removesuffix("_test.cc") if parts[0].endswith("_test.cc") else None


def _is_python_test(path: Path) -> bool:
    if path.suffix in GOLDEN_SUFFIXES:
        return not path.is_relative_to(ROOT / "test/fuzz")
    return path.suffix == ".py" and path.name.startswith("test_")


def _may_match(path: Path, name: str, words: list[str]) -> bool:
    if not words or any(word in name.lower() for word in words):
        return True
    text = path.read_text().lower()
    return any(word in text for word in words)

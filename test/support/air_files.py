"""Collects .air files as tests: RUN lines are run, their output is matched with the CHECK lines of the file.

    # RUN: abele-opt %s --passes=dce
    # RUN: abele-opt %s --sharded | filecheck %s --check-prefix=SHARDED
    # RUN: not abele-opt %s --auto-increment

A RUN line starts one of TOOLS. %s is the file, %S its folder. Plans (.plan) and executables as text (.abt) are tests in
the same way. "not" expects exit status 1 and matches the error text. Without a pipe the prefix is CHECK.
In a file with a line "# GENERATED", everything below that line is the output of its first RUN line;
pytest --update-golden rewrites it.
"""

import io
import os
import shlex
import subprocess
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from filecheck.matcher import Matcher
from filecheck.options import parse_argv_options

ROOT = Path(__file__).resolve().parents[2]
TOOLS = {"abele-opt", "abele-sim"}
GENERATED = "# GENERATED"


def tool(name: str) -> Path:
    build = Path(os.environ.get("ABELE_BUILD_DIR", ROOT / "build" / "dev"))
    path = (build if build.is_absolute() else ROOT / build) / "tools" / name
    if not path.exists():
        pytest.fail(f"{path} is not built; set ABELE_BUILD_DIR to the build folder", pytrace=False)
    return path


class AirFile(pytest.File):
    def collect(self):
        lines = [line.partition("# RUN:")[2].strip() for line in self.path.read_text().splitlines() if "# RUN:" in line]
        if not lines:
            raise self.CollectError(f"{self.path} has no RUN line")
        for number, line in enumerate(lines):
            name = self.path.stem if len(lines) == 1 else f"{self.path.stem}-{number}"
            yield AirTest.from_parent(self, name=name, command=line)


class Mismatch(Exception):
    pass


class AirTest(pytest.Item):
    def __init__(self, *, command, **kwargs):
        super().__init__(**kwargs)
        self.command = command

    def runtest(self):
        command, _, check = self.command.partition("|")
        output = self.run_tool(shlex.split(command))
        text = self.path.read_text()
        if GENERATED in text.splitlines():
            return self.match_generated(text, output)
        arguments = shlex.split(check.replace("%s", str(self.path))) or ["filecheck", str(self.path)]
        if arguments[0] != "filecheck":
            raise Mismatch(f"cannot pipe into {arguments[0]}: {self.command}")
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(output)
            file.flush()
            report = io.StringIO()
            with redirect_stdout(report):
                status = Matcher.from_opts(parse_argv_options([*arguments, "--input-file", file.name])).run()
            if status != 0:
                raise Mismatch(f"{report.getvalue()}\n--- output of {command.strip()}\n{output}")

    def expand(self, word):
        return word.replace("%s", str(self.path)).replace("%S", str(self.path.parent))

    def run_tool(self, words):
        expect_error = words[0] == "not"
        words = words[1:] if expect_error else words
        if words[0] not in TOOLS:
            raise Mismatch(f"RUN lines start one of {sorted(TOOLS)}, found {words[0]}")
        words = [str(tool(words[0])), *map(self.expand, words[1:])]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        if done.returncode != (1 if expect_error else 0):
            raise Mismatch(f"exit status {done.returncode}: {self.command}\n{done.stdout}{done.stderr}")
        return done.stderr if expect_error else done.stdout

    def match_generated(self, text, output):
        head = text.partition(GENERATED + "\n")[0] + GENERATED + "\n"
        expected = head + "".join(f"# {line}".rstrip() + "\n" for line in output.splitlines())
        if text == expected:
            return
        if not self.config.getoption("--update-golden"):
            raise Mismatch(f"the output changed; pytest --update-golden accepts it\n{output}")
        self.path.write_text(expected)

    def repr_failure(self, excinfo, style=None):
        return str(excinfo.value) if excinfo.errisinstance(Mismatch) else super().repr_failure(excinfo, style)

    def reportinfo(self):
        return self.path, 0, f"{self.path.relative_to(ROOT)}: {self.command}"


def pytest_collect_file(parent, file_path):
    if file_path.suffix in (".air", ".plan", ".abt"):
        return AirFile.from_parent(parent, path=file_path)
    return None

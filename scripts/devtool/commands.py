"""One function per command of ./dev."""

import os
import re
import subprocess
import sys
from pathlib import Path

from . import durations, programs, selection, shell, wheels
from . import setup as machine
from . import timing as compile_time
from .shell import ROOT, Beside, fail, quiet, run, run_silently, show, step

JOBS = str(len(os.sched_getaffinity(0)))


def setup(options) -> None:
    machine.setup()


def configure_and_build(tools: machine.Toolchain, preset: str = "dev", targets=(), werror: bool = False) -> Path:
    """Builds a preset into build/PRESET (warnings as errors: build/PRESET-werror). Returns the folder."""
    folder = ROOT / "build" / (f"{preset}-werror" if werror else preset)
    marker = folder / "configured_for.txt"
    want = f"{tools.python}\n{(ROOT / 'CMakePresets.json').read_text()}"
    if not (folder / "build.ninja").exists() or not marker.exists() or marker.read_text() != want:
        step(f"configuring preset {preset}")
        cmake = [
            tools.tool("cmake"),
            "--preset",
            preset,
            "-B",
            folder,
            "--no-warn-unused-cli",
            f"-DCMAKE_MAKE_PROGRAM={tools.tool('ninja')}",
            f"-DPython_EXECUTABLE={tools.python}",
        ]
        if marker.exists():
            cmake.append("--fresh")
        run_silently(cmake + (["-DABELE_WERROR=ON"] if werror else []), env=tools.env)
        marker.write_text(want)
    step(f"building preset {preset}")
    shell.build([tools.tool("ninja"), "-C", folder, "-j", JOBS, *targets], env=tools.env)
    return folder


def build(options) -> None:
    folder = configure_and_build(machine.setup(), options.preset, options.targets, options.werror)
    step(f"built {folder.relative_to(ROOT)}")


def _python_env(tools: machine.Toolchain, folder: Path) -> dict:
    return {**tools.env, "ABELE_BUILD_DIR": str(folder)}


def _pytest(tools, folder, arguments) -> int:
    return run([tools.python, "-m", "pytest", *arguments], env=_python_env(tools, folder), check=False)


def _ctest(tools, folder, arguments=(), env=None) -> int:
    ctest = [tools.tool("ctest"), "--test-dir", folder, "-j", min(2, int(JOBS)), "--output-on-failure"]
    return run(
        [*ctest, "--no-tests=error", *arguments],
        env={**tools.env, **(env or {})},
        check=False,
    )


def _tests_run(folder: Path) -> int:
    """How many googletest cases the last ctest ran."""
    log = _ctest_log(folder).read_text(errors="replace")
    return sum(int(n) for n in re.findall(r"^\[==========\] Running (\d+) test", log, re.M))


def _ctest_log(folder: Path) -> Path:
    return folder / "Testing" / "Temporary" / "LastTest.log"


def _test_models(expression: str | None) -> None:
    """The walk over published model classes: packages of its own and many minutes, so that CI leaves it out."""
    tools = machine.setup_models()
    folder = configure_and_build(tools, targets=["abele_python"])
    step("published models")
    sys.exit(_pytest(tools, folder, ["test/models", "--models", *(["-k", expression] if expression else [])]))


# The tests of Python run in two processes, which take about as long as each other: this half beside all the rest.
_FIRST_HALF = ["test/client", "test/parity", "test/golden", "test/error"]


def test(options) -> None:
    if options.long:
        return _test_long(machine.setup_fuzz(), options.seconds)
    if options.models:
        return _test_models(options.k)
    if options.sanitizers:
        return _test_sanitizers(machine.setup(), options.k)
    tools = machine.setup_tests()
    if options.paths or options.k:
        return _test_selected(tools, options.paths, options.k)
    folder = configure_and_build(tools)
    step("C++ tests")
    ctest = _ctest(tools, folder)
    num_cpp = _tests_run(folder)
    step(f"Python tests ({num_cpp} C++ tests {'FAILED' if ctest else 'passed'} before)")
    rest = [word for path in _FIRST_HALF for word in ("--ignore", path)]
    reports = [folder / "Testing" / f"python_{half}.xml" for half in (1, 2)]
    halves = [
        [tools.python, "-m", "pytest", "--junitxml", report, *half]
        for report, half in zip(reports, (_FIRST_HALF, ["test", *rest]), strict=True)
    ]
    with Beside(halves[0], env=_python_env(tools, folder)) as first:
        second = run(halves[1], env=_python_env(tools, folder), check=False)
        pytest = first.finish() or second
    durations.show([case for each in reports for case in durations.python(each)] + durations.cpp(_ctest_log(folder)))
    if ctest:
        fail(f"FAILED: C++ tests (see above); Python tests {'failed too' if pytest else 'passed'}")
    sys.exit(pytest)


def _test_selected(tools: machine.Toolchain, paths: list[str], expression: str | None) -> None:
    """Builds what these tests need, and runs them alone."""
    chosen = selection.select(paths, expression)
    targets = chosen.targets()
    folder = configure_and_build(tools, targets=targets) if targets else ROOT / "build" / "dev"
    failed = []
    for program, cases in chosen.programs.items():
        step(f"C++ tests, {program}")
        if run([folder / "test" / program, "--gtest_brief=1", f"--gtest_filter={cases}"], env=tools.env, check=False):
            failed.append(program)
    if chosen.ctests:
        step(f"C++ tests, {' '.join(chosen.ctests)}")
        failed += ["ctest"] * bool(_ctest(tools, folder, ["-R", f"^({'|'.join(chosen.ctests)})$"]))
    status = 5
    if chosen.files:
        step(f"Python tests, {len(chosen.files)} files")
        status = _pytest(tools, folder, [*chosen.files, *(["-k", expression] if expression else [])])
        failed += ["Python tests"] * (status not in (0, 5))
    if failed:
        fail(f"FAILED: {', '.join(failed)}")
    if status == 5 and not chosen.programs and not chosen.ctests:
        fail("no test was selected", 5)
    step("all passed")


def _test_sanitizers(tools: machine.Toolchain, expression: str | None) -> None:
    reasons = ROOT / "test" / "sanitizers"
    env = {
        # Without detect_stack_use_after_return: g++ 12 does not align vectors of 64 bytes there (GCC's bug 110027).
        "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1",
        "LSAN_OPTIONS": f"suppressions={reasons / 'lsan.txt'}:print_suppressions=0",
        "UBSAN_OPTIONS": f"print_stacktrace=1:halt_on_error=1:suppressions={reasons / 'ubsan.txt'}",
        "TSAN_OPTIONS": f"halt_on_error=1:second_deadlock_stack=1:suppressions={reasons / 'tsan.txt'}",
    }
    if expression:
        env["GTEST_FILTER"] = f"*{expression}*"
    failed = []
    for preset in ("tsan", "asan"):
        folder = configure_and_build(tools, preset)
        step(f"C++ tests, preset {preset}")
        if _ctest(tools, folder, env=env):
            failed.append(preset)
    if failed:
        fail(f"FAILED: {', '.join(failed)}")
    step("sanitizers: all passed")


FUZZERS = (
    "graph_text",
    "plan_text",
    "executable_text",
    "costs_json",
    "executable",
    "options_text",
    "options_json",
    "program_file",
    "cache_entry",
)


def _test_long(tools: machine.Toolchain, seconds: int) -> None:
    """The whole matrix of trainings in several processes; 1,000 writers, 500 training processes and 60 hosts that are
    killed or cut off; each fuzzer from its corpus in the tree, what it finds into build/fuzz."""
    folder = configure_and_build(tools, targets=["unit_base", "unit_model", "abele_python", "poprun"])
    failed = []
    pytest = [tools.python, "-m", "pytest", "-s"]
    writers = {name: [folder / "test" / name, "--gtest_filter=*Killed"] for name in ("unit_base", "unit_model")}
    for what, kills, command in (
        ("all trainings of several processes", 0, [*pytest, "test/multi/test_process_matrix.py", "--matrix=full"]),
        *((f"1,000 killed writers, {name}", 1000, killed) for name, killed in writers.items()),
        ("100 kills of one of two and of one of four processes", 100, [*pytest, "test/multi/test_kills.py"]),
        ("100 kills each of one and of two that resume", 100, [*pytest, "test/multi/test_resumes.py"]),
        ("20 hosts each that are cut off, lose power or their processes", 20, [*pytest, "test/hosts", "-k", "gone"]),
    ):
        step(what)
        if run(command, env={**_python_env(tools, folder), "ABELE_KILLS": str(kills)}, check=False):
            failed.append(what)
    folder = configure_and_build(tools, "fuzz", targets=[f"fuzz_{name}" for name in FUZZERS])
    for name in FUZZERS:
        step(f"fuzzing {name}")
        found = folder / "corpus" / name
        found.mkdir(parents=True, exist_ok=True)
        limits = [f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=2048", "-max_len=65536"]
        corpora = [found, ROOT / "test" / "fuzz" / "corpus" / name]
        command = [folder / "test" / "fuzz" / f"fuzz_{name}", *limits, "-print_final_stats=1", *corpora]
        if run(command, env=tools.env, check=False):
            failed.append(f"fuzz_{name}")
    if failed:
        fail(f"FAILED: {', '.join(failed)}")
    step("long tests: all passed")


def golden(options) -> None:
    tools = machine.setup()
    folder = configure_and_build(tools, targets=selection.select(["test/golden"]).targets())
    arguments = ["test/golden"]
    if options.update:
        arguments.append("--update-golden")
    if options.k:
        arguments += ["-k", options.k]
    sys.exit(_pytest(tools, folder, arguments))


def _tracked(*patterns: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=True,
    ).stdout.split("\n")
    return sorted({name for name in listed if name and (ROOT / name).exists()})


def format_(options) -> None:
    tools = machine.setup_dev()
    run([tools.tool("clang-format"), "-i", *_tracked("*.h", "*.cc")], env=tools.env)
    run([tools.tool("ruff"), "check", "--quiet", "--fix-only", "."], env=tools.env)
    run([tools.tool("ruff"), "format", "--quiet", "."], env=tools.env)


def lint(options) -> None:
    _lint(machine.setup_dev())
    step("lint: clean")


def _unformatted(tools: machine.Toolchain) -> bool:
    """Names each C++ file that clang-format would change."""
    command = [tools.tool("clang-format"), "--dry-run", "-Werror", *_tracked("*.h", "*.cc")]
    show(command)
    status, text = quiet(command, env=tools.env)
    names = sorted(set(re.findall(r"^([^:\n]+):\d+:\d+: error", text, re.M)))
    print("".join(f"would be reformatted: {name}\n" for name in names) or text, end="")
    return status != 0


def _lint(tools: machine.Toolchain) -> None:
    """Runs every checker, then fails if one found something."""
    failed = ["clang-format"] if _unformatted(tools) else []
    failed += [
        name
        for name, command in {
            "ruff check": [tools.tool("ruff"), "check", "--quiet", "."],
            "ruff format": [tools.tool("ruff"), "format", "--check", "--quiet", "."],
            "layers": [tools.python, "scripts/check_layers.py"],
            "references": [tools.python, "scripts/check_references.py"],
            "words": [tools.python, "scripts/check_words.py"],
        }.items()
        if run(command, env=tools.env, check=False)
    ]
    if failed:
        fail(f"lint: {', '.join(failed)}\n  try: ./dev format")


def check(options) -> None:
    tools = machine.setup_dev()
    machine.install_checkers(tools)
    _lint(tools)
    _generate(tools, ["--check"])
    folder = configure_and_build(tools, werror=True)
    grown = compile_time.growth(compile_time.units(folder, tools.tool("ninja")), folder)
    # Beside each other: either has parts in which one core works. `dev test` runs the slow kinds, too.
    pytest = [tools.python, "-m", "pytest", "-q", "test/golden", "test/error", "test/unit"]
    with Beside(pytest, env=_python_env(tools, folder)) as python_tests:
        failed = _ctest(tools, folder)
        status = python_tests.finish()
    if failed or status or grown:
        fail("\n  ".join(["check: FAILED", *([grown] if grown else [])]))
    step("check: all good")


def demo(options) -> None:
    _run_program(ROOT / "examples" / "python" / "digits.py", "./dev demo", options.rest)


def bench(options) -> None:
    _run_program(ROOT / "bench" / f"{options.name}.py", f"./dev bench {options.name}", options.rest)


def _run_program(source: Path, prog: str, words: list[str]) -> None:
    """Builds what it needs, and runs it; its help, and options that it has not, end here before anything is set up."""
    programs.parser(source, prog).parse_args(words)
    tools, targets = machine.setup(), programs.targets(source)
    folder = configure_and_build(tools, targets=targets) if targets else ROOT / "build" / "dev"
    step(f"running {source.relative_to(ROOT)}")
    sys.exit(run([tools.python, source, *words], env=_python_env(tools, folder), check=False))


def wheel(options) -> None:
    made = wheels.build(machine.setup(), options.pythons, JOBS, options.manylinux)
    if not made:
        fail("no wheel: no interpreter has what it takes (see above)")
    for path in made:
        step(f"{path.relative_to(ROOT)}, {path.stat().st_size / 2**20:.1f} MiB")
    step("to try it: .venv/bin/python scripts/try_wheel.py")


def docs(options) -> None:
    tools = machine.setup()
    if not options.check:
        configure_and_build(tools, targets=["abele_python", "operator_sequence"])
    _generate(tools, ["--check"] if options.check else [])
    if not options.check and not options.generated:
        _site(tools)


def _site(tools: machine.Toolchain) -> None:
    """Builds build/docs/html: the pages of docs/ and the reference of the packages and of the C++ headers."""
    machine.setup_docs(tools)
    folder = configure_and_build(tools, targets=["abele_python"])
    step("documentation")
    (ROOT / "build" / "doxygen").mkdir(parents=True, exist_ok=True)
    run(["doxygen", "docs/Doxyfile"], env=tools.env)
    trees, html = ROOT / "build" / "docs" / "doctrees", ROOT / "build" / "docs" / "html"
    sphinx = [tools.python, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", trees, "docs", html]
    run(sphinx, env=_python_env(tools, folder))
    step(f"documentation: {(html / 'index.html').relative_to(ROOT)}")


def _generate(tools: machine.Toolchain, arguments: list[str]) -> None:
    """Each scripts/gen_*.py writes committed files; with --check it only compares them."""
    stale = [
        path.name
        for path in sorted((ROOT / "scripts").glob("gen_*.py"))
        if run([tools.python, path, *arguments], env=tools.env, check=False)
    ]
    if stale:
        fail(f"generated files: {', '.join(stale)} failed\n  try: ./dev docs --generated")


def timing(options) -> None:
    folder, ninja = ROOT / "build" / options.preset, machine.setup().tool("ninja")
    found = compile_time.units(folder, ninja)
    compile_time.show(found)
    if options.accept is not None:
        compile_time.accept(found, folder, options.accept)

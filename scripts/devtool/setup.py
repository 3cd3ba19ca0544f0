"""From a bare Debian to a machine that can build and test; no work when nothing changed.

Other systems bring their packages themselves.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from .shell import ROOT, fail, quiet, run, run_silently, show, step

TORCH = "torch==2.13.0"
OLDEST_TORCH = (2, 11)
# Debian's package -> the header or program that shows that it is there, wherever it came from.
PACKAGES = {
    "git": "git",
    "libgtest-dev": "gtest/gtest.h",
    "libspdlog-dev": "spdlog/spdlog.h",
    "libfmt-dev": "fmt/format.h",
    "libcli11-dev": "CLI/CLI.hpp",
    "nlohmann-json3-dev": "nlohmann/json.hpp",
    "libxxhash-dev": "xxhash.h",
    "libblis-serial-dev": "blis-serial/blis.h",
    "ccache": "ccache",
}
OPTIONAL = ("ccache", "libblis-serial-dev")  # these save time: of builds, and of steps
VENV = ROOT / ".venv"
MAY_INSTALL = "ABELE_PYTHON_INSTALL"  # 1: an interpreter that ABELE_PYTHON names may get what is missing
STAMP = ROOT / "build" / "setup.json"

# Asked of the interpreter itself, in one start.
PROBE = """
import importlib.metadata as m, importlib.util as u, json, os, site, sys, sysconfig
spec = u.find_spec("torch")
version = None
if spec and spec.origin:
    text = open(os.path.join(os.path.dirname(spec.origin), "version.py")).read()
    scope = {}
    exec(text, scope)
    version = str(scope["__version__"])
purelib = sysconfig.get_path("purelib")
print(json.dumps({
    "version": list(sys.version_info[:2]), "torch": version, "scripts": sysconfig.get_path("scripts"),
    "site": purelib if os.access(purelib, os.W_OK) else site.getusersitepackages(),
    "headers": os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")),
    "installed": {
        d.metadata["Name"].lower().replace("_", "-"): d.version for d in m.distributions() if d.metadata["Name"]
    },
}))
"""


@dataclass
class Toolchain:
    """The interpreter and where its scripts are."""

    python: str
    scripts: str
    env: dict

    def tool(self, name: str) -> str:
        own = Path(self.scripts) / name
        return str(own) if own.exists() else shutil.which(name) or str(own)


def probe(python: str) -> dict:
    status, text = quiet([python, "-c", PROBE])
    if status != 0:
        fail(f"cannot run {python}:\n{text}")
    return json.loads(text.splitlines()[-1])


def _root_prefix() -> list | None:
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and quiet(["sudo", "-n", "true"])[0] == 0:
        return ["sudo", "-n"]
    return None


def missing_packages() -> list[str]:
    """Those of PACKAGES whose program is not in PATH, or whose header the compiler does not find. No compiler: g++."""
    headers = {package: shown for package, shown in PACKAGES.items() if "." in shown}
    lacks = [package for package, shown in PACKAGES.items() if package not in headers and not shutil.which(shown)]
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    if not shutil.which(compiler[0]):
        return ["g++", *lacks, *headers]
    asked = "".join(f"#if !__has_include(<{shown}>)\nlacks {package}\n#endif\n" for package, shown in headers.items())
    _, answer = quiet([*compiler, "-x", "c++", "-E", "-P", "-"], stdin=asked)
    return [*lacks, *re.findall(r"^lacks (\S+)$", answer, re.M)]


def install_debian(packages: list[str]) -> None:
    """Installs them. Without the rights, or without apt, it exits with 2 and says what to install, unless all are
    optional."""
    needed = [package for package in packages if package not in OPTIONAL]
    if not shutil.which("apt-get"):
        rows = "".join(f"\n  {package:20} {PACKAGES.get(package, '')}" for package in needed)
        if needed:
            fail(f"this system lacks what Debian has in these packages; install it, then try again:{rows}", 2)
        return
    prefix = _root_prefix()
    if prefix is None and not needed:
        return
    step(f"installing Debian packages: {' '.join(packages)}")
    line = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    if prefix is None:
        fail(f"these packages are missing; run this once, then try again:\n  sudo {' '.join(line)}", 2)
    command = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", *line]
    show(command)
    if quiet(command)[0] != 0:
        # A bare machine has no package lists yet, or old ones.
        run_silently([*prefix, "apt-get", "update", "-qq"])
        run_silently(command)


def _make_venv() -> str:
    python = VENV / "bin" / "python"
    if python.exists() and quiet([python, "-c", "import pip"])[0] == 0:
        return str(python)
    if quiet([sys.executable, "-c", "import ensurepip"])[0] != 0:
        install_debian(["python3-venv"])
    step("creating .venv")
    run([sys.executable, "-m", "venv", "--clear", VENV])
    return str(python)


def _may_get(python: str, what: str) -> bool:
    """Whether it gets what it lacks: .venv does; the owner of another one is asked, or has said yes before."""
    if Path(python).is_relative_to(VENV) or os.environ.get(MAY_INSTALL) == "1":
        return True
    if sys.stdin.isatty():
        return input(f"dev: {python} gets {what}. Go on? [y/N] ").strip().lower() in ("y", "yes")
    step(f"{python} lacks {what}; {MAY_INSTALL}=1 lets dev put it there")
    return False


def _refused(python: str) -> None:
    fail(f"{python} stays as it is\n  try: without ABELE_PYTHON, dev makes .venv and leaves your interpreter alone", 2)


def _pip(python: str, arguments: list, check: bool = True) -> str | None:
    """Installs; what pip says is shown only where that fails, which ends dev.

    check: if not, a failure is the caller's. Returns: None, or what pip said when it failed.
    """
    command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile", *arguments]
    if check:
        return run_silently(command)
    show(command)
    status, text = quiet(command)
    return text if status else None


def pinned(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    pins = [line.split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {dist.lower().replace("_", "-"): version for dist, version in pins}


def install_pinned(python: str, name: str, info: dict, options=(), check: bool = True) -> bool:
    """Installs the pins of a requirements file. An interpreter that is not ours keeps the versions it has.

    options: of pip. check: fail if pip does. Returns: whether all of them are there.
    """
    ours = Path(python).is_relative_to(VENV)
    want = [
        f"{dist}=={version}"
        for dist, version in pinned(name).items()
        if dist not in info["installed"] or (ours and info["installed"][dist] != version)
    ]
    if want:
        if not _may_get(python, " ".join(want)):
            return _refused(python) if check else False
        step(f"installing what {name} pins: {' '.join(want)}")
        failure = _pip(python, [*options, *want], check=check)
        print(failure or "", end="", flush=True)
        return failure is None
    return True


def release(version: str) -> tuple[int, ...]:
    """Major and minor number."""
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])


def _install_torch(python: str, info: dict) -> None:
    """A CPU build of torch, unless the interpreter has a torch that is new enough. Never one that brings CUDA."""
    if info["torch"]:
        if release(info["torch"]) >= OLDEST_TORCH:
            return
        if not Path(python).is_relative_to(VENV):
            fail(
                f"{python} has torch {info['torch']}; at least {'.'.join(map(str, OLDEST_TORCH))} is needed.\n"
                "  try: upgrade it, or unset ABELE_PYTHON and let dev make its own .venv"
            )
    if not _may_get(python, TORCH):
        _refused(python)
    step(f"installing {TORCH} (CPU build, about 200 MB)")
    if _pip(python, [f"{TORCH}+cpu"], check=False) is None:
        return
    step("no wheel named +cpu in the package index; looking at the plain one")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        _pip(python, ["--dry-run", "--ignore-installed", "--report", report, TORCH])
        names = [item["metadata"]["name"].lower() for item in json.loads(report.read_text())["install"]]
    cuda = [n for n in names if n.startswith(("nvidia", "cuda")) or n == "triton"]
    if cuda:
        fail(
            f"the package index offers only a CUDA build of {TORCH} ({len(cuda)} packages, e.g. {cuda[0]}).\n"
            "  try: set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU wheels (or PIP_FIND_LINKS to a folder with\n"
            "       the wheel), or ABELE_PYTHON to an interpreter that has torch"
        )
    _pip(python, [TORCH])


_PTH = f"{ROOT / 'python'}\n"


def _is_ours(pth: Path) -> bool:
    """Another tree that shares the interpreter may have written it."""
    return pth.exists() and pth.read_text() == _PTH


def _write_pth(python: str, info: dict) -> None:
    folder = Path(info["site"])
    folder.mkdir(parents=True, exist_ok=True)
    pth = folder / "abele-dev.pth"
    if not _is_ours(pth):
        if not _may_get(python, str(pth)):
            _refused(python)
        step(f"making `import poptorch, abele` work: {pth}")
        pth.write_text(_PTH)


_INSTALLER = "abele's ./dev setup\n"


def write_distribution(site: Path) -> None:
    """What a wheel leaves for importlib.metadata: the version, and entry points, where torch looks for its backends."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    numbers = re.findall(r"ABELE_VERSION_\w+ (\d+)", (ROOT / "include" / "abele" / "version.h").read_text())
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    lines = [[f"[{group}]", *(f"{name} = {at}" for name, at in names.items()), ""] for group, names in groups.items()]
    for old in site.glob("abele-*.dist-info"):
        if not (old / "INSTALLER").exists() or (old / "INSTALLER").read_text() != _INSTALLER:
            return  # an installed wheel's
        shutil.rmtree(old)
    folder = site / f"abele-{'.'.join(numbers)}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: abele\nVersion: {'.'.join(numbers)}\n")
    (folder / "entry_points.txt").write_text("\n".join(sum(lines, [])))
    (folder / "INSTALLER").write_text(_INSTALLER)
    files = [f"{folder.name}/{name}" for name in ("METADATA", "entry_points.txt", "INSTALLER", "RECORD")]
    (folder / "RECORD").write_text("".join(f"{name},,\n" for name in ["abele-dev.pth", *files]))  # for pip uninstall


def write_commands(python: str, folder: Path, tools: Path) -> None:
    """The commands of a wheel: scripts that pyproject.toml names, and links to the tools that a build makes.

    tools: where the build makes them; a link may lead nowhere until it has.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name, function in project["scripts"].items():
        module, _, attribute = function.partition(":")
        script = folder / name
        script.write_text(f"#!{python}\nimport sys\nfrom {module} import {attribute}\nsys.exit({attribute}())\n")
        script.chmod(0o755)
    for name in _programs():
        if name in project["scripts"]:
            continue
        link = folder / name
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(tools / name, folder))


def _programs() -> list[str]:
    """What a build makes of tools/."""
    return [path.stem for path in sorted((ROOT / "tools").rglob("*.cc"))]


def _fingerprint(python: str) -> str:
    digest = hashlib.sha256(f"{python} {os.path.realpath(python)} {_programs()}".encode())
    ours = [ROOT / name for name in ("dev", "requirements.txt", "pyproject.toml")]
    for path in [*ours, *sorted(Path(__file__).parent.glob("*.py"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def setup() -> Toolchain:
    """Everything that building and testing take."""
    asked = os.environ.get("ABELE_PYTHON")
    python = shutil.which(asked) if asked else str(VENV / "bin" / "python")
    if not python:
        fail(f"ABELE_PYTHON={asked} is no program")
    if STAMP.exists():
        state = json.loads(STAMP.read_text())
        if os.path.exists(python) and _is_ours(Path(state["pth"])) and state["fingerprint"] == _fingerprint(python):
            return _toolchain(python, state["scripts"])
    step("setting up")
    if missing := missing_packages():
        install_debian(missing)
    if not asked:
        python = _make_venv()
    info = probe(python)
    if tuple(info["version"]) < (3, 11):
        fail(f"{python} is Python {info['version']}; 3.11 or newer is needed")
    if not info["headers"]:
        install_debian(["python3-dev"])
    _install_torch(python, info)
    install_pinned(python, "requirements.txt", probe(python))
    _write_pth(python, info)
    write_distribution(Path(info["site"]))
    if Path(python).is_relative_to(VENV):
        write_commands(python, Path(info["scripts"]), ROOT / "build" / "dev" / "tools")
    STAMP.parent.mkdir(exist_ok=True)
    state = {
        "fingerprint": _fingerprint(python),
        "scripts": info["scripts"],
        "pth": str(Path(info["site"]) / "abele-dev.pth"),
    }
    STAMP.write_text(json.dumps(state))
    step("set up")
    return _toolchain(python, info["scripts"])


def setup_dev() -> Toolchain:
    """As setup, and the tools of format and lint."""
    tools = setup()
    if not all(Path(tools.scripts, name).exists() for name in ("clang-format", "ruff")):
        install_pinned(tools.python, "requirements-dev.txt", probe(tools.python))
    return tools


def setup_tests() -> Toolchain:
    """As setup, and the optional packages that tests use. Without them those tests say that they are skipped."""
    tools = setup()
    name = "requirements-keras.txt"
    if not install_pinned(tools.python, name, probe(tools.python), ["--no-deps"], check=False):
        step(f"could not install what {name} pins: the tests of abele.keras are skipped")
    install_checkers(tools)
    return tools


def install_checkers(tools: Toolchain) -> None:
    """The type checkers. Without them their tests say that they are skipped."""
    name = "requirements-types.txt"
    if not install_pinned(tools.python, name, probe(tools.python), check=False):
        step(f"could not install what {name} pins: the tests of types are skipped")


def setup_fuzz() -> Toolchain:
    """As setup, and the compiler that has libFuzzer."""
    tools = setup()
    fuzzer = 'extern "C" int LLVMFuzzerTestOneInput(const char*, long) { return 0; }'
    linked = ["clang++-19", "-fsanitize=fuzzer", "-x", "c++", "-o", os.devnull, "-"]
    if not shutil.which(linked[0]) or quiet(linked, stdin=fuzzer)[0] != 0:
        install_debian(["clang-19", "libclang-rt-19-dev"])
    return tools


def setup_models() -> Toolchain:
    """As setup, and the libraries of the walk over published models, in build/models."""
    tools = setup()
    pins, folder = ROOT / "requirements-models.txt", ROOT / "build" / "models"
    stamp = folder / "installed.txt"
    if not stamp.exists() or stamp.read_text() != pins.read_text():
        step(f"installing what {pins.name} pins into build/models")
        _pip(tools.python, ["--no-deps", "--upgrade", "--target", folder, "-r", pins])
        stamp.write_text(pins.read_text())
    return tools


def setup_docs(tools: Toolchain) -> None:
    """Installs what only the documentation's site needs."""
    if not shutil.which("doxygen"):
        install_debian(["doxygen"])
    install_pinned(tools.python, "requirements-docs.txt", probe(tools.python))


def _toolchain(python: str, scripts: str) -> Toolchain:
    path = os.pathsep.join([scripts, os.environ.get("PATH", "")])
    # The tests start hundreds of processes that import torch, which takes three times as long without bytecode. Some
    # machines forbid it beside the sources.
    bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(ROOT / "build" / "bytecode")}
    return Toolchain(python, scripts, {"PATH": path, "PYTHONPATH": str(ROOT / "python"), **bytecode})

"""Release wheels: one for each CPython that has torch, against that torch."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from . import setup as machine
from . import shell
from .shell import ROOT, quiet, run, run_silently, step

FOLDER = ROOT / "build" / "wheels"
VERSIONS = ((3, 11), (3, 12), (3, 13))
# Torch brings its libraries, the wheel its own; programs have paths to both (tools/CMakeLists.txt).
NOT_PACKED = ("libtorch*", "libc10*", "libabele*")
BUILD = "from scikit_build_core.build import build_wheel; build_wheel({!r})"


@dataclass
class Interpreter:
    path: str
    info: dict  # as setup.PROBE tells it

    def wrong(self) -> str | None:
        """The reason why no wheel can be built for it."""
        if not self.info:
            return "it cannot be run"
        version, torch = tuple(self.info["version"]), self.info["torch"]
        if version not in VERSIONS:
            return f"it is Python {'.'.join(map(str, version))}"
        if torch is None:
            return "it has no torch"
        if machine.release(torch) < machine.OLDEST_TORCH:
            return f"its torch is {torch}"
        return None if self.info["headers"] else "it has no headers (Python.h)"


def interpreters(names: list[str]) -> list[Interpreter]:
    """The first of each version that a wheel can be built for; of the others it says why not."""
    found = {}
    for name in names:
        path = shutil.which(name)
        status, text = quiet([path, "-c", machine.PROBE]) if path else (1, "")
        each = Interpreter(path or name, json.loads(text.splitlines()[-1]) if status == 0 else {})
        version = tuple(each.info.get("version", ()))
        if version in found:
            continue
        if wrong := each.wrong():
            step(f"no wheel for {name}: {wrong}")
        else:
            found[version] = each
    return list(found.values())


def build(tools: machine.Toolchain, names: list[str], jobs: str, manylinux: bool) -> list[Path]:
    """names: of interpreters; if empty, the one of tools and the VERSIONS in PATH."""
    wheels = []
    for each in interpreters(names or [tools.python, *("python{}.{}".format(*version) for version in VERSIONS)]):
        step(f"a wheel for {each.path}, torch {each.info['torch']}")
        folder = FOLDER / "new"
        shutil.rmtree(folder, ignore_errors=True)
        env = {**tools.env, "PYTHONPATH": _backend(tools, each), "CMAKE_BUILD_PARALLEL_LEVEL": jobs}
        shell.build([each.path, "-c", BUILD.format(str(folder))], env=env)
        if manylinux:
            _repair(tools, folder)
        (wheel,) = folder.glob("*.whl")
        wheels.append(wheel.rename(FOLDER / wheel.name))
    return wheels


def _backend(tools: machine.Toolchain, each: Interpreter) -> str:
    """A folder with the build backend, for an interpreter that has not got the pinned one; it is pure Python."""
    name, folder = "scikit-build-core", ROOT / "build" / "wheel" / "backend"
    pin = machine.pinned("requirements.txt")[name]
    if each.info["installed"].get(name) == pin:
        return ""
    if not (folder / f"scikit_build_core-{pin}.dist-info").exists():
        run_silently([tools.python, "-m", "pip", "install", "-q", "--upgrade", "--target", folder, f"{name}=={pin}"])
    return str(folder)


def _repair(tools: machine.Toolchain, folder: Path) -> None:
    """Renames the wheel of a folder for the oldest systems that have what it needs, as auditwheel finds it."""
    machine.install_pinned(tools.python, "requirements-wheel.txt", machine.probe(tools.python))
    (wheel,) = folder.glob("*.whl")
    excluded = [word for pattern in NOT_PACKED for word in ("--exclude", pattern)]
    run([tools.tool("auditwheel"), "repair", *excluded, "--wheel-dir", folder, wheel], env=tools.env)
    wheel.unlink()

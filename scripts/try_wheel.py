#!/usr/bin/env python3
"""Tries wheels as a user has them: in an environment of its own, far from this tree, with each command and no compiler.

    scripts/try_wheel.py                 all that ./dev wheel has built
    scripts/try_wheel.py abele-*.whl     these

A wheel is tried by this interpreter or by the pythonX.Y in PATH that it is for, which must have torch: the environment
gets links to its packages. Prints a line with its seconds for each command. Fails at the first one that does not do
what it should, or where a wheel has no interpreter.
"""

import argparse
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# A PopTorch program of two stages. It trains, and leaves what the commands take.
PROGRAM = """
import sys
import abele, poptorch, torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = poptorch.BeginBlock(torch.nn.Linear(8, 16), "first", ipu_id=0)
        self.second = poptorch.BeginBlock(torch.nn.Linear(16, 4), "second", ipu_id=1)

    def forward(self, x, target):
        out = self.second(torch.relu(self.first(x)))
        return out, torch.nn.functional.cross_entropy(out, target)

torch.manual_seed(0)
x = torch.randn(64, 8)
target = x[:, :4].argmax(1)
net, options = Net(), poptorch.Options().showCompilationProgressBar(False)
options.Training.gradientAccumulation(4)
step = poptorch.trainingModel(net, options, torch.optim.SGD(net.parameters(), lr=0.5))
losses = [step(x[:32], target[:32])[1].item() for _ in range(20)]
assert losses[-1] < losses[0] / 2, losses
if len(sys.argv) == 1:
    abele.save_tensors("data.safetensors", {"x": x, "target": target})
    step.save("program.poptorch")
print("the loss fell to a part")
"""
COSTS = {"stages": [{"forward_ns": 1000, "backward_ns": 2000}] * 2}

# The only programs in PATH besides the wheel's own.
PROGRAMS = ("sh", "ls")

# Command and what it must print. In this order: the third leaves files for the later ones.
COMMANDS = [
    ("abele --version", r"^abele \d+\.\d+\.\d+$"),
    ("abele env", "a pipeline of two stages trains"),
    ("python program.py", "the loss fell"),
    ("abele --help", r"^  env(.|\n)*^  run(.|\n)*^  verify(.|\n)*^  report"),
    ("abele opt --list-passes", "dce"),
    ("abele sim costs.json --format=json", "bubble"),
    ("""PVTI_OPTIONS='{"enable": "true", "directory": "traces"}' python program.py only""", "the loss fell"),
    ("abele report traces/*.pvti -o page.html && ls -s page.html", "page.html"),
    ("""python -c "import pva, sys; pva.openTrace(sys.argv[1])" traces/*.pvti""", ""),
    ("abele run program.poptorch --data data.safetensors --inputs=x,target --steps=6", r"^step 6  loss \d"),
    ("abele verify program.py only", "equal"),
    ("abele monitor", ""),
    ("gc-monitor", "."),
    ("gc-info -l", "Graphcore device listing"),
    ("gc-inventory", "ipu utilisation"),
    ("gc-reset -d 0", "emulated"),
    ("poprun --num-instances=2 sh -c 'echo process $RANK'", "process 1"),
]


def packages_of(*names):
    """All distributions that these need."""
    found, todo = {}, list(names)
    while todo:
        name = todo.pop().lower()
        if name not in found:
            try:
                found[name] = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                continue  # it belongs to another system, or to an extra
            todo += [re.match(r"[\w.-]+", each)[0] for each in found[name].requires or () if "extra ==" not in each]
    return found.values()


def link_packages(site):
    """Links torch, and what it needs, into an environment: a copy of it would take minutes."""
    for package in packages_of("torch", "numpy"):
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(package.locate_file(top)))


def call(command, folder, *path):
    """Output and seconds of a command that must succeed, which sees nothing of this tree."""
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG", "TMPDIR")}
    env = {**kept, "PATH": os.pathsep.join(map(str, path))}
    begin = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=env, shell=True, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr, time.perf_counter() - begin


def show(text, seconds):
    print(f"{seconds:7.1f} s  {text}", flush=True)


def try_find_package(package, folder):
    """A C++ program builds against the wheel, where there is CMake, and trains without Python."""
    tools = Path(sys.executable).parent  # the environment may have CMake where the system has none
    path = (tools, "/usr/bin", "/bin")
    if shutil.which("cmake", path=os.pathsep.join(map(str, path))):
        shutil.copytree(ROOT / "test" / "consumer", folder / "consumer")
        _, seconds = call(
            f"cmake -S consumer -B built -DCMAKE_PREFIX_PATH={package} && cmake --build built", folder, *path
        )
        show("find_package(Abele) in CMake, and a build against it", seconds)
        text, seconds = call("built/consumer", folder)
        show("built/consumer", seconds)
        if "bubble" not in text:
            sys.exit(f"built/consumer does not train:\n{text}")


def try_wheel(wheel, folder):
    wheel = shutil.copy(wheel, folder)  # away from the tree
    venv, programs = folder / "environment", folder / "programs"
    programs.mkdir()
    for name in PROGRAMS:
        (programs / name).symlink_to(shutil.which(name))
    _, seconds = call(f"{sys.executable} -m venv {venv}", folder, programs)
    show("python -m venv environment", seconds)
    (site,) = venv.glob("lib/python*/site-packages")
    link_packages(site)
    _, seconds = call(f"environment/bin/pip install --no-index {wheel}", folder, programs)
    show(f"pip install {Path(wheel).name} ({Path(wheel).stat().st_size / 2**20:.1f} MiB)", seconds)
    (folder / "program.py").write_text(PROGRAM)
    (folder / "costs.json").write_text(json.dumps(COSTS))
    for command, expected in COMMANDS:
        text, seconds = call(command, folder, venv / "bin", programs)
        if not re.search(expected, text, re.M):
            sys.exit(f"{command} does not print {expected!r}:\n{text}")
        show(command if len(command) < 100 else f"{command[:97]}...", seconds)
    moved = venv.rename(folder / "moved") / "bin"
    command = "abele run program.poptorch --data data.safetensors --inputs=x,target --steps=2"
    _, seconds = call(command, folder, moved, programs)
    show("abele run in an environment that was moved", seconds)
    usual = ("/usr/bin", "/bin")
    libraries, _ = call(f"ldd {moved}/abele-run", folder, *usual)
    if str(ROOT) in libraries:
        sys.exit(f"abele-run takes libraries of this tree:\n{libraries}")
    if shutil.which("g++"):  # the headers are there, and enough for a custom operator
        (folder / "operator.cc").write_text("#include <abele/custom_op.h>\n")
        (package,) = moved.parent.glob("lib/python*/site-packages/abele")
        _, seconds = call(f"g++ -std=c++20 -fsyntax-only -I{package}/include operator.cc", folder, *usual)
        show("g++ operator.cc", seconds)
        try_find_package(package, folder)


def interpreter_of(wheel):
    """This one, or the one in PATH that a wheel's name asks for."""
    major, minor = re.search(r"-cp(\d)(\d+)-", wheel.name).groups()
    if sys.version_info[:2] == (int(major), int(minor)):
        return sys.executable
    return shutil.which(f"python{major}.{minor}") or sys.exit(f"{wheel.name}: there is no python{major}.{minor}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", type=Path, nargs="*", metavar="WHEEL", help="default: those in build/wheels")
    wheels = parser.parse_args().wheels or sorted((ROOT / "build" / "wheels").glob("*.whl"))
    if not wheels:
        sys.exit("there is no wheel; try: ./dev wheel")
    for wheel in wheels:
        python = interpreter_of(wheel)
        if python != sys.executable:
            if subprocess.run([python, __file__, wheel.resolve()], check=False).returncode != 0:
                sys.exit(f"{wheel.name}: failed")
            continue
        print(f"{wheel.name}, {sys.executable}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            try_wheel(wheel, Path(folder))
    print("the wheels do what they should")


if __name__ == "__main__":
    main()

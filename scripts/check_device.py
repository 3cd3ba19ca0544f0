"""Builds Abele against the torch of this interpreter and checks and times it on the accelerator that torch sees.

Writes one JSON, again whenever something is known, so that nothing is lost where a step hangs, somebody interrupts it
or the machine goes away. A step that fails is noted with the end of its output, and the next one runs; steps that need
its result are skipped by name. The most telling come first, and none takes more than its share of the time that is
left; what there was no time for is named. Nothing is downloaded or installed. docs/device_check.md has the form of the
JSON.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FORMAT = "abele device check 1"
OLDEST_TORCH = (2, 11)
TAIL = 4000  # characters of a step's output that the JSON keeps
WORKLOADS = ("gpt-small", "resnet-small", "lstm", "bert-mini", "deep-narrow")  # the most telling first
LEAST = 5  # seconds: nothing is begun with less
SHARE = 0.5  # the share of the remaining time that one of many runs may take

# Asked of torch in a process of its own: a driver that is broken must not end this one.
PROBE = """
import json, os, sys, sysconfig
import torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "hip": getattr(torch.version, "hip", None),
         "include": sysconfig.get_path("include"), "libraries": os.path.join(os.path.dirname(torch.__file__), "lib"),
         "type": "cpu", "devices": [], "threads": torch.get_num_threads()}
if torch.accelerator.is_available():
    kind = torch.accelerator.current_accelerator().type
    found["type"] = kind
    module = getattr(torch, kind)
    for i in range(torch.accelerator.device_count()):
        properties = module.get_device_properties(i) if hasattr(module, "get_device_properties") else None
        found["devices"].append({"name": getattr(properties, "name", kind),
                                 "bytes": getattr(properties, "total_memory", None)})
print(json.dumps(found))
"""

# Header, Debian's package, and what is left out without it. spdlog brings its own fmt or includes another one.
HEADERS = (
    ("fmt/format.h", "libfmt-dev", "spdlog"),
    ("spdlog/logger.h", "libspdlog-dev", "build"),
    ("nlohmann/json.hpp", "nlohmann-json3-dev", "build"),
    ("xxhash.h", "libxxhash-dev", "build"),
    ("Python.h", "python3-dev", "build"),
    ("gtest/gtest.h", "libgtest-dev", "conformance"),
)


class Failed(Exception):
    """The step did not do what it is for."""


class Skipped(Exception):
    """The step was not tried, and why."""


class OutOfTime(Skipped):
    """It was stopped, or not begun, because the time for everything is over."""


class Interrupted(BaseException):
    """A signal stops the whole check; its name."""


class Check:
    def __init__(self, given, clock=time.monotonic):
        self.given = given
        self.clock = clock
        self.begin = clock()
        self.tests = True
        self.runs = {}  # (workload, system): figures
        self.build = given.build.resolve()
        self.site = given.built.resolve() if given.built else self.build / "site"
        self.figures = {}
        self.output = ""
        self.report = {
            "format": FORMAT,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": 0.0,
            "minutes": given.minutes,
            "interrupted": None,
            "device": "cpu",
            "abele_device": "cpu",
            "machine": {"system": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count()},
            "missing": [],
            "steps": [],
        }

    # --- steps, in their order ----------------------------------------------------------------------------------------

    def machine(self):
        """versions of torch, compilers and tools, names of devices"""
        machine = self.report["machine"]
        for tool in ("g++", "cmake", "ninja", "ccache", "git"):
            machine[tool] = self.version_of(tool)
        machine["commit"] = self.commit()
        imports = "".join(f"import {module}\n" for module in self.given.modules)
        found = json.loads(self.run([sys.executable, "-c", imports + PROBE], 120, share=SHARE).splitlines()[-1])
        machine.update(found)
        self.report["device"] = found["type"]
        rows = (ROOT / "src/device/backends.def").read_text()
        if found["type"] != "cpu" and '"accelerator"' in rows:
            self.report["abele_device"] = found["type"]
        version = tuple(int(part) for part in found["torch"].split("+")[0].split(".")[:2])
        if version < OLDEST_TORCH:
            raise Failed(f"torch {found['torch']}; Abele needs {'.'.join(map(str, OLDEST_TORCH))} or newer")

    def headers(self):
        """libraries of headers that the build needs; looked for in --headers too"""
        self.skip_if_built()
        if self.tool("g++") is None:
            raise Failed("no g++")
        include = self.report["machine"].get("include")
        folders = [f"-I{folder}" for folder in (*self.given.headers, include) if folder]
        for header, package, needed_by in HEADERS:
            command = [self.tool("g++"), "-std=c++20", *folders, "-E", "-x", "c++", "-", "-o", os.devnull]
            try:
                self.run(command, 60, text=f"#define SPDLOG_HEADER_ONLY\n#include <{header}>\n")
            except Failed:
                missing = {"header": header, "package": package, "needed_by": needed_by}
                self.report["missing"].append(missing)
        stops = [m["header"] for m in self.report["missing"] if m["needed_by"] == "build"]
        if "spdlog/logger.h" in stops:
            stops = [m["header"] for m in self.report["missing"] if m["needed_by"] in ("build", "spdlog")]
        if stops:
            raise Failed(f"missing: {', '.join(stops)}; give a folder that has them with --headers")

    def configure(self):
        """CMake against the torch of this interpreter"""
        self.skip_if_built()
        cmake = self.tool("cmake")
        if cmake is None:
            raise Failed("no cmake")
        self.needs("headers")
        ninja = self.tool("ninja")
        self.tests = not any(m["header"] == "gtest/gtest.h" for m in self.report["missing"])
        flags = " ".join(f"-isystem {folder}" for folder in self.given.headers)
        self.run(
            [
                cmake,
                "-S",
                ROOT,
                "-B",
                self.build,
                *(["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []),
                "-DCMAKE_BUILD_TYPE=Release",
                f"-DCMAKE_CXX_FLAGS={flags}",
                f"-DPython_EXECUTABLE={sys.executable}",
                "-DABELE_TOOLS=OFF",
                f"-DABELE_TESTS={'ON' if self.tests else 'OFF'}",
                "-DSKBUILD=ON",  # the module stays in the build folder, and a developer's own build as it is
            ],
            120,
        )

    def build_(self):
        """the C++ core, the Python module, the conformance suite"""
        if self.given.built:
            self.check_built()
            return
        self.needs("configure")
        jobs = str(os.cpu_count() or 1)
        targets = ["abele_python", *(["unit_device"] if self.tests else [])]
        # A third of the time remains for the checks themselves.
        command = [self.tool("cmake"), "--build", self.build, "-j", jobs, "--target", *targets]
        self.run(command, 3600, reserve=60 * self.given.minutes / 3)
        shutil.rmtree(self.site, ignore_errors=True)
        install = [self.tool("cmake"), "--install", self.build, "--component", "python", "--prefix", self.site]
        self.run(install, 60)
        for package in sorted(p.parent for p in (ROOT / "python").glob("*/__init__.py")):
            ours = shutil.ignore_patterns("*.so*", "__pycache__")
            shutil.copytree(package, self.site / package.name, ignore=ours, dirs_exist_ok=True)

    def conformance(self):
        """the suite of the device contract, on every kind of device of the build"""
        self.needs("build")
        if not self.tests:
            raise Skipped("no googletest")
        suite = (self.site if self.given.built else self.build / "test") / "unit_device"
        if self.given.built and not suite.exists():
            raise Skipped(f"no {suite}")
        self.build.mkdir(parents=True, exist_ok=True)
        results = self.build / "conformance.json"
        results.unlink(missing_ok=True)
        command = [suite, f"--gtest_output=json:{results}"]
        try:
            self.run(command, 120, env=self.environment(), share=SHARE)
        finally:
            if results.exists():
                told = json.loads(results.read_text())
                self.figures.update({key: told[key] for key in ("tests", "failures", "disabled")})

    def parity(self):
        """losses of steps on the device against eager PyTorch on the same device"""
        self.needs("build")
        different = []
        for workload, name in self.pairs():
            eager, ours = self.steps_of(workload, "eager"), self.steps_of(workload, name)
            row = self.figures.setdefault(workload, {"losses": eager.get("losses")})
            row[name] = self.comparison(eager, ours)
            if row[name] not in ("equal", "skipped"):
                different.append(f"{workload} {name}")
            self.write()
        if different:
            raise Failed(f"not equal: {', '.join(different)}")
        self.require_some([self.runs[pair] for pair in self.pairs()])

    def trainings(self):
        """short trainings of many networks, strategies and variants against eager PyTorch on the device"""
        self.needs("build")
        if self.report["device"] == "cpu":
            raise Skipped("no accelerator")
        seconds = 0.25 * self.left()
        command = [sys.executable, ROOT / "scripts" / "device_trainings.py", self.report["device"]]
        command += ["--seconds", f"{seconds:.0f}"]
        command += [word for module in self.given.modules for word in ("--import", module)]
        self.figures.update(json.loads(self.run(command, 240, env=self.environment(), share=SHARE).splitlines()[-1]))
        bad = [*self.figures["different"], *self.figures["failed"]]
        if bad:
            raise Failed(f"not as eager: {', '.join(bad)}")

    def links(self):
        """what copies between two devices, and between host and device, take"""
        if self.report["device"] == "cpu":
            raise Skipped("no accelerator")
        command = [sys.executable, ROOT / "scripts" / "device_links.py", self.report["device"], *self.given.modules]
        self.figures.update(json.loads(self.run(command, 60, share=SHARE / 2).splitlines()[-1]))

    def smoke(self):
        """step times against eager PyTorch and torch.compile, host time of a step"""
        self.needs("build")
        wrong = []
        # torch.compile last: it may take all the time there is, and says nothing about us where it fails.
        pairs = [*self.pairs(), *((workload, "compile") for workload in self.given.workloads)]
        for workload, name in pairs:
            row = self.figures.setdefault(workload, {})
            for system in dict.fromkeys(("eager", name)):
                run = self.steps_of(workload, system)
                row[system] = {key: value for key, value in run.items() if key != "losses"}
                if "error" in run and system != "compile":
                    wrong.append(f"{workload} {system}")
            self.add_ratios(row)
            self.write()
        if wrong:
            raise Failed(f"failed: {', '.join(dict.fromkeys(wrong))}")
        self.require_some([self.runs[pair] for pair in pairs])

    # --- what they share ----------------------------------------------------------------------------------------------

    def systems(self):
        """Ours: one and two devices of the model on one accelerator; with a second one, an accelerator for each; what
        only accelerators have: graphs of the device, and tensors in the host's memory."""
        if self.report["abele_device"] == "cpu":
            return ("abele-1", "abele-2")
        has_two = len(self.report["machine"]["devices"]) > 1
        apart = ["abele-2-apart"] if has_two else []
        return ("abele-1", "abele-2", *apart, "abele-1-graphs", "abele-2-graphs", "abele-2-off-chip")

    def pairs(self):
        """(workload, system of ours), the most telling first: what everybody uses on all workloads, then variants."""
        first = [(workload, name) for workload in self.given.workloads for name in self.systems()[:2]]
        return [*first, *((workload, name) for name in self.systems()[2:] for workload in self.given.workloads)]

    def abele_devices(self, system):
        """ABELE_DEVICE"""
        kind = self.report["abele_device"]
        return kind if kind == "cpu" else f"{kind}:0,{kind}:1" if system.endswith("-apart") else f"{kind}:0"

    def steps_of(self, workload, system):
        """One system trains one workload, in a process of its own and once for all steps that ask. Returns its figures;
        with "error" or "skipped" beside those that there are, where something was in the way."""
        if (workload, system) not in self.runs:
            self.runs[workload, system] = self.train(workload, system)
            if why := self.runs[workload, system].get("skipped"):
                self.skipped.append({"run": f"{workload} {system}", "why": why})
        return self.runs[workload, system]

    def train(self, workload, system):
        ours = system.startswith("abele")
        device = self.report["abele_device" if ours else "device"]
        command = [sys.executable, ROOT / "scripts" / "device_steps.py", workload, system, device]
        command += ["--steps", "4", "--samples", str(self.given.samples)]
        command += [word for module in self.given.modules for word in ("--import", module)]
        begin, self.output = self.clock(), ""
        try:
            # Too little time to begin: less than the quickest run took, or than another system had for this workload.
            quickest = min((run["seconds"] for run in self.runs.values() if "step_ms" in run), default=0)
            if self.left() < quickest:
                raise OutOfTime(f"the {self.given.minutes} minutes are nearly over")
            cut = [run["seconds"] for (name, _), run in self.runs.items() if name == workload and "skipped" in run]
            if SHARE * self.left() < max(cut, default=0):
                raise OutOfTime(f"{workload} did not end in {max(cut):.0f} s, and there is less now")
            self.run(command, 90, env=self.environment(system), share=SHARE)
            problem = {}
        except Failed as failure:
            problem = {"error": str(failure), "output": self.output[-600:]}
        except OutOfTime as why:
            problem = {"skipped": str(why)}
        lines = [line for line in self.output.splitlines() if line.startswith('{"losses"') and line.endswith("}")]
        figures = json.loads(lines[-1]) if lines else {}
        return {**figures, "seconds": round(self.clock() - begin, 2), **problem}

    @staticmethod
    def require_some(runs):
        """Throws where there was time for none."""
        if runs and all("skipped" in run for run in runs):
            raise OutOfTime(runs[0]["skipped"])

    def add_ratios(self, row):
        for base in ("eager", "compile"):
            for ours in self.systems():
                both = row.get(ours, {}).get("step_ms"), row.get(base, {}).get("step_ms")
                if all(both):
                    row[f"{ours} / {base}"] = round(both[0] / both[1], 3)
        for name in ("abele-1", "abele-2"):
            both = row.get(f"{name}-graphs", {}).get("step_ms"), row.get(name, {}).get("step_ms")
            if all(both):
                row[f"{name}-graphs / {name}"] = round(both[0] / both[1], 3)

    @staticmethod
    def comparison(eager, ours):
        """Compares the losses of two runs."""
        for run in (eager, ours):
            if "losses" not in run:
                return "skipped" if "skipped" in run else run["error"]
        expected, found = eager["losses"], ours["losses"]
        if expected == found:
            return "equal"
        pairs = zip(sum(expected, []), sum(found, []), strict=False)
        return f"differ by {max(abs(a - b) for a, b in pairs):.3e}"

    def environment(self, system="abele-1"):
        given = os.environ.get("PYTHONPATH")
        env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(self.site), *([given] if given else [])]))
        env["ABELE_DEVICE"] = self.abele_devices(system)
        if self.report["abele_device"] == "cpu":
            env.pop("ABELE_DEVICE")
        if self.given.built:
            folders = [str(self.site), self.report["machine"].get("libraries"), os.environ.get("LD_LIBRARY_PATH")]
            env["LD_LIBRARY_PATH"] = os.pathsep.join(folder for folder in folders if folder)
        env["ABELE_UNPROVEN_KERNELS"] = "1"  # refused elsewhere until this check has shown them
        env["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # sums of products in the same order, every time
        return env

    def left(self, reserve=0):
        """Seconds. Throws OutOfTime."""
        seconds = 60 * self.given.minutes - (self.clock() - self.begin) - reserve
        if seconds < LEAST:
            raise OutOfTime(f"the {self.given.minutes} minutes are over")
        return seconds

    def skip_if_built(self):
        if self.given.built:
            raise Skipped("the build was made elsewhere")

    def check_built(self):
        """Loads a build from elsewhere beside the torch of this machine."""
        asked = "from abele._native import core; print(core().torch_version)"
        self.figures["built_for"] = self.run([sys.executable, "-c", asked], 60, env=self.environment()).splitlines()[-1]

    def needs(self, step):
        for entry in self.report["steps"]:
            if entry["name"] == step and entry["result"] != "passed":
                raise Skipped(f"{step}: {entry['result']}")

    def tool(self, name):
        return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))

    def version_of(self, name):
        path = self.tool(name)
        if path is None:
            return None
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        return (done.stdout or done.stderr).splitlines()[0].strip() if done.returncode == 0 else "broken"

    def commit(self):
        if self.tool("git") is None:
            return None
        command = [self.tool("git"), "-C", ROOT, "describe", "--always", "--dirty"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None

    def run(self, command, seconds, text=None, env=None, share=1.0, reserve=0):
        """Returns what the command printed. Throws Failed where it fails or takes longer than `seconds`, OutOfTime
        where it would take more than its share of the time that is left. Its children end with it."""
        command = [str(word) for word in command]
        told = " ".join(Path(word).name if word.startswith(os.sep) else word for word in command[:4])
        bound = share * self.left(reserve)
        try:
            status = self.execute(command, min(seconds, bound), text, env)
        except subprocess.TimeoutExpired:
            if bound < seconds:
                raise OutOfTime(f"there were only {bound:.0f} s for it: {told}") from None
            raise Failed(f"took more than {seconds:.0f} s: {told}") from None
        if status != 0:
            raise Failed(f"exit status {status}: {told}")
        return self.output

    def execute(self, command, seconds, text, env):
        """Returns the exit status; what was printed is in self.output, also of a command that took longer."""
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if text is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=env,
            cwd=ROOT,
            start_new_session=True,
        )
        try:
            self.output, _ = process.communicate(text, timeout=seconds)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            self.output, _ = process.communicate()
            raise
        return process.returncode

    def take(self, name, step):
        self.figures, self.skipped, self.output = {}, [], ""
        entry = {"name": name, "result": "running", "seconds": 0.0, "figures": self.figures, "skipped": self.skipped}
        self.report["steps"].append(entry)
        begin = self.clock()
        try:
            self.write()
            if self.report["interrupted"]:
                raise Skipped(f"interrupted by {self.report['interrupted']}")
            if self.given.dry_run and name != "machine":
                raise Skipped("dry run")
            if name != "smoke" or not self.runs:  # it tells what runs of parity have measured, too
                self.left()
            step()
            entry["result"] = "passed"
        except Skipped as reason:
            entry.update(result="skipped", why=str(reason))
        except Interrupted as signal_name:
            self.report["interrupted"] = str(signal_name)
            entry.update(result="failed", why=f"interrupted by {signal_name}", output=self.output[-TAIL:])
        except Exception as failure:
            entry.update(result="failed", why=f"{failure}", output=self.output[-TAIL:])
            if not isinstance(failure, Failed):
                entry["why"] = f"{type(failure).__name__}: {failure}"
        entry["seconds"] = round(self.clock() - begin, 2)
        self.write()
        print(f"{name:12} {entry['result']:8} {entry['seconds']:7.1f} s  {entry.get('why', '')}", flush=True)
        for run in self.skipped:
            print(f"{'':12} skipped  {run['run']}: {run['why']}", flush=True)

    def write(self):
        self.report["seconds"] = round(self.clock() - self.begin, 2)
        whole = self.given.out.with_name(self.given.out.name + ".part")
        whole.write_text(json.dumps(self.report, indent=1) + "\n")
        whole.replace(self.given.out)

    def take_all(self):
        for name, step in self.steps():
            try:
                if name in self.given.only:
                    self.take(name, step)
            except Interrupted as signal_name:  # between two steps
                self.report["interrupted"] = str(signal_name)
        self.write()
        return bool(self.report["interrupted"]) or any(e["result"] == "failed" for e in self.report["steps"])

    def steps(self):
        return (
            ("machine", self.machine),
            ("headers", self.headers),
            ("configure", self.configure),
            ("build", self.build_),
            ("conformance", self.conformance),
            ("trainings", self.trainings),
            ("links", self.links),
            ("parity", self.parity),
            ("smoke", self.smoke),
        )


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--out", type=Path, default=Path("device_check.json"), help="the JSON")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "device", help="where it is built")
    parser.add_argument(
        "--built",
        type=Path,
        help="build nothing: a folder with the installed packages of a build against the same release of torch and of "
        "Python, and perhaps its unit_device",
    )
    parser.add_argument(
        "--headers", type=Path, action="append", default=[], help="a folder of headers; may be repeated"
    )
    parser.add_argument("--minutes", type=float, default=7.5, help="for everything (default 7.5)")
    parser.add_argument("--workloads", type=words, default=list(WORKLOADS), help=f"default {','.join(WORKLOADS)}")
    parser.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        help="a module of Python that brings torch a device; may be repeated",
    )
    parser.add_argument("--samples", type=int, default=7, help="timed steps of each system (default 7)")
    parser.add_argument("--only", type=words, help="steps to take, with what they need already built")
    parser.add_argument("--list", action="store_true", help="print the steps and stop")
    parser.add_argument("--dry-run", action="store_true", help="take the first step alone, write the others as skipped")
    return parser.parse_args(arguments)


def interrupt(number, _frame):
    """Once: what comes later finds the JSON being written."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(signal.Signals(number).name)


def main():
    given = parse()
    given.headers = [folder.resolve() for folder in given.headers]
    check = Check(given)
    names = [name for name, _ in check.steps()]
    if given.list:
        for name, step in check.steps():
            print(f"{name:12} {step.__doc__}")
        return 0
    given.only = given.only or names
    unknown = set(given.only) - set(names)
    if unknown:
        print(f"no step {', '.join(sorted(unknown))}; steps: {', '.join(names)}", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    failed = check.take_all()
    print(given.out)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

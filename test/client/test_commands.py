"""The commands that a user types: abele and its parts, gc-info, gc-inventory, poprun. Source: spec tools.md."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import abele
import poptorch
import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ABELE_BUILD_DIR", ROOT / "build" / "dev"))
sys.path.insert(0, str(ROOT / "scripts"))

from devtool import setup as machine  # noqa: E402 (scripts/ is known from here on)


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory):
    """The commands as ./dev setup makes them, of the build that is tested."""
    folder = tmp_path_factory.mktemp("bin")
    machine.write_commands(sys.executable, folder, (ROOT / BUILD).resolve() / "tools")
    return folder


@pytest.fixture
def call(bin_folder):
    """Runs a command as a shell finds it: call("abele", "env", NAME="value")."""

    def called(*words, **variables):
        path = os.pathsep.join([str(bin_folder), os.environ["PATH"]])
        env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "python"), **variables}
        return subprocess.run(words, env=env, text=True, capture_output=True, timeout=300)

    return called


def test_versions_are_one(call):
    header = (ROOT / "include" / "abele" / "version.h").read_text()
    assert all(
        f"_{word} {number}\n" in header
        for word, number in zip(("MAJOR", "MINOR", "PATCH"), abele.__version__.split("."), strict=True)
    )
    assert call("abele", "--version").stdout == f"abele {abele.__version__}\n"
    assert poptorch.__version__.endswith("abele" + abele.__version__.rpartition(".")[0])
    assert "__version__" in dir(abele)


def test_help_lists_what_is_there(call, bin_folder, tmp_path):
    assert re.findall(r"^  (\w+)", call("abele", "--help").stdout, re.M) == [
        "env",
        "run",
        "verify",
        "monitor",
        "report",
        "opt",
        "sim",
    ]
    assert call("abele").returncode == 2
    alone = tmp_path / "abele"
    shutil.copy(bin_folder / "abele", alone)
    (tmp_path / "abele-extra").write_text("#!/bin/sh\necho $0 $1 $2\nexit 3\n")
    (tmp_path / "abele-extra").chmod(0o755)
    (tmp_path / "abele-text").write_text("no program")
    (tmp_path / "abele-folder").mkdir()
    text = subprocess.run([alone, "--help"], text=True, capture_output=True).stdout
    assert re.findall(r"^  (\w+)", text, re.M) == ["extra"]
    done = subprocess.run([alone, "extra", "a b", "--help"], text=True, capture_output=True)
    assert (done.returncode, done.stdout) == (3, f"{tmp_path}/abele-extra a b --help\n")


def test_parts_get_their_arguments(call, tmp_path):
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps({"stages": [{"forward_ns": 1000, "backward_ns": 2000}] * 2}))
    whole, part = call("abele", "sim", str(costs), "--format=json"), call("abele-sim", str(costs), "--format=json")
    assert (whole.returncode, whole.stdout, whole.stderr) == (part.returncode, part.stdout, part.stderr)
    assert whole.returncode == 0 and json.loads(whole.stdout)
    assert "dce" in call("abele", "opt", "--list-passes").stdout


def test_an_unknown_command_is_refused(call):
    done = call("abele", "simm")
    assert done.returncode == 1
    assert "E0901" in done.stderr and "there is no command simm" in done.stderr and "sim" in done.stderr


def test_env_says_what_there_is(call):
    done = call("abele", "env", ABELE_EMULATED_DEVICES="7")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert rows["abele"].startswith(abele.__version__) and sys.executable in rows["python"]
    assert rows["devices"].startswith("7 emulated")
    assert "ABELE_EMULATED_DEVICES=7" in done.stdout
    assert "two stages trains" in rows["works"]


def test_env_says_what_does_not_work(call):
    done = call("abele", "env", ABELE_DEVICE="no_such_device")
    assert done.returncode == 1
    assert "FAILS" in done.stdout and "E0702" in done.stdout


def test_gc_info_lists_devices_and_groups(call):
    lines = call("gc-info", "-l", ABELE_EMULATED_DEVICES="4").stdout.splitlines()
    assert lines[0] == "Graphcore device listing:" and lines[2] == "Partition: p1 [active]"
    assert [line.split(",")[0] for line in lines if line.startswith("-+-")] == [f"-+- Id: [{i}]" for i in range(7)]
    assert lines[3].endswith("IPU#: [3]") and sum(line.startswith(" |---") for line in lines) == 2 + 2 + 4
    assert call("gc-info", "--ipu-count", ABELE_EMULATED_DEVICES="4").stdout == "4\n"
    assert call("gc-info", "--ipu-count", "-d", "6", ABELE_EMULATED_DEVICES="4").stdout == "4\n"
    assert "ipu architecture: ipu2" in call("gc-info", "-d", "0", "--device-info").stdout
    refused = call("gc-info", "-i", "-d", "7", ABELE_EMULATED_DEVICES="4")
    assert refused.returncode == 1 and "ids are 0 to 6" in refused.stderr


def test_gc_info_names_what_is_wrong(call):
    assert "nothing is asked for" in call("gc-info").stderr
    assert "not expected: --lists" in call("gc-info", "--lists").stderr
    for number in ("-1", "x", "10000000000"):
        done = call("gc-info", "--ipu-count", ABELE_EMULATED_DEVICES=number)
        assert done.returncode == 1 and "E0702" in done.stderr and "an integer" in done.stderr


def test_gc_reset_has_nothing_to_do(call):
    done = call("gc-reset", "-d", "6", ABELE_EMULATED_DEVICES="4")
    assert done.returncode == 0 and "device 6 is emulated" in done.stdout
    refused = call("gc-reset", "-d", "7", ABELE_EMULATED_DEVICES="4")
    assert refused.returncode == 1 and "ids are 0 to 6" in refused.stderr


def test_every_program_says_its_version_and_helps(call):
    for program in ("gc-monitor", "gc-info", "gc-inventory", "gc-reset", "abele-monitor"):
        assert call(program, "--version").stdout == f"{program} {abele.__version__}\n"
    assert call("abele", "help", "monitor").stdout == call("abele", "monitor", "--help").stdout != ""
    assert "there is no command nothing" in call("abele", "help", "nothing").stderr


def test_output_that_cannot_be_written_is_an_error(call):
    for command in ("gc-monitor", "gc-info --help", "abele --help", "abele-monitor --json"):
        done = call("sh", "-c", f"{command} > /dev/full")
        assert done.returncode == 1 and "standard output cannot be written" in done.stderr


def test_gc_inventory_in_both_forms(call):
    devices = json.loads(call("gc-inventory", "-j", ABELE_EMULATED_DEVICES="2").stdout)["devices"]
    assert len(devices) == 3 and devices[0]["remote buffers"] == "1"
    assert {"board serial number", "driver version", "ipu error state", "ipu utilisation (session)", "pci id"} < set(
        devices[0]
    )
    assert call("gc-inventory", ABELE_EMULATED_DEVICES="2").stdout.count("ipu utilisation:") == 3


def test_poprun_is_on_the_path(call):
    assert call("poprun", "--num-instances=2", "sh", "-c", "echo $RANK").stdout.split() in (["0", "1"], ["1", "0"])

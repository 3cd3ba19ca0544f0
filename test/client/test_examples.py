"""The Python examples that people start from: each says what it shows, and its numbers are eager's."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from ports import free_port
from support import warm

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LIMIT_S = 600  # far beyond what anything takes
STOPPED = 3


def run(name, *arguments, status=0, **variables):
    """What examples/python/NAME.py prints."""
    command = [*warm.python(), EXAMPLES / "python" / f"{name}.py", *map(str, arguments)]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["checkpoint", "digits", "gpt", "lora", "resnet", "serving", "two_processes"])
def test_help_says_what_it_is(name):
    text = run(name, "--help")
    assert f"python {name}.py" in text or name in text.splitlines()[0]
    assert (EXAMPLES / "README.md").read_text().count(f"`python/{name}.py`") == 1


@pytest.mark.parametrize("devices", [1, 2])
def test_gpt_writes_what_eager_writes(devices):
    text = run("gpt", "--devices", devices, "--steps", 12, "--length", 48, "--print-losses")
    losses = [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", text, re.M)]
    assert len(losses) == 12 and losses[-1] < losses[0] - 0.5
    assert text.count("on device") == devices
    assert "\nYou may " in text
    assert "eager PyTorch writes the same\n" in text
    assert "equal to eager, bit for bit" in text
    assert "without a cache it writes the same\n" in text


def test_gpt_draws_what_eager_draws():
    text = run("gpt", "--steps", 3, "--length", 40, "--temperature", 1.0, "--prompt", "The")
    assert "eager PyTorch writes the same\n" in text and "equal to eager, bit for bit" in text


def test_gpt_refuses_a_character_that_the_text_has_not():
    done = subprocess.run(
        [*warm.python(), EXAMPLES / "python" / "gpt.py", "--steps", "1", "--prompt", "\u00e4"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode != 0 and "the text has no '\u00e4'" in done.stderr


def weights(text):
    (found,) = re.findall(r"^step (\d+): weights (\w{16})$", text, re.M)
    return found


@pytest.fixture(scope="module")
def uninterrupted():
    return weights(run("checkpoint", "--steps", 30))


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(tmp_path, uninterrupted):
    arguments = ["--steps", 30, "--folder", tmp_path / "run"]
    first = run("checkpoint", *arguments, "--terminate-after", 7, status=STOPPED)
    assert "begins\n" in first and weights(first)[0] == "7" and "stopped by a signal" in first
    again = run("checkpoint", *arguments)
    assert "goes on from step 7\n" in again
    assert weights(again) == uninterrupted


def test_a_killed_run_goes_on_from_its_last_checkpoint_with_another_number_of_devices(tmp_path, uninterrupted):
    arguments = ["--steps", 30, "--every", 5, "--folder", tmp_path / "run"]
    run("checkpoint", *arguments, "--kill-after", 13, status=-9)
    again = run("checkpoint", *arguments, "--devices", 1)
    assert "goes on from step 10\n" in again
    assert weights(again) == uninterrupted


def test_serving_gives_everyone_the_own_rows():
    text = run("serving", "--requests", 100, "--epochs", 1, "--threads", 4)
    assert "98 requests have their own rows back, 2 wrong ones an error" in text
    rows, batches = map(int, re.search(r"(\d+) rows in (\d+) batches", text).groups())
    assert batches >= rows / 32
    assert re.search(r"^the first wrong request heard: \S", text, re.M)


def test_two_processes_have_the_losses_and_weights_of_one():
    alone = run("two_processes", "--steps", 11)
    losses = re.findall(r"^step .*loss .*$", alone, re.M)
    assert len(losses) == 2
    (mine,) = re.findall(r"^process 0 of 1: (\S+) MiB, weights (\w{16})$", alone, re.M)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    command = [*launch, "--master-port", str(free_port()), EXAMPLES / "python" / "two_processes.py", "--steps", "11"]
    done = subprocess.run(
        command,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^step .*loss .*$", done.stdout, re.M) == losses
    found = re.findall(r"^process [01] of 2: (\S+) MiB, weights (\w{16})$", done.stdout, re.M)
    assert [digest for _, digest in found] == [mine[1]] * 2
    assert all(float(held) < 0.75 * float(mine[0]) for held, _ in found)


def test_lora_trains_the_adapters_alone():
    text = run("lora", "--epochs", 2)
    trained = re.findall(r"^trained (\d+) of (\d+) numbers; optimizer state (\d+) bytes$", text, re.M)
    (base, whole, state), (adapters, _, state_of_adapters) = [tuple(map(int, row)) for row in trained]
    assert base == whole and adapters < base / 3 and state_of_adapters < state / 3
    assert "frozen weights: unchanged" in text
    before, adapted, merged = (float(number) for number in re.findall(r"lying (\d+\.\d) %", text))
    assert adapted > before + 10 and abs(merged - adapted) < 1


def test_a_resnet_has_the_same_losses_wherever_it_is_cut(tmp_path):
    text = run("resnet", "--steps", 2, "--folder", tmp_path / "reports")
    shares = [float(share) for share in re.findall(r"the most work has (\S+) times the mean", text)]
    assert len(shares) == 2 and all(1 <= share <= 2 for share in shares)
    assert "cut" in text and "losses of 2 steps: the same, bit for bit" in text
    for page in ("first", "second"):
        assert "<canvas" in (tmp_path / "reports" / f"{page}.html").read_text()


# A wheel of torchvision for other accelerators has kernels that do not load; no network of timm calls these.
WITHOUT_KERNELS = """
import runpy, sys, torch
library = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, name):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_timm_is_fine_tuned():
    missing = [name for name in ("timm", "torchvision") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    command = [*warm.python(), "-c", WITHOUT_KERNELS, EXAMPLES / "python" / "timm_finetuning.py", "--epochs", "1"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    before, after = (float(found) for found in re.findall(r"(?:new head|fine-tuned): (\d+\.\d) %", done.stdout))
    assert after > before + 20
    assert re.search(r"[1-9]\d* frozen tensors: unchanged", done.stdout)


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft not installed (requirements-trainers.txt)")
def test_adapters_of_peft_train_as_eager_trains_them():
    text = run("peft_lora", "--epochs", 2)
    assert "2 steps beside eager PyTorch: the same, bit for bit" in text
    assert "written and read again: the same, bit for bit" in text
    before, adapted, merged = (float(number) for number in re.findall(r"lying (\d+\.\d) %", text))
    assert adapted > before + 10 and abs(merged - adapted) < 1


@pytest.mark.parametrize("package, name", [("timm", "timm_finetuning"), ("peft", "peft_lora")])
def test_without_its_package_an_example_says_what_it_needs(package, name):
    program = "import runpy, sys; sys.modules[sys.argv[2]] = None; sys.path.insert(0, sys.argv[1].rpartition('/')[0]); "
    program += "runpy.run_path(sys.argv[1], run_name='__main__')"
    command = [*warm.python(), "-c", program, str(EXAMPLES / "python" / f"{name}.py"), package]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1 and f"pip install {package}" in done.stderr

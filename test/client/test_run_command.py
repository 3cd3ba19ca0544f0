"""`abele run`: trains and serves programs without Python, stops when it is asked to, and refuses what is wrong."""

import os
import re
import signal
import subprocess
from pathlib import Path

import abele
import pytest
import torch
from support import warm

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ABELE_BUILD_DIR", ROOT / "build" / "dev"))
COMMAND = ROOT / BUILD / "tools" / "abele-run"
ROWS, BATCH = 26, 2  # a call takes 4 rows: a pass has 6 calls
DONE, ERROR, STOPPED = 0, 1, 3


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.second = torch.nn.Linear(8, 3)

    def forward(self, x, target=None):
        with abele.Block("first", ipu_id=0):
            hidden = torch.nn.functional.dropout(self.norm(self.first(x)).relu(), 0.3, self.training)
        with abele.Block("second", ipu_id=1):
            out = self.second(hidden)
            return out if target is None else (out, torch.nn.functional.cross_entropy(out, target))


def options():
    result = abele.Options().randomSeed(3)
    result.Training.gradientAccumulation(2)
    result.threadsPerDevice(1)
    return result


class Training:
    """A run in Python over the data in order."""

    def __init__(self, data, seed=1):
        torch.manual_seed(seed)
        self.net = Net()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.05)
        samples = torch.utils.data.TensorDataset(data["x"], data["target"])
        self.options = options()
        self.loader = abele.DataLoader(self.options, samples, batch_size=BATCH)
        self.model = abele.trainingModel(self.net, self.options, optimizer=self.optimizer)
        self.step, self.losses, self.rates = 0, [], []

    def train_to(self, last, folder=None, schedule=None):
        while self.step < last:
            for x, target in self.loader:
                if schedule is not None:
                    self.rates.append([group["lr"] for group in self.optimizer.param_groups])
                    self.model.setOptimizer(self.optimizer)
                self.losses.append(self.model(x, target)[1].reshape(()))
                self.step += 1
                if schedule is not None:
                    schedule.step()
                if self.step == last:
                    if folder is not None:
                        abele.save_checkpoint(folder, self.model, self.loader, step=last)
                    break
        return self

    def state(self):
        self.model.copyWeightsToHost()
        state = self.model._native.session().optimizerState()
        return {**{name: value.clone() for name, value in self.net.state_dict().items()}, **state}


def equal(expected, found):
    assert expected.keys() == found.keys()
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


def run(*words, environment=None):
    """abele-run as a C++ program has it: no Python on its path."""
    env = {"PATH": "/nowhere", "LANG": "C"} if environment is None else environment
    return subprocess.run([COMMAND, *map(str, words)], env=env, text=True, capture_output=True, timeout=300)


@pytest.fixture
def data(tmp_path):
    torch.manual_seed(0)
    tensors = {"x": torch.randn(ROWS, 4), "target": torch.randint(3, (ROWS,))}
    abele.save_tensors(tmp_path / "data.safetensors", tensors)
    return tensors


@pytest.fixture
def saved(tmp_path, data):
    """A program that was trained for four steps, and how to run it."""
    Training(data).train_to(4).model.save(tmp_path / "program.poptorch")
    return [tmp_path / "program.poptorch", "--data", tmp_path / "data.safetensors", "--inputs=x,target", "--threads=1"]


def test_output_that_cannot_be_written_is_an_error(saved):
    for words in ([COMMAND, *map(str, saved), "--steps=1"], [COMMAND.parent / "linked" / "abele-env"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
        assert done.returncode == 1 and "E0901" in done.stderr and "standard output cannot be written" in done.stderr


def test_it_needs_no_python():
    libraries = subprocess.run(["ldd", COMMAND], text=True, capture_output=True, check=True).stdout
    assert "libabele" in libraries and not re.search(r"libpython|libtorch_python", libraries)


GO_ON = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch, abele, test_run_command as common
folder, process, processes = Path(sys.argv[2]), int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
options = common.options
if processes > 1:  # a stage in each
    def shared():
        result = options()
        result.Distributed.configureProcessId(process, processes).devicesPerProcess(1)
        return result
    common.options = shared
run = common.Training(abele.load_tensors(folder / "data.safetensors"), seed=9)
run.step = abele.load_checkpoint(folder / "run", run.model, run.loader)["step"]
run.train_to(int(sys.argv[3]))
abele.save_tensors(folder / f"state-{process}", {**run.state(), "losses": torch.stack(run.losses)})
run.model.destroy()
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_python_then_the_command_then_python_is_one_run(tmp_path, data, processes):
    """50 steps in Python, 50 by the command, 50 in Python again, in as many processes: the bits of 150 in Python."""
    whole = Training(data).train_to(150)
    Training(data).train_to(50).model.save(tmp_path / "program.poptorch")
    done = run(
        tmp_path / "program.poptorch",
        *("--data", tmp_path / "data.safetensors", "--inputs=x,target", "--threads=1", "--done=50", "--steps=100"),
        *("--out", tmp_path / "losses", "--checkpoint", tmp_path / "run"),
    )
    assert done.returncode == DONE, done.stderr
    assert re.search(r"^step 100  loss \d", done.stdout, re.M) and "50 steps in" in done.stdout
    found = abele.load_tensors(tmp_path / "losses")
    equal({"step": torch.arange(51, 101), "loss": torch.stack(whole.losses[50:100])}, found)
    launcher = [COMMAND.with_name("poprun"), "--num-instances", processes] if processes > 1 else []
    words = [*launcher, *warm.python(), "-c", GO_ON, Path(__file__).parent, tmp_path, "150"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(ROOT / "test")])}
    again = subprocess.run(list(map(str, words)), env=env, text=True, capture_output=True, timeout=300)
    assert again.returncode == 0, again.stdout + again.stderr
    expected = whole.state()
    for process in range(processes):
        state = abele.load_tensors(tmp_path / f"state-{process}")
        assert torch.equal(state.pop("losses"), torch.stack(whole.losses[100:]))
        equal(expected, state)


def test_a_program_that_an_optimizer_on_the_host_trains_is_refused(tmp_path, data):
    """Its file holds no update: the steps would leave the weights as they are."""
    net = Net()
    model = abele.trainingModel(net, options(), optimizer=torch.optim.Adagrad(net.parameters()))
    model(data["x"][:4], data["target"][:4])
    model.save(tmp_path / "program.poptorch")
    words = ("--data", tmp_path / "data.safetensors", "--inputs=x,target", "--threads=1", "--steps=1")
    refused = run(tmp_path / "program.poptorch", *words)
    assert refused.returncode == ERROR and refused.stderr.startswith("E0706"), refused


def test_blocks_over_several_devices_go_on_with_as_many_threads(tmp_path, data, monkeypatch):
    one_device = options
    whole = Training(data).train_to(6)
    monkeypatch.setitem(globals(), "options", lambda: one_device().tensorParallel(2))
    Training(data).train_to(4).model.save(tmp_path / "program.poptorch")
    words = [tmp_path / "program.poptorch", "--data", tmp_path / "data.safetensors", "--inputs=x,target", "--done=4"]
    done = run(*words, "--threads=1", "--steps=6", "--out", tmp_path / "losses")
    assert done.returncode == DONE, done.stderr
    assert torch.equal(abele.load_tensors(tmp_path / "losses")["loss"], torch.stack(whole.losses[4:]))
    refused = run(*words, "--threads=2", "--steps=6")
    assert refused.returncode == ERROR and refused.stderr.startswith("E0712"), refused
    assert "2 threads a device" in refused.stderr and "1 thread a device" in refused.stderr


def test_it_goes_on_from_a_checkpoint_of_python(tmp_path, data, saved):
    whole = Training(data).train_to(14)
    Training(data).train_to(8, tmp_path / "run")
    done = run(*saved, "--steps=14", "--out", tmp_path / "losses", "--checkpoint", tmp_path / "run", "--every=3")
    assert done.returncode == DONE, done.stderr
    assert "goes on from" in done.stdout
    assert torch.equal(abele.load_tensors(tmp_path / "losses")["loss"], torch.stack(whole.losses[8:]))
    steps = [f"step-{step:010}.safetensors" for step in (9, 12, 14)]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == steps
    again = run(*saved, "--steps=14", "--checkpoint", tmp_path / "run")
    assert again.returncode == DONE and "no steps are left: 14 are done" in again.stdout


def test_what_it_saved_is_a_program(tmp_path, data, saved):
    whole = Training(data).train_to(7)
    assert run(*saved, "--done=4", "--steps=6", "--save", tmp_path / "further").returncode == DONE
    again = [tmp_path / "further", *saved[1:]]
    assert run(*again, "--done=6", "--steps=7", "--out", tmp_path / "losses").returncode == DONE
    assert torch.equal(abele.load_tensors(tmp_path / "losses")["loss"][0], whole.losses[6])


def test_epochs_shuffling_and_learning_rates(tmp_path, saved):
    one = run(*saved, "--epochs=2", "--shuffle", "--seed=5", "--lr=0.5", "--out", tmp_path / "a")
    assert one.returncode == DONE and "2 of 26 rows are left out" in one.stderr
    assert run(*saved, "--epochs=2", "--shuffle", "--seed=5", "--lr=0.5", "--out", tmp_path / "b").returncode == DONE
    assert run(*saved, "--epochs=2", "--shuffle", "--seed=6", "--lr=0.5", "--out", tmp_path / "c").returncode == DONE
    a, b, c = (abele.load_tensors(tmp_path / name)["loss"] for name in "abc")
    assert len(a) == 12 and torch.equal(a, b) and not torch.equal(a, c)


def sequence(optimizer):
    schedules = torch.optim.lr_scheduler
    first = schedules.LinearLR(optimizer, start_factor=0.1, total_iters=4)
    second = schedules.CosineAnnealingLR(optimizer, T_max=3, eta_min=1e-3)
    return schedules.SequentialLR(optimizer, [first, second], milestones=[5])


SCHEDULES = {
    "ConstantLR:factor=0.3,total_iters=4": lambda o: torch.optim.lr_scheduler.ConstantLR(o, 0.3, 4),
    "LinearLR:start_factor=0.1,end_factor=0.7,total_iters=7": lambda o: torch.optim.lr_scheduler.LinearLR(
        o, 0.1, 0.7, 7
    ),
    "StepLR:step_size=3": lambda o: torch.optim.lr_scheduler.StepLR(o, 3),
    "ExponentialLR:gamma=0.9": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
    "CosineAnnealingLR:T_max=5,eta_min=0.003": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 5, 0.003),
    "LinearLR:start_factor=0.1,total_iters=4 5:CosineAnnealingLR:T_max=3,eta_min=1e-3": sequence,
}


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("text", SCHEDULES)
def test_schedules_are_those_of_torch(tmp_path, data, text):
    """The rates and losses of a training in Python with torch's schedule; also where it was stopped meanwhile."""
    steps = 13
    whole = Training(data)
    whole.train_to(steps, schedule=SCHEDULES[text](whole.optimizer))
    rates, losses = torch.tensor(whole.rates, dtype=torch.double), whole.losses
    fresh = Training(data)
    fresh.model.compile(data["x"][:4], data["target"][:4])
    fresh.model.save(tmp_path / "program")
    words = [tmp_path / "program", "--data", tmp_path / "data.safetensors", "--inputs=x,target", "--threads=1"]
    words += ["--lr-schedule", *text.split(), "--checkpoint", tmp_path / "run", "--out", tmp_path / "out"]
    for begin, end in ((0, 6), (6, steps)):
        done = run(*words, f"--steps={end}")
        assert done.returncode == DONE, done.stderr
        found = abele.load_tensors(tmp_path / "out")
        assert torch.equal(found["lr"], rates[begin:end]), (found["lr"] - rates[begin:end]).abs().max()
        assert torch.equal(found["loss"], torch.stack(losses[begin:end]))


def test_a_table_of_learning_rates(tmp_path, data, saved):
    table = tmp_path / "rates.csv"
    table.write_text("step,lr\n0,0.5\n3,0.1\r\n4,2.5e-3\n")
    done = run(*saved, "--steps=6", "--lr-schedule", table, "--out", tmp_path / "out")
    assert done.returncode == DONE, done.stderr
    expected = torch.tensor([[0.5], [0.5], [0.5], [0.1], [2.5e-3], [2.5e-3]], dtype=torch.double)
    assert torch.equal(abele.load_tensors(tmp_path / "out")["lr"], expected)
    for text, code, place in (
        ("0,0.5\n3", "E0801", "rates.csv:2"),
        ("0,0.5\n3,x", "E0801", "rates.csv:2"),
        ("1,0.5", "E0801", "rates.csv:1"),
        ("0,0.5\n3,0.1\n3,0.2", "E0801", "rates.csv:3"),
        ("0,0.5,0.1", "E0801", "rates.csv:1"),
        ("", "E0712", "rates.csv"),
    ):
        table.write_text(text)
        refused = run(*saved, "--lr-schedule", table)
        assert refused.returncode == ERROR and refused.stderr.startswith(code) and place in refused.stderr, refused


@pytest.mark.parametrize(
    "words",
    [
        ["SomeLR:gamma=1"],
        ["StepLR:gamma=1"],
        ["StepLR:step_size=0"],
        ["StepLR:step_size=2.5"],
        ["StepLR:step_size=3,gamma=x"],
        ["StepLR:step_size=3,size=1"],
        ["LinearLR:start_factor=0"],
        ["LinearLR:start_factor=1.5"],
        ["3:StepLR:step_size=3"],
        ["StepLR:step_size=3", "StepLR:step_size=3"],
        ["StepLR:step_size=3", "5:StepLR:step_size=3", "5:StepLR:step_size=3"],
    ],
    ids=" ".join,
)
def test_schedules_that_cannot_be(saved, words):
    refused = run(*saved, "--lr-schedule", *words)
    assert refused.returncode == ERROR and refused.stderr.startswith("E0901"), refused.stderr
    assert words[-1] in refused.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_behind_a_step(tmp_path, saved, number):
    words = [*saved, "--checkpoint", tmp_path / "run", "--keep=0"]
    process = subprocess.Popen(
        [COMMAND, *map(str, words), "--steps=1000000000"],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    lines = [process.stdout.readline() for _ in range(3)]
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    assert process.returncode == STOPPED, err
    stopped = re.search(r"^stopped by (\w+) after step (\d+) of 1000000000$", out, re.M)
    assert stopped, lines + [out]
    step = int(stopped[2])
    (path,) = (tmp_path / "run").iterdir()
    assert path.name == f"step-{step:010}.safetensors" and f"checkpoint {path}" in out
    assert run(*words, f"--steps={step + 7}").returncode == DONE
    other = [tmp_path / "whole" if word == tmp_path / "run" else word for word in words]
    assert run(*other, f"--steps={step + 7}").returncode == DONE
    name = f"step-{step + 7:010}.safetensors"
    assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_inference(tmp_path, data):
    torch.manual_seed(1)
    opts = abele.Options().deviceIterations(3)
    opts.threadsPerDevice(1)
    model = abele.inferenceModel(Net().eval(), opts)
    model.compileAndExport(tmp_path / "net", torch.zeros(6, 4))
    done = run(
        tmp_path / "net",
        "--data",
        tmp_path / "data.safetensors",
        "--inputs=x",
        "--out",
        tmp_path / "out",
        "--threads=1",
    )
    assert done.returncode == DONE, done.stderr
    assert "26 rows in 5 calls" in done.stdout and "result 0 Float[26,3]" in done.stdout
    expected = [model(rows) for rows in data["x"][:24].split(6)]
    last = model(torch.cat([data["x"][24:], data["x"][25:].expand(4, 4)]))[:2]
    assert torch.equal(abele.load_tensors(tmp_path / "out")["0"], torch.cat([*expected, last]))
    refused = run(tmp_path / "net", "--data", tmp_path / "data.safetensors", "--checkpoint", tmp_path / "run")
    assert refused.returncode == ERROR and "E0901" in refused.stderr and "inference" in refused.stderr


def test_what_it_refuses(tmp_path, data, saved):
    def refused(code, *words):
        done = run(*words)
        assert (done.returncode, done.stdout) == (ERROR, ""), done.stderr
        assert done.stderr.startswith(code), done.stderr
        return done.stderr

    program, _, file, *rest = saved
    text = refused("E0801", program, "--data", file)
    assert "input 0" in text and "target Long[26], x Float[26,4]" in text and "--inputs" in text
    assert "tensor y" in refused("E0801", program, "--data", file, "--inputs=x,y")
    assert "--inputs names 1" in refused("E0801", program, "--data", file, "--inputs=x")
    text = refused("E0801", program, "--data", file, "--inputs=target,x")
    assert "found     Long[26]" in text and "Float[4,4]" in text
    refused("E0712", program, "--data", tmp_path / "none")
    refused("E0712", tmp_path / "none", *saved[1:])
    refused("E0901", program)
    assert "--steps: Value 0 not in range 1 to 1000000000000" in refused("E0901", *saved, "--steps=0")
    refused("E0901", *saved, "--steps=99999999999999999999")
    refused("E0901", *saved, "--every=3")
    refused("E0901", *saved, "--steps=3", "--epochs=2")
    few = tmp_path / "few"
    abele.save_tensors(few, {name: value[:3] for name, value in data.items()})
    assert "3 rows" in refused("E0801", program, "--data", few, *rest)
    abele.save_tensors(few, {"x": data["x"], "target": data["target"][:8]})
    assert "target 8" in refused("E0801", program, "--data", few, *rest)


@pytest.mark.parametrize("words", [[], ["--shuffle"]], ids=["in order", "shuffled"])
def test_rows_of_several_files_are_those_of_one(tmp_path, data, saved, words):
    program, _, file, *rest = saved
    parts = [tmp_path / f"part-{i}.safetensors" for i in range(3)]
    for part, rows in zip(parts, (slice(0, 7), slice(7, 7), slice(7, ROWS)), strict=True):
        abele.save_tensors(part, {"x": data["x"][rows].contiguous(), "target": data["target"][rows].contiguous()})
    out = [tmp_path / "one", tmp_path / "several"]
    for path, files in zip(out, ([file], parts), strict=True):
        done = run(program, "--data", *files, *rest, *words, "--steps=14", "--out", path)
        assert done.returncode == DONE, done.stderr
    equal(*map(abele.load_tensors, out))
    abele.save_tensors(parts[1], {"x": data["x"][:, :3].contiguous()})
    done = run(program, "--data", *parts, *rest)
    assert done.returncode == ERROR and done.stderr.startswith("E0801") and "f32[26,3]" in done.stderr, done.stderr


class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1 << 16, 1)

    def forward(self, x):
        return abele.identity_loss(self.layer(x), "mean")


def peak_of(words, steps):
    """The most memory that the command took for so many steps, in bytes."""
    process = subprocess.Popen([COMMAND, *map(str, words), f"--steps={10 * steps}"], text=True, stdout=subprocess.PIPE)
    for line in process.stdout:
        if line.startswith(f"step {steps} "):
            status = Path(f"/proc/{process.pid}/status").read_text()
            break
    process.terminate()
    process.communicate(timeout=300)
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) << 10


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not say what a process took")
@pytest.mark.parametrize("words", [[], ["--shuffle"]], ids=["in order", "shuffled"])
def test_data_need_not_fit_into_memory(tmp_path, words):
    rows = 2, 768  # of 256 KiB: 192 MiB
    net = Wide()
    model = abele.trainingModel(net, abele.Options(), torch.optim.SGD(net.parameters(), lr=1e-9))
    model.compile(torch.zeros(2, 1 << 16))
    model.save(tmp_path / "program")
    peaks = []
    for count in rows:
        abele.save_tensors(tmp_path / "data", {"x": torch.ones(count, 1 << 16)})
        run = [tmp_path / "program", "--data", tmp_path / "data", "--threads=1", *words]
        peaks.append(peak_of(run, steps=rows[-1] // 2 + 2))
    assert peaks[1] - peaks[0] < (192 << 20) / 4, peaks


def test_damaged_files_are_refused(tmp_path, saved):
    program, _, file, *rest = saved
    for path, step in ((file, 61), (program, 1009)):
        whole = path.read_bytes()
        for place in range(0, len(whole), max(step, len(whole) // 12)):
            (tmp_path / "damaged").write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            words = [tmp_path / "damaged" if word == path else word for word in saved]
            done = run(*words, "--steps=1")
            assert done.returncode == ERROR and re.match("E0501|E0712", done.stderr), (path, place, done.stderr)

"""abele.stop_on_signal: a run ends after a step when the system asks it to, and resumes from its checkpoint."""

import os
import signal
import subprocess
import textwrap
import threading

import abele
import pytest
from support import warm


def test_signals_are_noted_and_given_back():
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        with abele.stop_on_signal(signal.SIGUSR1, signal.SIGTERM) as stop:
            assert not stop and stop.signal is None and not stop.requested and not stop.agreed()
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop and stop.signal == signal.SIGTERM and stop.requested and stop.agreed()
        assert not seen
        os.kill(os.getpid(), signal.SIGUSR1)
        assert seen == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_second_signal_is_not_held_back():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), abele.stop_on_signal():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_cannot_be_noted():
    before = signal.getsignal(signal.SIGTERM)
    for wrong in (signal.SIGKILL, 1000):
        with pytest.raises(abele.Error, match="E0708"), abele.stop_on_signal(signal.SIGTERM, wrong):
            pass
    assert signal.getsignal(signal.SIGTERM) is before
    errors = []

    def other():
        try:
            with abele.stop_on_signal():
                pass
        except abele.Error as error:
            errors.append(error.code)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert errors == ["E0708"]


PROGRAM = """
    import sys
    import abele, torch

    folder, last = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.2))
    options = abele.Options().randomSeed(3)
    data = torch.utils.data.TensorDataset(torch.randn(14, 4), torch.randn(14, 3))
    loader = abele.DataLoader(options, data, batch_size=4, shuffle=True)

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x, target):
            return torch.nn.functional.mse_loss(self.net(x), target)

    model = abele.trainingModel(Loss(), options, optimizer=torch.optim.Adam(net.parameters()))
    found = abele.load_checkpoint(folder, model, loader)
    step = found["step"] if found else 0
    with abele.stop_on_signal() as stop:
        is_over = False
        while not is_over:
            for batch in loader:
                loss = model(*batch)
                step += 1
                print(step, loss.item().hex(), flush=True)
                is_over = step == last or bool(stop)  # asked once a step: the signal comes at any moment
                if is_over:
                    abele.save_checkpoint(folder, model, loader, step=step, keep=0)
                    break
    sys.exit(3 if stop else 0)
"""


def test_a_run_that_is_stopped_goes_on(tmp_path):
    command = [*warm.python(), "-c", textwrap.dedent(PROGRAM)]

    def run(folder, last):
        done = subprocess.run(
            [*command, str(tmp_path / folder), str(last)], text=True, capture_output=True, timeout=300, check=True
        )
        return dict(line.split() for line in done.stdout.splitlines())

    process = subprocess.Popen([*command, str(tmp_path / "run"), str(10**9)], text=True, stdout=subprocess.PIPE)
    for _ in range(2):
        process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 3
    (path,) = (tmp_path / "run").iterdir()
    step = int(path.stem.removeprefix("step-"))
    assert not out or step == int(out.splitlines()[-1].split()[0])
    rest = run("run", step + 6)
    whole = run("whole", step + 6)
    assert rest == {name: loss for name, loss in whole.items() if int(name) > step}

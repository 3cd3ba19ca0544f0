"""Training with all tensors in a file, killed in the middle: nothing is left behind, nor after the next start."""

import os
import signal
import subprocess
import sys
import textwrap

PROGRAM = """
    import os
    import sys

    import abele
    import poptorch
    import torch

    PHASES, WIDTH = 16, 384


    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(PHASES))

        def forward(self, x):
            for index, layer in enumerate(self.layers):
                with poptorch.Block(str(index)):
                    x = torch.relu(layer(x))
                    if index == PHASES - 1:
                        return poptorch.identity_loss(x * x, reduction="mean")


    folder, steps = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(0)
    model = abele.offload(Net(), folder)
    strategy = poptorch.SerialPhasedExecution(*map(str, range(PHASES)))
    opts = poptorch.Options().setExecutionStrategy(strategy.setTensorsLiveness(poptorch.Liveness.OffChipAfterFwd))
    opts.offChipMemoryLimit(0).offChipFolder(folder)
    executor = poptorch.trainingModel(model, opts, torch.optim.AdamW(model.parameters(), lr=1e-3))
    x = torch.randn(4, WIDTH)
    first = executor(x)
    report = executor.report()
    weights_and_state = 3 * sum(p.numel() * p.element_size() for p in model.parameters())
    # Four times what a device holds at once, and in a file that has no name.
    assert weights_and_state >= 4 * max(stage["peak_bytes"] for stage in report["stages"]), report
    assert report["off_chip_file_bytes"] >= weights_and_state
    assert os.listdir(folder) == []
    maps = open("/proc/self/maps").read()
    assert any(folder in line and "deleted" in line for line in maps.splitlines())
    print("ready", flush=True)
    for _ in range(steps):
        last = executor(x)
    assert last < first
    print("done", flush=True)
"""


def start(folder, steps):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(folder), str(steps)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_nothing_is_left(tmp_path):
    killed = start(tmp_path, 10**9)
    line = killed.stdout.readline()
    assert line == "ready\n", killed.communicate()[1]
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    killed.communicate()
    assert list(tmp_path.iterdir()) == []
    again = start(tmp_path, 3)
    out, err = again.communicate(timeout=120)
    assert out == "ready\ndone\n", err
    assert again.returncode == 0 and list(tmp_path.iterdir()) == []

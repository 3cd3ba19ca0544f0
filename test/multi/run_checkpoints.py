"""run_checkpoints.py FOLDER DEVICES GROUP LAST [STOP]: continues from a checkpoint to step LAST, writes another.

It is one of several processes, each with a part of the devices, or the only one. GROUP: devices of a stage. STOP: the
last process is asked to stop behind this step, and all stop together. Leaves FOLDER/losses-LAST-PROCESS.pt.
"""

import os
import signal
import sys

import abele
import poptorch
import torch
from stage_cases import ROWS, Case, Net

ACCUMULATION, WIDTH = 3, 256  # wide enough that layers are divided


def main(folder, devices, group, last, stop_behind=None):
    process, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    case = Case(accumulation=ACCUMULATION, dropout=0.5, norm=True, devices=devices, group=group, width=WIDTH)
    opts = case.options()
    if processes > 1:
        opts.Distributed.configureProcessId(process, processes).devicesPerProcess(devices // processes)
    torch.manual_seed(1)
    model = Net(**case.model)
    executor = poptorch.trainingModel(model, opts, torch.optim.AdamW(model.parameters(), lr=0.01))
    found = abele.load_checkpoint(folder, executor)
    step, losses = (found["step"] if found else 0), {}
    with abele.stop_on_signal() as stop:
        while step < last:
            draw = torch.Generator().manual_seed(step)
            x, target = (torch.randn(ACCUMULATION * ROWS, WIDTH, generator=draw) for _ in range(2))
            losses[step] = executor(x, target)[1]
            step += 1
            if step == stop_behind and process == processes - 1:
                os.kill(os.getpid(), signal.SIGTERM)
            if stop.agreed():
                break
    parts = executor._executable.session.report()["stages"]
    assert group == 1 or len(parts) > 2 * devices, "no layer is divided"
    abele.save_checkpoint(folder, executor, step=step, keep=0)
    torch.save(losses, f"{folder}/losses-{last}-{process}.pt")
    executor.destroy()


if __name__ == "__main__":
    folder, *numbers = sys.argv[1:]
    main(folder, *map(int, numbers))

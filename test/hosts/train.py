"""train.py FOLDER STEPS: trains two stages in each process up to a step, from the folder's newest checkpoint on.

Prints a line a step, then "done", or the code of the error that ended it, when it came (time.monotonic(), which all
hosts of a machine share) and what was found. Leaves FOLDER/end-PROCESS.pt.
"""

import os
import sys
import time

import abele
import poptorch
import torch

FOLDER, STEPS = sys.argv[1], int(sys.argv[2])
PROCESS, PROCESSES = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICES = 2 * PROCESSES


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(DEVICES))

    def forward(self, x):
        for device, layer in enumerate(self.layers):
            poptorch.Block.start(str(device), ipu_id=device)
            x = torch.tanh(layer(x))
        return x, poptorch.identity_loss(x.square(), reduction="mean")


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    net = Net()
    opts = poptorch.Options().autoRoundNumIPUs(True)
    opts.Training.gradientAccumulation(2)
    opts.enforcePipelineMinimum(False)
    opts.Distributed.configureProcessId(PROCESS, PROCESSES).devicesPerProcess(2)
    model = poptorch.trainingModel(net, opts, torch.optim.Adam(net.parameters(), lr=1e-2))
    read = abele.load_checkpoint(FOLDER, model)
    step = read["step"] if read else 0
    try:
        while step < STEPS:
            model(torch.randn(8, 32, generator=torch.Generator().manual_seed(step)))
            step += 1
            say(f"step {step}")
            if step % 3 == 0:
                abele.save_checkpoint(FOLDER, model, step=step)
        model.copyWeightsToHost()
    except poptorch.Error as error:
        say(f"{error.code} {time.monotonic():.6f} {error}".replace("\n", " "))
        os._exit(3)  # the end of a process that has nobody to say good-bye to is not what is tested
    torch.save(net.state_dict(), f"{FOLDER}/end-{PROCESS}.pt")
    say("done")


main()

"""saved_division.py FOLDER HOW...: continues from FOLDER/net.poptorch, and leaves FOLDER/seen.pt.

HOW: "load": with the module of the file. "threads": with two threads a device. "alone": a module like the one that was
saved takes the program alone.
"""

import pathlib
import sys

import abele
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from several_devices import devices_of, make, options_of


def load(path, how):
    def edit(options):
        if "threads" in how:
            options.threadsPerDevice(2)

    return abele.load(path, edit, trust=True)


def alone(path, how):
    """The error of a module that takes the program."""
    model, _ = make("Mlp", 1)
    options = options_of(2, accumulation=2).threadsPerDevice(2 if "threads" in how else 1)
    executor = abele.trainingModel(model, options, torch.optim.AdamW(model.parameters(), lr=0.01))
    try:
        executor.loadExecutable(path)
    except abele.Error as error:
        return str(error)
    executor(*model.batch(4))
    return ""


if __name__ == "__main__":
    folder, how = pathlib.Path(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    if "alone" in how:
        seen = {"refused": alone(folder / "net.poptorch", how)}
    else:
        executor = load(folder / "net.poptorch", how)
        seen = {"was compiled": executor.isCompiled()}
        seen["results"] = [executor(*batch) for batch in torch.load(folder / "batches.pt")]
        seen["weights"], seen["devices"] = dict(abele.weights(executor)), devices_of(executor)
    torch.save(seen, folder / "seen.pt")

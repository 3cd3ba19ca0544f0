"""Short trainings on an accelerator beside eager PyTorch on it: for check_device.py, which reads the last line.

    device_trainings.py KIND --seconds 60 [--import MODULE]

The networks of test/parity, cut into one, three or four stages that share the first accelerator, by strategy and
schedule; with graphs of the device, and with everything in the host's memory. Every output, loss and weight must have
eager's bits. What there was no time for is named.
"""

import argparse
import copy
import importlib
import json
import sys
import time
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "test" / "parity"))
import networks
import poptorch
from against_eager import MICRO_BATCH, OPTIMIZERS, SEED, cut, eager, options

ACCUMULATION, STEPS = 7, 4
STRATEGIES = {
    "1f1b": poptorch.PipelinedExecution,
    "gpipe": lambda: poptorch.PipelinedExecution().schedule("gpipe"),
    "zero-bubble": lambda: poptorch.PipelinedExecution().schedule("zero-bubble"),
    "sharded": poptorch.ShardedExecution,
}


def cases():
    """(network, strategy, stages, optimizer, variant), those of all kinds first."""
    names = sorted(networks.NETWORKS)
    for variant, stages in (("", 4), ("graphs", 3), ("off-chip", 3), ("", 1)):
        for i, name in enumerate(names):
            yield (
                name,
                list(STRATEGIES)[i % 4] if not variant else "1f1b",
                stages,
                ("sgd", "adamw")[stages % 2],
                variant,
            )
    for strategy in STRATEGIES:
        for stages in (1, 4):
            yield "ResidualMlp", strategy, stages, "adamw", ""


def on_device(model, kind):
    """Tied parameters stay one, which Module.to() forgets for devices out of torch's tree."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return model.to(kind)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def put_off_chip(opts):
    location = poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(0)
    for use in ("Weight", "Optimizer", "Accumulator", "Activation"):
        getattr(opts.TensorLocations, f"set{use}Location")(location)


def difference(network, strategy, stages, optimizer, variant, kind):
    """The first thing that is not as eager's; None: everything is."""
    torch.manual_seed(0)
    model = networks.NETWORKS[network]()
    reference = on_device(copy.deepcopy(model), kind)
    cut(model, stages)
    opts = options(STRATEGIES[strategy], ACCUMULATION).showCompilationProgressBar(False)
    opts.deviceType(f"{kind}:0")
    opts.deviceGraphs(variant == "graphs")
    if variant == "off-chip":
        put_off_chip(opts)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS[optimizer](model.parameters()))
    torch.manual_seed(1)
    batches = [model.batch(MICRO_BATCH * ACCUMULATION) for _ in range(STEPS)]
    ours = [executor(*batch) for batch in batches]
    executor.copyWeightsToHost()
    executor.destroy()
    torch.manual_seed(SEED)
    theirs = OPTIMIZERS[optimizer](reference.parameters())
    for step, ((output, loss), batch) in enumerate(zip(ours, batches, strict=True)):
        expected, expected_loss = eager(reference, theirs, [tensor.to(kind) for tensor in batch], ACCUMULATION)
        for name, a, b in (("loss", loss.reshape(-1), expected_loss), ("output", output, expected)):
            if not torch.equal(a, b.cpu()):
                return f"{name} of step {step} by {(a - b.cpu()).abs().max().item():.3e}"
    for (name, a), b in zip(model.state_dict().items(), reference.state_dict().values(), strict=True):
        if not torch.equal(a, b.cpu()):
            return f"{name} by {(a - b.cpu()).abs().max().item():.3e}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--import", dest="modules", action="append", default=[], help="modules that bring a device")
    given = parser.parse_args()
    for module in given.modules:
        importlib.import_module(module)
    warnings.simplefilter("ignore")  # torch warns of kernels that may add up in another order
    torch.use_deterministic_algorithms(True, warn_only=True)
    end = time.monotonic() + given.seconds
    told = {"equal": 0, "different": {}, "failed": {}, "not_run": []}
    for case in cases():
        name = " ".join(str(word) for word in case if word)
        if time.monotonic() > end:
            told["not_run"].append(name)
            continue
        try:
            found = difference(*case, given.kind)
        except Exception as error:
            told["failed"][name] = f"{error}"[:400]
            continue
        if found is None:
            told["equal"] += 1
        else:
            told["different"][name] = found
    print(json.dumps(told))


if __name__ == "__main__":
    main()

"""One system trains one workload of bench/ on one device: for check_device.py, which reads the JSON of the last line.

    device_steps.py WORKLOAD eager|compile|abele-1|abele-2[-apart|-graphs|-off-chip] DEVICE --steps 4 --samples 7

Eager's model lives on the device, Abele's on the host; ABELE_DEVICE says where its devices are. "-graphs": graphs of
the device are replayed (deviceGraphs). "-off-chip": weights, optimizer state, gradient sums and activations are
in the host's memory while no action needs them. "losses" are those of the first steps, one a micro-batch; "step_ms" is
the median of timed steps, each complete on the device when its clock stops; "host_ms" is the processor time of this
process in one of them; "busy_ms" is the time in which the device works on anything, of a step that torch's profiler
watches, and "idle" the rest of step_ms as a share of it (neither where torch cannot profile the device). The losses are
printed before anything is timed, too.
"""

import argparse
import importlib
import json
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from support.systems import Compiled, Eager
from support.workloads import WORKLOADS


class OnDevice(Eager):
    """Eager PyTorch's accumulation, on a device and perhaps compiled by torch."""

    def __init__(self, workload, device, compiled):
        super().__init__(workload, torch.get_num_threads())
        self.model = self.model.to(device)
        self.optimizer = workload.optimizer(self.model.parameters())
        if compiled:
            self.model = torch.compile(self.model)


def configuration(system):
    """What sets the options of a variant; None for the others."""

    def off_chip(options):
        import poptorch

        location = poptorch.TensorLocationSettings().useOnChipStorage(False)
        for use in ("Weight", "Optimizer", "Accumulator", "Activation"):
            getattr(options.TensorLocations, f"set{use}Location")(location)

    if system.endswith("-off-chip"):
        return off_chip
    if system.endswith("-graphs"):
        return lambda options: options.deviceGraphs(True)
    return None


def busy_seconds(kind, work):
    """The device's time for all that `work` enqueues, on one stream or several; None: torch does not report it."""
    device_activities = torch.profiler.supported_activities() - {torch.profiler.ProfilerActivity.CPU}
    if kind == "cpu" or not device_activities:
        return None
    with torch.profiler.profile(activities=device_activities) as profiler:
        work()
        torch.accelerator.synchronize()
    on_device = [e for e in profiler.events() if e.device_type != torch.autograd.DeviceType.CPU]
    busy = end = 0.0  # microseconds
    for span in sorted((e.time_range for e in on_device), key=lambda span: span.start):
        busy += max(span.end - max(span.start, end), 0.0)
        end = max(end, span.end)
    return busy / 1e6 if on_device else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("system")
    parser.add_argument("device")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--import", dest="modules", action="append", default=[], help="modules that bring a device")
    given = parser.parse_args()
    for module in given.modules:
        importlib.import_module(module)
    workload = WORKLOADS[given.workload]
    on_host = given.device == "cpu"
    if on_host:
        torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    begin = time.perf_counter()
    ours = given.system.startswith("abele")
    if ours:
        threads = 1 if on_host else torch.get_num_threads()
        configure = configuration(given.system)
        system = Compiled(workload, int(given.system.split("-")[1]), threads, configure=configure)
    else:
        system = OnDevice(workload, given.device, given.system == "compile")
    batches = [workload.batch(step) for step in range(4)]
    if not ours:
        batches = [tuple(t.to(given.device) for t in batch) for batch in batches]

    def complete():
        if not on_host:
            torch.accelerator.synchronize()

    losses = [system.step(*batches[step % 4]).tolist() for step in range(given.steps)]
    first_s = time.perf_counter() - begin
    told = {"losses": losses, "first_s": round(first_s, 3)}
    print(json.dumps(told), flush=True)
    walls, hosts = [], []
    for sample in range(given.samples):
        complete()
        wall, host = time.perf_counter(), time.process_time()
        for _ in range(workload.steps):
            system.step(*batches[sample % 4])
        complete()
        walls.append((time.perf_counter() - wall) / workload.steps)
        hosts.append((time.process_time() - host) / workload.steps)
    if walls:
        told["step_ms"] = round(1e3 * statistics.median(walls), 4)
        told["host_ms"] = round(1e3 * statistics.median(hosts), 4)
        told["best_ms"] = round(1e3 * min(walls), 4)
        print(json.dumps(told), flush=True)
        steps = range(workload.steps)
        busy = busy_seconds(given.device, lambda: [system.step(*batches[0]) for _ in steps])
        if busy is not None:
            told["busy_ms"] = round(1e3 * busy / workload.steps, 4)
            told["idle"] = round(1 - told["busy_ms"] / told["step_ms"], 3)
    print(json.dumps(told))


if __name__ == "__main__":
    main()

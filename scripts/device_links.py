"""What copies take: for check_device.py, which reads the JSON of the last line.

    device_links.py KIND [MODULE...]

MODULE: imported first, because it brings torch the device.

Between host and first device through pinned memory, and between the first two devices where there are two: the
median time of small copies, each waited for, and the rate of large ones.
"""

import importlib
import json
import statistics
import sys
import time

import torch

SMALL, LARGE = 4 << 10, 64 << 20  # bytes


def seconds(to, source, devices):
    """The time of one complete copy."""
    times = []
    for _ in range(12):
        for device in devices:
            torch.accelerator.synchronize(device)
        begin = time.perf_counter()
        to.copy_(source, non_blocking=True)
        for device in devices:
            torch.accelerator.synchronize(device)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[2:])


def link(make_to, make_source, devices):
    small, large = (seconds(make_to(size), make_source(size), devices) for size in (SMALL, LARGE))
    return {"small_us": round(1e6 * small, 2), "gbytes_per_s": round(LARGE / large / 1e9, 3)}


def main():
    kind, *modules = sys.argv[1:]
    for module in modules:
        importlib.import_module(module)
    count = min(torch.accelerator.device_count(), 2)
    on = [lambda size, d=d: torch.zeros(size, dtype=torch.uint8, device=f"{kind}:{d}") for d in range(count)]
    host = lambda size: torch.zeros(size, dtype=torch.uint8).pin_memory()  # noqa: E731
    told = {"host to 0": link(on[0], host, [0]), "0 to host": link(host, on[0], [0])}
    if count > 1:
        told["0 to 1"] = link(on[1], on[0], [0, 1])
        told["1 to 0"] = link(on[0], on[1], [0, 1])
    print(json.dumps(told))


if __name__ == "__main__":
    main()

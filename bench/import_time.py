"""How long does `import poptorch` take beyond `import torch`?

    ./dev bench import_time [--runs 7]

Every run is a process of its own; all are shown.
"""

import argparse
import statistics
import subprocess
import sys

from support.results import write_if_asked

PROGRAM = """
import time
import torch
begin = time.perf_counter()
import {package}
print(time.perf_counter() - begin)
"""


def seconds(package):
    program = PROGRAM.format(package=package)
    return float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", help="write the results here")
    args = parser.parse_args()
    found = {"poptorch": [], "abele": []}
    for _ in range(args.runs):
        for package, times in found.items():
            times.append(seconds(package))
    for package, times in found.items():
        shown = ", ".join(f"{1e3 * t:.0f}" for t in times)
        print(f"import {package}: median {1e3 * statistics.median(times):.0f} ms of {shown} (goal 150)")
    write_if_asked(args, seconds=found)


if __name__ == "__main__":
    main()

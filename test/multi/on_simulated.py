"""on_simulated.py SCRIPT ARGUMENT...: runs a program of this folder where torch has the simulated accelerator.

Fails where a wait between streams was missing. SIMULATED_GROUP=BACKENDS: the program has a group of torch.distributed.
"""

import os
import pathlib
import runpy
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import simulated

script, *sys.argv[1:] = sys.argv[1:]
sys.argv[0] = str(pathlib.Path(__file__).parent / script)
simulated.load()
if backend := os.environ.get("SIMULATED_GROUP"):
    simulated.join_processes(backend)
simulated.set_delays(1)
runpy.run_path(sys.argv[0], run_name="__main__")
simulated.set_delays(0)
for device in range(torch.accelerator.device_count()):
    torch.accelerator.synchronize(device)
if findings := simulated.take_findings():
    sys.exit("\n".join(findings))

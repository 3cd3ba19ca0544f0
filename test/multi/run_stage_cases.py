"""run_stage_cases.py FOLDER CASE...: runs as one of several processes and leaves FOLDER/CASE-PROCESS.pt."""

import os
import sys

import torch
from stage_cases import CASES, UNEVEN

folder, *names = sys.argv[1:]
for name in names:
    torch.save((CASES | UNEVEN)[name].together(), f"{folder}/{name}-{os.environ['RANK']}.pt")

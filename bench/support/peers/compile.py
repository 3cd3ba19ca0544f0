"""torch.compile by inductor: model and loss in one, forward and backward; the optimizer stays eager's."""

import os

import torch

from ..eager import Eager
from . import peer


@peer("compile")
def build(workload):
    system = Eager(workload, os.cpu_count())
    system.model = torch.compile(system.model)
    return system

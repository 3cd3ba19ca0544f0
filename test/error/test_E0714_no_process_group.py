"""E0714: one of several processes that no launcher started."""

import os
import subprocess

import poptorch
import pytest
import torch
from support import warm
from support.ports import free_port


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x):
        y = self.layer(x)
        return y, poptorch.identity_loss(y, reduction="mean")


def test_error(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    opts = poptorch.Options()
    opts.Distributed.configureProcessId(0, 2)
    with pytest.raises(poptorch.Error, match="E0714 no-process-group: .*\n.*MASTER_ADDR and MASTER_PORT not set"):
        poptorch.trainingModel(Net(), opts)(torch.ones(1, 2))


def test_too_few_files_for_the_connections():
    """The process says so at once. c10d would wait for connections that the process cannot accept."""
    code = """
import resource
import poptorch
import torch
from test_E0714_no_process_group import Net

resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
opts = poptorch.Options()
opts.Distributed.configureProcessId(0, 2)
poptorch.trainingModel(Net(), opts)(torch.ones(1, 2))
"""
    here = os.path.dirname(__file__)
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "ABELE_PROCESS_TIMEOUT": "20"}
    env["PYTHONPATH"] = os.pathsep.join([here, os.path.dirname(here), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([*warm.python(), "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert "E0714 no-process-group: process 0 of 2 cannot open enough files" in done.stderr
    assert "ulimit -n" in done.stderr

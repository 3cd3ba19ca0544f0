"""Expert settings are honoured, or refused as not available, or are hints that the log names: options.json."""

import json
import logging
import re
from pathlib import Path

import abele
import poptorch
import pytest
import torch

TABLE = json.loads((Path(__file__).resolve().parents[3] / "src/options/options.json").read_text())
EFFECTS = TABLE["popart_effects"]
KINDS = {name: kind for kind, names in TABLE["popart"].items() for name in names}
VALUES = {"bool": True, "int": 1, "float": 0.5, "str": "GREEDY", "container": ["0"], "map": {"a": "b"}}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.fc = torch.nn.Linear(3, 2)

    def forward(self, x):
        return poptorch.identity_loss(self.fc(x).pow(2), reduction="mean")


def options(accumulation=1, replicas=1, **settings):
    made = poptorch.Options().replicationFactor(replicas)
    made.Training.gradientAccumulation(accumulation)
    for name, value in settings.items():
        made._Popart.set(name, value)
    return made


def train(package, opts):
    net = Net()
    rows = opts.Training.gradient_accumulation * opts.replication_factor
    executor = package.trainingModel(net, opts, torch.optim.SGD(net.parameters(), lr=0.1))
    executor(torch.linspace(-1, 1, rows * 3).view(rows, 3))
    return net.fc.weight.detach().clone()


def test_every_setting_has_one_effect():
    lists = [EFFECTS["honoured"], EFFECTS["only"], EFFECTS["like"], EFFECTS["hint"]]
    names = [name for each in lists for name in each]
    assert sorted(names) == sorted(KINDS)


def others(name):
    """A value that the table does not allow."""
    allowed = EFFECTS["only"][name]
    return {
        "bool": lambda: not allowed[0],
        "int": lambda: next(n for n in range(10) if n not in allowed),
        "str": lambda: "a",
        "container": lambda: ["a"],
    }[KINDS[name]]()


@pytest.mark.parametrize("package", [poptorch, abele])
@pytest.mark.parametrize("name", EFFECTS["only"])
def test_values_that_are_not_available(package, name):
    for value in EFFECTS["only"][name]:
        train(package, options(**{name: value}))
    with pytest.raises(poptorch.Error, match=f"E0702.*{name}.*not available"):
        train(package, options(**{name: others(name)}))


AGREEING = [
    ("accumulationFactor", 4, 3),
    ("enableGradientAccumulation", True, False),
    ("enableReplicatedGraphs", True, False),
    ("globalReplicationFactor", 2, 1),
    ("globalReplicaOffset", 0, 2),
    ("accumulationAndReplicationReductionType", 1, 0),
    ("accumulationAndReplicationReductionType", 1, 2),
]


@pytest.mark.parametrize("package", [poptorch, abele])
@pytest.mark.parametrize(("name", "right", "wrong"), AGREEING)
def test_values_that_must_agree_with_an_option(package, name, right, wrong):
    assert torch.equal(train(package, options(4, 2, **{name: right})), train(package, options(4, 2)))
    with pytest.raises(poptorch.Error, match=f"E0702.*{name}.*not available") as raised:
        train(package, options(4, 2, **{name: wrong}))
    assert EFFECTS["like"][name] in str(raised.value)


def test_the_sum_agrees_with_a_sum():
    opts = options(2, accumulationAndReplicationReductionType=0)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    train(poptorch, opts)


def hint_value(name):
    if KINDS[name] == "int" and name in TABLE["popart_values"]:
        return TABLE["popart_values"][name] - 1
    return {"patterns_level": 2, "rearrangeStreamsOnHost": True}.get(name, VALUES[KINDS[name]])


def test_hints_change_nothing_and_say_so(caplog):
    poptorch.logger.propagate = True
    caplog.set_level(logging.INFO, poptorch.logger.name)
    expected = train(poptorch, options(2))
    assert not any("is a hint" in record.getMessage() for record in caplog.records)
    hints = [name for name in EFFECTS["hint"] if name != "logDir"]
    assert torch.equal(train(poptorch, options(2, **{name: hint_value(name) for name in hints})), expected)
    said = [re.match(r"option (\S+) is a hint", record.getMessage()) for record in caplog.records]
    assert sorted(match[1] for match in said if match) == sorted(hints)


def test_initial_weights_are_saved(tmp_path):
    net = Net()
    expected = b"".join(parameter.detach().numpy().tobytes() for parameter in net.parameters())
    train(poptorch, options(saveInitializersToFile=str(tmp_path / "weights")))
    assert (tmp_path / "weights").read_bytes() == expected
    with pytest.raises(poptorch.Error, match="E0712"):
        train(poptorch, options(saveInitializersToFile=str(tmp_path / "missing" / "weights")))


def test_caching_can_be_turned_off(tmp_path):
    train(poptorch, options(cachePath=str(tmp_path), enableEngineCaching=False))
    assert not list(tmp_path.iterdir())
    train(poptorch, options(cachePath=str(tmp_path)))
    assert list(tmp_path.iterdir())

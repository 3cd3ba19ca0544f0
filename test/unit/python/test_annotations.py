"""Annotations outside a capture: modules keep their class, copies keep the annotation."""

import copy
import pickle

import poptorch
import pytest
import torch


def test_begin_block_returns_the_module_and_travels_with_it():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    keys = list(model.state_dict())
    assert poptorch.BeginBlock(model[0], "front", ipu_id=1) is model[0]
    assert type(model[0]) is torch.nn.Linear and list(model.state_dict()) == keys
    text = "BeginBlock(user_id=front, ipu_id=1)"
    assert text in poptorch.module_repr(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert text in poptorch.module_repr(other)
        poptorch.removeBlocks(other)
        assert "BeginBlock" not in poptorch.module_repr(other)
    assert text in poptorch.module_repr(model)
    with pytest.raises(poptorch.Error):
        poptorch.BeginBlock(model[0])
    poptorch.removeBlocks(model)
    poptorch.BeginBlock(model[0])
    model(torch.ones(1, 2))
    assert "user_id=None" in poptorch.module_repr(model)  # numbered only while captured


def test_begin_block_of_other_things():
    begun = poptorch.BeginBlock(lambda x: x + 1, "f", 2)
    assert isinstance(begun, poptorch.LegacyBeginBlockFn)
    assert begun(1) == 2 and (begun._user_id, begun._ipu_id) == ("f", 2)
    with pytest.raises(poptorch.Error):
        poptorch.BeginBlock(3)
    with pytest.raises(AssertionError):
        poptorch.removeBlocks(lambda: 0)


def test_scopes_do_nothing_on_the_host():
    @poptorch.BlockFunction(ipu_id=1)
    def double(x):
        """Twice."""
        return 2 * x

    poptorch.Block.useAutoId()
    poptorch.Block.start("a")
    with (
        poptorch.Block("b", ipu_id=1) as entered,
        poptorch.NameScope("n"),
        poptorch.Attribute(__outline={"layer": "x"}),
    ):
        assert entered is None and double(3) == 6
    assert double.__doc__ == "Twice." and not poptorch.isRunningOnIpu()
    assert isinstance(poptorch.Block("b"), torch.nn.Module)
    with pytest.raises(AssertionError):
        poptorch.NameScope(3)


def test_identity_loss_and_identity_operators():
    x = torch.randn(3, 2, requires_grad=True)
    assert torch.equal(poptorch.identity_loss(x, "sum"), x.sum())
    assert torch.equal(poptorch.identity_loss(x, "mean"), x.mean())
    none = poptorch.identity_loss(x, "none")
    assert torch.equal(none, x) and none is not x
    with pytest.raises(AssertionError):
        poptorch.identity_loss(x, "average")
    assert torch.equal(poptorch.nop(x), x) and torch.equal(poptorch.set_available_memory(x, 0.3), x)
    y = torch.ones(1)
    assert poptorch.recomputationCheckpoint(x) is x
    assert poptorch.recomputationCheckpoint(x, y) == (x, y)
    assert type(poptorch.recomputationCheckpoint([x, y])) is list
    with pytest.raises(ValueError):
        poptorch.recomputationCheckpoint(x, 1)
    with pytest.raises(poptorch.Error):
        poptorch.nop(1)


def test_print_shows_annotations(capsys):
    model = torch.nn.Sequential(poptorch.BeginBlock(torch.nn.ReLU(), "r"))
    poptorch.print(model)
    shown = capsys.readouterr().out
    assert shown == poptorch.module_repr(model) + "\n" + repr(model) + "\n"

"""Plain values in arguments that have a registered parser, which hands on their tensors only."""

import logging

import abele
import poptorch
import pytest
import torch


class Scaled:
    """Rows and their factor."""

    def __init__(self, rows, factor, notes=None):
        self.rows, self.factor, self.notes = rows, factor, notes


class ScaledParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):
        yield struct.rows

    def reconstruct(self, original_structure, tensor_iterator):
        return Scaled(next(tensor_iterator), original_structure.factor, original_structure.notes)


class Multiplies(torch.nn.Module):
    def forward(self, given):
        return given.rows * given.factor


@pytest.fixture(autouse=True)
def parser():
    poptorch.registerCustomArgParser(Scaled, ScaledParser())
    yield
    poptorch.registerCustomArgParser(Scaled, None)


def test_poptorch_says_once_that_they_are_constants(caplog):
    model = poptorch.inferenceModel(Multiplies())
    rows = torch.randn(3)
    with caplog.at_level(logging.WARNING, logger="poptorch::python"):
        assert torch.equal(model(Scaled(rows, 2.0, {"of": [1, "a"]})), rows * 2)
        assert torch.equal(model(Scaled(rows, 2.0, {"of": [1, "a"]})), rows * 2)
        assert not caplog.records
        assert torch.equal(model(Scaled(rows, 3.0)), rows * 2)
        model(Scaled(rows, 4.0))
    assert ["Scaled" in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize("other", [3.0, 2, True])
def test_abele_compiles_a_program_for_each(other):
    model = abele.inferenceModel(Multiplies())
    rows = torch.randn(3)
    for factor in (2.0, other, 2.0):
        result, expected = model(Scaled(rows, factor)), rows * factor
        assert torch.equal(result, expected) and result.dtype == expected.dtype


def test_values_inside_of_containers_and_objects_count(caplog):
    model = poptorch.inferenceModel(Multiplies())
    rows = torch.randn(3)
    with caplog.at_level(logging.WARNING, logger="poptorch::python"):
        model(Scaled(rows, 2.0, [Scaled(rows, 1.0, "inner")]))
        model(Scaled(rows, 2.0, [Scaled(rows, 1.0, "inner")]))
        assert not caplog.records
        model(Scaled(rows, 2.0, [Scaled(rows, 1.0, "another")]))
    assert len(caplog.records) == 1


def test_a_value_that_holds_itself(caplog):
    model = poptorch.inferenceModel(Multiplies())
    given = Scaled(torch.randn(3), 2.0)
    given.notes = given
    for _ in range(2):
        assert torch.equal(model(given), given.rows * 2)
    assert not caplog.records


def test_a_saved_program_knows_them(tmp_path, caplog):
    rows = torch.randn(3)
    model = poptorch.inferenceModel(Multiplies())
    model.compile(Scaled(rows, 2.0))
    model.save(tmp_path / "scaled", export_model=False)
    loaded = poptorch.inferenceModel(Multiplies())
    loaded.loadExecutable(tmp_path / "scaled")
    with caplog.at_level(logging.WARNING, logger="poptorch::python"):
        assert torch.equal(loaded(Scaled(rows, 2.0)), rows * 2)
        assert not caplog.records
        loaded(Scaled(rows, 3.0))
    assert len(caplog.records) == 1

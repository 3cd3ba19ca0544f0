"""Costs that the simulator cannot use are refused with the place of the fault."""

import abele
import pytest


@pytest.mark.parametrize(
    "costs, found",
    [
        ([{"forward": 1}], 'unknown key "forward"'),
        ([], "costs without stages"),
        ([{"forward_ns": -1}], "a negative time or size"),
        ({"stages": [{"forward_ns": "fast"}]}, "line 1"),
    ],
)
def test_costs_are_refused(costs, found):
    with pytest.raises(abele.Error, match="E0404") as error:
        abele.simulate(costs)
    assert found in str(error.value)

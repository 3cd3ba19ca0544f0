"""E0105: element types that Abele does not know, without a word of torch's before the error."""

import poptorch
import pytest
import torch


class Model(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4).to(dtype))

    def forward(self, x):
        return self.layer(x) * self.scale.float()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint16])
def test_error(dtype, capfd):
    with pytest.raises(poptorch.Error, match="E0105 unsupported-tensor") as raised:
        poptorch.inferenceModel(Model(dtype))(torch.ones(2, 4))
    assert "element type" in str(raised.value) and "test_E0105_element_types.py:" in str(raised.value)
    assert "RecordFunction" not in capfd.readouterr().err

"""Each row of the table in drop_unused_saved.cc: the operator gives the same bits without the operands."""

import pytest
import torch


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("channels_last", [False, True])
def test_batch_norm_backward_in_training_reads_no_running_statistics(shape, dtype, channels_last):
    layout = torch.channels_last if channels_last and len(shape) == 4 else torch.contiguous_format
    random = torch.Generator().manual_seed(0)

    def make(*sizes):
        return torch.randn(sizes, dtype=dtype, generator=random)

    x, grad = (make(*shape).contiguous(memory_format=layout) for _ in range(2))
    weight, running_mean, running_var = make(3), make(3), make(3).abs()
    aten = torch.ops.aten
    _, mean, invstd = aten.native_batch_norm(
        x, weight, None, running_mean.clone(), running_var.clone(), True, 0.1, 1e-5
    )
    rest = (mean, invstd, True, 1e-5, [True] * 3)
    kept = aten.native_batch_norm_backward(grad, x, weight, running_mean, running_var, *rest)
    dropped = aten.native_batch_norm_backward(grad, x, weight, None, None, *rest)
    assert all(torch.equal(a, b) for a, b in zip(kept, dropped, strict=True))

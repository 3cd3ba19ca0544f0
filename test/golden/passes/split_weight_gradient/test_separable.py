"""Each row of the table in split_weight_gradient.cc: a call for each kind of gradient makes the bits of one for all."""

import itertools

import pytest
import torch

CONVOLUTIONS = {  # sizes of x without its batch, sizes of the weight, groups
    "plain": ((8, 9, 9), (6, 8, 3, 3), 1),
    "pointwise": ((8, 9, 9), (16, 8, 1, 1), 1),
    "wide": ((32, 8, 8), (32, 32, 3, 3), 1),
    "groups": ((8, 9, 9), (12, 4, 3, 3), 2),
    "depthwise": ((16, 9, 9), (16, 1, 3, 3), 16),
    "line": ((6, 17), (4, 6, 3), 1),
    "volume": ((4, 6, 6, 6), (8, 4, 3, 3, 3), 1),
}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@pytest.fixture(params=[(False, torch.float32), *((True, dtype) for dtype in DTYPES)], ids=str)
def dtype(request):
    """Of oneDNN's kernels, and of ATen's own with two threads."""
    onednn, dtype = request.param
    before = torch.get_num_threads(), torch._C._get_mkldnn_enabled()
    torch.set_num_threads(1 if onednn else 2)
    torch._C._set_mkldnn_enabled(onednn)
    yield dtype
    torch.set_num_threads(before[0])
    torch._C._set_mkldnn_enabled(before[1])


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("shape", CONVOLUTIONS)
def test_convolution_backward(shape, dtype, channels_last):
    """Forward and transposed, strides, dilation, one example or several, with and without a bias."""
    sizes, weight_sizes, groups = CONVOLUTIONS[shape]
    dims = len(sizes) - 1
    random = torch.Generator().manual_seed(0)
    layout = {2: torch.channels_last, 3: torch.channels_last_3d}.get(dims) if channels_last else None

    def make(*sizes):
        made = torch.randn(sizes, generator=random).to(dtype)
        return made if layout is None else made.contiguous(memory_format=layout)

    choices = itertools.product((False, True), ((1, 1), (2, 1), (1, 2)), ((1, True), (3, False)))
    for transposed, (stride, dilation), (batch, has_bias) in choices:
        weight = make(*weight_sizes)
        channels = [weight_sizes[1] * groups, weight_sizes[0]]  # of input and output
        if transposed:
            channels.reverse()
        x = make(batch, channels[0], *sizes[1:])
        geometry = ([stride] * dims, [0] * dims, [dilation] * dims, transposed, [0] * dims, groups)
        grad = torch.randn_like(torch.ops.aten.convolution(x, weight, None, *geometry))
        arguments = (grad, x, weight, channels[1:] if has_bias else None, *geometry)
        whole = torch.ops.aten.convolution_backward(*arguments, [True, True, has_bias])
        of_input = torch.ops.aten.convolution_backward(*arguments, [True, False, False])
        of_parameters = torch.ops.aten.convolution_backward(*arguments, [False, True, has_bias])
        assert of_input[1] is None and of_parameters[0] is None
        for gradient, part in zip(whole, (of_input[0], *of_parameters[1:]), strict=True):
            assert (gradient is None) == (part is None)
            assert gradient is None or (torch.equal(gradient, part) and gradient.stride() == part.stride())

"""What the parity walk may find besides equal results, with reasons. A case that is here without need fails no test."""

# Results equal eager's up to rounding.
CLOSE = {
    "op linalg.lstsq": "the driver gelsy starts from uninitialised pivots: eager PyTorch does not repeat its own bits",
    "op linalg.lstsq grad_oriented": "as linalg.lstsq",
}

_FORMULA = "a formula of autograd that looks at values (shown_formulas.def)"
_PAST_OPERATORS = "a composite operator that works past all operators (shown_formulas.def)"
_CHECK = "a check of values that changes nothing is left out"
_DRAWS = "a random operator without a generator is recorded as what it calls, which has one"
_FILLED = "memory that nothing has filled is recorded as it was"
_FIXED_SHAPE = "a form with a fixed shape (kernels/fixed_shapes.cc)"
_ON_DEVICE = "how much a batch counts is a value of the device"
_PADDING = "padding masks never shorten what an encoder computes"
# Recorded otherwise than eager runs it, on purpose; the values are equal where CLOSE does not say otherwise.
OTHER_OPERATORS = {
    **dict.fromkeys(
        [
            *("op cumprod", "op linalg.vander", "op masked.cumprod", "op prod", "op masked.prod", "op masked_fill"),
            *("op max reduction_no_dim", "op min reduction_no_dim", "op median", "op nanmedian"),
        ],
        _FORMULA,
    ),
    **dict.fromkeys(["op nn.functional.max_pool1d", "module nn.MaxPool1d"], _PAST_OPERATORS),
    **dict.fromkeys(
        [
            *("op corrcoef", "op cov", "op istft", "op quantile", "op nanquantile", "op nn.functional.one_hot"),
            *("op nn.functional.gaussian_nll_loss", "module nn.GaussianNLLLoss"),
        ],
        _CHECK,
    ),
    **dict.fromkeys(
        [
            *("op nn.functional.fractional_max_pool2d", "op nn.functional.fractional_max_pool3d", "op svd_lowrank"),
            *("op pca_lowrank", "op rand_like", "op randn", "op randn_like", "op randint", "op randint_like"),
        ],
        _DRAWS,
    ),
    **dict.fromkeys(
        [
            *("op empty", "op empty_like", "op empty_permuted", "op empty_strided"),
            *("op new_empty", "op new_empty_strided"),
        ],
        _FILLED,
    ),
    **dict.fromkeys(
        [
            *("op bincount", "op nn.functional.ctc_loss", "module nn.CTCLoss", "op nn.functional.cross_entropy"),
            *(
                "op nn.functional.linear_cross_entropy",
                "module nn.CrossEntropyLoss",
                "module nn.LinearCrossEntropyLoss",
            ),
        ],
        _FIXED_SHAPE,
    ),
    **dict.fromkeys([f"module nn.BatchNorm{n}d" for n in (1, 2, 3)], _ON_DEVICE),
    **dict.fromkeys(["module nn.Transformer", "module nn.TransformerEncoder"], _PADDING),
    **dict.fromkeys(
        ["op fft.hfft", "op fft.hfft2", "op fft.hfftn", "op fft.ifft", "op fft.ihfft", "op fft.ihfftn"],
        "a conjugated operand or result is computed by an operator of its own",
    ),
    "op gather": "32-bit indices are widened (long_indices.def)",
    "op narrow": "a start that is an integer argument is read once, and checked in every step",
}

_VALUES = "reads values to decide what to compute"
_SHAPE = "the shape of the result depends on values"
_SPARSE = "sparse tensors"
# Refused with a typed error for some samples at least.
REFUSED = {
    "op cov": f"{_VALUES}: with weights given as tensors",
    "op narrow": f"{_VALUES}: with a start that is a tensor",
    "op tensor_split": f"{_VALUES}: with indices that are a tensor",
    "op nn.functional.one_hot": f"{_SHAPE}: without num_classes",
    "op masked_select": _SHAPE,
    "op nonzero": _SHAPE,
    "op argwhere": _SHAPE,
    "op unique": _SHAPE,
    "op unique_consecutive": _SHAPE,
    "op bincount": f"{_SHAPE}: without minlength, and where a value is beyond it",
    "op repeat_interleave": f"{_SHAPE}: with repeats that are a tensor and no output_size",
    "op index_put": f"{_SHAPE}: the gradient of values that are written through a mask, other than t[mask] = values",
    "op index_fill": f"{_SHAPE}: the gradient of a value that is a tensor",
    "module nn.AdaptiveLogSoftmaxWithLoss": _SHAPE,
    "op resize_": "resizes a tensor that has elements",
    "op hash_tensor": "its result is of type uint64",
    "op to_sparse": _SPARSE,
    "op sparse.sampled_addmm": _SPARSE,
    "op sparse.mm reduce": _SPARSE,
}

_NO_TENSOR = "returns no tensor"
_DEVICE = "torch has it for other devices only"
NO_SAMPLE = {
    "op item": _NO_TENSOR,
    "op allclose": _NO_TENSOR,
    "op equal": _NO_TENSOR,
    "op broadcast_shapes": _NO_TENSOR,
    "op torch._scaled_mm": _DEVICE,
    "op torch._scaled_mm_v2": _DEVICE,
    "op torch.ops.aten._flash_attention_forward": _DEVICE,
    "op torch.ops.aten._efficient_attention_forward": _DEVICE,
    "op nn.functional.batch_norm without_cudnn": _DEVICE,
    "op jiterator_unary": _DEVICE,
    "op jiterator_binary": _DEVICE,
    "op jiterator_4inputs_with_extra_args": _DEVICE,
    "op jiterator_binary_return_by_ref": _DEVICE,
    "op jiterator_2inputs_2outputs": _DEVICE,
}

"""The operators of the original's backend for custom_op: those of ONNX that torch has, and PopART's own.

Each row is a function of the inputs and, by keyword, of the attributes with ONNX's defaults. `version` is the domain's.
Results share no memory with inputs.
Source: spec annotations.md, section 9; ONNX's operator schemas, PopART's list of operators.
"""

import functools
import inspect
import math

import torch
import torch.nn.functional as F

from ._errors import user_error
from ._native import core
from ._tracing import captured_options


def _one(function):
    return lambda x: function(x)


def _two(function):
    return lambda a, b: function(a, b)


def _any(function):
    return lambda first, *others: functools.reduce(function, others, first)


def _softmax(function):
    def apply(x, *, version, axis=None):
        if version >= 13:
            return function(x, -1 if axis is None else axis)
        rows = math.prod(x.shape[: 1 if axis is None else axis % x.dim()])
        return function(x.reshape(rows, -1), 1).reshape(x.shape)

    return apply


def _reduced(function):
    def apply(x, *, axes=None, keepdims=1):
        return function(x, list(range(x.dim())) if axes is None else list(axes), bool(keepdims))

    return apply


def _place(function):
    return lambda x, *, axis=0, keepdims=1: function(x, axis, bool(keepdims))


def _div(a, b):
    both = not (a.is_floating_point() or b.is_floating_point())
    return torch.div(a, b, rounding_mode="trunc" if both else None)


def _clip(x, low=None, high=None, *, min=None, max=None):
    return torch.clamp(x, min if low is None else low, max if high is None else high)


def _gemm(a, b, c=None, *, alpha=1.0, beta=1.0, transA=0, transB=0):
    product = alpha * ((a.t() if transA else a) @ (b.t() if transB else b))
    return product if c is None else product + beta * c


def _flatten(x, *, axis=1):
    return x.reshape(math.prod(x.shape[: axis % x.dim() if axis < 0 else axis]), -1).clone()


def _transpose(x, *, perm=None):
    return x.permute(list(reversed(range(x.dim()))) if perm is None else list(perm)).clone()


_ONE = {
    **{name: getattr(torch, name.lower()) for name in "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh".split()},
    **{name: getattr(torch, name.lower()) for name in "Erf Exp Floor IsNaN Log Neg Reciprocal Relu Round".split()},
    **{name: getattr(torch, name.lower()) for name in "Sigmoid Sign Sin Sinh Sqrt Tan Tanh".split()},
    "HardSwish": F.hardswish,
    "Identity": torch.clone,
    "Mish": F.mish,
    "Not": torch.logical_not,
    "Selu": torch.selu,
    "Softplus": F.softplus,
    "Softsign": F.softsign,
}
_TWO = {
    "Add": torch.add,
    "And": torch.logical_and,
    "Div": _div,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "MatMul": torch.matmul,
    "Mul": torch.mul,
    "Or": torch.logical_or,
    "PRelu": lambda x, slope: torch.where(x < 0, slope * x, x),
    "Pow": torch.pow,
    "Sub": torch.sub,
    "Xor": torch.logical_xor,
}
_REDUCED = {
    "ReduceL1": lambda x, axes, keep: torch.linalg.vector_norm(x, 1, axes, keep),
    "ReduceL2": lambda x, axes, keep: torch.linalg.vector_norm(x, 2, axes, keep),
    "ReduceLogSumExp": torch.logsumexp,
    "ReduceMax": torch.amax,
    "ReduceMean": torch.mean,
    "ReduceMin": torch.amin,
    "ReduceSum": torch.sum,
    "ReduceSumSquare": lambda x, axes, keep: torch.sum(x.square(), axes, keep),
}
_ONNX = {
    **{name: _one(function) for name, function in _ONE.items()},
    **{name: _two(function) for name, function in _TWO.items()},
    **{name: _reduced(function) for name, function in _REDUCED.items()},
    "ArgMax": _place(torch.argmax),
    "ArgMin": _place(torch.argmin),
    "Celu": lambda x, *, alpha=1.0: F.celu(x, alpha),
    "Clip": _clip,
    "Concat": lambda *inputs, axis: torch.cat(inputs, axis),
    "Elu": lambda x, *, alpha=1.0: F.elu(x, alpha),
    "Flatten": _flatten,
    "Gather": lambda x, indices, *, axis=0: x[(slice(None),) * (axis % x.dim()) + (indices.long(),)],
    "GatherElements": lambda x, indices, *, axis=0: torch.gather(x, axis, indices.long()),
    "Gelu": lambda x, *, approximate="none": F.gelu(x, approximate=approximate),
    "Gemm": _gemm,
    "HardSigmoid": lambda x, *, alpha=0.2, beta=0.5: torch.clamp(alpha * x + beta, 0, 1),
    "LeakyRelu": lambda x, *, alpha=0.01: F.leaky_relu(x, alpha),
    "LogSoftmax": _softmax(torch.log_softmax),
    "Max": _any(torch.maximum),
    "Mean": lambda *inputs: functools.reduce(torch.add, inputs) / len(inputs),
    "Min": _any(torch.minimum),
    "Mod": lambda a, b, *, fmod=0: torch.fmod(a, b) if fmod else torch.remainder(a, b),
    "Softmax": _softmax(torch.softmax),
    "Sum": _any(torch.add),
    "ThresholdedRelu": lambda x, *, alpha=1.0: F.threshold(x, alpha, 0.0),
    "Transpose": _transpose,
    "Trilu": lambda x, *, upper=1: torch.triu(x) if upper else torch.tril(x),
    "Where": lambda condition, x, y: torch.where(condition, x, y),
}
_GRAPHCORE = {
    "Atan2": _two(torch.atan2),
    "BitwiseAnd": _two(torch.bitwise_and),
    "BitwiseNot": _one(torch.bitwise_not),
    "BitwiseOr": _two(torch.bitwise_or),
    "BitwiseXor": _two(torch.bitwise_xor),
    "Detach": lambda x: x.detach().clone(),
    "Expm1": _one(torch.expm1),
    "Fmod": _two(torch.fmod),
    "Gelu": lambda x: F.gelu(x, approximate="tanh"),
    "GeluErf": _one(F.gelu),
    "Log1p": _one(torch.log1p),
    "Remainder": _two(torch.remainder),
    "Reverse": lambda x, *, dimensions: torch.flip(x, list(dimensions)),
    "Round": _one(torch.round),
    "Scale": lambda x, *, scale: x * scale,
    "Swish": _one(F.silu),
}


def _from_all(rows):
    """Sends row r to replica r, and returns the rows received. Gradients go back the same way."""
    return torch.ops.abele_op.all_to_all(rows) if len(rows) > 1 else rows.clone()


def _num_replicas():
    options = captured_options()
    if options.Distributed.numProcesses > 1:
        raise user_error(
            "E0711",
            "an exchange of values between replicas of several processes",
            remedy="keep all replicas in one process",
        )
    return options.replication_factor


def _sum(rows):
    """In the order of the replicas, as their gradients are added up."""
    return functools.reduce(torch.add, rows.unbind())


def _all_gather(x):
    return _from_all(x.expand(_num_replicas(), *x.shape))


def _reduce_scatter(x):
    """The replica's part of the sum's elements; zeros fill the last part."""
    count = _num_replicas()
    size = math.ceil(x.numel() / count)
    return _sum(_from_all(F.pad(x.reshape(-1), (0, count * size - x.numel())).view(count, size)))


_GRAPHCORE |= {
    "ReplicatedAllGather": _all_gather,
    "ReplicatedAllReduce": lambda x: _sum(_all_gather(x)),
    "ReplicatedReduceScatter": _reduce_scatter,
}
_RESHAPED = ("ReplicatedAllGather", "ReplicatedReduceScatter")  # to the shape of the example
DOMAINS = {"ai.onnx": _ONNX, "ai.graphcore": _GRAPHCORE}
_INTEGERS = (torch.int32, torch.int64)  # the example decides which of them a result has


def run(inputs, name, domain, version, examples, attributes):
    """The results. Requires: the domain is one of DOMAINS."""
    function, what = DOMAINS[domain].get(name), f"operator {domain}::{name}"
    if function is None:
        known = f"those of {domain} here are {', '.join(sorted(DOMAINS[domain]))}"
        raise user_error("E0106", f"{what} is not there", remedy=core().didYouMean(name, list(DOMAINS[domain]), known))
    given = dict(attributes or {})
    signature = inspect.signature(function)
    if "version" in signature.parameters:
        given["version"] = version
    try:
        signature.bind(*inputs, **given)
    except TypeError as error:
        raise user_error("E0708", f"{what}: {error}", expected=f"inputs and attributes as in {signature}") from None
    result = function(*inputs, **given)
    if name in _RESHAPED and len(examples) == 1 and examples[0].numel() == result.numel():
        result = result.reshape(examples[0].shape)
    return [_fitting(what, result.clone() if any(result is each for each in inputs) else result, examples)]


def _fitting(what, result, examples):
    """The result in the type of the example."""
    if len(examples) == 1 and result.dtype in _INTEGERS and examples[0].dtype in _INTEGERS:
        result = result.to(examples[0].dtype)
    found, expected = ([f"{tensor.dtype}{list(tensor.shape)}" for tensor in each] for each in ([result], examples))
    if found != expected:
        raise user_error(
            "E0708",
            f"the example outputs do not fit {what}",
            found=", ".join(expected),
            expected=", ".join(found),
        )
    return result

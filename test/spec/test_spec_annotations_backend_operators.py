"""spec annotations.md, section 9: operators that the original's backend has by itself, by custom_op."""

from pathlib import Path

import poptorch
import pytest
import torch
import torch.nn.functional as F
from abele._onnx_operators import DOMAINS

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "custom_operators.md"
X = torch.linspace(-2, 3, 24).reshape(4, 6)
Y = torch.linspace(3, -1, 24).reshape(4, 6) + 0.125
N = torch.tensor([[1, -7, 6], [2, 9, -4]], dtype=torch.int32)
M = torch.tensor([[3, 2, -4], [5, -2, 3]], dtype=torch.int32)
POSITIVE = X.abs() + 0.5
INSIDE = X / 4


class Model(torch.nn.Module):
    def __init__(self, name, domain, version, example, attributes):
        super().__init__()
        self.call = name, domain, version
        self.example, self.attributes = example, attributes

    def forward(self, *inputs):
        name, domain, version = self.call
        example = [torch.zeros(self.example.shape, dtype=self.example.dtype)]
        return poptorch.custom_op(list(inputs), name, domain, version, example, self.attributes)[0]


def run(inputs, name, expected, attributes=None, domain="ai.onnx", version=11):
    return poptorch.inferenceModel(Model(name, domain, version, expected, attributes))(*inputs)


# Name: (inputs, what torch gives[, attributes[, version of the domain]]).
ONNX = {
    **{name: ([X], getattr(torch, name.lower())(X)) for name in "Abs Ceil Cos Cosh Erf Exp Floor Neg Relu".split()},
    **{name: ([X], getattr(torch, name.lower())(X)) for name in "Round Sigmoid Sign Sin Sinh Tan Tanh".split()},
    **{name: ([X], getattr(torch, name.lower())(X)) for name in "Atan Asinh Selu".split()},
    **{name: ([POSITIVE], getattr(torch, name.lower())(POSITIVE)) for name in "Log Sqrt Reciprocal".split()},
    **{name: ([INSIDE], getattr(torch, name.lower())(INSIDE)) for name in "Acos Asin Atanh".split()},
    "Acosh": ([POSITIVE + 1], torch.acosh(POSITIVE + 1)),
    "Add": ([X, Y], X + Y),
    "And": ([X > 0, Y > 0], (X > 0) & (Y > 0)),
    "ArgMax": ([X], X.argmax(1, True).int(), {"axis": 1}),
    "ArgMin": ([X], X.argmin(0).int(), {"keepdims": 0}),
    "Celu": ([X], F.celu(X, 0.5), {"alpha": 0.5}),
    "Clip": ([X], X.clamp(-1.0, 2.0), {"min": -1.0, "max": 2.0}, 6),
    "Concat": ([X, Y], torch.cat([X, Y], 1), {"axis": 1}),
    "Div": ([N, M], torch.tensor([[0, -3, -1], [0, -4, -1]], dtype=torch.int32)),
    "Elu": ([X], F.elu(X, 0.5), {"alpha": 0.5}),
    "Equal": ([N, M], N == M),
    "Flatten": ([X.view(2, 2, 6)], X.view(2, 12)),
    "Gather": ([X, N.abs() % 4], X[(N.abs() % 4).long()]),
    "GatherElements": ([X, N.abs() % 4], X.gather(1, (N.abs() % 4).long()), {"axis": 1}),
    "Gelu": ([X], F.gelu(X, approximate="tanh"), {"approximate": "tanh"}, 20),
    "Gemm": ([X, Y, torch.ones(4)], 0.5 * (X @ Y.t()) + 2.0 * torch.ones(4), {"alpha": 0.5, "beta": 2.0, "transB": 1}),
    "Greater": ([X, Y], X > Y),
    "GreaterOrEqual": ([X, Y], X >= Y),
    "HardSigmoid": ([X], (0.25 * X + 0.5).clamp(0, 1), {"alpha": 0.25}),
    "HardSwish": ([X], F.hardswish(X)),
    "Identity": ([X], X),
    "IsNaN": ([X.log()], X.log().isnan()),
    "LeakyRelu": ([X], F.leaky_relu(X, 0.25), {"alpha": 0.25}),
    "Less": ([X, Y], X < Y),
    "LessOrEqual": ([X, Y], X <= Y),
    "LogSoftmax": ([X], X.log_softmax(-1), None, 13),
    "MatMul": ([X, Y.t()], X @ Y.t()),
    "Max": ([X, Y, -X], X.maximum(Y).maximum(-X)),
    "Mean": ([X, Y, -X], (X + Y + -X) / 3),
    "Min": ([X, Y], X.minimum(Y)),
    "Mish": ([X], F.mish(X)),
    "Mod": ([N, M], N.remainder(M)),
    "Mul": ([X, Y], X * Y),
    "Not": ([X > 0], X <= 0),
    "Or": ([X > 0, Y > 0], (X > 0) | (Y > 0)),
    "PRelu": ([X, torch.tensor([0.25])], torch.where(X < 0, 0.25 * X, X)),
    "Pow": ([POSITIVE, X], POSITIVE.pow(X)),
    "ReduceL1": ([X], torch.linalg.vector_norm(X, 1, [1], True), {"axes": [1]}),
    "ReduceL2": ([X], torch.linalg.vector_norm(X, 2, [1]), {"axes": [1], "keepdims": 0}),
    "ReduceLogSumExp": ([X], X.logsumexp([0, 1], True)),
    "ReduceMax": ([X], X.amax([0], True), {"axes": [0]}),
    "ReduceMean": ([X], X.mean([0, 1], True)),
    "ReduceMin": ([X], X.amin([1], True), {"axes": [-1]}),
    "ReduceSum": ([X], X.sum([0], False), {"axes": [0], "keepdims": 0}),
    "ReduceSumSquare": ([X], X.square().sum([1], True), {"axes": [1]}),
    "Softmax": ([X.view(2, 2, 6)], X.view(2, 12).softmax(1).view(2, 2, 6)),
    "Softplus": ([X], F.softplus(X)),
    "Softsign": ([X], F.softsign(X)),
    "Sub": ([X, Y], X - Y),
    "Sum": ([X, Y, X], X + Y + X),
    "ThresholdedRelu": ([X], torch.where(X > 0.5, X, torch.zeros(())), {"alpha": 0.5}),
    "Transpose": ([X.view(2, 2, 6)], X.view(2, 2, 6).permute(1, 2, 0).contiguous(), {"perm": [1, 2, 0]}),
    "Trilu": ([X], X.tril(), {"upper": 0}),
    "Where": ([X > 0, X, Y], torch.where(X > 0, X, Y)),
    "Xor": ([X > 0, Y > 0], (X > 0) ^ (Y > 0)),
}
GRAPHCORE = {
    "Atan2": ([X, Y], X.atan2(Y)),
    "BitwiseAnd": ([N, M], N & M),
    "BitwiseNot": ([N], ~N),
    "BitwiseOr": ([N, M], N | M),
    "BitwiseXor": ([N, M], N ^ M),
    "Detach": ([X], X),
    "Expm1": ([X], X.expm1()),
    "Fmod": ([X, Y], X.fmod(Y)),
    "Gelu": ([X], F.gelu(X, approximate="tanh")),
    "GeluErf": ([X], F.gelu(X)),
    "Log1p": ([POSITIVE], POSITIVE.log1p()),
    "Remainder": ([X, Y], X.remainder(Y)),
    "Reverse": ([X], X.flip([1]), {"dimensions": [1]}),
    "Round": ([X], X.round()),
    "Scale": ([X], X * 0.25, {"scale": 0.25}),
    "Swish": ([X], F.silu(X)),
}


@pytest.mark.spec("annotations/9", names=["poptorch.custom_op"])
@pytest.mark.parametrize("name", DOMAINS["ai.onnx"])
def test_operators_of_onnx(name):
    inputs, expected, *rest = ONNX[name]
    attributes, version = [*rest, None, 11][:2] if len(rest) < 2 else rest
    result = run(inputs, name, expected, attributes, version=11 if version is None else version)
    assert torch.equal(result, expected) and result.dtype == expected.dtype


@pytest.mark.spec("annotations/9", names=["poptorch.custom_op"])
@pytest.mark.parametrize("name", DOMAINS["ai.graphcore"])
def test_operators_of_the_backend(name):
    inputs, expected, *attributes = GRAPHCORE[name]
    result = run(inputs, name, expected, *attributes, domain="ai.graphcore", version=1)
    assert torch.equal(result, expected) and result.dtype == expected.dtype


@pytest.mark.spec("annotations/9", names=["poptorch.custom_op"])
def test_softmax_depends_on_the_version():
    x = X.view(2, 2, 6)
    assert torch.equal(run([x], "Softmax", x, version=13), x.softmax(-1))
    assert torch.equal(run([x], "Softmax", x, {"axis": 2}, version=11), x.softmax(-1))


@pytest.mark.spec("annotations/9", names=["poptorch.custom_op"])
def test_they_have_gradients():
    class Net(torch.nn.Module):
        def __init__(self, calls):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 6))
            self.calls = calls

        def forward(self, x):
            if self.calls:
                y = poptorch.custom_op([x * self.weight], "LeakyRelu", "ai.onnx", 6, [x], {"alpha": 0.25})[0]
                y = poptorch.custom_op([y], "Gelu", "ai.graphcore", 1, [x])[0]
            else:
                y = F.gelu(F.leaky_relu(x * self.weight, 0.25), approximate="tanh")
            return poptorch.identity_loss(y, "sum")

    model, eager = Net(calls=True), Net(calls=False)
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
    loss = eager(X)
    loss.backward()
    torch.optim.SGD(eager.parameters(), lr=0.5).step()
    assert torch.equal(executor(X), loss) and torch.equal(model.weight, eager.weight)


@pytest.mark.spec("annotations/9", names=["poptorch.custom_op"])
def test_results_share_no_memory_with_inputs():
    class Written(torch.nn.Module):
        def forward(self, x):
            y = poptorch.custom_op([x], "Identity", "ai.onnx", 1, [x])[0]
            y += 1
            return x * 1, y

    x, y = poptorch.inferenceModel(Written())(X.clone())
    assert torch.equal(x, X) and torch.equal(y, X + 1)


@pytest.mark.spec("annotations/9", names=["poptorch.custom_op"])
def test_what_they_refuse():
    for name, domain, text in (
        ("LeakyRellu", "ai.onnx", "LeakyRelu"),
        ("Einsum", "ai.onnx", "Abs, Acos(.|\n)*Xor"),
        ("AllToAllPooled", "ai.graphcore", "Atan2, BitwiseAnd(.|\n)*Swish"),
    ):
        with pytest.raises(poptorch.Error, match=f"E0106(.|\n)*{domain}::{name}(.|\n)*{text}"):
            run([X], name, X, domain=domain)
    for inputs, name, attributes in (
        ([X], "Add", None),
        ([X, X], "Relu", None),
        ([X], "LeakyRelu", {"slope": 0.5}),
        ([X, Y], "Concat", None),
    ):
        with pytest.raises(poptorch.Error, match=f"E0708(.|\n)*ai.onnx::{name}"):
            run(inputs, name, X, attributes)
    for example in (X[:2], X.int()):
        with pytest.raises(poptorch.Error, match=r"E0708(.|\n)*example outputs(.|\n)*float32\[4, 6\]"):
            run([X], "Relu", example)


def test_the_guide_lists_them():
    text = " ".join(GUIDE.read_text().split())
    for domain, operators in DOMAINS.items():
        assert f"The domain `{domain}` has: {', '.join(sorted(operators))}." in text

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
    "ReplicatedAllGather": ([X], X.view(1, 4, 6)),
    "ReplicatedAllReduce": ([X], X),
    "ReplicatedReduceScatter": ([X], X.view(24)),
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
        ("AllToAllPooled", "ai.graphcore", "ReplicatedAllGather, ReplicatedAllReduce, ReplicatedReduceScatter"),
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


# Replicas ------------------------------------------------------------------------------------------------------------


class Meeting(torch.nn.Module):
    """Uses what the other replicas have, with gradients through it."""

    def __init__(self, replicas, last_device=0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0, 1.0]))
        self.replicas = replicas
        self.last_device = last_device

    def exchange(self, name, x, example):
        return poptorch.custom_op([x], name, "ai.graphcore", 1, [example])[0]

    def forward(self, x):
        poptorch.Block.start("first", ipu_id=0)
        y = (x * self.weight).sum(0)
        gathered = self.exchange("ReplicatedAllGather", y, torch.zeros(self.replicas, 4))
        poptorch.Block.start("last", ipu_id=self.last_device)
        total = self.exchange("ReplicatedAllReduce", y, y)
        part = self.exchange("ReplicatedReduceScatter", gathered, gathered[0])
        loss = (gathered.square() * torch.arange(4.0)).sum() + (total * y).sum() + part.square().sum()
        return gathered, total, part, poptorch.identity_loss(loss, "sum")


def meet_eagerly(weight, xs):
    """The results of all replicas, with their own copies of the weight."""
    weights = [weight.clone().requires_grad_() for _ in xs]
    ys = [(x * w).sum(0) for x, w in zip(xs, weights, strict=True)]
    gathered, total = torch.stack(ys), sum(ys[1:], ys[0])
    parts = (gathered * len(xs)).view(len(xs), -1)
    results, losses = [], []
    for y, part in zip(ys, parts, strict=True):
        losses.append((gathered.square() * torch.arange(4.0)).sum() + (total * y).sum() + part.square().sum())
        results.append((gathered, total, part))
    (sum(losses) / len(xs)).backward()
    return results, losses, sum(w.grad for w in weights)


@pytest.mark.spec("annotations/9", names=["poptorch.custom_op"])
@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize(("last_device", "accumulation"), [(0, 1), (0, 3), (1, 3), (1, 4)])
def test_replicas_meet(replicas, last_device, accumulation):
    model = Meeting(replicas, last_device)
    weight = model.weight.detach().clone()
    options = poptorch.Options().replicationFactor(replicas).outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(accumulation)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=2**-10))
    for step in range(2):  # whole numbers, so that no order of sums matters
        x = torch.arange(8.0 * replicas * accumulation).view(-1, 4) % 7 - 3 + step
        gathered, total, part, loss = executor(x)
        gradient = torch.zeros(4)
        for k, rows in enumerate(x.split(2 * replicas)):
            results, losses, grad = meet_eagerly(weight, rows.split(2))
            gradient += grad
            for r, (each, wanted) in enumerate(zip(results, losses, strict=True)):
                i = k * replicas + r
                assert torch.equal(gathered.view(-1, replicas, 4)[i], each[0])
                assert torch.equal(total.view(-1, 4)[i], each[1])
                assert torch.equal(part.view(-1, 4)[i], each[2])
                assert torch.equal(loss[i], wanted)
        weight -= 2**-10 * gradient / accumulation
        executor.copyWeightsToHost()
        torch.testing.assert_close(model.weight.detach(), weight)
        weight = model.weight.detach().clone()


@pytest.mark.spec("annotations/9")
def test_zeros_fill_the_last_part():
    class Parts(torch.nn.Module):
        def forward(self, x):
            return poptorch.custom_op([x], "ReplicatedReduceScatter", "ai.graphcore", 1, [torch.zeros(2)])[0]

    executor = poptorch.inferenceModel(Parts(), poptorch.Options().replicationFactor(2))
    assert executor(torch.arange(6.0)).tolist() == [3.0, 5.0, 7.0, 0.0]


@pytest.mark.spec("annotations/9")
def test_where_replicas_cannot_meet():
    def total(x):
        return poptorch.custom_op([x], "ReplicatedAllReduce", "ai.graphcore", 1, [x])[0]

    class InLoop(torch.nn.Module):
        def forward(self, x):
            return poptorch.for_loop(2, lambda y: [total(y)], [x])[0]

    class ReadsPart(torch.nn.Module):
        def forward(self, x):
            constant = torch.arange(4.0)
            part = poptorch.custom_op([constant], "ReplicatedReduceScatter", "ai.graphcore", 1, [constant[:2]])[0]
            return x * part[0].item()  # each replica would read another number

    options = poptorch.Options().replicationFactor(2)
    with pytest.raises(poptorch.Error, match=r"E0711(.|\n)*body of a loop"):
        poptorch.inferenceModel(InLoop(), options)(torch.ones(4))
    with pytest.raises(poptorch.Error, match="E0101"):
        poptorch.inferenceModel(ReadsPart(), options)(torch.ones(4))


@pytest.mark.spec("annotations/9")
def test_a_replica_that_fails_wakes_those_that_wait():
    class Failing(torch.nn.Module):
        def forward(self, x, table):
            y = table[x]  # an index out of range is found where it is computed
            return poptorch.custom_op([y], "ReplicatedAllReduce", "ai.graphcore", 1, [y])[0]

    options = poptorch.Options().replicationFactor(2)
    executor = poptorch.inferenceModel(Failing(), options)
    table = torch.tensor([[1.0, 2.0], [1.0, 2.0]]).view(4)
    assert executor(torch.tensor([0, 1]), table).tolist() == [3, 3]
    with pytest.raises(poptorch.Error, match="index|range"):
        executor(torch.tensor([0, 9]), table)
    assert executor(torch.tensor([1, 1]), table).tolist() == [4, 4]


@pytest.mark.spec("annotations/9")
def test_replicas_of_several_processes_do_not_meet():
    options = poptorch.Options().replicationFactor(2)
    options.Distributed.configureProcessId(0, 2)
    with pytest.raises(poptorch.Error, match="E0711(.|\n)*several processes"):
        poptorch.inferenceModel(Meeting(2), options)(torch.ones(4, 4))

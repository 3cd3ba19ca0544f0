"""spec annotations.md, sections 2, 4, 6, 7, 9 and 11: operators inside a model."""

import itertools
import math

import poptorch
import pytest
import torch

spec = pytest.mark.spec
X = torch.linspace(-1, 1, 24).reshape(12, 2)


class Function(torch.nn.Module):
    """A model made of a function, with a weight for training."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.linspace(1, 2, 24).reshape(12, 2))

    def forward(self, *inputs):
        return self.function(*inputs)


class Training(Function):
    def forward(self, *inputs):
        result = self.function(self.weight, *inputs)
        return result, poptorch.identity_loss((result * result.detach().cos()), reduction="sum")


def sharded():
    return poptorch.Options().setExecutionStrategy(poptorch.ShardedExecution())


def infer(function, *inputs, opts=None):
    return poptorch.inferenceModel(Function(function), opts or sharded())(*inputs)


def trained(function, *inputs, opts=None):
    """Result and gradient of the weight on the device."""
    model = Training(function)
    before = model.weight.detach().clone()
    executor = poptorch.trainingModel(model, opts or sharded(), poptorch.optim.SGD(model.parameters(), lr=1.0))
    result, _ = executor(*inputs)
    return result, before - model.weight.detach()


def require_same_as_eager(function, *inputs, reference=None):
    result, gradient = trained(function, *inputs)
    model = Training(reference or function)
    expected, loss = model(*inputs)
    loss.backward()
    assert torch.equal(result, expected)
    assert torch.allclose(gradient, model.weight.grad, rtol=1e-6, atol=1e-6)


# 2 --------------------------------------------------------------------------------------------------------------------
MULTI_CONV = [
    ("availableMemoryProportions", [None, 0.5, [0.1, 0.2], (0.1,)], [(1, AssertionError), ([], AssertionError)]),
    ("partialsTypes", [torch.float, torch.half, [torch.float16]], [("float", ValueError), (torch.int32, ValueError)]),
    ("enableConvDithering", [None, True, [True, False]], [(1, ValueError), ([1], ValueError)]),
    ("planType", [None, poptorch.MultiConvPlanType.Serial], [(1.5, AssertionError)]),
    ("perConvReservedTiles", [50], [(0.5, AssertionError)]),
    ("cycleBackOff", [0.3], [("a", AssertionError)]),
]


@spec(
    *(f"annotations/2/{row[0]}" for row in MULTI_CONV),
    names=["poptorch.MultiConv", "poptorch.MultiConvPlanType", *(f"MultiConv.{row[0]}" for row in MULTI_CONV)],
    no_effect="convolutions run one after the other",
)
def test_multi_conv_setters():
    for name, accepted, refused in MULTI_CONV:
        multi_conv = poptorch.MultiConv()
        for value in accepted:
            assert getattr(multi_conv, name)(value) is multi_conv
        for value, error in refused:
            with pytest.raises(error):
                getattr(multi_conv, name)(value)


@spec("annotations/2/availableMemoryProportions", names=["poptorch.MultiConv"])
def test_multi_conv():
    torch.manual_seed(0)
    a, b = torch.nn.Conv1d(2, 3, 1), torch.nn.Conv1d(2, 3, 1)
    x = torch.randn(2, 2, 5)

    def model(x, proportions=(0.1, 0.2), nest=False):
        with poptorch.MultiConv().availableMemoryProportions(proportions):
            if nest:
                with poptorch.MultiConv():
                    return a(x) + b(x)
            return a(x) + b(x)

    def empty(x):
        with poptorch.MultiConv():
            return x + 1

    assert torch.equal(infer(model, x), model(x))
    for wrong in (empty, lambda x: model(x, proportions=[0.1]), lambda x: model(x, nest=True)):
        with pytest.raises(poptorch.Error):
            infer(wrong, x)


# 4 --------------------------------------------------------------------------------------------------------------------
@spec("annotations/4/nop", names=["poptorch.nop"])
def test_nop():
    require_same_as_eager(lambda w, x: poptorch.nop(w) * x, X)
    with pytest.raises(poptorch.Error):
        poptorch.nop([X])


@spec("annotations/4/ipu_print_tensor", names=["poptorch.ipu_print_tensor"])
def test_print_tensor(capfd):
    opts = sharded().deviceIterations(2).showCompilationProgressBar(False)
    x = torch.tensor([[1.0, -2.5], [3.25, 4.0]])
    assert torch.equal(infer(lambda x: poptorch.ipu_print_tensor(x, "t") + 1, x, opts=opts), x + 1)
    # Once for each micro-batch, and not while the model is compiled.
    assert capfd.readouterr().err == "t: (\n ( 1.000, -2.500)\n)\nt: (\n (3.250, 4.000)\n)\n"
    require_same_as_eager(lambda w, x: poptorch.ipu_print_tensor(w[0], "w") * x, X, reference=lambda w, x: w[0] * x)
    assert "\nw: (1.000, 1.043)\nw_gradient: (" in "\n" + capfd.readouterr().err.rpartition("\r")[2]
    poptorch.ipu_print_tensor(torch.arange(6), "i", summarise_threshold=4, edge_items=1)
    assert capfd.readouterr().err == "i: (0, ..., 5)\n"
    poptorch.ipu_print_tensor(torch.arange(6), "i", max_line_width=8, digits=0, open_bracket="[", close_bracket="]")
    assert capfd.readouterr().err == "i: [0, 1, 2,\n 3, 4, 5]\n"
    for style in ("fixed", "scientific", "none"):
        poptorch.ipu_print_tensor(torch.tensor(0.5), "s", float_format=style)
    assert capfd.readouterr().err == "s: 0.500\ns: 5.000e-01\ns: 0.5\n"
    with pytest.raises(KeyError):
        poptorch.ipu_print_tensor(x, float_format="hex")
    with pytest.raises(poptorch.Error):
        poptorch.ipu_print_tensor("x")


@spec(
    "annotations/4/set_available_memory",
    names=["poptorch.set_available_memory"],
    no_effect="torch's kernels take the memory that they need",
)
def test_set_available_memory():
    require_same_as_eager(lambda w, x: poptorch.set_available_memory(w.t() @ x, 0.3), X)
    with pytest.raises(poptorch.Error):
        poptorch.set_available_memory(3, 0.3)


@spec(
    "annotations/4/set_overlap_for_input",
    names=["poptorch.set_overlap_for_input", "poptorch.set_overlap_for_output", "poptorch.OverlapMode"],
    no_effect="inputs and results are in the memory of the device",
)
def test_set_overlap():
    loop = poptorch.OverlapMode.OverlapAccumulationLoop

    def options(strategy=None, tiles=True, mode=poptorch.OutputMode.All):
        opts = poptorch.Options().setExecutionStrategy(strategy or poptorch.ShardedExecution()).outputMode(mode)
        if tiles:
            opts.TensorLocations.numIOTiles(32)
        return opts

    def right(x):
        given = poptorch.set_overlap_for_input({"x": x, "more": (3,)}, loop)
        assert list(given) == ["x", "more"] and given["more"] == (3,)
        return poptorch.set_overlap_for_output(given["x"] + 1, loop)

    def not_an_input(x):
        return poptorch.set_overlap_for_input(x + 1, loop) + 1

    def used_directly(x):
        return poptorch.set_overlap_for_input(x, loop) + x

    def not_an_output(x):
        return poptorch.set_overlap_for_output(x + 1, loop) + 1

    def twice(x):
        y = poptorch.set_overlap_for_output(x + 1, loop)
        return y, y

    assert torch.equal(infer(right, X, opts=options()), X + 1) and torch.equal(right(X), X + 1)
    wrong = [(function, options()) for function in (not_an_input, used_directly, not_an_output, twice)]
    wrong += [(right, options(poptorch.PipelinedExecution())), (right, options(tiles=False))]
    wrong += [(right, options(mode=poptorch.OutputMode.Final))]
    for function, opts in wrong:
        with pytest.raises(poptorch.Error):
            infer(function, X, opts=opts)


@spec("annotations/4/recomputationCheckpoint", names=["poptorch.recomputationCheckpoint"])
def test_recomputation_checkpoint():
    require_same_as_eager(lambda w, x: poptorch.recomputationCheckpoint(w * x).sin(), X)
    assert poptorch.recomputationCheckpoint(X) is X
    assert poptorch.recomputationCheckpoint(X, X) == (X, X)
    assert isinstance(poptorch.recomputationCheckpoint([X, X]), list)
    with pytest.raises(ValueError):
        poptorch.recomputationCheckpoint(X, 3)


@spec("annotations/4/nop", names=["poptorch.serializedMatMul"])
@pytest.mark.parametrize("mode", poptorch.MatMulSerializationMode)
def test_serialized_matmul(mode):
    factor, divides = 2, mode is not poptorch.MatMulSerializationMode.Disabled
    rhs = torch.linspace(-2, 2, 8).reshape(2, 4)
    result, gradient = trained(lambda w, r: poptorch.serializedMatMul(w, r, mode, factor), rhs)
    model = Training(torch.matmul)
    expected, loss = Training(torch.matmul)(rhs)
    model.weight.matmul(rhs).backward(expected.detach().cos())
    assert torch.allclose(result, expected) and torch.allclose(gradient, model.weight.grad, atol=1e-5)
    halves = X.half(), rhs.half()
    kept = poptorch.serializedMatMul(*halves, mode, factor, keep_precision=True)
    assert kept.dtype == torch.half and torch.allclose(kept.float(), X @ rhs, atol=1e-2)
    if divides:
        with pytest.raises(poptorch.Error):
            poptorch.serializedMatMul(X, rhs, mode, 5)
    else:
        assert torch.equal(poptorch.serializedMatMul(X, rhs, mode, 5), torch.matmul(X, rhs))
    for arguments in (("a", 0, False), (mode, 1.0, False), (mode, factor, 1)):
        with pytest.raises(AssertionError):
            poptorch.serializedMatMul(X, rhs, *arguments)


# 6 --------------------------------------------------------------------------------------------------------------------
@spec("annotations/6", names=["poptorch.dynamic_slice"])
def test_dynamic_slice():
    def model(w, start):
        return poptorch.dynamic_slice(w, 0, start, 4, 2)

    require_same_as_eager(model, torch.tensor([3]))
    t = torch.arange(12.0)
    executor = poptorch.inferenceModel(Function(lambda s: poptorch.dynamic_slice(t, 0, s, 4, 1)), sharded())
    assert executor(torch.tensor([2])).tolist() == [2, 3, 4, 5]
    assert executor(torch.tensor([10])).tolist() == [10, 11, 0, 1]  # wraps around
    assert poptorch.dynamic_slice(t, 0, torch.tensor([10]), 4, 1).tolist() == [10, 11]
    with pytest.raises(poptorch.Error):
        infer(lambda s: poptorch.dynamic_slice(t, 0, s, 5, 1), torch.tensor([1]))
    start = torch.tensor([1])
    for wrong in (
        (3, 0, start, 4, 1),
        (t, "0", start, 4, 1),
        (t, 0, 1, 4, 1),
        (t, 0, start, 0, 1),
        (t, 0, start, 4, 0),
    ):
        with pytest.raises(poptorch.Error):
            poptorch.dynamic_slice(*wrong)
    with pytest.raises(poptorch.Error):
        poptorch.dynamic_slice(t, 0, torch.tensor([1.0]), 4, 1)


@spec("annotations/6", names=["poptorch.dynamic_update"])
def test_dynamic_update():
    src = torch.full((3, 2), 7.0)

    def model(w, start):
        return poptorch.dynamic_update(w * 2, w[:3] * src, 0, start, 3)

    def reference(w, start):
        first = int(start)
        return torch.cat([w[:first] * 2, w[:3] * src, w[first + 3 :] * 2])

    require_same_as_eager(model, torch.tensor([4]), reference=reference)
    start = torch.tensor([1])
    for wrong in ((3, src, 0, start, 1), (X, 3, 0, start, 1), (X, src[0], 0, start, 1), (X, src.int(), 0, start, 1)):
        with pytest.raises(poptorch.Error):
            poptorch.dynamic_update(*wrong)
    with pytest.raises(poptorch.Error):
        poptorch.dynamic_update(X, src, 0, start, 0)


@spec("annotations/6")
def test_slices_at_tensors():
    executor = poptorch.inferenceModel(Function(lambda x, s: (x[s : s + 2], x[:, s + 1 - 1 : s + 1])), sharded())
    assert torch.equal(executor(X, torch.tensor(1))[0], X[1:3])
    rows, column = executor(X, torch.tensor(0))
    assert torch.equal(rows, X[:2]) and torch.equal(column, X[:, :1])
    for wrong in (lambda x, s: x[: s + 2], lambda x, s: x[s : s * 2], lambda x, s: x[s:]):
        with pytest.raises(poptorch.Error):
            infer(wrong, X, torch.tensor(1))


@spec("annotations/6")
@pytest.mark.parametrize(
    "bounds",
    [
        lambda i: (2 * i, 2 * i + 1),
        lambda i: (i + i, i * 2 + 3),
        lambda i: (5 - i, 7 - i),
        lambda i: (-i + 3, 5 - i),
        lambda i: (i.clone(), i.clone().add_(2)),
        lambda i: (i.clone().mul_(2).sub_(1), 2 * i + 1),
        lambda i: (i // 2, i // 2 + 2),
        lambda i: (i.clamp(0, 3), i.clamp(0, 3) + 2),
        lambda i: (i * i, i * i + 1),
        lambda i: (i, torch.add(i, 2, alpha=2)),
        lambda i: (torch.sub(i, -1, alpha=1), i + 3),
        lambda i: (i.to(torch.int16), i.long() + 2),
    ],
)
def test_lengths_of_slices_are_found_by_arithmetic(bounds):
    x = torch.arange(10.0)
    executor = poptorch.inferenceModel(Function(lambda x, i: x[slice(*bounds(i))]))
    for i in (1, 2):
        start, stop = (int(bound) for bound in bounds(torch.tensor(i)))
        assert torch.equal(executor(x, torch.tensor(i)), x[start:stop])


@spec("annotations/6")
@pytest.mark.parametrize(
    "bounds",
    [
        lambda i: (2 * i, i + 3),
        lambda i: (i * i, i + 3),
        lambda i: (i // 2, i // 3 + 2),
        lambda i: (i.clamp(0, 3), i.clamp(0, 4) + 2),
        lambda i: (torch.randint(0, 3, ()), torch.randint(0, 3, ()) + 2),
        lambda i: (i, i.float().add(2.5).int()),
    ],
)
def test_slices_of_varying_lengths_are_refused(bounds):
    with pytest.raises(poptorch.Error, match="E0101"):
        infer(lambda x, i: x[slice(*bounds(i))], torch.arange(10.0), torch.tensor(1))


@spec("annotations/6")
def test_slices_at_tensors_are_written():
    def model(x, i, rows):
        x = x.clone()
        x[i : i + 2] = rows
        x[i + 1 : i + 3, 2:] += 1
        x[..., i : i + 1] *= 3
        x[3, i : i + 2] = -5
        x[None, i : i + 2, i : i + 2] = rows[:, :2]
        return x

    executor = poptorch.inferenceModel(Function(model))
    for i in range(2):
        x, rows = torch.randn(4, 4), torch.randn(2, 4)
        assert torch.equal(executor(x, torch.tensor(i), rows), model(x, torch.tensor(i), rows))


@spec("annotations/6")
def test_narrow_begins_at_tensors():
    def model(w, i):
        return torch.narrow(w, 0, i, 4) * w.narrow(-1, i - 1, 1).narrow(0, 2, 4) + torch.narrow(
            w, dim=0, start=2, length=4
        )

    require_same_as_eager(model, torch.tensor(1))


@spec("annotations/6")
@pytest.mark.parametrize("dim, length", [(2, 1), (-3, 1), (0, 9)])
def test_narrow_at_tensors_refuses_what_torch_refuses(dim, length):
    x = torch.zeros(3, 4)
    executor = poptorch.inferenceModel(Function(lambda x, i: x.narrow(dim, i, length)))
    with pytest.raises((IndexError, RuntimeError)) as expected:
        x.narrow(dim, 0, length)
    with pytest.raises((IndexError, RuntimeError, poptorch.Error)) as found:
        executor(x, torch.tensor(0))
    assert str(expected.value).splitlines()[0] in str(found.value)


@spec("annotations/6")
def test_gradients_reach_what_is_written_into_slices_at_tensors():
    def model(w, i):
        out = torch.zeros(12, 2)
        out[i : i + 2] = w[:2] * 2
        return out + w

    require_same_as_eager(model, torch.tensor(1))


# 7 --------------------------------------------------------------------------------------------------------------------
def paths(logs, blank):
    """Probability of every label sequence, by listing all alignments."""
    found = {}
    for alignment in itertools.product(range(logs.shape[1]), repeat=logs.shape[0]):
        merged = [c for i, c in enumerate(alignment) if i == 0 or c != alignment[i - 1]]
        labels = tuple(c for c in merged if c != blank)
        found[labels] = found.get(labels, 0) + math.exp(sum(float(logs[t, c]) for t, c in enumerate(alignment)))
    return sorted(found.items(), key=lambda item: -item[1])


@spec("annotations/7", names=["poptorch.ctc_beam_search_decoder"])
@pytest.mark.parametrize("blank", [0, 2])
def test_ctc_beam_search(blank):
    torch.manual_seed(3)
    probs = torch.log_softmax(torch.randn(5, 2, 3), dim=2)
    lengths = torch.tensor([5, 4])
    logs, sizes, labels = infer(lambda p, n: poptorch.ctc_beam_search_decoder(p, n, blank, 100, 2), probs, lengths)
    assert logs.shape == (2, 2) and sizes.dtype == labels.dtype == torch.int32 and labels.shape == (2, 2, 5)
    for n in range(2):
        for p, (path, probability) in enumerate(paths(probs[: lengths[n], n], blank)[:2]):
            assert labels[n, p, : sizes[n, p]].tolist() == list(path)
            assert math.isclose(float(logs[n, p]), math.log(probability), rel_tol=1e-5)
    for wrong in ((probs[0], lengths), (3, lengths), (probs, 3)):
        with pytest.raises(poptorch.Error):
            poptorch.ctc_beam_search_decoder(*wrong)


@spec("annotations/7", names=["poptorch.fps"])
def test_fps():
    src = torch.tensor([[0.0], [1.0], [4.0], [9.0], [5.0], [5.5], [7.0]])
    result = infer(lambda s: poptorch.fps(s, [0, 4, 7], 0.75), src)
    assert result.dtype == torch.int32 and result.tolist() == [0, 3, 2, 4, 6, 5]
    assert infer(lambda s: poptorch.fps(s, [0, 4, 7]), src).tolist() == [0, 3, 4, 6]  # half of them, rounded up
    started = infer(lambda s: poptorch.fps(s, [0, 7], 1.0, True), src)
    assert sorted(started.tolist()) == list(range(7))
    for wrong in ((3, [0, 4]), (src, (0, 4)), (src, [0]), (src, [0, 4], 1), (src, [0, 4], 0.5, 1)):
        with pytest.raises(poptorch.Error):
            poptorch.fps(*wrong)


@spec("annotations/7", names=["poptorch.nearest"])
def test_nearest():
    x, y = torch.tensor([[0.0, 0.0], [5.0, 5.0]]), torch.tensor([[4.0, 4.0], [1.0, 0.0], [5.0, 5.0]])
    assert infer(poptorch.nearest, x, y).tolist() == [1, 2]
    assert infer(lambda x, y: poptorch.nearest(x, y, [0, 1], [0, 0, 1]), x, y).tolist() == [1, 2]
    assert poptorch.nearest(x, y, [0, 1], torch.tensor([0, 1, 1])).tolist() == [0, 2]
    assert poptorch.nearest(x[:, 0], y[:, 0]).dtype == torch.int32
    wrong = [(3, y), (x, 3), (x, y, (0, 1)), (x[None], y), (x[:, :1], y), (x, y, [0]), (x, y, [1, 0], [0, 0, 1])]
    for arguments in [*wrong, (x, y, [0, 1], [0, 0, 2])]:
        with pytest.raises(poptorch.Error):
            poptorch.nearest(*arguments)


# 9 --------------------------------------------------------------------------------------------------------------------
def gather(data, index, version=1, example=None, **attributes):
    example = torch.zeros(index.shape) if example is None else example
    return poptorch.custom_op(
        [data, index], "FastGatherLastDim", "poptorch.custom_ops", version, [example], attributes=attributes
    )


@spec("annotations/9", names=["poptorch.custom_op"])
def test_fast_gather():
    index = torch.tensor([[1, 0, 1]]).repeat(12, 1)
    require_same_as_eager(lambda w, i: gather(w, i)[0], index, reference=lambda w, i: w.gather(1, i))
    assert torch.equal(gather(X, index)[0], torch.zeros(12, 3))  # on the host
    for wrong in (lambda x: gather(x, index, 7), lambda x: gather(x, index, example=torch.zeros(2))):
        with pytest.raises(poptorch.Error):
            infer(wrong, X)
    for attributes in ({"a": [1, 1.5]}, {"a": "ä"}, {"ä": 1}, {"a": None}, {"a": [[1]]}):
        with pytest.raises(ValueError):
            gather(X, index, **attributes)
    with pytest.raises(ValueError):
        poptorch.custom_op([X], "a", "b", 1, [X], attributes={1: 2})
    with pytest.raises(poptorch.Error):
        gather(X, index, a=1e39)


# 11 -------------------------------------------------------------------------------------------------------------------
@spec("annotations/11")
def test_gradient_control():
    def model(w, x):
        with torch.no_grad():
            hidden = w * 2
        return hidden + (w * x).detach() + w * x

    require_same_as_eager(model, X)

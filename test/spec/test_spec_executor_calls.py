"""spec executor.md sections 1 and 2: wrapping, and the calling convention."""

import collections
import copy
import gc
import pickle
import typing
import weakref

import poptorch
import pytest
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.fc = torch.nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x, target=None):
        out = self.fc(x)
        if target is None:
            return out
        return out, torch.nn.functional.mse_loss(out, target)


def module(forward):
    class Local(torch.nn.Module):
        pass

    Local.forward = forward
    return Local()


def inference(forward, opts=None):
    return poptorch.inferenceModel(module(forward), opts)


def iterations(number):
    return poptorch.Options().deviceIterations(number)


@pytest.fixture
def log(caplog):
    poptorch.logger.propagate = True
    with caplog.at_level("WARNING", logger=poptorch.logger.name):
        yield caplog


# --- section 1: wrapping ---------------------------------------------------------------------------------------------


@pytest.mark.spec(
    "executor/1/training",
    "executor/1/inference",
    names=["poptorch.trainingModel", "poptorch.inferenceModel", "poptorch.PoplarExecutor"],
)
def test_what_can_be_wrapped():
    model = Net()
    executor = poptorch.trainingModel(model)
    assert isinstance(executor, poptorch.PoplarExecutor)
    with pytest.raises(RuntimeError):
        poptorch.trainingModel(model)
    for _ in range(2):
        assert poptorch.inferenceModel(model)(torch.zeros(1, 3)).shape == (1, 2)
    assert poptorch.inferenceModel(executor)(torch.zeros(1, 3)).shape == (1, 2)
    for wrong in ({}, "options", 3):
        with pytest.raises(poptorch.Error):
            poptorch.inferenceModel(Net(), wrong)
        with pytest.raises(poptorch.Error):
            poptorch.trainingModel(Net(), wrong)
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(2)
    with pytest.raises(poptorch.Error, match="deviceIterations"):
        poptorch.inferenceModel(Net(), opts)


@pytest.mark.spec("executor/1/training", "executor/1/inference")
def test_options_are_frozen_and_the_output_mode_is_resolved_on_the_clone():
    opts = poptorch.Options()
    training, inferred = poptorch.trainingModel(Net(), opts), poptorch.inferenceModel(Net(), opts)
    assert opts.output_mode == poptorch.OutputMode.Default
    assert training.options.output_mode == poptorch.OutputMode.Final
    assert inferred.options.output_mode == poptorch.OutputMode.All
    for frozen in (opts, training.options):
        with pytest.raises(AttributeError):
            frozen.deviceIterations(2)


@pytest.mark.spec("executor/1/training", names=["poptorch.trainingModel"])
def test_the_default_optimizer_is_sgd():
    model, eager = Net(), Net()
    x, target = torch.randn(4, 3), torch.randn(4, 2)
    poptorch.trainingModel(model)(x, target)
    eager(x, target)[1].backward()
    torch.optim.SGD(eager.parameters(), lr=0.01).step()
    assert torch.equal(model.fc.weight, eager.fc.weight)


@pytest.mark.spec("executor/1/low_level", names=["poptorch.PoplarExecutor", "PoplarExecutor.options"])
def test_low_level_construction():
    from poptorch._poplar_executor import PoplarExecutor

    assert PoplarExecutor is poptorch.PoplarExecutor
    model = Net()
    executor = PoplarExecutor(model, poptorch.Options(), False, poptorch.__version__)
    assert executor(torch.zeros(1, 3)).shape == (1, 2)
    assert executor.options is executor._options
    user = Net()
    executor = PoplarExecutor(model, poptorch.Options(), False, poptorch.__version__, user_model=user)
    assert executor.model is user


@pytest.mark.spec(
    "executor/1.1/training", "executor/1.1/inference", names=["PoplarExecutor.eval", "PoplarExecutor.train"]
)
def test_which_object_is_traced():
    class Mode(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.child = torch.nn.Dropout(1.0)

        def forward(self, x):
            return self.child(x) + (10 if self.training else 20)

    one = torch.ones(1)
    model = Mode().eval()
    executor = poptorch.inferenceModel(model)
    assert executor.model is not model and executor.model.child is model.child
    model.train()  # the children only
    assert executor(one) == 20
    executor = poptorch.inferenceModel(Mode())
    executor.eval()
    assert executor(one) == 21
    executor.train()  # too late
    assert executor(one) == 21
    model = Net()
    executor = poptorch.trainingModel(model)
    assert executor.model is model


@pytest.mark.spec("executor/1.2", names=["PoplarExecutor.state_dict", "PoplarExecutor.copyWeightsToHostIfNeeded"])
def test_class_wrapping_and_pull_on_access():
    model = Net()
    executor = poptorch.trainingModel(model, None, torch.optim.SGD(model.parameters(), lr=0.5))
    assert type(model).__name__ == "PoptorchNet" and isinstance(model, Net)
    assert isinstance(model.fc.weight, torch.nn.Parameter) and type(model.fc.weight) is not torch.nn.Parameter
    assert type(model.calls) is not torch.Tensor and isinstance(model.calls, torch.Tensor)
    x, target = torch.randn(4, 3), torch.randn(4, 2)
    pulls = []
    original = executor.copyWeightsToHost
    executor.copyWeightsToHost = lambda: (pulls.append(1), original())
    weight = model.fc.weight
    for access in (
        lambda: model.state_dict(),
        lambda: model.forward,
        lambda: weight.data,
        lambda: torch.equal(weight, weight),
        lambda: model(x),
        lambda: model._parameters,
        lambda: model.calls.sum(),
        lambda: model.copyWeightsToHostIfNeeded(),
    ):
        executor(x, target)
        count = len(pulls)
        access()
        assert len(pulls) == count + 1
        access()
        assert len(pulls) == count + 1
    assert executor.copyWeightsToHostIfNeeded() is False
    state = model.state_dict()
    assert isinstance(state, collections.OrderedDict)
    assert all(type(value) in (torch.Tensor, torch.nn.Parameter) for value in state.values())
    assert type(copy.copy(model)).__name__ == "PoptorchNet"
    assert type(copy.deepcopy(model)) is Net
    assert type(pickle.loads(pickle.dumps(model))) is Net
    model.destroy()
    assert type(model) is Net and type(model.fc.weight) is torch.nn.Parameter


@pytest.mark.spec("executor/1.2")
def test_the_model_does_not_keep_the_executor():
    model = Net()
    executor = poptorch.trainingModel(model)
    executor(torch.zeros(2, 3), torch.zeros(2, 2))
    reference = weakref.ref(executor)
    del executor
    gc.collect()
    assert reference() is None
    poptorch.trainingModel(model)(torch.zeros(2, 3), torch.zeros(2, 2))


@pytest.mark.spec("executor/1.2")
def test_a_buffer_of_another_class_is_refused():
    model = Net()
    model.register_buffer("other", torch.nn.Parameter(torch.zeros(1)))
    with pytest.raises(poptorch.Error):
        poptorch.trainingModel(model)


@pytest.mark.spec(
    "executor/1.3",
    names=[
        "PoplarExecutor.load_state_dict",
        "PoplarExecutor.named_parameters",
        "PoplarExecutor.parameters",
        "PoplarExecutor.model",
    ],
)
def test_attributes_are_those_of_the_model():
    model = Net()
    model.answer = 42
    with poptorch.Block("outer"):
        pass
    executor = poptorch.trainingModel(model, None, torch.optim.SGD(model.parameters(), lr=0.0))
    assert executor.answer == 42
    assert executor.fc is model.fc
    assert [name for name, _ in executor.named_parameters()] == ["fc.weight", "fc.bias"]
    assert len(list(executor.parameters())) == 2
    with pytest.raises(AttributeError):
        executor.no_such_name  # noqa: B018
    x, target = torch.ones(1, 3), torch.zeros(1, 2)
    executor(x, target)
    zeros = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    result = executor.load_state_dict(zeros)
    assert result.missing_keys == [] and result.unexpected_keys == []
    assert torch.equal(executor(x, target)[0], torch.zeros(1, 2))
    assert executor.load_state_dict({}, strict=False).missing_keys
    blocked = poptorch.inferenceModel(
        torch.nn.Sequential(poptorch.BeginBlock(torch.nn.Linear(3, 2), "first", ipu_id=0))
    )
    assert "BeginBlock" in repr(blocked) and "first" in repr(blocked)


# --- section 2: calls ------------------------------------------------------------------------------------------------


@pytest.mark.spec("executor/2/binding", names=["PoplarExecutor.__call__"])
def test_binding():
    def forward(self, a, b, *rest, scale, **more):
        return a - b + sum(rest) * scale + more.get("extra", 0)

    one, two, three = torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([3.0])
    assert inference(forward)(one, two, scale=two) == -1
    assert inference(forward)(one, two, three, three, scale=two, extra=one) == 12
    assert inference(lambda self, a, b: a - b)(b=one, a=three) == 2
    assert inference(lambda self, a, b: a - b)(one, b=three) == -2


@pytest.mark.spec("executor/2/defaults")
def test_defaults_count_as_arguments():
    default = torch.tensor([5.0])

    def forward(self, x, y=default, z=None, scale=2):
        return x + y * scale if z is None else z

    executor = inference(forward)
    one = torch.tensor([1.0])
    assert executor(one) == 11
    assert executor(one, torch.tensor([1.0])) == 3  # a real input
    with pytest.raises(poptorch.Error):
        executor(one, scale=3)
    with pytest.raises(poptorch.Error):
        inference(lambda self, x, y: x)(one)


@pytest.mark.spec("executor/2/too_many_unknown_repeated")
def test_arguments_that_forward_does_not_take():
    one = torch.ones(1)
    executor = inference(lambda self, x: x * 2)
    for call in (lambda: executor(one, one), lambda: executor(one, y=one), lambda: executor(one, x=one)):
        with pytest.raises(AssertionError):
            call()
    assert executor(one) == 2


Pair = collections.namedtuple("Pair", "first second")


class Named(typing.NamedTuple):
    a: torch.Tensor
    b: dict


@pytest.mark.spec("executor/2/structures")
def test_structures_go_in_and_out():
    def forward(self, x):
        pair, rest = x["pair"], x["list"]
        return {"sum": pair.first + rest[1][0], "same": [pair, (pair.second, None, "text")], "ordered": x["ordered"]}

    executor = inference(forward, iterations(2))

    def arguments(value):
        tensor = torch.full((2,), float(value))
        return {
            "pair": Pair(tensor, tensor + 1),
            "list": [3, (tensor + 2,)],
            "ordered": collections.OrderedDict(k=tensor),
        }

    result = executor(arguments(1))
    assert type(result["same"][0]) is Pair and type(result["ordered"]) is collections.OrderedDict
    assert result["same"][1][1:] == (None, "text")
    assert torch.equal(result["sum"], torch.full((2,), 4.0))
    # The order of keys does not matter.
    again = arguments(2)
    result = executor({key: again[key] for key in reversed(again)})
    assert torch.equal(result["sum"], torch.full((2,), 6.0)) and torch.equal(
        result["same"][0].second, torch.full((2,), 3.0)
    )
    assert isinstance(inference(lambda self, x: Named(x, {"k": x}))(torch.ones(1)), Named)


@pytest.mark.spec("executor/2/structures")
def test_dicts_cause_a_warning(log):
    inference(lambda self, x: x["a"])({"a": torch.ones(1)})
    assert "dict" in log.text


@pytest.mark.spec("executor/2/non_tensors")
def test_other_values_are_baked_in():
    executor = inference(lambda self, x, flag, factor: x * factor if flag else x)
    one = torch.ones(2)
    assert torch.equal(executor(one, True, 3), one * 3)
    assert torch.equal(executor(one, flag=True, factor=3), one * 3)
    for wrong in ((False, 3), (True, 4), (1, 3), (None, 3)):
        with pytest.raises(poptorch.Error):
            executor(one, *wrong)
    with pytest.raises(poptorch.Error):
        executor(one, True, one)
    assert torch.equal(inference(lambda self, x, y: x if y is None else y)(one, None), one)


@pytest.mark.spec("executor/2/non_tensors")
def test_equal_values_are_the_same_value():
    """Arrays are compared element by element, and NaN is what it was."""
    numpy = pytest.importorskip("numpy")
    one = torch.ones(2)
    for make, others in (
        (lambda: float("nan"), [1.0]),
        (lambda: numpy.arange(3.0), [numpy.arange(4.0), numpy.zeros(3), numpy.arange(3), numpy.zeros((2, 3))]),
        (lambda: [numpy.array([1.0, float("nan")])], [[numpy.array([1.0, 2.0])]]),
        (lambda: numpy.zeros(0), [numpy.zeros((0, 1))]),
        (lambda: numpy.float32(2), [numpy.float32(3)]),
    ):
        executor = inference(lambda self, x, value: x * 2)
        for _ in range(2):
            assert torch.equal(executor(one, make()), one * 2)
        for other in others:
            with pytest.raises(poptorch.Error, match="E0704"):
                executor(one, other)


@pytest.mark.spec("executor/2/non_tensors")
def test_values_that_were_changed_in_place_are_other_values():
    numpy = pytest.importorskip("numpy")
    one = torch.ones(2)
    for value, change in (
        (numpy.zeros(2), lambda value: value.fill(1)),
        ({1}, lambda value: value.add(2)),
        ([1], lambda value: value.append(2)),
        ({"key": [numpy.zeros(2)]}, lambda value: value["key"][0].fill(1)),
        (bytearray(2), lambda value: value.append(1)),
    ):
        executor = inference(lambda self, x, value: x * 2)
        for _ in range(2):
            assert torch.equal(executor(one, value), one * 2)
        change(value)
        with pytest.raises(poptorch.Error, match="E0704"):
            executor(one, value)


@pytest.mark.spec("executor/2/requires_grad_inputs")
def test_inputs_that_require_grad_are_detached(log):
    x = torch.ones(1, requires_grad=True)
    result = inference(lambda self, x: x * 2)(x)
    assert not result.requires_grad and "grad" in log.text


@pytest.mark.spec("executor/2/non_contiguous")
def test_inputs_that_are_not_contiguous_are_warned_of_once(log):
    executor = inference(lambda self, x: x * 2)
    x = torch.arange(6.0).view(2, 3).t()
    for _ in range(2):
        assert torch.equal(executor(x), x * 2)
    assert sum("contiguous" in record.message for record in log.records) == 1


@pytest.mark.spec("executor/2/binding", names=["PoplarExecutor.__call__"])
def test_batches_are_split():
    seen = []
    executor = inference(lambda self, x: seen.append(tuple(x.shape)) or x * 2, iterations(3))
    x = torch.randn(6, 2)
    assert torch.equal(executor(x), x * 2) and seen == [(2, 2)]
    for wrong in (torch.randn(4, 2), torch.tensor(1.0)):
        with pytest.raises(AssertionError):
            inference(lambda self, x: x * 2, iterations(3))(wrong)
    assert inference(lambda self, x: x * 2)(torch.tensor(1.0)) == 2


@pytest.mark.spec("executor/2/binding")
def test_later_calls_must_fit():
    executor = inference(lambda self, x, more=None: x * 2)
    x = torch.zeros(2, 3)
    executor(x, {"k": x, "t": (x, x)})
    for wrong in (
        (x,),
        (x, {"k": x}),
        (x, {"k": x, "t": (x,)}),
        (x, {"k": x, "t": [x, x]}),
        (x[:1], {"k": x, "t": (x, x)}),
        (x.int(), {"k": x, "t": (x, x)}),
        (x, {"k": x, "t": (x, x), "new": x}),
    ):
        with pytest.raises(poptorch.Error, match=r"destroy\(\)"):
            executor(*wrong)
    with pytest.raises(poptorch.Error, match="new"):
        executor(x, {"k": x, "t": (x, x), "new": x})
    executor(x, {"k": x, "t": (x, x)})


@pytest.mark.spec("executor/2/binding")
def test_dtypes_of_inputs_and_results():
    for dtype, result in (
        (torch.uint8, torch.uint8),
        (torch.int8, torch.int8),
        (torch.int16, torch.int16),
        (torch.int32, torch.int32),
        (torch.int64, torch.int32),
        (torch.bool, torch.bool),
        (torch.float16, torch.float16),
        (torch.float32, torch.float32),
        (torch.float64, torch.float32),
    ):
        assert inference(lambda self, x: x.clone())(torch.ones(2, dtype=dtype)).dtype == result
    for dtype in (torch.complex64, torch.complex128):
        with pytest.raises(poptorch.Error):
            inference(lambda self, x: x.clone())(torch.ones(2, dtype=dtype))


@pytest.mark.spec("executor/2/binding")
@pytest.mark.parametrize("mode", [poptorch.OutputMode.All, poptorch.OutputMode.Final])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_inputs_modified_in_place_are_written_back(mode, dtype):
    def forward(self, x):
        x += 1
        return x * 2

    x = torch.arange(4).to(dtype)
    inference(forward, iterations(2).outputMode(mode))(x)
    assert torch.equal(x, torch.arange(1, 5).to(dtype))


# --- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("executor/3/All")
def test_backward_of_a_result_is_an_error():
    model = Net()
    executor = poptorch.trainingModel(model)
    out, loss = executor(torch.zeros(2, 3), torch.zeros(2, 2))
    for tensor in (out, loss):
        with pytest.raises(poptorch.Error):
            tensor.backward()
    own = torch.ones(1, requires_grad=True)
    (own * 2).backward()
    assert own.grad == 2
    with pytest.raises(RuntimeError):
        torch.ones(1).backward()


@pytest.mark.spec("executor/3/All")
def test_host_tensors_are_returned_as_they_are():
    host = torch.tensor([1.0, 2.0])
    executor = inference(lambda self, x: (x + 1, host), iterations(2))
    with pytest.warns(UserWarning, match="host"):
        executor.compile(torch.zeros(2))
    for _ in range(2):
        out, same = executor(torch.zeros(2))
        assert torch.equal(out, torch.ones(2)) and torch.equal(same, host)

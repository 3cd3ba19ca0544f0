"""E0708: host functions and inputs that do not fit the program."""

import abele
import poptorch
import pytest
import torch

X = torch.ones(2, 3)


class Calls(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.host = poptorch.CPU(function, "host")

    def forward(self, x):
        return self.host(x) * 2


@pytest.mark.parametrize(
    "result",
    [
        lambda x: x[:1],
        lambda x: x.long(),
        lambda x: x.reshape(-1),
        lambda x: (x, x),
        lambda x: [],
    ],
)
def test_results_of_another_form(result):
    is_odd = [False]
    model = poptorch.inferenceModel(Calls(lambda x: result(x) if is_odd[0] else x + 1))
    assert torch.equal(model(X), X * 4)
    is_odd[0] = True
    with pytest.raises(poptorch.Error, match="E0708 arguments: host function host returns") as raised:
        model(X)
    assert "float" in str(raised.value).lower() and "test_E0708_calls.py:" in str(raised.value)
    is_odd[0] = False
    assert torch.equal(model(X), X * 4)


@pytest.mark.parametrize("result", [None, 3.0, [None], "text"])
def test_results_that_are_no_tensors(result):
    with pytest.raises(poptorch.Error, match="E0708 arguments: host function host returns something else"):
        poptorch.inferenceModel(Calls(lambda x: result))(X)
    is_odd = [False]
    model = poptorch.inferenceModel(Calls(lambda x: result if is_odd[0] else x + 1))
    model(X)
    is_odd[0] = True
    with pytest.raises(poptorch.Error, match="host function host returns something else") as raised:
        model(X)
    assert "test_E0708_calls.py:" in str(raised.value)


def test_arguments_that_are_no_tensors():
    class Named(Calls):
        def forward(self, x):
            return self.host(x, scale=3)

    with pytest.raises(poptorch.Error, match="E0708 arguments: host function host is called with"):
        poptorch.inferenceModel(Named(lambda x, scale: x * scale))(X)


def nested(levels):
    value = X
    for _ in range(levels):
        value = [value]
    return value


def test_structures_deeper_than_python_allows():
    class Takes(torch.nn.Module):
        def forward(self, x):
            while isinstance(x, list):
                x = x[0]
            return x * 2

    class Returns(torch.nn.Module):
        def forward(self, x):
            return nested(3000)

    with pytest.raises(poptorch.Error, match="E0708 arguments: arguments or results are nested too deeply"):
        poptorch.inferenceModel(Takes())(nested(3000))
    with pytest.raises(poptorch.Error, match="E0708 arguments: arguments or results are nested too deeply"):
        poptorch.inferenceModel(Returns())(X)
    assert torch.equal(poptorch.inferenceModel(Takes())(nested(50)), X * 2)


def freed(of):
    x = of(torch.ones(2, 3))
    x.untyped_storage().resize_(8)
    return x


@pytest.mark.parametrize("of", [lambda x: x, lambda x: x.t(), lambda x: x[:, 1:]])
def test_inputs_without_their_memory(of):
    class Doubles(torch.nn.Module):
        def forward(self, x):
            return x * 2

    with pytest.raises(poptorch.Error, match="E0708 arguments: the memory of input 0 is smaller than its sizes"):
        poptorch.inferenceModel(Doubles())(freed(of))
    model = poptorch.inferenceModel(Doubles())
    model(of(X))
    with pytest.raises(poptorch.Error, match="E0708"):
        model(freed(of))


def test_weights_without_their_memory():
    class Scales(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * self.w

    model = Scales()
    model.w.data.untyped_storage().resize_(0)
    with pytest.raises(poptorch.Error, match="E0105 unsupported-tensor"):
        poptorch.inferenceModel(model)(X)


def test_the_input_that_lacks_its_memory_is_named():
    class Adds(torch.nn.Module):
        def forward(self, x, y):
            return x + y

    model = poptorch.inferenceModel(Adds())
    model(X, X)
    with pytest.raises(poptorch.Error, match="E0708 arguments: the memory of input 1 is smaller than its sizes"):
        model(X, freed(lambda x: x))


class Trains(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, x):
        y = self.norm(self.linear(x))
        return y, poptorch.identity_loss(y.square(), reduction="mean")


@pytest.mark.parametrize("front", [poptorch, abele])
@pytest.mark.parametrize("name", ["linear.weight", "norm.running_mean"])
@pytest.mark.parametrize("call", ["copyWeightsToDevice", "copyWeightsToHost", "save"])
def test_weights_that_were_freed_after_compilation(front, name, call, tmp_path):
    model = Trains()
    executor = front.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    executor(X)
    executor.copyWeightsToHost()
    tensor = model.get_parameter(name) if "weight" in name else model.get_buffer(name)
    kept = tensor.detach().clone()
    size = tensor.data.untyped_storage().nbytes()
    tensor.data.untyped_storage().resize_(0)
    arguments = (tmp_path / "file",) if call == "save" else ()
    with pytest.raises(poptorch.Error, match=f"E070[48] .*{name}"):
        getattr(executor, call)(*arguments)
    tensor.data.untyped_storage().resize_(size)
    with torch.no_grad():
        tensor.copy_(kept)
    executor.copyWeightsToDevice()
    executor(X)


def test_weights_that_were_replaced_by_freed_ones():
    model = torch.nn.Linear(3, 3)
    executor = poptorch.inferenceModel(model)
    executor(X)
    replaced = torch.nn.Parameter(torch.ones(3, 3))
    replaced.data.untyped_storage().resize_(0)
    model.weight = replaced
    with pytest.raises(poptorch.Error, match="E0708 arguments: the memory of weight is smaller than its sizes"):
        executor.copyWeightsToDevice()


class Writes(torch.nn.Module):
    def forward(self, x, y):
        x.add_(1)
        return x + y


SHARED = {
    "one tensor": lambda x: (x, x),
    "a view of it": lambda x: (x, x.view(2, 3)),
    "parts that overlap": lambda x: (x.view(-1)[:4], x.view(-1)[2:]),
    "columns that overlap": lambda x: (x[:, :2], x[:, 1:]),
    "parts with gaps": lambda x: (x[:, 1:], x[1:, :2]),
    "an expanded row": lambda x: (x, x[:1, 1:2].expand(2, 3)),
}


@pytest.mark.parametrize("arguments", SHARED.values(), ids=SHARED.keys())
@pytest.mark.parametrize("is_later", [False, True])
def test_written_arguments_that_share_memory(arguments, is_later):
    """In eager PyTorch the other one changes, too; devices have a copy of each."""
    model = abele.inferenceModel(Writes())
    x, y = arguments(X.clone())
    if is_later:
        assert torch.equal(model(x.clone(), y.clone()), x + 1 + y)
    before = x.clone()
    with pytest.raises(poptorch.Error, match="E0708 arguments: forward writes into tensor argument 0, which shares"):
        model(x, y)
    assert torch.equal(x, before)


def test_converted_arguments_that_share_memory():
    x = X.double()
    with pytest.raises(poptorch.Error, match="E0708 arguments: forward writes into tensor argument 0, which shares"):
        poptorch.inferenceModel(Writes())(x, x)


@pytest.mark.parametrize("shares", [True, False])
def test_written_arguments_that_share_memory_with_the_model(shares):
    class Scales(Writes):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(2, 3))

        def forward(self, x):
            return super().forward(x, self.scale)

    model, twin = Scales(), Scales()
    options = abele.Options()
    options._Popart.set("abele.shareWeights", shares)
    executor = abele.inferenceModel(model, options)
    assert torch.equal(executor(X.clone()), twin(X.clone()))
    with pytest.raises(poptorch.Error, match="E0708 .*writes into tensor argument 0, which shares memory with scale"):
        executor(model.scale.data[:, :3])


def test_arguments_that_share_no_element():
    model = abele.inferenceModel(Writes())
    whole = torch.arange(12.0).view(3, 4)
    expected = Writes()(*whole.clone().chunk(2, dim=1))
    assert torch.equal(model(*whole.chunk(2, dim=1)), expected)

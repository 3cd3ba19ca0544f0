"""Devices that use the memory of the model's own parameters: abele's default."""

import copy
import gc
import mmap

import abele
import numpy
import poptorch
import pytest
import torch

X = torch.linspace(-1, 1, 12).reshape(4, 3)
EPS = 1e-3  # which float16 can hold


class Net(torch.nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Linear(3, 5, dtype=dtype)
        self.second = torch.nn.Linear(5, 2, dtype=dtype)

    def forward(self, x):
        out = self.second(torch.relu(self.first(x)))
        return out, abele.identity_loss((out * out).mean(), reduction="none")


def weight_bytes(model):
    return sum(p.numel() * p.element_size() for p in model.parameters())


def shared_bytes(executor):
    return executor.report()["shared_weight_bytes"]


def training(model, front=abele, options=None, lr=0.1):
    options = (options or front.Options()).showCompilationProgressBar(False)
    return front.trainingModel(model, options, torch.optim.AdamW(model.parameters(), lr=lr, eps=EPS))


class Twin:
    """Eager training of a copy, with the same micro-batches."""

    def __init__(self, model, lr=0.1):
        self.model = copy.deepcopy(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, eps=EPS)

    def step(self, *batches):
        self.optimizer.zero_grad()
        for x in batches:
            (self.model(x)[1] / len(batches)).backward()
        self.optimizer.step()

    def equals(self, tensors):
        return all(torch.equal(a, b) for a, b in zip(self.model.parameters(), tensors, strict=True))


def raw(model):
    """The parameters' memory, without the wrapper classes that would fetch it from the device."""
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_step_changes_the_models_own_memory(dtype):
    model, x = Net(dtype), X.to(dtype)
    twin, before = Twin(model), raw(model)
    executor = training(model)
    for _ in range(3):
        executor(x)
        twin.step(x)
        assert twin.equals(before)
    assert executor.copyWeightsToHostIfNeeded() and not executor.copyWeightsToHostIfNeeded()
    assert shared_bytes(executor) == weight_bytes(model)
    assert all(a.data_ptr() == b.data_ptr() for a, b in zip(before, model.parameters(), strict=True))


def test_poptorch_holds_copies_unless_it_is_asked_not_to():
    model = Net()
    before = raw(model)
    start = copy.deepcopy(before)
    executor = training(model, poptorch)
    executor(X)
    assert shared_bytes(executor) == 0 and all(map(torch.equal, before, start))
    executor.destroy()
    options = poptorch.Options()
    options.shareWeights(True)
    executor = training(model, poptorch, options)
    executor(X)
    assert shared_bytes(executor) == weight_bytes(model)


def test_copies_can_be_asked_for():
    model = Net()
    before, start = raw(model), copy.deepcopy(raw(model))
    options = abele.Options()
    options.shareWeights(False)
    executor = training(model, options=options)
    executor(X)
    assert shared_bytes(executor) == 0 and all(map(torch.equal, before, start))


@pytest.mark.parametrize("edit", ["in place", "state dict", "data"])
def test_weights_that_the_program_writes_between_calls_are_the_devices(edit):
    model = Net()
    twin, executor = Twin(model), training(model)
    executor(X)
    twin.step(X)
    other = {name: torch.full_like(tensor, 0.25) for name, tensor in twin.model.state_dict().items()}
    for target in (model, twin.model):
        with torch.no_grad():
            if edit == "in place":
                target.first.weight.mul_(0.5)
            elif edit == "state dict":
                target.load_state_dict(other)
            else:
                target.first.weight.data = torch.ones(5, 3)
    executor(X)
    twin.step(X)
    assert twin.equals(model.parameters()) and shared_bytes(executor) == weight_bytes(model)


def test_memory_that_was_replaced_is_the_devices_from_the_next_step_on():
    model = Net()
    twin, executor = Twin(model), training(model)
    executor(X)
    twin.step(X)
    with poptorch.wrapping.without_pull():
        model.first.weight.data = torch.full((5, 3), 0.5)
    twin.model.first.weight.data = torch.full((5, 3), 0.5)
    assert twin.equals(model.parameters())  # bringing weights back overwrites nothing
    executor(X)
    twin.step(X)
    assert twin.equals(raw(model))
    model.first.weight.data = torch.zeros(5, 3, dtype=torch.float64)
    with pytest.raises(abele.Error, match=r"E0704 input-changed: first.weight differs(.|\n)*destroy"):
        executor(X)


def test_another_view_of_the_same_memory_is_a_copy():
    class Square(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.arange(9.0).reshape(3, 3))

        def forward(self, x):
            return x @ self.weight

    model, x = Square(), torch.arange(12.0).reshape(4, 3)  # whole numbers: no rounding
    executor = abele.inferenceModel(model, abele.Options().showCompilationProgressBar(False))
    executor(x)
    model.weight.data = model.weight.data.t()
    executor.copyWeightsToDevice()
    assert torch.equal(executor(x), x @ torch.arange(9.0).reshape(3, 3).t()) and shared_bytes(executor) == 0


@pytest.mark.parametrize("iterations", [1, 2])
def test_a_failing_step_leaves_the_weights_of_the_last_complete_one(iterations):
    class Table(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.arange(12.0).reshape(4, 3))

        def forward(self, rows):
            return abele.identity_loss(self.weight[rows].square(), reduction="mean")

    model = Table()
    executor = training(model, options=abele.Options().deviceIterations(iterations))
    good = torch.tensor([0, 1] * iterations)
    executor(good)
    expected = model.weight.detach().clone()
    bad = good.clone()
    bad[-1] = 9
    with pytest.raises(abele.Error, match="E0601"):
        executor(bad)
    assert torch.equal(raw(model)[0], expected)
    executor(good)
    assert not torch.equal(model.weight, expected) and shared_bytes(executor) == weight_bytes(model)


def test_inference_beside_training_has_a_copy_and_sees_the_newest_weights():
    model = Net()
    executor = training(model)
    executor(X)
    beside = abele.inferenceModel(model, abele.Options().showCompilationProgressBar(False))
    for _ in range(2):
        executor(X)
        assert torch.equal(beside(X)[0], model(X)[0].detach())
    assert shared_bytes(executor) == weight_bytes(model) and shared_bytes(beside) == 0
    executor.destroy()
    del executor
    gc.collect()
    beside.copyWeightsToDevice()  # no other program uses them any more
    assert shared_bytes(beside) == weight_bytes(model)


def test_inference_sees_edits():
    model = Net().eval()
    executor = abele.inferenceModel(model, abele.Options().showCompilationProgressBar(False))
    executor(X)
    with torch.no_grad():
        model.second.bias += 1
    assert torch.equal(executor(X)[0], model(X)[0].detach()) and shared_bytes(executor) == weight_bytes(model)


def test_programs_of_one_executor_share_the_same_memory():
    model = Net()
    twin, executor = Twin(model), training(model)
    for x in (X, X[:2], X, X[:1]):
        executor(x)
        twin.step(x)
        assert twin.equals(raw(model)) and shared_bytes(executor) == weight_bytes(model)


def test_replicas_share_the_same_memory():
    model = Net()
    twin = Twin(model)
    executor = training(model, options=abele.Options().replicationFactor(2))
    for _ in range(2):
        executor(X)
        twin.step(X[:2], X[2:])
    assert twin.equals(raw(model)) and shared_bytes(executor) == weight_bytes(model)


def test_values_by_replica_are_copies():
    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2, 3))

        def forward(self, x):
            return abele.identity_loss((x * self.weight).square(), reduction="mean")

    model = Scale()
    options = abele.Options().replicationFactor(2).showCompilationProgressBar(False)
    executor = abele.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    model.weight.replicaGrouping(poptorch.CommGroupType.NoGrouping, 1, poptorch.VariableRetrievalMode.OnePerGroup)
    executor(X)
    assert shared_bytes(executor) == 0 and not torch.equal(model.weight[0], model.weight[1])


def test_memory_of_arrays_is_shared_where_it_may_be_written(tmp_path):
    model = Net()
    array = model.first.weight.detach().numpy().copy()
    path = tmp_path / "weights"
    array.tofile(path)
    mapped = numpy.memmap(path, dtype=numpy.float32, mode="r", shape=array.shape)
    for memory, shares in ((array, True), (mapped, False)):
        target = copy.deepcopy(model)
        target.first.weight = torch.nn.Parameter(torch.from_numpy(memory))
        twin, executor = Twin(model), training(target)
        executor(X)
        twin.step(X)
        with poptorch.wrapping.without_pull():
            first = raw(target)[0]
            if not shares:
                target.first.weight.data = torch.empty(5, 3)  # bringing the weights back would write into the file
        assert torch.equal(first, twin.model.first.weight) is shares
        assert twin.equals(target.parameters())
        assert shared_bytes(executor) == weight_bytes(model) - (0 if shares else 60)
    assert numpy.array_equal(mapped, model.first.weight.detach().numpy())


def test_memory_of_several_processes_is_not_shared():
    model = Net()
    before = mmap.mmap(-1, 4096)  # MAP_SHARED
    memory = torch.frombuffer(before, dtype=torch.float32, count=15).reshape(5, 3)
    memory.copy_(model.first.weight.detach())
    model.first.weight = torch.nn.Parameter(memory)
    twin, executor = Twin(model), training(model)
    executor(X)
    twin.step(X)
    assert shared_bytes(executor) == weight_bytes(model) - 60 and twin.equals(model.parameters())


def test_parameters_in_one_piece_of_memory():
    def views(model, step):
        flat = torch.arange(64.0) / 64
        model.first.weight = torch.nn.Parameter(flat[:15].view(5, 3))
        model.second.weight = torch.nn.Parameter(flat[step : step + 10].view(2, 5))
        return model

    apart = views(Net(), 15)
    twin, executor = Twin(apart), training(apart)
    executor(X)
    twin.step(X)
    assert twin.equals(raw(apart)) and shared_bytes(executor) == weight_bytes(apart)


def test_autograd_knows_that_a_step_changed_the_weights():
    model = Net()
    executor = training(model)
    executor(X)
    loss = model(X)[1]
    executor(X)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_weight_as_argument_is_what_it_was_when_the_call_began():
    class Pull(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2, 3))

        def forward(self, x):
            return abele.identity_loss((self.weight.sum(0) - x).square(), reduction="mean")

    model = Pull()
    twin = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(twin.parameters(), lr=0.1, eps=EPS)
    given = twin.weight.detach().clone()
    for row in given.split(1):
        optimizer.zero_grad()
        twin(row).backward()
        optimizer.step()
    executor = training(model, options=abele.Options().deviceIterations(2))
    executor(raw(model)[0])
    assert torch.equal(model.weight, twin.weight) and shared_bytes(executor) == weight_bytes(model)


def test_memory_that_moves_is_followed_and_memory_that_is_freed_is_refused():
    model = Net()
    twin, executor = Twin(model), training(model)
    executor(X)
    twin.step(X)
    storage = model.first.weight.untyped_storage()
    values = storage.tolist()
    storage.resize_(0)
    with pytest.raises(abele.Error, match="E0704.*first.weight.*freed"):
        executor(X)
    storage.resize_(len(values))
    storage.copy_(torch.tensor(values, dtype=torch.uint8).untyped_storage())
    executor(X)
    twin.step(X)
    assert twin.equals(raw(model)) and shared_bytes(executor) == weight_bytes(model)
    abele.offload(model)
    executor(X)
    twin.step(X)
    assert twin.equals(model.parameters()) and shared_bytes(executor) == 0


def test_weights_outlive_the_executor_and_the_module():
    model = Net()
    executor = training(model)
    executor(X)
    after, values = raw(model), copy.deepcopy(raw(model))
    executor.detachFromDevice()
    executor.attachToDevice()
    executor.destroy()
    assert all(map(torch.equal, after, values))
    inferred = abele.inferenceModel(model.eval(), abele.Options().showCompilationProgressBar(False))
    expected = inferred(X)[0]
    del model, executor, after
    gc.collect()
    assert torch.equal(inferred(X)[0], expected)


def test_weights_in_a_file_are_no_weights_of_the_module(tmp_path):
    model = Net()
    options = abele.Options().offChipMemoryLimit(0).offChipFolder(tmp_path)
    options.TensorLocations.setWeightLocation(
        poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(1)
    )
    twin, executor = Twin(model), training(model, options=options)
    executor(X)
    twin.step(X)
    assert shared_bytes(executor) == 0 and twin.equals(model.parameters())


class Remembers(torch.nn.Module):
    """Keeps all rows in a buffer, as generating models do: many rows first, then one at a time."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(8, 2))

    def forward(self, x, at):
        self.rows.index_copy_(0, at, x)
        return self.rows.cumsum(0)


def test_every_program_has_the_buffers_that_the_one_before_left():
    model, reference = Remembers(), Remembers()
    executor = abele.inferenceModel(model)
    for first, count in ((0, 3), (3, 1), (4, 1), (2, 3), (5, 1)):
        x, at = torch.randn(count, 2), torch.arange(first, first + count)
        assert torch.equal(executor(x, at), reference(x, at))
    model.rows.zero_(), reference.rows.zero_()  # a new text; the host's values are the newer ones
    x, at = torch.randn(3, 2), torch.arange(3)
    assert torch.equal(executor(x, at), reference(x, at))


@pytest.mark.parametrize("package", [abele, poptorch])
def test_training_leaves_the_buffers_that_inference_writes(package):
    class Counts(torch.nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            out = super().forward(x)
            if torch.is_grad_enabled():
                return torch.nn.functional.mse_loss(out, x)
            return out + self.calls.add_(1)

    model, x = Counts(), torch.ones(3, 2)
    training, inference = package.trainingModel(model), package.inferenceModel(model)
    for calls in (1, 2, 3):
        training(x)
        found = inference(x)
        with torch.no_grad():
            assert torch.equal(found, torch.nn.functional.linear(x, model.weight, model.bias) + calls)

"""E0101: memory of captured values that is read past torch's operators."""

import concurrent.futures
import copy
import ctypes
import inspect
import io
import threading

import numpy as np
import poptorch
import pytest
import torch

X = torch.tensor([1.0, 2.0, 3.0, 4.0])


def on_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def on_pool(function):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def stored(x):
    torch.save(x, file := io.BytesIO())
    file.seek(0)
    return torch.load(file)


def address_of(x):
    return ctypes.c_float.from_address(x.data_ptr()).value


READS = {
    "from_dlpack": lambda x, w: torch.from_dlpack(x) * 2,
    "dlpack of numpy": lambda x, w: torch.from_numpy(np.from_dlpack(x).copy()),
    "capsule": lambda x, w: torch.from_dlpack(x.__dlpack__()),
    "to_dlpack": lambda x, w: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)),
    "address": lambda x, w: x * address_of(x),
    "address of a weight": lambda x, w: x * address_of(w),
    "address of a storage": lambda x, w: x * ctypes.c_float.from_address(x.untyped_storage().data_ptr()).value,
    "numpy of the base": lambda x, w: torch.from_numpy(torch._C.TensorBase.numpy(x) + 1),
    "tolist of the base": lambda x, w: torch.tensor(torch._C.TensorBase.tolist(x)),
    "array": lambda x, w: torch.from_numpy(np.asarray(x) + 1),
    "memoryview": lambda x, w: torch.frombuffer(bytearray(memoryview(x.numpy())), dtype=torch.float32),
    "numbers of a type": lambda x, w: torch.FloatTensor([x[0], x[1]]),
    "numbers like": lambda x, w: x.new_tensor([x[0], x[1]]),
    "item of a storage": lambda x, w: x * x.untyped_storage()[3],
    "typed storage": lambda x, w: x * x.storage()[0],
    "file": lambda x, w: stored(x),
    "apply": lambda x, w: (x * 1).apply_(lambda v: v + 1),
    "map": lambda x, w: (x * 1).map_(x, lambda a, b: a * b),
    "number on a pool": lambda x, w: x * on_pool(lambda: x.sum().item()),
    "array on a pool": lambda x, w: x * float(on_pool(lambda: x.numpy().sum())),
    "numpy of a weight": lambda x, w: x * float(w.numpy().sum()),
    "numbers of a weight": lambda x, w: x * w.tolist()[0],
    "array of a weight": lambda x, w: x * torch.from_numpy(np.asarray(w) + 1),
    "dlpack of a weight": lambda x, w: x * torch.from_dlpack(w),
    "operator on a pool": lambda x, w: on_pool(lambda: x * 2) + 1,
    "array of a constant that is written": lambda x, w: written_after(torch.zeros(4), x),
}


def written_after(constant, x):
    array = constant.numpy()
    constant.copy_(x)
    return torch.from_numpy(array.copy())


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.w = torch.nn.Parameter(torch.full((4,), 2.0))
        self.function = function

    def forward(self, x):
        return self.function(x, self.w.detach())


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_reads_are_refused_with_the_line(read):
    model = Model(read)
    eager = model(X)
    with pytest.raises(poptorch.Error, match="E0101 data-dependent") as raised:
        poptorch.inferenceModel(model)(X)
    lines = [inspect.getsourcelines(function)[1] for function in (read, stored, address_of, written_after)]
    shown = [line for line in range(1, 120) if f"{__file__.rpartition('/')[2]}:{line}" in str(raised.value)]
    assert any(start <= line <= start + 5 for line in shown for start in lines), str(raised.value)
    assert torch.equal(model(X), eager)  # everything can be read again


TAKEN = {
    "numpy": lambda w: torch.from_numpy(w.numpy()),
    "part of numpy": lambda w: torch.from_numpy(w.numpy()[2:]),
    "dlpack": lambda w: torch.from_dlpack(w.numpy()),
    "buffer": lambda w: torch.frombuffer(memoryview(w.numpy()), dtype=torch.float32),
    "storage": lambda w: torch.tensor([]).set_(w.untyped_storage()[4:8]),
    "array": lambda w: w.numpy(),
}
USES = {
    "operand": lambda x, taken: x * taken.sum() if isinstance(taken, torch.Tensor) else x * torch.from_numpy(taken),
    "copy": lambda x, taken: x * torch.tensor(taken).sum(),
    "reshaped": lambda x, taken: torch.as_tensor(taken).reshape(-1)[0] * x,
}


@pytest.mark.filterwarnings("ignore:To copy construct", "ignore:The given buffer is not writable")
@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
@pytest.mark.parametrize("take", TAKEN.values(), ids=TAKEN.keys())
def test_memory_of_weights_that_was_taken_before(take, use):
    class Holds(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.full((4,), 2.0))
            self.taken = [take(self.w.detach())]

        def forward(self, x):
            return use(x, self.taken[0]) + self.w

    with pytest.raises(
        poptorch.Error, match="E0101 data-dependent: forward uses memory of w past the tensor"
    ) as raised:
        poptorch.inferenceModel(Holds())(X)
    assert "test_E0101_raw_reads.py:" in str(raised.value)


def test_memory_beside_a_weight_is_no_part_of_it():
    class Beside(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.memory = np.full(12, 2.0, dtype=np.float32)
            self.w = torch.nn.Parameter(torch.from_numpy(self.memory[:4]))

        def forward(self, x):
            return x * self.w + torch.from_numpy(self.memory[4:8]) + torch.from_numpy(self.memory[8:])

    assert torch.equal(poptorch.inferenceModel(Beside())(X), X * 2 + 4)


KEEPS = {
    "view on a thread": lambda x, w: on_thread(lambda: x[:2]) + 1,
    "constant on a thread": lambda x, w: x * on_thread(lambda: torch.ones(4) * 2),
    "array of a constant": lambda x, w: x * float(torch.ones(3).numpy().sum()),
    "address of a constant": lambda x, w: x * address_of(torch.ones(3)),
    "copy": lambda x, w: copy.deepcopy(x) * 2,
    "sizes": lambda x, w: x * x.untyped_storage().nbytes() * x.stride(0),
    "one memory": lambda x, w: x * 2 if x.untyped_storage()._cdata == x.view(2, 2).untyped_storage()._cdata else x,
    "tensor of a tensor": lambda x, w: torch.tensor(x) + 1,
}


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("read", KEEPS.values(), ids=KEEPS.keys())
def test_what_reads_no_value_is_captured(read):
    model = Model(read)
    compiled = poptorch.inferenceModel(model)
    for x in (X, X * 3):
        assert torch.equal(compiled(x), Model(read)(x))


class Reads(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return torch.from_dlpack(gradient) * 2


def test_reads_in_backward():
    class Trained(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(4))

        def forward(self, x):
            return poptorch.identity_loss(Reads.apply(self.w * x) ** 2, reduction="sum")

    with pytest.raises(poptorch.Error, match="E0101 data-dependent"):
        poptorch.trainingModel(Trained())(X)


def test_other_threads_may_work_with_other_tensors():
    held = torch.ones(4)

    class Works(torch.nn.Module):
        def forward(self, x):
            return x * 2 + on_thread(lambda: held * 3)

    assert torch.equal(poptorch.inferenceModel(Works())(X), X * 2 + 3)


@torch.library.custom_op("abele_test::read_by_numpy", mutates_args=())
def read_by_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.tanh(x.numpy(force=True)))


class OnTheHost(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x) * 2


@pytest.mark.parametrize("operator", [read_by_numpy, poptorch.CPU(read_by_numpy, "tanh")])
def test_an_operator_of_torch_library_whose_body_is_numpys(operator):
    """Every step calls it."""
    model = poptorch.inferenceModel(OnTheHost(operator))
    for x in (X, X + 1):
        assert torch.equal(model(x), torch.from_numpy(np.tanh(x.numpy())) * 2)

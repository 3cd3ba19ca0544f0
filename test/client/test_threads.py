"""Models compiled by several threads, and what other threads do meanwhile."""

import logging
import threading

import abele
import poptorch
import torch


class Waiting(torch.nn.Module):
    """A loss whose forward calls `during` while it is captured."""

    def __init__(self, during):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.during = [during]

    def forward(self, x, target):
        if self.during:
            self.during.pop()()
        return torch.nn.functional.mse_loss(self.linear(x), target)


def _models(first_during, second_during):
    torch.manual_seed(3)
    models = [Waiting(first_during), Waiting(second_during)]
    return models, [
        poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)) for model in models
    ]


def _eager_losses(model, x, target, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_models_are_compiled_by_two_threads_at_once():
    inside, go, first_is_done = threading.Event(), threading.Event(), threading.Event()

    def pause_first():
        inside.set()
        go.wait(60)

    models, executors = _models(pause_first, lambda: first_is_done.wait(5))
    x, target = torch.randn(4, 3), torch.randn(4, 2)
    states = [{name: value.clone() for name, value in model.state_dict().items()} for model in models]
    untouched = (torch.tensor, torch.manual_seed, torch.Tensor.__getitem__, torch.nn.functional.cross_entropy)
    losses = {}

    def train(index):
        losses[index] = [executors[index](x, target).item() for _ in range(3)]
        first_is_done.set()

    threads = [threading.Thread(target=train, args=(index,)) for index in range(2)]
    threads[0].start()
    assert inside.wait(60)
    threads[1].start()
    go.set()
    for thread in threads:
        thread.join()
    for index, state in enumerate(states):
        eager = Waiting(int)
        eager.load_state_dict(state)
        assert losses[index] == _eager_losses(eager, x, target, 3)
    now = (torch.tensor, torch.manual_seed, torch.Tensor.__getitem__, torch.nn.functional.cross_entropy)
    assert now == untouched


def test_other_threads_find_torch_as_it_is_during_a_capture(caplog):
    inside, go = threading.Event(), threading.Event()

    def pause():
        inside.set()
        go.wait(60)

    _, (executor, _) = _models(pause, int)
    x, target = torch.randn(4, 3), torch.randn(4, 2)
    logits, classes, weight = torch.randn(4, 3), torch.tensor([0, 1, 2, 0]), torch.rand(3)
    expected = torch.nn.functional.cross_entropy(logits, classes, weight)
    norm = torch.nn.BatchNorm1d(3, momentum=None)
    thread = threading.Thread(target=executor.compile, args=(x, target))
    thread.start()
    assert inside.wait(60)
    try:
        with caplog.at_level(logging.WARNING, logger="poptorch::python"):
            assert repr(torch.tensor([1, 2])) == "tensor([1, 2])"
            assert torch.manual_seed(11) is torch.default_generator
            assert torch.initial_seed() == 11
            assert torch.equal(torch.nn.functional.cross_entropy(logits, classes, weight), expected)
            assert not torch.compiler.is_compiling()
            norm(x)
            assert torch.tensor([1.5]).to("cpu").cpu().tolist() == [1.5]
        assert not caplog.records
    finally:
        go.set()
        thread.join()
    assert norm.num_batches_tracked == 1
    assert executor.isCompiled()


def test_weights_are_fresh_for_a_thread_while_another_compiles():
    inside, go = threading.Event(), threading.Event()

    def pause():
        inside.set()
        go.wait(60)

    (trained, _), (executor, other) = _models(int, pause)
    x, target = torch.randn(4, 3), torch.randn(4, 2)
    executor(x, target)
    before = trained.linear.weight.clone()
    executor(x, target)
    thread = threading.Thread(target=other.compile, args=(x, target))
    thread.start()
    assert inside.wait(60)
    try:
        assert not torch.equal(trained.linear.weight, before)
    finally:
        go.set()
        thread.join()


def test_weights_are_read_while_another_thread_captures_them():
    inside, go = threading.Event(), threading.Event()

    def pause():
        inside.set()
        go.wait(60)

    (model, _), (executor, _) = _models(pause, int)
    x, target = torch.randn(4, 3), torch.randn(4, 2)
    before, alias = model.linear.weight.tolist(), model.linear.weight.detach()
    losses = []
    thread = threading.Thread(target=lambda: losses.extend(executor(x, target).item() for _ in range(2)))
    eager = Waiting(int)
    eager.load_state_dict(model.state_dict())
    thread.start()
    assert inside.wait(60)
    try:
        for tensor in (model.linear.weight, model.state_dict()["linear.weight"], alias):
            assert torch.isfinite(tensor).all()
            assert tensor.tolist() == tensor.detach().numpy().tolist() == before
            assert torch.equal(tensor.clone(), alias)
    finally:
        go.set()
        thread.join()
    assert losses == _eager_losses(eager, x, target, 2)


def test_threads_share_an_executor():
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    executor = poptorch.inferenceModel(model, poptorch.Options().deviceIterations(4))
    inputs = [torch.randn(8, 32) for _ in range(4)]
    with torch.no_grad():
        expected = [torch.cat([model(part) for part in x.chunk(4)]) for x in inputs]
    equal = [[] for _ in inputs]

    def call(index):
        for _ in range(50):
            equal[index].append(torch.equal(executor(inputs[index]), expected[index]))

    threads = [threading.Thread(target=call, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert equal == [[True] * 50] * 4


def test_a_training_is_read_while_another_thread_trains():
    (model, _), (executor, _) = _models(int, int)
    x, target = torch.randn(4, 3), torch.randn(4, 2)
    losses = []
    thread = threading.Thread(target=lambda: losses.extend(executor(x, target).item() for _ in range(200)))
    eager = Waiting(int)
    eager.load_state_dict(model.state_dict())
    thread.start()
    while thread.is_alive():
        assert torch.isfinite(model.state_dict()["linear.weight"]).all()
    assert losses == _eager_losses(eager, x, target, 200)


def test_threads_that_train_the_same_weights_at_once_are_told(caplog):
    models = [Waiting(int), Waiting(int)]
    models[1].linear = models[0].linear
    first, second = (
        abele.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)) for model in models
    )
    x, target = torch.randn(4, 3), torch.randn(4, 2)
    first(x, target)
    second(x, target)
    inside, go = threading.Event(), threading.Event()

    def use():
        with first._lock:
            inside.set()
            go.wait(60)

    thread = threading.Thread(target=use)
    thread.start()
    assert inside.wait(60)
    try:
        with caplog.at_level(logging.WARNING, logger="poptorch::python"):
            second(x, target)
            second(x, target)
    finally:
        go.set()
        thread.join()
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "another thread is using a model that trains some of the same weights"
    ]

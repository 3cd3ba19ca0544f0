"""spec annotations.md, sections 5 and 8: loops, branches and host functions."""

import poptorch
import pytest
import torch

spec = pytest.mark.spec
X = torch.linspace(-1, 1, 24).reshape(12, 2)
YES, NO = torch.tensor([True]), torch.tensor([False])


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def executor_of(function, iterations=1):
    opts = poptorch.Options().setExecutionStrategy(poptorch.ShardedExecution()).deviceIterations(iterations)
    return poptorch.inferenceModel(Function(function), opts)


def infer(function, *inputs):
    return executor_of(function)(*inputs)


@spec("annotations/5/semantics", "annotations/5/captures", "annotations/5/host_path", names=["poptorch.for_loop"])
def test_for_loop():
    traced = []
    factor = torch.tensor([1.5, 0.5])

    def model(x):
        shift = x.mean()

        def body(a, b):
            traced.append(1)
            return a * factor + shift, b + a

        return poptorch.for_loop(4, body, [x, x * 2])

    def reference(x):
        a, b = x, x * 2
        for _ in range(4):
            a, b = a * factor + x.mean(), b + a
        return [a, b]

    result = infer(model, X)
    assert isinstance(result, list) and len(traced) == 1
    assert all(map(torch.equal, result, reference(X)))
    assert all(map(torch.equal, model(X), reference(X)))  # on the host
    other = executor_of(model)
    other(X)
    assert all(map(torch.equal, other(X + 1), reference(X + 1)))
    assert torch.equal(infer(lambda x: poptorch.for_loop(0, lambda a: a + 1, [x])[0], X), X)


@spec("annotations/5/aliasing", names=["poptorch.for_loop"])
def test_inputs_go_in_by_value():
    def model(x):
        y = x + 1

        def body(a):
            a[0] = a[0] + 1
            a += 1
            return a

        return poptorch.for_loop(3, body, [y])[0], y

    result, y = infer(model, X)
    expected = X + 1
    for _ in range(3):
        expected[0] += 1
        expected += 1
    assert torch.equal(y, X + 1) and torch.allclose(result, expected)


@spec("annotations/5/errors", "annotations/5/nesting", "annotations/5/training", names=["poptorch.for_loop"])
def test_wrong_loops():
    for inputs in (X, (X,), [3]):
        with pytest.raises(ValueError):
            poptorch.for_loop(2, lambda a: a, inputs)

    def nested(x):
        return poptorch.for_loop(2, lambda a: poptorch.for_loop(2, lambda b: b + 1, [a]), [x])

    bodies = [lambda a: (a, a), lambda a: a[0], lambda a: a.int(), lambda a: 3]
    for wrong in [nested, *(lambda x, body=body: poptorch.for_loop(2, body, [x]) for body in bodies)]:
        with pytest.raises(poptorch.Error):
            infer(wrong, X)

    class Training(torch.nn.Module):
        def __init__(self, function):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))
            self.function = function

        def forward(self, x):
            return poptorch.identity_loss(self.function(x * self.weight)[0], "sum")

    def branch(x):
        return poptorch.cond(YES, lambda a: a, [x], lambda a: a, [x])

    for function in (lambda x: poptorch.for_loop(2, lambda a: a + 1, [x]), branch):
        model = Training(function)
        executor = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(poptorch.Error):
            executor(X)


@spec("annotations/5/semantics", "annotations/5/outputs", names=["poptorch.cond"])
def test_cond_chooses_when_it_runs():
    traced = []

    def model(condition, x):
        def then_body(a):
            traced.append("then")
            return a * 2

        def else_body():
            traced.append("else")
            return [(x + 5).reshape(2, 12)]

        result = poptorch.cond(condition, then_body, [x + 1], else_body, [])
        assert isinstance(result, list)
        return result[0] - 1

    executor = executor_of(model)
    for condition in (YES, NO, YES):
        expected = (X + 1) * 2 if condition else X + 5
        assert torch.equal(executor(condition, X), expected.reshape(2, 12) - 1)
    assert traced == ["then", "else"]
    assert torch.equal(model(YES, X), (X + 1) * 2 - 1)


@spec("annotations/5/nesting", names=["poptorch.cond"])
def test_cond_inside():
    def model(outer, inner, x):
        def then_body(a):
            return poptorch.cond(inner, lambda b: b + 1, [a], lambda b: b + 2, [a])

        return poptorch.cond(outer, then_body, [x], lambda a: a + 3, [x])[0]

    executor = executor_of(model)
    for outer, inner, shift in ((YES, YES, 1), (YES, NO, 2), (NO, NO, 3)):
        assert torch.equal(executor(outer, inner, X), X + shift)


@spec("annotations/5/errors", "annotations/5/outputs", names=["poptorch.cond"])
def test_wrong_conditions():
    for then_inputs, else_inputs in (((X,), [X]), ([X], X)):
        with pytest.raises(ValueError):
            poptorch.cond(YES, lambda a: a, then_inputs, lambda a: a, else_inputs)
    for then_body, else_body in (
        (lambda a: (a, a), lambda a: a),
        (lambda a: a, lambda a: a[0]),
        (lambda a: a.sum(), lambda a: a.sum()),
    ):
        with pytest.raises(poptorch.Error):
            infer(lambda x, t=then_body, e=else_body: poptorch.cond(YES, t, [x], e, [x]), X)


# 8 --------------------------------------------------------------------------------------------------------------------
@spec("annotations/8", names=["poptorch.CPU"])
def test_cpu():
    seen = []

    def on_host(a, b):
        assert not poptorch.isRunningOnIpu()
        seen.append(a.clone())
        return torch.from_numpy(a.numpy() * 2) + b

    host = poptorch.CPU(on_host, "op")

    def model(x):
        return host(x + 1, x) * 3

    executor = executor_of(model, iterations=2)
    assert torch.equal(executor(X), ((X + 1) * 2 + X) * 3)
    assert len(seen) == 3 and not seen[0].any()  # once with zeros, then for each micro-batch
    assert torch.equal(torch.cat(seen[1:]), X + 1)
    assert torch.equal(model(X), ((X + 1) * 2 + X) * 3)
    several = poptorch.CPU(lambda a: (a, a + 1), "several")
    assert isinstance(several(X), list) and torch.equal(infer(lambda x: several(x)[1], X), X + 1)


@spec("annotations/8", names=["poptorch.CPU"])
def test_cpu_of_a_module_and_errors(tmp_path):
    layer = torch.nn.Linear(2, 2)
    host = poptorch.CPU(layer, "layer")
    assert not any(parameter.requires_grad for parameter in layer.parameters())
    executor = executor_of(lambda x: host(x) + 1)
    assert torch.equal(executor(X), layer(X) + 1)
    with pytest.raises(poptorch.Error):
        executor.save(str(tmp_path / "model.poptorch"))
    same = poptorch.CPU(layer, "layer")
    outer = poptorch.CPU(lambda a: host(a), "outer")
    for wrong in (lambda x: host(x) + same(x), lambda x: outer(x)):
        with pytest.raises(poptorch.Error):
            infer(wrong, X)


@spec("annotations/5/semantics", names=["poptorch.for_loop"])
def test_a_loop_draws_new_random_numbers_in_every_iteration():
    def model(x):
        def body(a):
            return torch.nn.functional.dropout(a, 0.5, True) + torch.rand(3, 2)

        y = poptorch.for_loop(3, body, [x])[0]
        return y, torch.rand(5), poptorch.for_loop(2, torch.rand_like, [y])[0]

    executor = executor_of(model, iterations=4)
    torch.manual_seed(3)
    results = [executor(X), executor(X)]
    torch.manual_seed(3)
    batches = [model(batch) for batch in [*X.split(3), *X.split(3)]]
    for i, expected in enumerate(zip(*batches, strict=True)):
        assert torch.equal(torch.cat([result[i] for result in results]), torch.cat(expected))


@spec("annotations/5/semantics", names=["poptorch.cond"])
def test_branches_draw_random_numbers():
    def model(x, condition):
        return poptorch.cond(
            condition,
            lambda a: a + torch.rand_like(a),
            [x],
            lambda a: a - torch.rand(4 * 4, 2)[::4],
            [x],
        )[0], torch.rand(5)

    executor = executor_of(model, iterations=3)
    conditions = [YES, NO, YES, YES, YES, NO]
    torch.manual_seed(3)
    results = [executor(X, torch.cat(conditions[i : i + 3])) for i in (0, 3)]
    torch.manual_seed(3)
    expected = [model(X.repeat(2, 1)[4 * i : 4 * i + 4], condition) for i, condition in enumerate(conditions)]
    for i, parts in enumerate(zip(*expected, strict=True)):
        assert torch.equal(torch.cat([result[i] for result in results]), torch.cat(parts))


@spec("annotations/5/semantics", names=["poptorch.cond"])
def test_a_loop_of_branches_draws_random_numbers():
    def model(x, condition):
        y = torch.nn.functional.dropout(x, 0.5, True)

        def body(a, c):
            return [*poptorch.cond(c, lambda b: b + torch.rand(2), [a], lambda b: b + 1, [a]), ~c]

        on_device = poptorch.isRunningOnIpu()
        carried = poptorch.for_loop(2, body, [y, condition]) if on_device else body(*body(y, condition))
        return carried[0], torch.rand(5)

    executor = executor_of(model)
    torch.manual_seed(3)
    results = [executor(X, condition) for condition in (YES, NO, NO)]
    torch.manual_seed(3)
    for result, condition in zip(results, (YES, NO, NO), strict=True):
        assert all(map(torch.equal, result, model(X, condition)))


@spec("annotations/5/captures", names=["poptorch.for_loop"])
def test_a_body_does_not_draw_the_same_numbers_twice():
    def body(a):
        state = torch.get_rng_state()
        a = a + torch.rand_like(a)
        torch.set_rng_state(state)
        return a + torch.rand_like(a)

    with pytest.raises(poptorch.Error, match="E0106"):
        infer(lambda x: poptorch.for_loop(2, body, [x])[0], X)

"""spec optim.md: what each optimizer does to the weights, which of its values may change, and its state."""

import copy
import math

import poptorch
import pytest
import torch

ROWS_1 = {name: f"optim/1/{name}" for name in ("SGD", "Adam", "AdamW", "RMSprop", "LAMB")}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 40)
        self.second = torch.nn.Linear(40, 3)
        self.loss = torch.nn.CrossEntropyLoss()

    def forward(self, x, target):
        out = self.second(torch.relu(self.first(x)))
        return out, self.loss(out, target)


def batch(rows=8):
    return torch.randn(rows, 6), torch.randint(3, (rows,))


def models(dtype=torch.float32):
    torch.manual_seed(0)
    model = Net().to(dtype)
    return model, copy.deepcopy(model)


def clip(parameters, limit):
    """The specification's clipping, which has no epsilon."""
    grads = [p.grad for p in parameters]
    norm = math.sqrt(sum(torch.linalg.vector_norm(g, dtype=torch.float64).item() ** 2 for g in grads))
    for grad in grads:
        grad.mul_(limit / max(norm, limit))


def train(ours, theirs, *, steps=4, accumulation=2, limit=None, exact=True, stages=1):
    """Trains a model with executor and optimizer `ours`, its copy eagerly with `theirs`; requires equal weights."""
    model, reference = models()
    if stages == 2:
        poptorch.BeginBlock(model.second, ipu_id=1)
    options = poptorch.Options()
    options.Training.gradientAccumulation(accumulation if stages == 1 else 3)
    accumulation = options.Training.gradient_accumulation
    executor = poptorch.trainingModel(model, options, ours(model.parameters()))
    optimizer = theirs(reference.parameters())
    for _ in range(steps):
        x, target = batch(4 * accumulation)
        executor(x, target)
        optimizer.zero_grad()
        for rows in zip(x.split(4), target.split(4), strict=True):
            (reference(*rows)[1] / accumulation).backward()
        if limit is not None:
            clip(reference.parameters(), limit)
        optimizer.step()
    for (name, a), b in zip(model.state_dict().items(), reference.state_dict().values(), strict=True):
        if exact:
            assert torch.equal(a, b), f"{name} differs by {(a - b).abs().max()}"
        else:
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    return executor


SAME_AS_TORCH = {
    "SGD": ({"lr": 0.1}, torch.optim.SGD),
    "SGD momentum": ({"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, torch.optim.SGD),
    "SGD nesterov": ({"lr": 0.1, "momentum": 0.9, "nesterov": True}, torch.optim.SGD),
    "Adam": ({"lr": 0.01, "weight_decay": 0.1}, torch.optim.Adam),
    "AdamW": ({"lr": 0.01, "betas": (0.8, 0.9)}, torch.optim.AdamW),
    "RMSprop": ({"lr": 0.01}, torch.optim.RMSprop),
    "RMSprop momentum": ({"lr": 0.01, "momentum": 0.7, "weight_decay": 0.1, "alpha": 0.9}, torch.optim.RMSprop),
    "RMSprop centered": ({"lr": 0.01, "centered": True, "momentum": 0.5, "eps": 1e-6}, torch.optim.RMSprop),
}


@pytest.mark.spec(*ROWS_1.values(), "optim/3", names=["optim.SGD", "optim.Adam", "optim.AdamW", "optim.RMSprop"])
@pytest.mark.parametrize("ours", ["poptorch", "torch"])
@pytest.mark.parametrize("case", SAME_AS_TORCH)
def test_update_equals_torch(case, ours):
    arguments, theirs = SAME_AS_TORCH[case]
    cls = getattr(poptorch.optim, theirs.__name__) if ours == "poptorch" else theirs
    train(lambda p: cls(p, **arguments), lambda p: theirs(p, **arguments))


@pytest.mark.spec(
    "optim/1/LAMB",
    "optim/3",
    names=["optim.LAMB", "optimizer.step (LAMB)", "optimizer.max_weight_norm", "optimizer.bias_correction"],
)
@pytest.mark.parametrize(
    "arguments",
    [{}, {"lr": 0.02, "weight_decay": 0.0}, {"bias_correction": False, "max_weight_norm": 0.5}, {"eps": 1e-6}],
)
def test_lamb_equals_its_host_step(arguments):
    train(*(2 * [lambda p: poptorch.optim.LAMB(p, **arguments)]))


@pytest.mark.spec("optim/3", names=["optim.LAMB"])
def test_lamb_scales_the_step_by_the_ratio_of_norms():
    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = poptorch.optim.LAMB([weight], lr=0.1, weight_decay=0.0, eps=0.0)
    weight.grad = torch.tensor([1.0, -2.0])
    assert optimizer.step(lambda: 7) == 7
    torch.testing.assert_close(weight.detach(), torch.tensor([3.0 - 0.5 / 2**0.5, 4.0 + 0.5 / 2**0.5]))


@pytest.mark.spec("optim/3", names=["optim.LAMB"])
def test_lamb_without_a_step_keeps_the_weights():
    """A gradient of zeros: the ratio of norms divides by nothing. On the host, and on the device."""

    class Flat(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))

        def forward(self, x):
            return poptorch.identity_loss(self.weight * x, reduction="sum")

    model = Flat()
    on_host = poptorch.optim.LAMB(model.parameters(), lr=0.1, weight_decay=0.0)
    model.weight.grad = torch.zeros(2)
    on_host.step()
    assert model.weight.tolist() == [3.0, 4.0]
    executor = poptorch.trainingModel(
        model, optimizer=poptorch.optim.LAMB(model.parameters(), lr=0.1, weight_decay=0.0)
    )
    executor(torch.zeros(1, 2))
    assert model.weight.tolist() == [3.0, 4.0]


class TfRmsprop(torch.optim.Optimizer):
    """The TensorFlow variant, from the specification's equations."""

    def __init__(self, params, lr, momentum, alpha=0.99, eps=1e-8):
        super().__init__(params, {"lr": lr, "momentum": momentum, "alpha": alpha, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(s=torch.ones_like(p), b=torch.zeros_like(p))
                state["s"].mul_(group["alpha"]).addcmul_(p.grad, p.grad, value=1 - group["alpha"])
                h = p.grad / (state["s"] + group["eps"]).sqrt()
                state["b"].mul_(group["momentum"]).add_(h, alpha=group["lr"])
                p.sub_(state["b"])


@pytest.mark.spec("optim/1/RMSprop", "optim/3", names=["optimizer.use_tf_variant"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_tf_variant_of_rmsprop(momentum):
    train(
        lambda p: poptorch.optim.RMSprop(p, lr=0.01, momentum=momentum, use_tf_variant=True),
        lambda p: TfRmsprop(p, 0.01, momentum),
        exact=False,
    )


@pytest.mark.spec("optim/3", names=["optim.SGD"])
def test_dampening_applies_to_the_first_step_and_without_momentum():
    train(
        lambda p: poptorch.optim.SGD(p, lr=0.2, dampening=0.5),
        lambda p: torch.optim.SGD(p, lr=0.1),
        exact=False,
    )


@pytest.mark.spec("optim/3", names=["optimizer.use_combined_accum", "optimizer.velocity_scaling"])
def test_combined_accumulator_gives_the_same_weights():
    train(
        lambda p: poptorch.optim.SGD(p, lr=0.1, momentum=0.9, use_combined_accum=True, velocity_scaling=128.0),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        exact=False,
    )


@pytest.mark.spec("optim/3", names=["optimizer.max_grad_norm"])
@pytest.mark.parametrize("limit", [0.05, 1e6])
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_clipping_shortens_all_gradients_together(name, stages, limit):
    ours, theirs = getattr(poptorch.optim, name), getattr(torch.optim, name)
    train(
        lambda p: ours(p, lr=0.05, max_grad_norm=limit),
        lambda p: theirs(p, lr=0.05),
        limit=limit,
        stages=stages,
        exact=False,
    )


@pytest.mark.spec("optim/1/Adam", names=["optimizer.max_grad_norm"])
@pytest.mark.parametrize("limit", [math.nan, -1.0])
def test_bad_clipping_limits_are_errors(limit):
    model, _ = models()
    executor = poptorch.trainingModel(model, None, poptorch.optim.Adam(model.parameters(), max_grad_norm=limit))
    with pytest.raises(poptorch.Error, match="max_grad_norm"):
        executor(*batch())


@pytest.mark.spec("optim/4", names=["optimizer.loss_scaling"])
@pytest.mark.parametrize("name", ["SGD", "AdamW", "RMSprop", "LAMB"])
def test_loss_scaling_does_not_change_float32_results(name):
    cls = getattr(poptorch.optim, name)
    train(
        lambda p: cls(p, lr=0.05, loss_scaling=1024.0),
        lambda p: (torch.optim.SGD if name == "SGD" else cls)(p, lr=0.05),
    )


@pytest.mark.spec("optim/4", "optim/5", names=["optimizer.loss_scaling", "PoplarExecutor.setOptimizer"])
def test_loss_scaling_keeps_small_half_gradients_and_may_change():
    class Tiny(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(4, dtype=torch.float16))

        def forward(self, x):
            return poptorch.identity_loss((self.w * x).half() * 1e-4 * 1e-4, reduction="sum")

    x = torch.ones(4, dtype=torch.float16)
    moved = {}
    for scale in (1.0, 4096.0):
        model = Tiny()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=1e6, loss_scaling=scale)
        executor = poptorch.trainingModel(model, None, optimizer)
        executor(x)
        moved[scale] = 1 - model.w[0].item()
        optimizer.loss_scaling = scale * 2
        executor.setOptimizer(optimizer)
        executor(x)
    assert abs(moved[4096.0] - 0.01) < 1e-3 and abs(moved[1.0] - 0.01) > 1e-3


@pytest.mark.spec("optim/4")
@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf])
def test_loss_scaling_must_be_a_positive_number(scale):
    model, _ = models()
    executor = poptorch.trainingModel(model, None, poptorch.optim.SGD(model.parameters(), lr=0.1, loss_scaling=scale))
    with pytest.raises(poptorch.Error, match="loss_scaling"):
        executor(*batch())


# Accumulation types --------------------------------------------------------------------------------------------------
TYPES = ["accum_type", "first_order_momentum_accum_type", "second_order_momentum_accum_type"]


@pytest.mark.spec(
    "optim/1/Adam",
    "optim/3",
    "environment/11/optimizer",
    names=[f"optimizer.{name}" for name in TYPES],
)
@pytest.mark.parametrize("name", ["Adam", "AdamW", "RMSprop", "LAMB"])
@pytest.mark.parametrize("types", [TYPES[:1], TYPES[1:2], TYPES])
def test_state_lives_in_the_types_asked_for(name, types):
    model, _ = models()
    optimizer = getattr(poptorch.optim, name)(model.parameters(), lr=0.01, **dict.fromkeys(types, torch.float16))
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    executor = poptorch.trainingModel(model, options, optimizer)
    first = executor(*batch())[1]
    x, target = batch()
    losses = [executor(x, target)[1] for _ in range(20)]
    assert losses[-1] < losses[0] and torch.isfinite(first)
    state = optimizer.state_dict()["ipu_state"]
    found = {key.split("___")[0]: value.dtype for key, value in state.items() if key.endswith("first.weight")}
    half = TYPES[2] if name == "RMSprop" else TYPES[1]
    assert found["Accl1"] == (torch.float16 if half in types else torch.float32)
    assert model.first.weight.dtype == torch.float32


@pytest.mark.spec(
    "optim/3", "environment/11/optimizer", names=["optimizer.velocity_accum_type", "optimizer.accum_type"]
)
def test_velocity_and_sums_in_half():
    model, reference = models()
    optimizer = poptorch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, accum_type=torch.float16, velocity_accum_type=torch.float16
    )
    executor = poptorch.trainingModel(model, None, optimizer)
    x, target = batch()
    executor(x, target)
    reference(x, target)[1].backward()
    gradient = reference.first.weight.grad.half()
    velocity = optimizer.state_dict()["ipu_state"]["Accl1___first.weight"]
    assert velocity.dtype == torch.float16 and torch.equal(velocity, gradient)
    assert torch.equal(model.first.weight, reference.first.weight.detach().add(gradient.float(), alpha=-0.1))


@pytest.mark.spec("optim/4", "options/3/setMeanAccumulationAndReplicationReductionStrategy")
def test_half_sums_use_the_running_mean():
    model, _ = models()
    options = poptorch.Options()
    executor = poptorch.trainingModel(model, options, poptorch.optim.Adam(model.parameters(), accum_type=torch.float16))
    key = "meanAccumulationAndReplicationReductionStrategy"
    assert executor.options.Training(key) == poptorch.MeanReductionStrategy.Running
    assert options.Training(key) == poptorch.MeanReductionStrategy.Post


@pytest.mark.spec("optim/5", "options/3/setMeanAccumulationAndReplicationReductionStrategy")
def test_half_sums_cannot_be_asked_for_after_compilation():
    model, _ = models()
    executor = poptorch.trainingModel(model, None, poptorch.optim.Adam(model.parameters()))
    executor(*batch())
    with pytest.raises(ValueError, match="Running"):
        executor.setOptimizer(poptorch.optim.Adam(model.parameters(), accum_type=torch.float16))


@pytest.mark.spec(*ROWS_1.values())
@pytest.mark.parametrize("name", ROWS_1)
def test_accumulation_types_are_checked(name):
    model, _ = models()
    with pytest.raises(AssertionError):
        getattr(poptorch.optim, name)(model.parameters(), lr=0.1, accum_type=torch.bfloat16)
    optimizer = getattr(poptorch.optim, name)(model.parameters(), lr=0.1)
    optimizer.accum_type = torch.float64
    with pytest.raises(ValueError, match="accum_type"):
        poptorch.trainingModel(model, None, optimizer)(*batch())


# Constants and groups ------------------------------------------------------------------------------------------------
CHANGES = {
    "RMSprop": [("alpha", 0.5), ("centered", True)],
    "LAMB": [("max_weight_norm", 1.0)],
    "SGD": [("weight_decay", 0.3)],
    "Adam": [("eps", 1e-3)],
    "AdamW": [("betas", (0.5, 0.5))],
}


@pytest.mark.spec(*(f"optim/2/{name}" for name in CHANGES), "optim/2.1", "optim/5", names=["optimizer.variable_attrs"])
@pytest.mark.parametrize("name", CHANGES)
def test_constants_do_not_change_after_compilation(name):
    for key, value in CHANGES[name]:
        model, _ = models()
        optimizer = getattr(poptorch.optim, name)(model.parameters(), lr=0.01)
        executor = poptorch.trainingModel(model, None, optimizer)
        executor(*batch())
        assert optimizer.variable_attrs.isConstant(key)
        optimizer.param_groups[0][key] = value
        with pytest.raises(poptorch.Error, match=key):
            executor.setOptimizer(optimizer)
        executor.destroy()


@pytest.mark.spec("optim/2.1", names=["optimizer.markAsVariable", "optimizer.markAsConstant", "optimizer.isConstant"])
def test_variables_may_change():
    model, reference = models()
    ours = poptorch.optim.RMSprop(model.parameters(), lr=0.01)
    ours.variable_attrs.markAsVariable("alpha")
    executor = poptorch.trainingModel(model, None, ours)
    theirs = torch.optim.RMSprop(reference.parameters(), lr=0.01)
    for alpha in (0.99, 0.5):
        ours.param_groups[0]["alpha"] = theirs.param_groups[0]["alpha"] = alpha
        executor.setOptimizer(ours)
        x, target = batch()
        executor(x, target)
        theirs.zero_grad()
        reference(x, target)[1].backward()
        theirs.step()
    assert torch.equal(model.first.weight, reference.first.weight)
    with pytest.raises(AssertionError):
        ours.variable_attrs.markAsConstant("no such attribute")


@pytest.mark.spec("optim/2.1", names=["optimizer.markAsConstant"])
def test_a_learning_rate_marked_as_constant_does_not_change():
    model, _ = models()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.01)
    optimizer.variable_attrs.markAsConstant("lr")
    executor = poptorch.trainingModel(model, None, optimizer)
    executor(*batch())
    optimizer.param_groups[0]["lr"] = 0.1
    with pytest.raises(poptorch.Error, match="lr"):
        executor.setOptimizer(optimizer)


@pytest.mark.spec("optim/5")
@pytest.mark.parametrize("key", ["use_tf_variant", "accum_type"])
def test_fixed_attributes_do_not_change(key):
    model, _ = models()
    executor = poptorch.trainingModel(model, None, poptorch.optim.RMSprop(model.parameters(), lr=0.01))
    executor(*batch())
    changed = poptorch.optim.RMSprop(model.parameters(), lr=0.01)
    setattr(changed, key, {"use_tf_variant": True, "accum_type": torch.float16}[key])
    with pytest.raises((poptorch.Error, ValueError)):
        executor.setOptimizer(changed)


@pytest.mark.spec("optim/1/RMSprop")
def test_rmsprop_groups_agree_on_centered():
    model, _ = models()
    groups = [{"params": [model.first.weight], "centered": True}, {"params": [model.first.bias], "centered": False}]
    with pytest.raises(AssertionError, match="centered"):
        poptorch.optim.RMSprop(groups, lr=0.1)


@pytest.mark.spec("optim/1/SGD")
def test_other_optimizers_are_refused():
    model, _ = models()
    with pytest.raises(AssertionError, match="unsupported optimizer"):
        poptorch.trainingModel(model, None, torch.optim.Adagrad(model.parameters()))


@pytest.mark.spec("optim/1/Adam")
def test_amsgrad_is_refused():
    model, _ = models()
    with pytest.raises(ValueError, match="amsgrad"):
        poptorch.trainingModel(model, None, torch.optim.Adam(model.parameters(), amsgrad=True))


# State ---------------------------------------------------------------------------------------------------------------
@pytest.mark.spec(
    "optim/6/before_compile",
    "optim/6/compiled_attached",
    "optim/6/after_each_training_call",
    "optim/6/detach",
    names=["optimizer.state_dict", "optimizer.load_state_dict", "optimizer.has_state"],
)
@pytest.mark.parametrize("name", ROWS_1)
def test_state_goes_on_where_it_was_saved(name):
    arguments = {"lr": 0.01, "momentum": 0.9} if name in ("SGD", "RMSprop") else {"lr": 0.01}
    make = getattr(poptorch.optim, name)
    model, _ = models()
    optimizer = make(model.parameters(), **arguments)
    assert optimizer.state_dict()["ipu_state"] is None and optimizer.state_dict()["ipu_param"] is None
    executor = poptorch.trainingModel(model, None, optimizer)
    batches = [batch() for _ in range(4)]
    for x, target in batches[:2]:
        executor(x, target)
    saved = copy.deepcopy(optimizer.state_dict())
    weights = copy.deepcopy(model.state_dict())
    assert optimizer.has_state() and any(key.startswith("Accl1___first.weight") for key in saved["ipu_state"])
    for x, target in batches[2:]:
        executor(x, target)
    expected = copy.deepcopy(model.state_dict())
    executor.destroy()

    again = Net()
    again.load_state_dict(weights)
    restored = make(again.parameters(), **arguments)
    restored.load_state_dict(saved)
    executor = poptorch.trainingModel(again, None, restored)
    for x, target in batches[2:]:
        executor(x, target)
    for key, value in again.state_dict().items():
        assert torch.equal(value, expected[key]), key


@pytest.mark.spec(
    "optim/6/compiled_attached",
    "optim/2.1",
    names=[
        "optimizer.get_state_dict",
        "optimizer.set_state_dict",
        "optim.Optimizer",
        "optim.VariableAttributes",
        "poptorch.optim",
    ],
)
def test_device_state_alone():
    model, _ = models()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert isinstance(optimizer, poptorch.optim.Optimizer)
    assert isinstance(optimizer.variable_attrs, poptorch.optim.VariableAttributes)
    executor = poptorch.trainingModel(model, None, optimizer)
    executor(*batch())
    state = copy.deepcopy(optimizer.get_state_dict())
    assert set(state) == {"ipu_state", "ipu_param"}
    state["ipu_state"]["Accl1___first.weight"].zero_()
    optimizer.set_state_dict(state)
    assert not optimizer.get_state_dict()["ipu_state"]["Accl1___first.weight"].any()


@pytest.mark.spec("optim/6/before_compile")
def test_native_states_are_refused():
    model, _ = models()
    with pytest.raises(RuntimeError, match="ipu_state"):
        poptorch.optim.SGD(model.parameters(), lr=0.1).load_state_dict(
            torch.optim.SGD(model.parameters(), lr=0.1).state_dict()
        )
    with pytest.raises(RuntimeError):
        poptorch.optim.SGD(model.parameters(), lr=0.1).load_state_dict({})


@pytest.mark.spec("optim/1/SGD", "optim/5")
def test_learning_rate_schedulers_drive_the_device():
    model, reference = models()
    ours, theirs = (poptorch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(reference.parameters(), lr=0.1))
    schedulers = [torch.optim.lr_scheduler.StepLR(o, step_size=1, gamma=0.5) for o in (ours, theirs)]
    executor = poptorch.trainingModel(model, None, ours)
    for _ in range(3):
        x, target = batch()
        executor(x, target)
        theirs.zero_grad()
        reference(x, target)[1].backward()
        theirs.step()
        for scheduler in schedulers:
            scheduler.step()
        executor.setOptimizer(ours)
    assert torch.equal(model.second.weight, reference.second.weight)


def test_a_warning_names_each_parameter_without_a_group_once(capfd):
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)
            self.scale, self.unused = (torch.nn.Parameter(torch.ones(4)) for _ in range(2))

        def forward(self, x):
            return poptorch.identity_loss(self.layer(x) * self.scale, "mean")

    model = Scaled()
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.layer.parameters(), lr=0.1))
    executor(torch.randn(2, 4))
    assert "2 trainable parameters are in no group" in capfd.readouterr().err

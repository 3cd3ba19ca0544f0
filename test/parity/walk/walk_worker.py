"""One process of the parity walk: reads names of cases, one a line, and answers each with one line of JSON.

A case is run with the compiled executors and with eager PyTorch. State of a case: "equal", "refused" (a typed error),
"different" (other values: a bug), "untyped" (another exception than a typed one: a bug), "other operators" (equal, but
what was recorded is not what eager runs), "no sample".
"""

import json
import os
import sys
import time
import warnings
from pathlib import Path

import abele
import poptorch
import torch
import walk_cases
import walk_known
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
import operator_sequences

SEED = 5
STRIDED = "--strided" in sys.argv  # operands whose dimensions lie in memory the other way round, a training step each
LARGE = 2.0**20  # learning rate: a power of two, so that the updated parameter shows the gradient's bits


def laid_out(tensor):
    """A copy, in the memory format that is walked."""
    if not STRIDED or tensor.layout != torch.strided:
        return tensor.detach().clone()
    back = tuple(reversed(range(tensor.dim())))
    return tensor.detach().permute(back).clone(memory_format=torch.contiguous_format).permute(back)


def is_differentiable(leaf):
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.dtype.is_floating_point


class Call(torch.nn.Module):
    """A sample as a module. Tensors that ask for gradients are parameters, or inputs if `grads` is False."""

    def __init__(self, sample, grads):
        super().__init__()
        self.function = sample.function
        self.inner = sample.make_module() if sample.make_module else None
        leaves, self.spec = pytree.tree_flatten((sample.args, sample.kwargs))
        self.leaves, self.inputs = [], []
        self.given = torch.nn.ParameterList()
        for leaf in leaves:
            if grads and is_differentiable(leaf):
                self.leaves.append(("parameter", len(self.given)))
                self.given.append(torch.nn.Parameter(laid_out(leaf)))
            elif isinstance(leaf, torch.Tensor):
                self.leaves.append(("input", len(self.inputs)))
                self.inputs.append(laid_out(leaf))
            else:
                self.leaves.append(("constant", leaf))
        if grads is False and self.inner is not None:
            self.inner.requires_grad_(False)
        self.weights = {}

    def outputs(self, inputs):
        leaves = []
        for kind, value in self.leaves:
            leaves.append({"parameter": self.given, "input": inputs}[kind][value] if kind != "constant" else value)
        # Parameters are leaves: torch refuses writes into them.
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        result = (self.inner or self.function)(*args, **kwargs)
        return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


class Forward(Call):
    def forward(self, *inputs):
        return tuple(self.outputs(inputs))


class Training(Call):
    def forward(self, *inputs):
        outputs = self.outputs(inputs)
        loss = 0.0
        for i, output in enumerate(outputs):
            if not output.requires_grad:
                continue
            loss = loss + (output * self.weight_of(i, output)).sum()
        return poptorch.identity_loss(loss, reduction="none")

    def weight_of(self, i, output):
        """A constant that makes every element of an output count differently."""
        if i not in self.weights:
            steps = torch.arange(output.numel(), dtype=output.dtype).reshape(output.shape)
            self.weights[i] = 1.0 + (steps % 7) / 8
        return self.weights[i]


OTHER = "other operators: "
CLOSE_ONLY: list[str] = []  # the case, while one of walk_known.CLOSE runs


class Skip(Exception):
    """Eager PyTorch does not do this either."""


def changed(inputs):
    """Other data of the same form, inside most operators' domains."""
    result = []
    for tensor in inputs:
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            result.append(tensor * 0.5)
        else:
            result.append(tensor.flip(0) if tensor.dim() else tensor.clone())
    return result


def options():
    return poptorch.Options().outputMode(poptorch.OutputMode.All).randomSeed(SEED)


def shown(tensor):
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def as_returned(tensor):
    """What a call returns of it: 64-bit results are narrowed, and 0-dimensional ones may come as a batch of one."""
    narrow = {torch.int64: torch.int32, torch.float64: torch.float32}
    return tensor.detach().to(narrow.get(tensor.dtype, tensor.dtype))


def is_same(a, b):
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    if not a.is_floating_point():
        return torch.equal(a, b)
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))


def is_close(a, b):
    """Up to rounding: compared where eager PyTorch itself does not repeat its bits, or chooses its way by values."""
    tolerance = 1e-2 if a.dtype == torch.float16 else 1e-4
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * max(1.0, b.abs().max().item()), equal_nan=True)


def difference(ours, theirs, *, values=True):
    """Why two lists of tensors differ; empty if they do not."""
    if len(ours) != len(theirs):
        return f"{len(ours)} results, eager {len(theirs)}"
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        a, b = as_returned(a), as_returned(b)
        if b.dim() == 0 and a.shape == (1,):
            a = a.reshape(())
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"result {i} is {shown(a)}, eager {shown(b)}"
        if values and not is_same(a, b):
            if CLOSE_ONLY and is_close(a, b):
                continue
            return f"result {i}, {shown(b)}, has other values"
    return ""


def as_promised(module):
    """The eager module, as docs/compatibility.md promises: padding masks never shorten what an encoder computes."""
    for child in module.modules():
        if isinstance(child, torch.nn.TransformerEncoder):
            child.use_nested_tensor = False
    return module


def other_operators(executor, eager):
    """Where what was recorded differs from the operators that eager PyTorch ran."""
    found = operator_sequences.difference(executor._executable.session.capturedText(), eager)
    return found and OTHER + found


def cloned(tensors):
    return [tensor.clone() for tensor in tensors]


def check_forward(sample, key):
    reference = as_promised(Forward(sample, grads=False))
    executor = abele.inferenceModel(Forward(sample, grads=False), options())
    inputs, eager, sequence = reference.inputs, [], ""
    torch.manual_seed(SEED)
    state = torch.get_rng_state()
    # More than once: the device learns from its first runs where results are born.
    for run, data in enumerate([inputs, inputs, inputs, changed(inputs)]):
        torch.set_rng_state(state)
        try:
            with torch.no_grad():
                given = cloned(data)
                expected, operators = operator_sequences.watched(lambda given=given: reference(*given))
                eager = eager or operators
        except Exception as error:
            if run == 0:
                raise Skip(str(error)) from error
            break  # the changed data are outside the operator's domain
        state = torch.get_rng_state()
        if not expected:
            raise Skip("no tensor comes back")
        ours = executor(*cloned(data))
        sequence = other_operators(executor, eager) if run == 0 else sequence
        uninitialised = "empty" in key
        found = difference(ours, expected, values=not uninitialised)
        if found or uninitialised:
            return (found and f"call {run}: {found}") or sequence
    return sequence


def check_micro_batches(sample, key):
    """Two micro-batches in one call, with different data."""
    reference = as_promised(Forward(sample, grads=False))
    inputs = reference.inputs
    if not inputs or any(tensor.layout != torch.strided or tensor.dim() == 0 for tensor in inputs):
        raise Skip("inputs that have no batch")
    batch = [torch.cat(pair) for pair in zip(inputs, changed(inputs), strict=True)]
    # Slices, as a program would take them: where data lie shows in the rounding of some kernels. Operators that look
    # at a tensor's whole storage (as_strided) see that of the micro-batch only.
    expected = _eager_micro_batches(reference, [tensor.chunk(2) for tensor in cloned(batch)])
    executor = abele.inferenceModel(Forward(sample, grads=False), options().deviceIterations(2))
    ours = executor(*cloned(batch))
    found = difference(ours, expected, values="empty" not in key)
    if found:
        expected = _eager_micro_batches(reference, [cloned(tensor.chunk(2)) for tensor in batch])
        found = difference(ours, expected)
    return found and f"two micro-batches: {found}"


def _eager_micro_batches(reference, chunks):
    torch.manual_seed(SEED)
    try:
        with torch.no_grad():
            results = [reference(*[tensors[k] for tensors in chunks]) for k in range(2)]
    except Exception as error:
        raise Skip(str(error)) from error
    if not results[0] or [x.shape for x in results[0]] != [x.shape for x in results[1]]:
        raise Skip("results that have no batch")
    return [torch.stack(pair) if pair[0].dim() == 0 else torch.cat(pair) for pair in zip(*results, strict=True)]


def set_parameters(module, values, factor):
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), values, strict=True):
            parameter.copy_(value * factor)


def step_operators(module, inputs, state):
    """The operators of forward and backward, as far as eager PyTorch comes."""
    torch.set_rng_state(state)
    given, parameters = cloned(inputs), list(module.parameters())
    try:
        loss, forward = operator_sequences.watched(lambda: module(*given))
        start = torch.ones_like(loss)
        _, backward = operator_sequences.watched(
            lambda: torch.autograd.grad(loss, parameters, start, allow_unused=True)
        )
    except Exception:
        return []
    return forward + backward


def check_training(sample):
    model = Training(sample, grads=True)
    reference = as_promised(Training(sample, grads=True))
    inputs = model.inputs
    values = [parameter.detach().clone() for parameter in model.parameters()]
    is_half = any(value.dtype == torch.float16 for value in values)  # which LARGE would overflow
    rate = 1.0 if is_half else LARGE
    optimizer = torch.optim.SGD(list(reference.parameters()), lr=rate)
    executor = abele.trainingModel(model, options(), torch.optim.SGD(list(model.parameters()), lr=rate))
    torch.manual_seed(SEED)
    state = torch.get_rng_state()
    eager, found, sequence = step_operators(as_promised(Training(sample, grads=True)), inputs, state), "", ""
    for run, factor in enumerate((1.0, 1.0, 1.0, 0.5)):
        set_parameters(reference, values, factor)
        torch.set_rng_state(state)
        try:
            optimizer.zero_grad()
            loss = reference(*cloned(inputs))
            loss.backward()
            state = torch.get_rng_state()
            optimizer.step()
        except Exception as error:
            if run == 0:
                raise Skip(str(error)) from error
            break
        if run > 0:
            set_parameters(model, values, factor)
            executor.copyWeightsToDevice()
        found = difference([executor(*cloned(inputs))], [loss]) and "other loss"
        sequence = other_operators(executor, eager) if run == 0 else sequence
        named = zip(reference.named_parameters(), model.parameters(), strict=True)
        for (name, theirs), ours in named:
            found = found or (difference([ours], [theirs]) and f"other gradient of {name}")
        found = found or (difference(list(model.buffers()), list(reference.buffers())) and "other buffers")
        if found:
            found = f"training, step {run}: {found}"
            break
    executor.destroy()
    return found or sequence


def is_typed(error):
    """An error of Abele with a code, whatever its Python class (PopTorch wants AssertionError for some)."""
    return bool(getattr(error, "code", "")) and error.code != "E0001"


def run_case(key):
    result = {"key": key, "forward": 0, "micro_batches": 0, "training": 0, "state": "no sample", "detail": ""}
    order = ["no sample", "equal", "close", "refused", "other operators", "untyped", "different"]
    CLOSE_ONLY[:] = [key] if key in walk_known.CLOSE else []

    def note(state, detail=""):
        if order.index(state) > order.index(result["state"]):
            result["state"], result["detail"] = state, detail

    try:
        samples = list(walk_cases.samples_of(key))
    except Exception as error:
        result["detail"] = f"{type(error).__name__}: {error}".splitlines()[0]
        return result
    for number, sample in enumerate(samples):
        checks = [] if STRIDED else [("forward", lambda sample=sample: check_forward(sample, key))]
        if number < 2 and not STRIDED:
            checks.append(("micro_batches", lambda sample=sample: check_micro_batches(sample, key)))
        if any(is_differentiable(leaf) for leaf in pytree.tree_leaves((sample.args, sample.kwargs))):
            checks.append(("training", lambda sample=sample: check_training(sample)))
        for what, check in checks:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = check()
                if found.startswith(OTHER):
                    note("other operators", f"{what}: {found.removeprefix(OTHER)}")
                    result[what] += 1
                elif found:
                    note("different", found)
                else:
                    note("close" if CLOSE_ONLY else "equal", walk_known.CLOSE.get(key, ""))
                    result[what] += 1
            except Skip as skip:
                if result["state"] == "no sample":
                    result["detail"] = f"{skip}".splitlines()[0][:200] if f"{skip}" else ""
            except Exception as error:
                text = f"{what}: {error}"
                note(
                    "refused" if is_typed(error) else "untyped",
                    text if is_typed(error) else f"{type(error).__name__} {text}",
                )
    return result


def main():
    torch.set_num_threads(1)
    for devices in (torch.cuda, torch.xpu, torch.mtia):
        if not devices.is_available():  # torch would keep each seed for them, with a traceback
            devices.manual_seed_all = lambda seed: None
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what operators print does not belong to the answers
    poptorch.setLogLevel("ERR")
    for line in sys.stdin:
        start = time.monotonic()
        result = run_case(line.strip())
        result["seconds"] = round(time.monotonic() - start, 3)
        answers.write(json.dumps(result) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()

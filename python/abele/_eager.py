"""Modules that run eagerly, in Python, in every micro-batch of a compiled program."""

import contextlib
import itertools
import threading
import types

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ._errors import user_error, wrong_type
from ._native import core, isCapturing
from ._random_states import allowed_draws

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_numbers = itertools.count()


def _bound_to(module, function):
    """The method of another module, bound to this module."""
    return function.__func__.__get__(module) if isinstance(function, types.MethodType) else function


def _bare(module):
    """A copy of the modules with the same attributes, whose tensors can be exchanged."""
    other = object.__new__(type(module))
    for name, value in vars(module).items():
        is_own = isinstance(value, types.MethodType) and value.__self__ is module
        vars(other)[name] = _bound_to(other, value) if is_own else value
    if isinstance(vars(other).get("forward"), _Forward):
        vars(other)["forward"] = vars(other)["forward"].bound_to(other)
    for held in ("_parameters", "_buffers"):
        vars(other)[held] = dict(vars(module)[held])
    vars(other)["_modules"] = {
        name: None if inner is None else _bare(inner) for name, inner in vars(module)["_modules"].items()
    }
    return other


def _places(module):
    """(dictionary, key) of every parameter and buffer."""
    for inner in module.modules():
        for held in ("_parameters", "_buffers"):
            yield from ((vars(inner)[held], name) for name, value in vars(inner)[held].items() if value is not None)


class _Region:
    """One call of a module in a program: its forward and its gradient as functions on the host.

    Shapes inside may depend on values, because both functions run as Python code in every micro-batch. The gradient
    runs forward again. Threads: one at a time.
    """

    def __init__(self, module, forward, structure, name):
        self._module = _bare(module)
        vars(self._module)["forward"] = _bound_to(self._module, forward)
        for hooks in _HOOKS:  # the hooks run around the whole call
            vars(self._module)[hooks] = type(vars(module)[hooks])()
        self._structure, self._name = structure, name
        self._lock = threading.Lock()
        self._results = None  # structure of the results
        # Tied tensors count once.
        tensors = {}
        self._places = [
            (*place, tensors.setdefault(id(place[0][place[1]]), len(tensors))) for place in _places(self._module)
        ]
        number = next(_numbers)
        self._forward = core().HostCall(self._run, f"{name} {number}", True)
        self._gradients = {}  # keyed by the tensors that need a gradient

    def tensors(self):
        return list({index: held[name] for held, name, index in self._places}.values())

    def forward(self, tensors):
        """The results as a flat list."""
        return self._forward(list(tensors))

    def gradients(self, tensors, given, asked):
        """Gradients of the tensors that need one, from the gradients of all results."""
        if asked not in self._gradients:
            self._gradients[asked] = core().HostCall(
                lambda values: self._differentiate(values, asked), f"gradient of {self._name} {next(_numbers)}", True
            )
        return self._gradients[asked]([*tensors, *given])

    def unflatten(self, results):
        """The results in the structure that the module returns."""
        return tree_unflatten(list(results), self._results)

    def _run(self, tensors):
        with torch.no_grad():
            return [result.detach() for result in self._call(tensors)]

    def _differentiate(self, values, asked):
        tensors = [value.requires_grad_(asks) for value, asks in zip(values, asked, strict=False)]
        given = values[len(asked) :]
        with torch.enable_grad():
            results = self._call(tensors)
            pairs = [pair for pair in zip(results, given, strict=True) if pair[0].requires_grad]
            wanted = [tensor for tensor, asks in zip(tensors, asked, strict=True) if asks]
            if not pairs:
                return [torch.zeros_like(tensor) for tensor in wanted]
            found = torch.autograd.grad([r for r, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True)
        return [
            torch.zeros_like(tensor) if gradient is None else gradient
            for tensor, gradient in zip(wanted, found, strict=True)
        ]

    def _call(self, tensors):
        leaves, spec = self._structure
        num_given = len(tensors) - 1 - max((index for _, _, index in self._places), default=-1)
        given = iter(tensors[:num_given])
        versions = [tensor._version for tensor in tensors]
        random = torch.get_rng_state()
        args, kwargs = tree_unflatten([next(given) if leaf is None else leaf[0] for leaf in leaves], spec)
        with self._lock, allowed_draws():
            before = [held[name] for held, name, _ in self._places]
            for held, name, index in self._places:
                held[name] = tensors[num_given + index]
            try:
                result = self._module(*args, **kwargs)
            finally:
                for (held, name, _), tensor in zip(self._places, before, strict=True):
                    held[name] = tensor
        self._require(torch.equal(random, torch.get_rng_state()), "draws random numbers", "draw them outside")
        self._require(
            versions == [tensor._version for tensor in tensors],
            "writes into a tensor that it is given, or into a buffer",
            "clone the tensor first, and return what was written",
        )
        results, self._results = tree_flatten(result)
        self._require(
            all(isinstance(value, torch.Tensor) for value in results),
            "returns something else than tensors",
            "return the tensors that the program goes on with",
        )
        return results

    def _require(self, holds, what, remedy):
        if not holds:
            raise user_error("E0708", f"{self._name}, which runs eagerly, {what}", remedy=remedy)


class _Eagerly(torch.autograd.Function):
    @staticmethod
    def forward(ctx, region, *tensors):
        results = region.forward(tensors)
        ctx.region = region
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*(result for result in results if not result.dtype.is_floating_point))
        return tuple(results)

    @staticmethod
    def backward(ctx, *gradients):
        asked = ctx.needs_input_grad[1:]
        found = iter(ctx.region.gradients(ctx.saved_tensors, gradients, asked))
        return None, *(next(found) if asks else None for asks in asked)


def _as_view(leaf):
    return leaf.view_as(leaf) if isinstance(leaf, torch.Tensor) and leaf.requires_grad else leaf


class _Forward:
    """Replaces the forward of a module."""

    def __init__(self, module, forward):
        self._module, self._original = module, forward

    def __call__(self, *args, **kwargs):
        leaves, spec = tree_flatten((args, kwargs))
        # Adds up the gradients of a tensor inside before others join them, in eager as in a program.
        leaves = [_as_view(leaf) for leaf in leaves]
        if not isCapturing():
            args, kwargs = tree_unflatten(leaves, spec)
            with self._viewed_tensors():
                return self._original(*args, **kwargs)
        structure = [None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves], spec
        region = _Region(self._module, self._original, structure, type(self._module).__qualname__)
        given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return region.unflatten(_Eagerly.apply(region, *given, *region.tensors()))

    @contextlib.contextmanager
    def _viewed_tensors(self):
        held = [(entries, name, entries[name]) for entries, name in _places(self._module)]
        views = {id(tensor): _as_view(tensor) for _, _, tensor in held}
        try:
            for entries, name, tensor in held:
                entries[name] = views[id(tensor)]
            yield
        finally:
            for entries, name, tensor in held:
                entries[name] = tensor

    def bound_to(self, module):
        return _Forward(module, _bound_to(module, self._original))


def runEagerly(module: torch.nn.Module) -> torch.nn.Module:
    """Lets a module of a compiled program run eagerly, in Python, in every micro-batch.

    Shapes inside the module may depend on values, and it may read values, for example to choose the tokens of each
    expert. Its inputs and results must have the same shapes in every call. In training its gradient runs forward again.
    It sees its own parameters and buffers; pass other tensors as arguments. It must not draw random numbers, and must
    not write into its inputs. A parameter that a call does not use has a gradient of zeros.

    The bits are those of eager PyTorch with the same module, which first adds up the gradients of each tensor inside. A
    step waits for Python and copies the module's weights. A program with such a module cannot be saved.

    Args:
        module: of the model; it is changed in place.
    Returns: the module.
    Raises:
        abele.Error: E0708 in a step with other shapes than at compile time, or with a module that breaks these rules.
    """
    if not isinstance(module, torch.nn.Module):
        raise wrong_type("runEagerly", "module", module, "a torch.nn.Module")
    if not isinstance(vars(module).get("forward"), _Forward):
        module.forward = _Forward(module, module.forward)
    return module

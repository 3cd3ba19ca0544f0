"""What the parity walk visits: every operator of torch's own database of operators, and every module class of torch.nn.

No list is made by hand: operators and their sample inputs come from torch.testing's op_db, modules from its module_db.
Module classes that the database lacks are built from EXTRA_MODULES; a class that is in neither fails the walk.
"""

import dataclasses
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch

NUM_HALF_SAMPLES = 2
NUM_SAMPLES = 6  # with data; per operator, or module and mode
MAX_ELEMENTS = 20000  # larger samples only cost time


@dataclasses.dataclass
class Sample:
    """One call: function(*args, **kwargs), or module(*args, **kwargs) of a module made on demand."""

    function: Callable
    args: tuple = ()
    kwargs: dict = dataclasses.field(default_factory=dict)
    make_module: Callable | None = None
    training: bool = True


def _dtype_of(op):
    supported = op.supported_dtypes("cpu")
    for dtype in (torch.float32, torch.int64, torch.int32, torch.bool, torch.complex64):
        if dtype in supported:
            return dtype
    return None


def _op_key(op):
    return f"op {op.name}" + (f" {op.variant_test_name}" if op.variant_test_name else "")


def _unseeded(op, *args, **kwargs):
    """In place of the database's wrapper around random operators, which seeds torch before every call."""
    return op(*args, **kwargs)


def _operators():
    from torch.testing._internal import common_methods_invocations as database

    database.wrapper_set_seed = _unseeded
    op_db = database.op_db
    found = {}
    for op in op_db:
        found.setdefault(_op_key(op), op)
    return found


def _modules():
    from torch.testing._internal.common_modules import module_db

    return {f"module {info.name}": info for info in module_db}


def module_classes():
    """Names of the public module classes of torch.nn."""
    return sorted(
        name for name, cls in vars(torch.nn).items() if inspect.isclass(cls) and issubclass(cls, torch.nn.Module)
    )


def case_keys():
    """Every case of the walk, by name."""
    keys = [*_operators(), *_modules()]
    visited = {
        info.module_cls.__name__
        for info in _modules().values()
        if info.module_cls.__module__.startswith("torch.nn.modules")
    }
    keys += [f"module nn.{name}" for name in module_classes() if name not in visited and name not in ABSTRACT]
    return keys


def samples_of(key):
    """Samples of one case, at most NUM_SAMPLES of each kind. Yields them lazily; torch may raise."""
    kind, _, name = key.partition(" ")
    torch.manual_seed(0)
    if kind == "op":
        return _operator_samples(_operators()[key])
    info = _modules().get(key)
    return _module_samples(info) if info is not None else _extra_samples(name.removeprefix("nn."))


def _tensors(structure):
    return [leaf for leaf in torch.utils._pytree.tree_leaves(structure) if isinstance(leaf, torch.Tensor)]


def _fits(args, kwargs):
    tensors = _tensors((args, kwargs))
    return all(0 < tensor.numel() <= MAX_ELEMENTS for tensor in tensors if tensor.layout == torch.strided)


def _spread(samples, number):
    """At most `number` of the samples: the first, the last and some between."""
    samples = list(samples)
    if len(samples) <= number:
        return samples
    return [samples[round(i * (len(samples) - 1) / (number - 1))] for i in range(number)]


def _operator_samples(op):
    dtype = _dtype_of(op)
    if dtype is None:
        return []
    found = _samples_of_type(op, dtype, NUM_SAMPLES)
    if op.inplace_variant is not None and found:
        first = found[0]

        def in_place(tensor, *args, **kwargs):
            return op.inplace_variant(tensor.clone(), *args, **kwargs)

        if isinstance(first.args[0], torch.Tensor):
            found.append(Sample(in_place, first.args, first.kwargs))
    if torch.float16 in op.supported_dtypes("cpu"):
        found += _samples_of_type(op, torch.float16, NUM_HALF_SAMPLES)
    return found


def _samples_of_type(op, dtype, number):
    grad = dtype.is_floating_point and op.supports_autograd
    found = [
        Sample(op.op, (sample.input, *sample.args), sample.kwargs)
        for sample in op.sample_inputs("cpu", dtype, requires_grad=grad)
        if _fits((sample.input, *sample.args), sample.kwargs)
    ]
    return _spread(found, number)


def _to_float32(leaf):
    return leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float64 else leaf


def _module_samples(info):
    found = []
    for training in (True, False):
        inputs = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
        usable = [
            item
            for item in inputs
            if item.forward_input is not None and _fits(item.forward_input.args, item.forward_input.kwargs)
        ]
        for item in _spread(usable, NUM_SAMPLES):

            def make(item=item, training=training):
                torch.manual_seed(1)
                given = (item.constructor_input.args, item.constructor_input.kwargs)
                args, kwargs = torch.utils._pytree.tree_map(_to_float32, given)
                built = info.module_cls(*args, **kwargs)
                if any(isinstance(p, torch.nn.parameter.UninitializedParameter) for p in built.parameters()):
                    _ready(built, *item.forward_input.args)
                return built.train(training)

            found.append(Sample(None, item.forward_input.args, item.forward_input.kwargs, make, training))
    return found


def _x(*shape):
    return torch.randn(*shape, requires_grad=True)


class _Chosen(torch.nn.Module):
    """A container of modules, used as programs use it: by position or by name."""

    def __init__(self, container, keys):
        super().__init__()
        self.container, self.keys = container, keys

    def forward(self, x):
        for key in self.keys:
            item = self.container[key]
            x = item(x) if isinstance(item, torch.nn.Module) else x * item
        return x


class _Unpooled(torch.nn.Module):
    def __init__(self, pool, unpool):
        super().__init__()
        self.pool, self.unpool = pool, unpool

    def forward(self, x):
        return self.unpool(*self.pool(x))


def _ready(module, *inputs):
    """A lazy module after its first call."""
    with torch.no_grad():
        module(*inputs)
    return module


nn = torch.nn
ABSTRACT = {"Module", "Container", "RNNBase", "RNNCellBase"}  # bases that have no forward
# Class -> (how to make one, its inputs).
EXTRA_MODULES: dict[str, tuple[Callable[[], Any], Callable[[], tuple]]] = {
    "AdaptiveLogSoftmaxWithLoss": (
        lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 12, [4, 8]),
        lambda: (_x(6, 8), torch.tensor([0, 3, 5, 7, 9, 11])),
    ),
    "AlphaDropout": (lambda: nn.AlphaDropout(0.3), lambda: (_x(4, 8),)),
    "ChannelShuffle": (lambda: nn.ChannelShuffle(2), lambda: (_x(2, 4, 3, 3),)),
    "CosineSimilarity": (lambda: nn.CosineSimilarity(1), lambda: (_x(4, 8), _x(4, 8))),
    "CrossMapLRN2d": (lambda: nn.CrossMapLRN2d(3), lambda: (_x(2, 4, 3, 3),)),
    "DataParallel": (lambda: nn.DataParallel(nn.Linear(4, 4)), lambda: (_x(3, 4),)),
    "Dropout": (lambda: nn.Dropout(0.4), lambda: (_x(4, 8),)),
    "Dropout1d": (lambda: nn.Dropout1d(0.4), lambda: (_x(4, 8, 3),)),
    "Dropout2d": (lambda: nn.Dropout2d(0.4), lambda: (_x(4, 8, 3, 3),)),
    "Dropout3d": (lambda: nn.Dropout3d(0.4), lambda: (_x(4, 8, 3, 3, 3),)),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(10, 3), lambda: (torch.tensor([[1, 2, 4], [4, 3, 9]]),)),
    "FeatureAlphaDropout": (lambda: nn.FeatureAlphaDropout(0.3), lambda: (_x(4, 8, 3),)),
    "Flatten": (lambda: nn.Flatten(), lambda: (_x(4, 8, 3),)),
    "Fold": (lambda: nn.Fold((4, 5), (2, 2)), lambda: (_x(1, 3 * 2 * 2, 12),)),
    "Hardsigmoid": (lambda: nn.Hardsigmoid(), lambda: (_x(4, 8),)),
    "Identity": (lambda: nn.Identity(), lambda: (_x(4, 8),)),
    "LazyBatchNorm1d": (lambda: _ready(nn.LazyBatchNorm1d(), _x(4, 8)), lambda: (_x(4, 8),)),
    "LazyBatchNorm2d": (lambda: _ready(nn.LazyBatchNorm2d(), _x(4, 2, 3, 3)), lambda: (_x(4, 2, 3, 3),)),
    "LazyBatchNorm3d": (lambda: _ready(nn.LazyBatchNorm3d(), _x(4, 2, 3, 3, 3)), lambda: (_x(4, 2, 3, 3, 3),)),
    "LazyInstanceNorm1d": (lambda: _ready(nn.LazyInstanceNorm1d(), _x(4, 2, 3)), lambda: (_x(4, 2, 3),)),
    "LazyInstanceNorm2d": (lambda: _ready(nn.LazyInstanceNorm2d(), _x(4, 2, 3, 3)), lambda: (_x(4, 2, 3, 3),)),
    "LazyInstanceNorm3d": (lambda: _ready(nn.LazyInstanceNorm3d(), _x(4, 2, 3, 3, 3)), lambda: (_x(4, 2, 3, 3, 3),)),
    "LazyLinear": (lambda: _ready(nn.LazyLinear(5), _x(4, 8)), lambda: (_x(4, 8),)),
    "MaxUnpool1d": (
        lambda: _Unpooled(nn.MaxPool1d(2, return_indices=True), nn.MaxUnpool1d(2)),
        lambda: (_x(2, 3, 8),),
    ),
    "MaxUnpool2d": (
        lambda: _Unpooled(nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)),
        lambda: (_x(2, 3, 4, 4),),
    ),
    "MaxUnpool3d": (
        lambda: _Unpooled(nn.MaxPool3d(2, return_indices=True), nn.MaxUnpool3d(2)),
        lambda: (_x(1, 2, 4, 4, 4),),
    ),
    "ModuleDict": (
        lambda: _Chosen(nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Tanh()}), ["a", "b", "a"]),
        lambda: (_x(3, 4),),
    ),
    "ModuleList": (lambda: _Chosen(nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]), [1, 0]), lambda: (_x(3, 4),)),
    "NLLLoss2d": (
        lambda: nn.NLLLoss2d(),
        lambda: (_x(2, 4, 3, 3), torch.randint(0, 4, (2, 3, 3))),
    ),
    "PairwiseDistance": (lambda: nn.PairwiseDistance(), lambda: (_x(4, 8), _x(4, 8))),
    "ParameterDict": (
        lambda: _Chosen(nn.ParameterDict({"a": torch.randn(4), "b": torch.randn(4)}), ["b", "a"]),
        lambda: (_x(3, 4),),
    ),
    "ParameterList": (
        lambda: _Chosen(nn.ParameterList([torch.randn(4), torch.randn(4)]), [0, 1]),
        lambda: (_x(3, 4),),
    ),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), lambda: (_x(2, 8, 3, 3),)),
    "PixelUnshuffle": (lambda: nn.PixelUnshuffle(2), lambda: (_x(2, 2, 4, 4),)),
    "RReLU": (lambda: nn.RReLU(), lambda: (_x(4, 8),)),
    "Sequential": (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), lambda: (_x(3, 4),)),
    "SyncBatchNorm": (lambda: nn.SyncBatchNorm(3), lambda: (_x(4, 3, 2),)),
    "TransformerDecoder": (
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16), 2),
        lambda: (_x(5, 2, 8), _x(3, 2, 8)),
    ),
    "TripletMarginLoss": (lambda: nn.TripletMarginLoss(), lambda: (_x(4, 8), _x(4, 8), _x(4, 8))),
    "TripletMarginWithDistanceLoss": (
        lambda: nn.TripletMarginWithDistanceLoss(),
        lambda: (_x(4, 8), _x(4, 8), _x(4, 8)),
    ),
    "Unflatten": (lambda: nn.Unflatten(1, (2, 4)), lambda: (_x(4, 8),)),
    "Unfold": (lambda: nn.Unfold((2, 3)), lambda: (_x(2, 5, 3, 4),)),
    "Upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), lambda: (_x(1, 2, 3, 3),)),
    "UpsamplingBilinear2d": (lambda: nn.UpsamplingBilinear2d(scale_factor=2), lambda: (_x(1, 2, 3, 3),)),
    "UpsamplingNearest2d": (lambda: nn.UpsamplingNearest2d(scale_factor=2), lambda: (_x(1, 2, 3, 3),)),
}


def _extra_samples(name):
    found = []
    for training in (True, False):
        make_module, make_inputs = EXTRA_MODULES[name]

        def make(make_module=make_module, training=training):
            torch.manual_seed(1)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return make_module().train(training)

        torch.manual_seed(2)
        found.append(Sample(None, make_inputs(), {}, make, training))
    return found

"""Private names of PopTorch that published libraries read (docs/guide/from_poptorch.md says who)."""

import copy
import importlib.util
import inspect
import operator
import re
from pathlib import Path

import poptorch
import pytest
import torch

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "from_poptorch.md"


def test_each_name_of_the_guide_is_there_and_has_a_test():
    section = GUIDE.read_text().partition("## Private names that libraries read")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| .+ \| `(\w+)` \|$", section, re.MULTILINE)
    assert len(rows) == section.count("\n| `") > 20
    holders = {"poptorch": poptorch, "executor": poptorch.inferenceModel(Minus()), "options": poptorch.Options()}
    for name, test in rows:
        holder, _, path = name.partition(".")
        operator.attrgetter(path)(holders[holder])
        assert inspect.isfunction(globals()[test])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 2)
        self.weight = torch.nn.Parameter(torch.ones(2, 2))

    def forward(self, x, y=None):
        return poptorch.identity_loss((self.layer(x) * (1 if y is None else y)).square(), reduction="sum")


class Minus(torch.nn.Module):
    def forward(self, a, b):
        return a - b


@pytest.fixture
def net_executor():
    options = poptorch.Options().showCompilationProgressBar(False)
    executor = poptorch.trainingModel(Net(), options)
    yield executor
    executor.destroy()


# Arguments of calls --------------------------------------------------------------------------------------------------


class Named(poptorch._args_parser.ArgsParser):
    """As a library has it: the base's __init__ is never called."""

    def __init__(self, defaults, has_variadic_arguments=False):
        self._has_variadic_arguments = has_variadic_arguments
        self._varnames = list(defaults)
        self._defaults = list(defaults.values())
        self._warned_not_contiguous_input = False


def test_a_parser_says_how_arguments_are_bound():
    empty = inspect.Parameter.empty
    two, five = torch.tensor([2.0]), torch.tensor([5.0])

    executor = poptorch.inferenceModel(Minus())
    assert isinstance(executor._args_parser, poptorch._args_parser.ArgsParser)
    assert executor(two, b=five) == -3

    executor = poptorch.inferenceModel(Minus())
    executor._args_parser = None
    executor._args_parser = Named({"b": empty, "a": five})
    assert executor(b=two) == -3  # forward's first is called b here, its second has a default
    with pytest.raises(AssertionError, match="no arguments c"):
        executor(two, c=five)
    with pytest.raises(poptorch.Error, match="'b' of forward is missing"):
        executor()

    executor = poptorch.inferenceModel(Minus())
    executor._args_parser = Named({"args": empty}, has_variadic_arguments=True)
    assert executor(two, b=five) == -3


def test_a_parser_of_a_model_tells_its_signature():
    parser = poptorch._args_parser.ArgsParser(Net())
    assert parser._varnames == ["x", "y"] and parser._defaults == [inspect.Parameter.empty, None]
    assert not parser._has_variadic_arguments
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        parser.other  # noqa: B018


# Executors -----------------------------------------------------------------------------------------------------------


def test_an_executor_says_where_it_is(net_executor):
    assert net_executor._training and net_executor._executable is None and not net_executor._is_attached
    net_executor(torch.ones(2, 3))
    assert net_executor._executable is not None and net_executor._is_attached
    net_executor.detachFromDevice()
    assert not net_executor._is_attached
    assert not poptorch.inferenceModel(Minus())._training


def test_an_executor_tells_its_options(net_executor):
    assert net_executor._options.toDict()["replication_factor"] == 1


def test_an_executor_tells_its_groups_of_replicas(net_executor):
    assert net_executor.per_replica_params == {}
    group, mode = poptorch.CommGroupType.Consecutive, poptorch.VariableRetrievalMode.AllReplicas
    net_executor.weight.replicaGrouping(group, 2, mode)
    assert net_executor.per_replica_params == {"weight": (group, 2, mode)}


class Around(torch.nn.Module):
    """As a library has it: what is traced holds a copy of the user's module."""

    def __init__(self, model):
        super().__init__()
        self.model = copy.copy(model)

    def forward(self, inputs):
        return [self.model(*inputs)]


def test_the_traced_module_may_be_around_the_users():
    model, eager, x = Net(), Net(), torch.ones(2, 3)
    rate = 0.25
    executor = poptorch.PoplarExecutor(
        Around(model),
        poptorch.Options(),
        True,
        poptorch.__version__,
        torch.optim.SGD(model.parameters(), lr=rate),
        user_model=model,
    )
    assert executor.model is model and type(model).__name__ == "PoptorchNet"
    optimizer = torch.optim.SGD(eager.parameters(), lr=rate)
    for _ in range(2):
        [loss] = executor((x,))
        optimizer.zero_grad()
        expected = eager(x)
        expected.backward()
        optimizer.step()
        assert torch.equal(loss, expected)
    assert torch.equal(model.layer.weight, eager.layer.weight)
    model.destroy()
    assert type(model) is Net


# Options -------------------------------------------------------------------------------------------------------------


def test_values_of_options_are_a_mapping():
    options = poptorch.Options().deviceIterations(3)
    options.replicationFactor(2)
    options.Training.gradientAccumulation(4)
    values = options._values
    assert values["device_iterations"] == 3 and values["replication_factor"] == 2
    assert options.Training._values["gradient_accumulation"] == 4
    assert "random_seed" not in values
    with pytest.raises(KeyError):
        values["random_seed"]
    options.randomSeed(7)
    assert options._values["random_seed"] == 7 and "random_seed" in options._values
    assert dict(options._values.items()) == {key: getattr(options, key) for key in options._values}
    with pytest.raises(TypeError):
        values["device_iterations"] = 5  # it would change nothing
    assert copy.deepcopy(options)._values == options._values
    assert "_values" not in repr(options)


def test_strategies_have_a_base():
    assert isinstance(poptorch.ShardedExecution(), poptorch.options._IExecutionStrategy)
    assert isinstance(poptorch.Options()._execution_strategy, poptorch.options._IExecutionStrategy)
    assert not isinstance(poptorch.Stage("a"), poptorch.options._IExecutionStrategy)


# Modules -------------------------------------------------------------------------------------------------------------


def test_tensors_of_batches_are_put_together_by_their_places():
    from poptorch._utils import combine_batch_tensors_gen

    batches = [[torch.zeros(1, 3), torch.ones(2)], [torch.ones(2, 3), torch.zeros(1)]]
    rows, last = combine_batch_tensors_gen(batches)
    assert torch.equal(rows, torch.cat([batches[0][0], batches[1][0]])) and last.tolist() == [1, 1, 0]


def test_the_module_of_utilities_knows_structures_and_parsers():
    from poptorch import _utils

    assert _utils.flattenTensorStructure is poptorch.flattenTensorStructure
    assert _utils.reconstructTensorStructure is poptorch.reconstructTensorStructure
    assert _utils.ATTR_PREFIX == poptorch.ATTR_PREFIX

    class Pair:
        pass

    class Parser(poptorch.ICustomArgParser):
        def yieldTensors(self, struct):
            yield from ()

        def reconstruct(self, original_structure, tensor_iterator):
            return original_structure

    parser = Parser()
    poptorch.registerCustomArgParser(Pair, parser)
    try:
        assert _utils.custom_arg_parsers[Pair] is parser and _utils.getCustomParser(Pair()) is parser
    finally:
        poptorch.registerCustomArgParser(Pair, None)
    assert Pair not in _utils.custom_arg_parsers and _utils.getCustomParser(Pair()) is None


class Asking(torch.nn.Module):
    def forward(self, x):
        self.answers = poptorch._impl.isDispatchTracing(), poptorch._utils.isOnIpu(x)
        return x + 1


def test_forward_can_ask_whether_it_is_captured():
    model = Asking()
    model(torch.ones(1))
    assert model.answers == (False, False)
    executor = poptorch.inferenceModel(model)
    executor(torch.ones(1))
    assert executor.model.answers == (True, True) and not poptorch._impl.isDispatchTracing()


def test_a_model_gets_its_class_back_for_a_while(net_executor):
    from poptorch._impl import rewrapModelIfNecessary, unwrapModelIfNecessary

    net_executor(torch.ones(2, 3))
    model = net_executor.model
    unwrapModelIfNecessary(model)
    assert type(model) is Net
    rewrapModelIfNecessary(model)
    assert type(model).__name__ == "PoptorchNet"


def test_the_native_module_can_be_imported():
    import poptorch.poptorch_core as poptorch_core
    from poptorch import poptorch_core as of_the_package

    assert poptorch_core is of_the_package is poptorch.poptorch_core


# Functions that a library replaces while a forward is captured --------------------------------------------------------


def executed_again():
    spec = importlib.util.find_spec("poptorch._poplar_executor")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Doubled:
    """Replaces torch.neg."""

    def __init__(self):
        self.original = torch.neg

    def replace(self):
        torch.neg = lambda x: -2 * x

    def restore(self):
        torch.neg = self.original


class Negative(torch.nn.Module):
    def __init__(self, fails=False):
        super().__init__()
        self.fails = fails

    def forward(self, x):
        if self.fails:
            raise ValueError("as told")
        return torch.neg(x)


def test_functions_can_be_replaced_while_a_forward_is_captured():
    original, x = torch.neg, torch.ones(1)
    module = executed_again()
    module._OverwriteContextManager.registerSubsitutionManager(Doubled)
    assert module.inferenceModel(Negative())(x) == -2 and torch.neg is original
    with pytest.raises(ValueError, match="as told"):
        module.inferenceModel(Negative(fails=True))(x)
    assert torch.neg is original
    assert poptorch.inferenceModel(Negative())(x) == -1  # the package's own executors do not know of it
    assert isinstance(module.inferenceModel(Negative()), poptorch.PoplarExecutor)
    for wrong in (Negative, Doubled(), None):
        with pytest.raises(poptorch.Error, match="E0708(.|\n)*replace"):
            module._OverwriteContextManager.registerSubsitutionManager(wrong)

"""Programs in PopTorch's manner, as users port them: models, blocks, phases, losses and operators beside eager."""

import copy
import ctypes

import poptorch
import pytest
import torch


class Regression(torch.nn.Module):
    """(prediction, loss) in training, the prediction in evaluation."""

    def __init__(self, width=4):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(width, width)

    def forward(self, x, target=None):
        prediction = self.layer(x)
        if not self.training:
            return prediction
        return prediction, torch.nn.functional.mse_loss(prediction, target)


X, TARGET = torch.ones(1, 4), torch.zeros(1, 4)


def train_in_eager(model, optimizer, steps, x=X, target=TARGET):
    for _ in range(steps):
        optimizer.zero_grad()
        model(x, target)[1].backward()
        optimizer.step()
    return model


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    """Programs write files where they stand, and one of them changes the level of the log."""
    monkeypatch.chdir(tmp_path)
    level = poptorch.logger.level
    yield
    poptorch.logger.setLevel(level)


def test_options_from_a_file(tmp_path):
    lines = (
        "deviceIterations(3)",
        "setExecutionStrategy(poptorch.ShardedExecution())",
        "replicationFactor(2)",
        "enableSyntheticData(True)",
    )
    (tmp_path / "options.conf").write_text("\n".join(lines))
    options = poptorch.Options()
    options.loadFromFile("options.conf")
    values = options.outputMode(poptorch.OutputMode.All).toDict()
    assert (values["device_iterations"], values["replication_factor"]) == (3, 2)
    assert values["syntheticDataMode"]


def test_a_loop_of_training_steps():
    model, x, target = Regression(10), torch.randn(10), torch.randn(10)
    eager = copy.deepcopy(model)
    executor = poptorch.trainingModel(model)
    losses = [executor(x, target)[1].item() for _ in range(500)]
    executor.copyWeightsToHost()
    train_in_eager(eager, torch.optim.SGD(eager.parameters(), lr=0.01), 500, x, target)
    assert losses[-1] < 0.05 * losses[0]
    assert torch.equal(model.layer.weight, eager.layer.weight)
    assert torch.equal(model.eval()(x), eager.eval()(x))


def test_inference_of_a_convolutional_network():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=8),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU6(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(8, 1000),
    ).train(False)
    image = torch.randn(1, 3, 224, 224)
    scores = poptorch.inferenceModel(model)(image)
    best = torch.topk(torch.softmax(scores, 1), 5)
    assert torch.equal(scores, model(image))
    assert torch.equal(best.indices, torch.topk(torch.softmax(model(image), 1), 5).indices)


def test_inference_in_half():
    model, x = torch.nn.Linear(1, 10).half(), torch.tensor([1.0]).half()
    result = poptorch.inferenceModel(model, poptorch.Options())(x)
    assert result.dtype == torch.half and torch.equal(result, model(x))


def test_validation_follows_training_on_the_device_and_on_the_host():
    model = Regression().eval()
    validation = poptorch.inferenceModel(model)
    model.train()
    training = poptorch.trainingModel(model)
    for _ in range(3):
        training(X, TARGET)
    torch.save(model.state_dict(), "model.pt")
    on_device = validation(X).clone()
    model.eval()
    on_host = model(X).detach()
    model.train()
    train_in_eager(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
    validation.copyWeightsToDevice()
    after = validation(X)
    assert torch.equal(on_device, on_host) and not torch.equal(on_host, after)
    assert after.abs().sum() < on_host.abs().sum()
    assert len(torch.load("model.pt")) == 2


def test_forward_asks_where_it_runs():
    class Where(torch.nn.Module):
        def forward(self, x, y):
            return x + y if poptorch.isRunningOnIpu() else x - y

    ones = torch.ones(1)
    assert Where()(ones, ones) == 0 and poptorch.inferenceModel(Where())(ones, ones) == 2
    assert not poptorch.isRunningOnIpu()


def failing(kind, **fields):
    error = kind("the text")
    vars(error).update(fields)
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, None),
        (failing(poptorch.RecoverableError, recovery_action="FULL_RESET"), "reset FULL_RESET"),
        (failing(poptorch.RecoverableError, recovery_action="IPU_RESET"), "reset IPU_RESET"),
        (failing(poptorch.UnrecoverableError), "offline"),
        (failing(poptorch.Error, message="m", type="t", location="l"), "m of t at l"),
        (ValueError("of the model"), "other: of the model"),
    ],
)
def test_a_program_tells_kinds_of_errors_apart(error, expected):
    class Sum(torch.nn.Module):
        def forward(self, x, y):
            if error:
                raise error
            return x + y

    def outcome():
        try:
            assert poptorch.inferenceModel(Sum())(torch.tensor([1.0]), torch.tensor([2.0])) == 3
        except poptorch.RecoverableError as e:
            return f"reset {e.recovery_action}"
        except poptorch.UnrecoverableError:
            return "offline"
        except poptorch.Error as e:
            return f"{e.message} of {e.type} at {e.location}"
        except Exception as e:
            return f"other: {e}"
        return None

    assert outcome() == expected


def devices_of(executor):
    return [stage["device"] for stage in executor.report()["stages"]]


def test_blocks_put_into_a_finished_transformer():
    class Reader(torch.nn.Module):
        """Finds the beginning and the end of an answer; its inner modules are reached through it."""

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.words = torch.nn.Embedding(11, 8)
            self.layers = torch.nn.ModuleList(
                torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(6)
            )
            self.spans = torch.nn.Linear(8, 2)

        def forward(self, input_ids, attention_mask, token_type_ids):
            hidden = self.words(input_ids) + token_type_ids.unsqueeze(-1)
            for layer in self.layers:
                hidden = layer(hidden, src_key_padding_mask=attention_mask == 0)
            return self.spans(hidden).unbind(-1)

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Reader()

        def forward(self, *args):
            return self.inner(*args)

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

    model = Outer()
    for device, index in ((1, 0), (2, 2), (3, 4)):
        model.layers[index] = poptorch.BeginBlock(model.layers[index], ipu_id=device)
    assert "TransformerEncoderLayer" in repr(model)
    executor = poptorch.inferenceModel(model, poptorch.Options().deviceIterations(4))
    inputs = torch.arange(20).reshape(4, 5) % 11, torch.ones(4, 5, dtype=torch.long), torch.zeros(4, 5)
    first, last = executor(*inputs)
    with torch.no_grad():
        expected = [Reader()(*(i[k : k + 1] for i in inputs)) for k in range(4)]
    torch.testing.assert_close(first, torch.cat([e[0] for e in expected]))  # eager runs with more threads
    torch.testing.assert_close(last, torch.cat([e[1] for e in expected]))
    assert devices_of(executor) == [0, 1, 2, 3]


class Scopes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.parts = torch.nn.ModuleList(torch.nn.Linear(5, 5) for _ in range(4))

    def forward(self, x):
        poptorch.Block.useAutoId()
        for device, part in enumerate(self.parts):
            with poptorch.Block(ipu_id=device):
                x = torch.relu(part(x))
        return x


class Functions(Scopes):
    def forward(self, x):
        poptorch.Block.useAutoId()
        return self.finish(self.upper(self.lower(x)))

    @poptorch.BlockFunction(ipu_id=0)
    def lower(self, x):
        return torch.relu(self.parts[1](torch.relu(self.parts[0](x))))

    @poptorch.BlockFunction(ipu_id=1)
    def upper(self, x):
        return torch.relu(self.parts[3](torch.relu(self.parts[2](x))))

    @poptorch.BlockFunction(ipu_id=1)
    def finish(self, x):
        return torch.softmax(x, dim=1)


@pytest.mark.parametrize(("kind", "devices"), [(Scopes, [0, 1, 2, 3]), (Functions, [0, 1])])
def test_blocks_within_forward(kind, devices):
    model, x = kind(), torch.rand(4, 5)
    executor = poptorch.inferenceModel(model, options=poptorch.Options().deviceIterations(4))
    assert torch.equal(executor(x), torch.cat([model(row[None]) for row in x]))
    assert devices_of(executor) == devices


def test_phases_and_stages():
    class Named(torch.nn.Module):
        def forward(self, x, y):
            with poptorch.Block("A"):
                a = x + x
            with poptorch.Block("B"):
                b = y + y
            with poptorch.Block("C"):
                return a, b, x * 3

    poptorch.Phase(poptorch.Stage("B", "C").ipu(1))  # one stage of two blocks
    poptorch.Phase(poptorch.Stage("B").ipu(1), poptorch.Stage("C").ipu(3))  # two stages
    strategy = poptorch.SerialPhasedExecution(poptorch.Phase("A"), poptorch.Phase("B"), poptorch.Phase("C"))
    executor = poptorch.inferenceModel(Named(), poptorch.Options().setExecutionStrategy(strategy))
    x, y = torch.ones(2), torch.arange(2.0)
    assert all(torch.equal(a, b) for a, b in zip(executor(x, y), (2 * x, 2 * y, 3 * x), strict=True))


def test_phases_named_by_strings_alternate_between_pairs_of_devices():
    poptorch.setLogLevel("DEBUG")
    size, rounds = 6, 2

    class Braid(torch.nn.Module):
        """Two strands of products that cross over in each round: round r is phase r, strand s is its stage s."""

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.weights = torch.nn.ParameterList(torch.rand(size, size) for _ in range(4 * rounds))

        def forward(self, both, target=None):
            with poptorch.Block("phase0_strand0"):
                strands = torch.split(both, size)
            weights = iter(self.weights)
            for phase in range(2 * rounds):
                results = []
                for strand in range(2):
                    with poptorch.Block(f"phase{phase}_strand{strand}"):
                        results.append(torch.relu(next(weights) @ strands[strand]))
                strands = results[1], results[0]
            with poptorch.Block(f"phase{2 * rounds - 1}_strand1"):
                result = strands[0] + strands[1]
                if target is None:
                    return result
                return result, torch.nn.functional.l1_loss(result, target)

    phases = [
        [poptorch.Stage(f"phase{p}_strand0").ipu(p % 2), poptorch.Stage(f"phase{p}_strand1").ipu(p % 2 + 2)]
        for p in range(2 * rounds)
    ]
    options = poptorch.Options().setExecutionStrategy(poptorch.ParallelPhasedExecution(*phases))
    model, both, target = Braid(), torch.rand(2 * size, 1), torch.rand(size, 1)
    expected = model(both, target)
    executor = poptorch.trainingModel(model, options)
    executor.compile(both, target)
    for ours, eager in zip(executor(both, target), expected, strict=True):
        torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize(
    ("strategy", "devices"),
    [
        (poptorch.SerialPhasedExecution, [(0, 1), (0, 1), (0, 1)]),
        (poptorch.ParallelPhasedExecution, [(0, 2), (1, 3), (0, 2)]),
    ],
)
def test_phased_strategies(strategy, devices):
    class Chain(torch.nn.Module):
        def forward(self, x):
            for block in range(6):
                with poptorch.Block(f"part{block}"):
                    x = x * 2 + block
            return x

    phases = [poptorch.Phase(poptorch.Stage(f"part{2 * p}"), poptorch.Stage(f"part{2 * p + 1}")) for p in range(3)]
    phased = strategy(*phases)
    for index, of_phase in enumerate(devices):
        phased.phase(index).ipus(*of_phase)
    options = poptorch.Options().autoRoundNumIPUs()
    options.setExecutionStrategy(phased)
    assert torch.equal(poptorch.inferenceModel(Chain(), options)(torch.ones(3)), Chain()(torch.ones(3)))


def test_a_loss_of_the_program():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x, target):
            out = self.layer(x)
            return out, poptorch.identity_loss(5 * (out - target) ** 2, reduction="mean")

    out, loss = poptorch.trainingModel(Scaled())(torch.ones(2, 4), torch.zeros(2, 4))
    assert torch.equal(loss, (5 * out**2).mean())


def test_counters_that_are_constants_and_buffers():
    class Counter(torch.nn.Module):
        def __init__(self, as_buffer):
            super().__init__()
            start = torch.tensor([0.0])
            if as_buffer:
                self.register_buffer("count", start)
            else:
                self.count = start

        def forward(self):
            self.count += 1
            return self.count

    counted = {}
    for as_buffer in (False, True):
        executor = poptorch.inferenceModel(Counter(as_buffer))
        counted[as_buffer] = [executor().item(), executor().item()]
    assert counted == {False: [1.0, 1.0], True: [1.0, 2.0]}


def test_ctc_decoder():
    class Decoder(torch.nn.Module):
        def forward(self, log_probs, lengths):
            return poptorch.ctc_beam_search_decoder(log_probs, lengths)

    log_probs = torch.log_softmax(torch.randn(5, 2, 4), -1)
    probabilities, lengths, paths = poptorch.inferenceModel(Decoder())(log_probs, torch.tensor([5, 5]))
    assert probabilities.shape == (2, 1) and lengths.shape == (2, 1) and paths.shape == (2, 1, 5)


def test_print_tensor(capfd):
    class Printing(torch.nn.Module):
        def forward(self, x):
            return poptorch.ipu_print_tensor(x + 1) * 1

    assert torch.equal(poptorch.inferenceModel(Printing())(torch.tensor([1.0, 2.0])), torch.tensor([2.0, 3.0]))
    printed = capfd.readouterr().err
    assert "[" in printed and "2" in printed and "3" in printed


@pytest.mark.parametrize("attributes", [None, {"alpha": 0.02, "names": ["a", "b"], "sizes": [1, 2], "flag": 1}])
def test_operators_of_a_library_that_is_not_there(attributes):
    class Custom(torch.nn.Module):
        def forward(self, x):
            extra = {} if attributes is None else {"attributes": attributes}
            return poptorch.custom_op([x], "SoftLeaky", "example.ops", 1, example_outputs=[x], **extra)[0]

    with pytest.raises(OSError, match="libsoft_leaky"):
        ctypes.cdll.LoadLibrary("./libsoft_leaky.so")
    with pytest.raises(poptorch.Error, match="SoftLeaky"):
        poptorch.inferenceModel(Custom())(torch.ones(2))

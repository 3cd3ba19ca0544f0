"""Programs as users of PopTorch write them: annotated layers, strategies, loaders, schedulers, checkpoints."""

import poptorch
import pytest
import torch


class Classifier(torch.nn.Module):
    """Returns (probabilities, loss) in training and probabilities else."""

    def __init__(self):
        super().__init__()
        self.layer1, self.layer2 = torch.nn.Linear(5, 10), torch.nn.Linear(10, 5)
        self.layer3, self.layer4 = torch.nn.Linear(5, 5), torch.nn.Linear(5, 3)
        self.act, self.loss = torch.nn.ReLU(), torch.nn.CrossEntropyLoss()

    def forward(self, x, labels=None):
        poptorch.Block.useAutoId()
        with poptorch.Block(ipu_id=0):
            x = self.act(self.layer1(x))
        with poptorch.Block(ipu_id=1):
            x = self.act(self.layer2(x))
        with poptorch.Block(ipu_id=2):
            x = self.act(self.layer3(x))
        with poptorch.Block(ipu_id=3):
            x = self.layer4(x)
            if labels is None:
                return torch.softmax(x, 1)
            return torch.softmax(x, 1), self.loss(x, labels)


def points(n=280):
    torch.manual_seed(0)
    x = torch.randn(n, 5)
    return torch.utils.data.TensorDataset(x, x[:, :3].argmax(1))


def test_training_loop_with_loader_scheduler_and_validation():
    opts = poptorch.Options().deviceIterations(2).randomSeed(42)
    opts.Training.gradientAccumulation(7)
    opts.outputMode(poptorch.OutputMode.All)
    loader = poptorch.DataLoader(opts, points(), batch_size=2, shuffle=True)
    assert len(loader) == 10
    model = Classifier()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.5)
    executor = poptorch.trainingModel(model, opts, optimizer=optimizer)
    losses = []
    for _ in range(12):
        for x, labels in loader:
            probabilities, loss = executor(x, labels)
            assert probabilities.shape == (28, 3) and loss.shape == (14,)
        losses.append(loss.mean().item())
        scheduler.step()
        executor.setOptimizer(optimizer)
    assert losses[-1] < 0.5 * losses[0]

    test = points()[:]
    model.eval()
    validation = poptorch.inferenceModel(model, poptorch.Options().deviceIterations(4))
    right = (validation(test[0]).argmax(1) == test[1]).float().mean()
    assert right > 0.85
    model.destroy()
    assert torch.equal(model(test[0]).argmax(1), validation(test[0]).argmax(1))


def test_checkpoint_and_resume(tmp_path):
    def make():
        torch.manual_seed(0)
        model = Classifier()
        optimizer = poptorch.optim.Adam(model.parameters(), lr=0.01)
        opts = poptorch.Options()
        opts.Training.gradientAccumulation(7)
        return model, optimizer, poptorch.trainingModel(model, opts, optimizer)

    x, labels = points()[:14]
    model, optimizer, executor = make()
    for _ in range(3):
        executor(x, labels)
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    expected = [executor(x, labels)[1] for _ in range(3)]

    model, optimizer, executor = make()
    checkpoint = torch.load(path)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    assert torch.equal(torch.stack([executor(x, labels)[1] for _ in range(3)]), torch.stack(expected))


def test_annotating_a_model_from_elsewhere():
    torch.manual_seed(0)
    layers = [torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(4)]
    model = torch.nn.Sequential(*layers).eval()
    x = torch.randn(4, 3, 8)
    with torch.no_grad():
        expected = torch.cat([model(row[None]) for row in x])
    for device, index in ((1, 1), (2, 2), (3, 3)):
        model[index] = poptorch.BeginBlock(model[index], ipu_id=device)
    executor = poptorch.inferenceModel(model, poptorch.Options().deviceIterations(4))
    torch.testing.assert_close(executor(x), expected)
    assert [stage["device"] for stage in executor.report()["stages"]] == [0, 1, 2, 3]
    poptorch.removeBlocks(model)


class Named(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(2))

    @poptorch.BlockFunction("B1")
    def first(self, x):
        return x * self.scale

    def forward(self, x):
        x = self.first(x)
        with poptorch.Block("B2"):
            x = x + 1
        with poptorch.Block("B3"):
            x = x * 2
        with poptorch.Block("B1"):
            x = x - 1
            return x, poptorch.identity_loss(x.sum(), "none")


@pytest.mark.parametrize(
    "strategy, stages",
    [
        (poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement), 3),
        (poptorch.ShardedExecution("B1", ["B2", "B3"]), 2),
        (poptorch.ShardedExecution(poptorch.Stage("B1", "B2").ipu(1), poptorch.Stage("B3").ipu(0)), 2),
        (poptorch.PipelinedExecution(poptorch.Stage("B1", "B2", "B3")), 1),
    ],
)
def test_strategies_place_blocks_and_change_nothing(strategy, stages):
    model = Named()
    opts = poptorch.Options().setExecutionStrategy(strategy).autoRoundNumIPUs()
    executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.5))
    out, loss = executor(torch.tensor([[1.0, 2.0]]))
    assert torch.equal(out, torch.tensor([[3.0, 5.0]])) and loss.item() == 8.0
    assert torch.equal(model.scale.detach(), torch.tensor([0.0, -1.0]))
    working = [stage for stage in executor.report()["stages"] if stage["busy_ns"]]
    assert 1 <= len(working) <= stages + 1


def test_options_from_a_file(tmp_path):
    path = tmp_path / "poptorch.conf"
    path.write_text("deviceIterations(2)\nsetExecutionStrategy(poptorch.ShardedExecution())\nreplicationFactor(1)\n")
    opts = poptorch.Options()
    opts.loadFromFile(str(path))
    assert poptorch.inferenceModel(torch.nn.ReLU(), opts)(torch.ones(4)).shape == (4,)


def test_model_outputs_keep_their_type():
    class Output(dict):
        """A dict whose keys are attributes."""

        def __getattr__(self, name):
            return self[name]

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(4, 2)

        def forward(self, input_ids=None, labels=None, return_dict=True):
            logits = self.fc(input_ids)
            return Output(loss=torch.nn.functional.cross_entropy(logits, labels), logits=logits)

    opts = poptorch.Options().outputMode(poptorch.OutputMode.All)
    opts.Training.gradientAccumulation(3)
    executor = poptorch.trainingModel(Model(), opts)
    result = executor(labels=torch.tensor([0, 1, 1]), input_ids=torch.randn(3, 4))
    assert type(result) is Output and result.loss.shape == (3,) and result.logits.shape == (3, 2)

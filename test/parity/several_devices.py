"""Networks for several devices, and their training with the options under test and in eager PyTorch."""

import copy

import abele
import torch
import torch.nn.functional as F
from against_eager import SEED, eager
from networks import First, Network, Sequence, TiedHead
from torch import nn

WIDTH, HEADS, LENGTH, VOCABULARY, STEPS = 64, 4, 24, 96, 3
STRATEGIES = {
    "sharded": abele.ShardedExecution,
    "1f1b": lambda: abele.PipelinedExecution(abele.AutoStage.SameAsIpu).schedule("1f1b"),
    "gpipe": lambda: abele.PipelinedExecution(abele.AutoStage.SameAsIpu).schedule("gpipe"),
}


class Mlp(Network):
    def __init__(self):
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1)) for _ in range(2)]
        wide = nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, WIDTH))
        super().__init__([wide, *layers, nn.Linear(WIDTH, 10)])

    def batch(self, n):
        return torch.randn(n, 32, WIDTH), torch.randint(10, (n, 32))

    def forward(self, x, target):
        for part in self.parts:
            x = part(x)
        return x, F.cross_entropy(x.flatten(0, 1), target.flatten())


class Wide(Mlp):
    def __init__(self):
        super().__init__()
        for _ in range(8):
            self.parts.insert(1, nn.Sequential(nn.Linear(WIDTH, 512), nn.GELU(), nn.Linear(512, WIDTH)))


class Tokens(Sequence):
    def batch(self, n):
        ids = torch.randint(VOCABULARY, (n, LENGTH + 1))
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


class GptLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).split(WIDTH, -1)
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class Positions(nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.tokens, self.positions = embedding, nn.Parameter(torch.randn(LENGTH, WIDTH))

    def forward(self, x):
        return self.tokens(x) + self.positions


class Gpt(Tokens):
    """The table of tokens is the last product, too."""

    def __init__(self):
        embedding = nn.Embedding(VOCABULARY, WIDTH)
        super().__init__([Positions(embedding), GptLayer(), GptLayer(), nn.LayerNorm(WIDTH), TiedHead(embedding)])


class Bert(Tokens):
    """Attention of products, a softmax and dropout."""

    def __init__(self):
        layers = [
            nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.1, activation="gelu", batch_first=True)
            for _ in range(2)
        ]
        super().__init__([nn.Embedding(VOCABULARY, WIDTH), *layers, nn.Linear(WIDTH, VOCABULARY)])


class ConvNet(Network):
    def __init__(self):
        def layer(inputs, outputs, stride):
            conv = nn.Conv2d(inputs, outputs, 3, padding=1, stride=stride, bias=stride == 1)
            return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))

        head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, 10))
        super().__init__([layer(3, 32, 1), layer(32, 64, 2), layer(64, 64, 1), head])

    def batch(self, n):
        return torch.randn(n, 3, 32, 32), torch.randint(10, (n,))


class Lstm(Tokens):
    def __init__(self):
        layers = [First(nn.LSTM(WIDTH, WIDTH, batch_first=True)) for _ in range(2)]
        super().__init__([nn.Embedding(VOCABULARY, WIDTH), *layers, nn.Linear(WIDTH, VOCABULARY)])


NETWORKS = {network.__name__: network for network in (Mlp, Gpt, Bert, ConvNet, Lstm)}
MODELS = NETWORKS | {"Wide": Wide}


def make(network, stages):
    """stages: their number, or the ipu_id of each. Blocks are named "0", "1" and so on."""
    torch.manual_seed(0)
    model = MODELS[network]()
    reference = copy.deepcopy(model)
    places = range(stages) if isinstance(stages, int) else stages
    for stage, place in enumerate(places):
        abele.BeginBlock(model.parts[stage * len(model.parts) // len(places)], str(stage), ipu_id=place)
    return model, reference


def options_of(devices, strategy="1f1b", accumulation=1, iterations=1, way="tensorParallel"):
    """way: the option that gives several devices to each device of the model."""
    opts = abele.Options().randomSeed(SEED).outputMode(abele.OutputMode.All).deviceIterations(iterations)
    getattr(opts.threadsPerDevice(torch.get_num_threads()), way)(devices)
    opts.Training.gradientAccumulation(accumulation)
    return opts.setExecutionStrategy(STRATEGIES[strategy]())


def require_bits(ours, theirs, name):
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, name
    same = torch.equal(*(tensor.reshape(-1).contiguous().view(torch.uint8) for tensor in (ours, theirs)))
    assert same, f"{name} differs by {(ours - theirs).abs().max()}"


def devices_of(executor):
    return {stage["device"] for stage in executor.report()["stages"]}


def train(network, num_stages, opts, accumulation=1, micro_batch=2, result=devices_of, iterations=1):
    """Three calls in both ways, of `iterations` updates each.

    Returns: result of the executor; by default, the devices that did something.
    """
    model, reference = make(network, num_stages)
    executor = abele.trainingModel(model, opts, torch.optim.AdamW(model.parameters(), lr=0.01))
    theirs = torch.optim.AdamW(reference.parameters(), lr=0.01)
    torch.manual_seed(1)
    batches = [model.batch(micro_batch * accumulation * iterations) for _ in range(STEPS)]
    ours = [executor(*batch) for batch in batches]
    torch.manual_seed(SEED)
    for step, ((output, loss), batch) in enumerate(zip(ours, batches, strict=True)):
        expected_output, expected_loss = eager(reference, theirs, batch, accumulation, micro_batch)
        require_bits(loss.reshape(-1), expected_loss, f"loss of step {step}")
        require_bits(output, expected_output, f"output of step {step}")
    for (name, a), b in zip(model.state_dict().items(), reference.state_dict().values(), strict=True):
        require_bits(a, b, name)
    found = result(executor)
    executor.destroy()
    return found


def count_cached(folder, all_options):
    """The number of different programs in the folder after a model was compiled with each of the options."""
    for opts in all_options:
        model, _ = make("Mlp", 0)
        executor = abele.inferenceModel(model.eval(), opts.enableExecutableCaching(str(folder)))
        executor(*model.batch(opts.device_iterations))
        executor.destroy()
    return len([path for path in folder.iterdir() if path.is_file() and "lock" not in path.name])

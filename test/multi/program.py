"""program.py FOLDER: a training as users write it: PopDist's options, shared data, a cache, checkpoints."""

import sys

import popdist
import popdist.poptorch
import poptorch
import torch

FOLDER = sys.argv[1]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)
        self.loss = torch.nn.MSELoss()

    def forward(self, x, target=None):
        y = self.layer(x)
        return y if target is None else (y, self.loss(y, target))


def data():
    draw = torch.Generator().manual_seed(5)
    return torch.utils.data.TensorDataset(torch.randn(48, 16, generator=draw), torch.randn(48, 4, generator=draw))


def main():
    popdist.init()
    opts = popdist.poptorch.Options()
    opts.Training.gradientAccumulation(2)
    opts.randomSeed(42)
    loader = popdist.poptorch.DataLoader(opts, data(), batch_size=4, shuffle=True)
    model = Net()
    executor = poptorch.trainingModel(model, opts, poptorch.optim.AdamW(model.parameters(), lr=0.05))
    seen = [(x, executor(x, target)[1]) for x, target in loader]
    executor.save(f"{FOLDER}/program-{popdist.getInstanceIndex()}.poptorch")
    popdist.execute_on_instances({0}, torch.save, model.state_dict(), f"{FOLDER}/weights.pt")
    popdist.synchronize()

    # The checkpoint of one process, in a new model of each; and the saved program of each.
    checkpoint = torch.load(f"{FOLDER}/weights.pt")
    batch = next(iter(loader))
    executor(*batch)
    executor.copyWeightsToHost()
    again = poptorch.load(f"{FOLDER}/program-{popdist.getInstanceIndex()}.poptorch")
    loaded = {name: tensor.clone() for name, tensor in again.model.state_dict().items()}
    again(*batch)
    again.copyWeightsToHost()
    inference = poptorch.inferenceModel(Net().eval(), popdist.poptorch.Options())
    inference.load_state_dict(checkpoint)
    result = {
        "inputs": [x for x, _ in seen],
        "losses": [loss for _, loss in seen],
        "checkpoint": checkpoint,
        "loaded": loaded,
        "continued": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "continued_from_file": {name: tensor.clone() for name, tensor in again.model.state_dict().items()},
        "from_cache": executor._executable.session.report()["from_cache"],
    }
    torch.save(result, f"{FOLDER}/result-{popdist.getInstanceIndex()}.pt")


main()

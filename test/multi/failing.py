"""failing.py NAME: a training of several processes in which something is wrong. Prints what each process sees."""

import io
import os
import signal
import sys

import poptorch
import torch

RANK, PROCESSES = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Net(torch.nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.table = torch.nn.Embedding(10, width)
        self.head = torch.nn.Linear(width, 2)

    def forward(self, x):
        y = self.head(self.table(x))
        return y, poptorch.identity_loss(y.square(), reduction="mean")


def training(width=4, seed=1, lr=0.1, off_chip=False, rounding=None):
    """rounding: the seed of rounding at random; absent: results are rounded to nearest."""
    torch.manual_seed(seed)
    model = Net(width)
    opts = poptorch.Options()
    opts.Distributed.configureProcessId(RANK, PROCESSES)
    if rounding is not None:
        opts.randomSeed(rounding).Precision.enableStochasticRounding(True)
    if off_chip:
        opts.TensorLocations.setWeightLocation(
            poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(0)
        )
    return model, poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=lr))


GOOD, BAD = torch.tensor([1, 2]), torch.tensor([1, 20])


def say(text):
    """One write, so that lines of two processes do not mix."""
    sys.stdout.write(f"{RANK}: {text}\n")
    sys.stdout.flush()


def attempt(call):
    """Prints the error of the call, in one line."""
    try:
        call()
        say("no error")
    except poptorch.Error as error:
        say(" ".join(str(error).split()))


def weights_survive(model, executor):
    """After a failed step: the weights are those of the step before, and the model still computes."""
    executor.copyWeightsToHost()
    alone = Net()
    alone.load_state_dict(model.state_dict())
    inference = poptorch.inferenceModel(alone.eval())
    equal = torch.equal(inference(GOOD)[0], alone(GOOD)[0])
    say(f"survives {equal} {float(model.head.weight.detach().sum()):.9f}")


def ends():
    model, executor = training()
    executor(GOOD)
    if RANK == 0:
        return
    attempt(lambda: executor(GOOD))
    attempt(lambda: executor(GOOD))
    weights_survive(model, executor)


def step_fails():
    model, executor = training()
    executor(GOOD)
    attempt(lambda: executor(BAD if RANK == 1 else GOOD))
    weights_survive(model, executor)


def has_weights_off_chip():
    _, executor = training(off_chip=True)
    attempt(lambda: executor(GOOD))


def is_silent():
    model, executor = training()
    executor(GOOD)
    store = torch.distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, False)
    if RANK == 0:
        store.get("heard")
        os._exit(0)
    attempt(lambda: executor(GOOD))
    store.set("heard", "1")
    weights_survive(model, executor)


def is_interrupted():
    model, executor = training()
    executor(GOOD)
    store = torch.distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, False)
    if RANK == 0:
        store.get("heard")
        attempt(lambda: executor(GOOD))
        return
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        executor(GOOD)
    except KeyboardInterrupt:
        say("interrupted")
    store.set("heard", "1")
    weights_survive(model, executor)


def other_program():
    _, executor = training(width=4 + RANK)
    attempt(lambda: executor(GOOD))
    model, executor = training()
    executor(GOOD)  # the processes can go on with programs that are equal
    weights_survive(model, executor)


def other_weights():
    _, executor = training(seed=RANK)
    attempt(lambda: executor(GOOD))


def other_optimizer():
    _, executor = training(lr=0.1 + RANK)
    attempt(lambda: executor(GOOD))


def other_rounding():
    _, executor = training(rounding=5 + RANK)
    attempt(lambda: executor(GOOD))


def loads_in_one_only():
    model, executor = training()
    executor(GOOD)
    if RANK == 0:
        executor.copyWeightsToHost()
        executor.copyWeightsToDevice()
    attempt(lambda: executor(GOOD))
    if RANK == 1:
        with torch.no_grad():
            model.head.bias.add_(1)
        executor.copyWeightsToDevice()
    attempt(lambda: executor(GOOD))


def ends_in_turn():
    """Each process lives until the one before it is gone: the one that holds the store is the first."""
    _, executor = training()
    executor(GOOD)
    before = open(f"{os.environ['FIFOS']}/{RANK - 1}") if RANK else io.StringIO()
    if RANK < PROCESSES - 1:
        os.open(f"{os.environ['FIFOS']}/{RANK}", os.O_WRONLY)  # until the end
    before.read()


globals()[sys.argv[1]]()

"""Trains a small network on handwritten digits as a pipeline of four stages.

    ./dev demo                          both networks
    python digits.py --model vit        one of them
    python digits.py --print-losses     every step's loss; examples/cpp/digits.cpp prints the same digits

This is an ordinary PopTorch program: blocks in the model (digits_models.py), options, a DataLoader, a training and an
inference model. At the end it shows what each stage did, how long a step takes beside eager PyTorch, why devices
waited, and what to try next.
"""

import argparse
import copy
import os
import statistics
import sys
import time
from pathlib import Path

import abele
import digits_data
import poptorch
import torch
from digits_models import ResNet, VisionTransformer
from torch.utils.data import TensorDataset

MICRO_BATCH, MICRO_BATCHES = 8, 8
TEST_BATCH, TEST_BATCHES = 45, 8
# Network, epochs, learning rate.
RECIPES = {"vit": (VisionTransformer, 16, 3e-3), "resnet": (ResNet, 6, 3e-3)}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=[*RECIPES, "both"], default="both")
    parser.add_argument("--epochs", type=int, help="default 16 for vit, 6 for resnet")
    parser.add_argument("--steps", type=int, help="stop after so many steps, without a test")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--print-losses", action="store_true", help="print the loss of every step with all its digits")
    parser.add_argument("--no-eager", action="store_true", help="leave out the comparison with eager PyTorch")
    return parser.parse_args()


class Progress:
    """A line on the terminal that is written over; elsewhere only its last state."""

    def __init__(self, title, steps):
        self.title, self.steps, self.begin = title, steps, time.perf_counter()

    def advance(self, done, loss, accuracy):
        if not sys.stderr.isatty() and done < self.steps:
            return
        bar = "#" * (20 * done // self.steps)
        rate = done / (time.perf_counter() - self.begin)
        end = "\n" if done == self.steps else ""
        print(
            f"\r{self.title} [{bar:20}] {done}/{self.steps}  loss {loss:.4f}  accuracy {accuracy:5.1f} %  "
            f"{rate:5.1f} steps/s",
            end=end,
            file=sys.stderr,
            flush=True,
        )


ENOUGH_SECONDS = 3  # for timing eager PyTorch with several threads


class Eager:
    """The same training step by PyTorch alone, on a copy of the model."""

    def __init__(self, model, learning_rate, threads):
        self.model, self.threads = copy.deepcopy(model), threads
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate, weight_decay=0.05)

    def __call__(self, images, labels):
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        self.optimizer.zero_grad()
        losses = []
        for rows in zip(images.split(MICRO_BATCH), labels.split(MICRO_BATCH), strict=True):
            _, loss = self.model(*rows)
            (loss / MICRO_BATCHES).backward()
            losses.append(loss.detach())
        self.optimizer.step()
        torch.set_num_threads(before)
        return torch.stack(losses)


def timed(seconds, call, *inputs):
    """Calls, and appends how long it took."""
    begin = time.perf_counter()
    result = call(*inputs)
    seconds.append(time.perf_counter() - begin)
    return result


class Training:
    """One network, compiled, with all that an epoch needs."""

    def __init__(self, name, args, data):
        network, epochs, self.learning_rate = RECIPES[name]
        self.name, self.args, self.epochs = name, args, args.epochs or epochs
        torch.manual_seed(args.seed)
        self.model = network()
        self.eager = (
            []
            if args.no_eager
            else [Eager(self.model, self.learning_rate, threads) for threads in sorted({1, os.cpu_count()})]
        )

        options = poptorch.Options()
        options.Training.gradientAccumulation(MICRO_BATCHES)
        options.outputMode(poptorch.OutputMode.All)
        options.showCompilationProgressBar(False)
        self.loader = poptorch.DataLoader(
            options, TensorDataset(*data), batch_size=MICRO_BATCH, sampler=digits_data.Shuffled(len(data[0]), args.seed)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.learning_rate, weight_decay=0.05)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda epoch: 1 - epoch / self.epochs)
        self.executor = poptorch.trainingModel(self.model, options, self.optimizer)
        self.steps, self.seconds = 0, []
        self.eager_seconds, self.difference, self.compared = [[] for _ in self.eager], 0.0, 0

    def compare(self, batch, losses):
        """The same step by eager PyTorch. With one thread, as each of our devices has, every digit should agree."""
        for eager, seconds in zip(self.eager, self.eager_seconds, strict=True):
            # Where other programs keep a core busy, PyTorch's threads wait for each other for seconds a step.
            if eager.threads > 1 and sum(seconds) > ENOUGH_SECONDS:
                continue
            theirs = timed(seconds, eager, *batch)
            if eager.threads == 1:
                self.difference = max(self.difference, (losses - theirs).abs().max().item())
                self.compared += 1

    def epoch(self, number):
        """Trains on all digits once; False when enough steps have been done."""
        progress = Progress(f"{self.name} epoch {number + 1}/{self.epochs}", len(self.loader))
        total, right, seen = 0.0, 0, 0
        for count, (images, labels) in enumerate(self.loader, 1):
            logits, losses = timed(self.seconds, self.executor, images, labels)
            if number == 0:
                self.compare((images, labels), losses)
            loss = losses.mean().item()
            if self.args.print_losses:
                print(f"step {self.steps} loss {loss:.9g}")
            self.steps += 1
            total, right, seen = total + loss, right + (logits.argmax(1) == labels).sum().item(), seen + len(labels)
            progress.advance(count, total / count, 100 * right / seen)
            if self.steps == self.args.steps:
                return False
        self.schedule.step()
        self.executor.setOptimizer(self.optimizer)
        return True

    def run(self):
        return all(self.epoch(number) for number in range(self.epochs))

    def test(self, images, labels):
        """Per cent of the held-out digits that are recognised."""
        options = poptorch.Options().deviceIterations(TEST_BATCHES)
        options.showCompilationProgressBar(False)
        model = poptorch.inferenceModel(self.model.eval(), options)
        padding = TEST_BATCH * TEST_BATCHES - len(images)
        logits = model(torch.cat([images, images[:padding]]))[: len(images)]
        return 100 * (logits.argmax(1) == labels).float().mean().item()

    def show(self):
        report = self.report = self.executor.report()
        print(f"\n{'stage':12} {'device':>6} {'busy ms':>8} {'waiting ms':>11} {'peak KiB':>9}")
        for stage in report["stages"]:
            print(
                f"{stage['name']:12} {stage['device']:6} {stage['busy_ns'] / 1e6:8.2f} "
                f"{stage['waiting_ns'] / 1e6:11.2f} {stage['peak_bytes'] / 1024:9.0f}"
            )
        print(
            f"bubble {100 * report['bubble']:.1f} % of the last step; capture {1e3 * report['capture_s']:.0f} ms, "
            f"compile {1e3 * report['compile_s']:.0f} ms"
        )
        step = statistics.median(self.seconds[1:] or self.seconds)
        print(f"step {1e3 * step:.2f} ms")
        for eager, seconds in zip(self.eager, self.eager_seconds, strict=True):
            # Where other programs keep a core busy, PyTorch's threads wait for each other for seconds a step.
            if eager.threads > 1 and sum(seconds) > ENOUGH_SECONDS:
                continue
            theirs = statistics.median(seconds[1:] or seconds)
            print(f"step {1e3 * theirs:.2f} ms by eager PyTorch of {eager.threads} threads; ratio {step / theirs:.2f}")
        if self.eager:
            print(f"largest difference from eager PyTorch's losses in {self.compared} steps: {self.difference:g}")


class Pipeline:
    """The stages as they were measured, under other schedules and numbers of micro-batches."""

    def __init__(self, report):
        self.stages = report["stages"]
        # Forward and backward are not told apart in the report; backward takes about twice as long.
        parts = {"forward_ns": 1, "backward_ns": 2}
        self._costs = [
            {part: stage["busy_ns"] * share // (3 * MICRO_BATCHES) for part, share in parts.items()}
            for stage in self.stages
        ]

    def bubble(self, micro_batches=MICRO_BATCHES, schedule="1f1b", even=False):
        """Per cent of the time that devices wait, each on a core of its own. even: stages of equal work."""
        costs = self._costs
        if even:
            mean = {part: sum(stage[part] for stage in costs) // len(costs) for part in costs[0]}
            costs = [mean] * len(costs)
        return 100 * abele.simulate(costs, schedule, micro_batches)["bubble"]


def explain(name, report):
    """Why the devices of the last step waited, in numbers."""
    pipeline = Pipeline(report)
    devices, cores = len(pipeline.stages), os.cpu_count()
    slowest = max(pipeline.stages, key=lambda stage: stage["busy_ns"])
    uneven = slowest["busy_ns"] * devices / sum(stage["busy_ns"] for stage in pipeline.stages)
    print(f"\nWhy the devices of {name} waited {100 * report['bubble']:.0f} % of the last step")
    print(
        f"- The pipeline fills and empties once a step: {devices} equal stages and {MICRO_BATCHES} micro-batches wait "
        f"{pipeline.bubble(even=True):.0f} %."
    )
    print(
        f"- Stage {slowest['name']} works {uneven:.2f} times as long as the mean: with it, {pipeline.bubble():.0f} %."
    )
    if devices > cores:
        print(
            f"- {devices} devices take turns on {cores} cores. While one waits, another one has its core: a step takes "
            "as long as\n  all the work on these cores, and this waiting costs little."
        )
    else:
        print("- The rest is the host's part, and what devices take to hand over.")
    ready = os.getloadavg()[0]
    if ready > devices + 1:
        print(f"- Other programs want these cores, too: {ready:.0f} threads were ready to run.")


def next_things(report):
    pipeline = Pipeline(report)
    python, gpt = sys.executable, Path(__file__).resolve().with_name("gpt.py")
    python, gpt = (os.path.relpath(path) if str(path).startswith(os.getcwd()) else path for path in (python, gpt))
    print(f"""
Three things to try next
1. {python} {gpt}
   a GPT that learns a text and writes, with a cache of keys and values; examples/README.md lists more
2. MICRO_BATCHES = 32 in digits.py: predicted to wait {pipeline.bubble(32):.0f} % instead of {pipeline.bubble():.0f} %.
   Or options.setExecutionStrategy(poptorch.PipelinedExecution().schedule("zero-bubble"))
3. docs/guide/looking_inside.md: a timeline of every device, and a page that says which schedule would help""")


def main():
    args = parse()
    train, test = digits_data.load()
    for name in RECIPES if args.model == "both" else [args.model]:
        training = Training(name, args, train)
        complete = training.run()
        training.show()
        if complete:
            print(f"test accuracy {training.test(*test):.1f} %")
    explain(name, training.report)
    next_things(training.report)


if __name__ == "__main__":
    main()

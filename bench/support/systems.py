"""Ways to train a workload, and to use it, that benchmarks compare, each run by serve() in a process of its own."""

import hashlib
import os
import re
import time
import traceback

import torch

from .eager import Eager
from .machine import peak_bytes
from .peers import PEERS
from .published import find
from .workloads import SEED


class Compiled:
    """The same step on our devices: one holds the whole model, or two hold its halves, or (devices: None) as many as
    are fastest when they are measured. divided: all devices share the work of one block. own: devices that this
    process has of them, the others being in further processes that torchrun's variables tell of; None: all. fusion: as
    of Options.fusion. shared: as of Options.shareWeights; None: the default of the front end poptorch, else abele.
    configure: called with the options."""

    def __init__(
        self, workload, devices, threads, own=None, fusion="exact", shared=None, divided=False, configure=None
    ):
        import abele
        import poptorch

        torch.set_num_threads(threads)
        model = workload.model()
        if divided:
            poptorch.BeginBlock(model.parts[0], ipu_id=range(devices))
        elif devices == 2:
            poptorch.BeginBlock(model.parts[0], ipu_id=0)
            poptorch.BeginBlock(model.parts[workload.cut], ipu_id=1)
        front = poptorch if shared is None else abele
        options = front.Options().fusion(fusion).randomSeed(SEED)
        if devices is None:
            options.setExecutionStrategy(front.PipelinedExecution(front.AutoStage.AutoSplit).devices("measured"))
        if shared is not None:
            options.shareWeights(shared)
        options.Training.gradientAccumulation(workload.micro_batches)
        options.outputMode(front.OutputMode.All)
        options.showCompilationProgressBar(False)
        if own is not None:
            options.Distributed.setEnvVarNames("WORLD_SIZE", "RANK").devicesPerProcess(own)
        if configure is not None:
            configure(options)
        self.model = front.trainingModel(model, options, workload.optimizer(model.parameters()))

    def step(self, x, target):
        return self.model(x, target)

    def heap_allocations(self):
        return self.model.report()["heap_allocations"]

    def placement(self):
        """The trials before the first step: milliseconds of a step by setup, and the setup that was taken."""
        import abele

        found, taken = {}, None
        for devices, threads, way, ms, verdict in re.findall(
            r"  (\d+) devices? of (\d+) threads?( that .*)?: ([\d.]+) ms a call, (.*)", abele.explain(self.model)
        ):
            setup = f"{devices}x{threads}" + ("/turns" if way else "")
            found[setup] = float(ms)
            taken = setup if verdict == "taken" else taken
        return {"measured_ms": found, "taken": taken}


class Predictions:
    """Outputs of the workload without a loss: of a step's micro-batches one by one, or (single) of one sample.

    kind: "eager", "compile" for torch.compile, or "DxT" for our devices, which take micro-batches in turn or are a
    pipeline."""

    def __init__(self, workload, kind, threads, single, in_turn):
        torch.set_num_threads(threads)
        self.size = workload.micro_batch
        self.single, self.ours = single, kind not in ("eager", "compile")
        model = workload.model()
        model = torch.nn.Sequential(*model.parts).eval()
        if self.ours:
            import poptorch

            options = poptorch.Options().deviceIterations(1 if single else workload.micro_batches)
            devices = int(kind.partition("x")[0])
            if in_turn:
                options.dataParallel(devices)
            elif devices == 2:
                poptorch.BeginBlock(model[0], ipu_id=0)
                poptorch.BeginBlock(model[workload.cut], ipu_id=1)
            options.showCompilationProgressBar(False)
            model = poptorch.inferenceModel(model, options)
        elif kind == "compile":
            model = torch.compile(model)
        self.model = model

    @torch.no_grad()
    def step(self, x, _):
        if self.single or self.ours:
            return self.model(x[:1] if self.single else x)
        return torch.cat([self.model(rows) for rows in x.split(self.size)])


def told(result):
    """A result as a pipe tells it: its numbers, or, of many, their digest."""
    return result.tolist() if result.numel() <= 64 else hashlib.sha256(result.contiguous().numpy()).hexdigest()


def build(name, workload):
    kind, _, threads = name.partition("-")
    if kind == "predict":  # predict-eager-2, predict-compile-2, predict-1x2, predict-2x1/turns; with /1: of one sample
        name, _, way = threads.partition("/")
        kind, _, threads = name.partition("-")
        return Predictions(workload, kind, int(threads or kind.partition("x")[2]), way == "1", way == "turns")
    if kind == "eager":
        return Eager(workload, int(threads))
    if name in PEERS:
        return PEERS[name].build(workload)
    apart = name.endswith("-apart")  # each device in a process of its own
    name, _, way = name.removesuffix("-apart").partition("/")
    ways = ("divided", "turns")  # "2x1/divided": one block; "2x1/turns": micro-batches in turn; "1x2/off": a fusion
    fusion = "exact" if way in ways else way or "exact"
    if name == "auto":
        return Compiled(workload, None, os.cpu_count(), fusion=fusion)
    devices, threads = (int(number) for number in name.split("x"))
    if way == "turns":
        return Compiled(workload, 1, threads, configure=lambda options: options.dataParallel(devices))
    return Compiled(workload, devices, threads, own=1 if apart else None, fusion=fusion, divided=way == "divided")


def serve(pipe, name, workload_name, environment=None):
    """Trains as many steps as the pipe asks for, as (first step, steps), until None comes."""
    try:
        os.environ.update(environment or {})
        workload = find(workload_name)
        batches = [workload.batch(step) for step in range(4)]
        begin = time.perf_counter()
        system = build(name, workload)
        pipe.send({"s": time.perf_counter() - begin})
        while (order := pipe.recv()) is not None:
            first, steps = order
            cpu, begin = time.process_time(), time.perf_counter()
            losses = [system.step(*batches[step % len(batches)]) for step in range(first, first + steps)]
            pipe.send(
                {
                    "s": time.perf_counter() - begin,
                    "cpu_s": time.process_time() - cpu,
                    "losses": [told(loss) for loss in losses],
                }
            )
        allocations = system.heap_allocations() if isinstance(system, Compiled) else None
        placement = system.placement() if name.startswith("auto") else None
        pipe.send({"peak_bytes": peak_bytes(), "heap_allocations": allocations, "placement": placement})
    except Exception:
        pipe.send({"error": traceback.format_exc()})

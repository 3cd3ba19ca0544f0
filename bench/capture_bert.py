"""What does it cost to capture and compile a model of BERT's size?

    ./dev bench capture_bert [--layers 12] [--width 768] [--length 128] [--batch 2]

Compilation executes one micro-batch, as eager PyTorch would; the goal is that everything beyond that takes less than
2 s, and that memory peaks at no more than 1.3 x what eager training of the same step takes. Each side runs in a process
of its own: compilation and one training step, or one eager micro-batch and one training step, with AdamW.
"""

import argparse
import json
import multiprocessing
import time

import torch
from support.machine import describe, peak_bytes
from support.workloads import Chain, encoder

VOCABULARY, HEADS, CLASSES = 30522, 12, 16
ACCUMULATION = 2


def make(args):
    torch.manual_seed(0)
    model = Chain(encoder(VOCABULARY, args.width, args.length, HEADS, args.layers, CLASSES))
    n = args.batch * ACCUMULATION
    inputs = torch.randint(VOCABULARY, (n, args.length)), torch.randint(CLASSES, (n,))
    return model, inputs, torch.optim.AdamW(model.parameters(), lr=1e-4)


def timed(call, times):
    begin = time.perf_counter()
    result = call()
    times.append(time.perf_counter() - begin)
    return result


def eager(pipe, args):
    torch.set_num_threads(args.threads)
    model, (x, target), optimizer = make(args)
    begin, times = peak_bytes(), []
    micro = x[: args.batch], target[: args.batch]

    def micro_batch():
        (model(*micro) / ACCUMULATION).backward()

    def step():
        optimizer.zero_grad()
        for rows in zip(x.split(args.batch), target.split(args.batch), strict=True):
            (model(*rows) / ACCUMULATION).backward()
        optimizer.step()

    timed(micro_batch, times)
    timed(micro_batch, times)
    after_micro_batch = peak_bytes()
    timed(step, times)
    pipe.send(
        {
            "first_micro_batch_s": times[0],
            "micro_batch_s": times[1],
            "start_mib": begin / 2**20,
            "micro_batch_mib": after_micro_batch / 2**20,
            "step_mib": peak_bytes() / 2**20,
        }
    )


def compiled(pipe, args):
    import poptorch

    torch.set_num_threads(args.threads)
    model, inputs, optimizer = make(args)
    begin, times = peak_bytes(), []
    options = poptorch.Options()
    options.Training.gradientAccumulation(ACCUMULATION)
    options.showCompilationProgressBar(False)
    executor = poptorch.trainingModel(model, options, optimizer)
    timed(lambda: executor.compile(*inputs), times)
    after_compile = peak_bytes()
    timed(lambda: executor(*inputs), times)
    pipe.send(
        {
            "compile_s": times[0],
            "start_mib": begin / 2**20,
            "compile_mib": after_compile / 2**20,
            "step_mib": peak_bytes() / 2**20,
        }
    )


def run(target, args):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, args))
    process.start()
    theirs.close()
    try:
        result = ours.recv()
    except EOFError:
        raise SystemExit(f"{target.__name__}: the process died") from None
    process.join()
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("layers", 12), ("width", 768), ("length", 128), ("batch", 2), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", help="write the results here")
    args = parser.parse_args()
    theirs, ours = run(eager, args), run(compiled, args)
    beyond = ours["compile_s"] - theirs["first_micro_batch_s"]
    ratio = ours["step_mib"] / theirs["step_mib"]
    print(f"eager micro-batch     {theirs['first_micro_batch_s']:7.2f} s, the second {theirs['micro_batch_s']:.2f} s")
    print(f"compile               {ours['compile_s']:7.2f} s, {beyond:.2f} s beyond the micro-batch (goal < 2)")
    print(
        f"peak after compile    {ours['compile_mib']:7.0f} MiB; eager after a micro-batch "
        f"{theirs['micro_batch_mib']:.0f} MiB"
    )
    print(
        f"peak after a step     {ours['step_mib']:7.0f} MiB; eager {theirs['step_mib']:.0f} MiB; ratio {ratio:.2f} "
        "(goal <= 1.3)"
    )
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"machine": describe(), "options": vars(args), "eager": theirs, "compiled": ours}, file, indent=1)


if __name__ == "__main__":
    main()

"""How close do AutoSplit's cuts come to the best of all cuts between blocks?

    ./dev bench autosplit                       24 blocks on 4 devices of one thread each
    ./dev bench autosplit --samples 9 --top 2

An unannotated transformer of 24 blocks is cut by AutoSplit, from estimates. Predicted: capture times every operator
(the median of several captures); the simulator runs all C(23,3) = 1771 ways to cut between blocks on these times, and
AutoSplit's own cuts. Measured: AutoSplit and the best few of the others train, each in a process of its own; they take
turns, one timed sample each. Four devices share the machine's cores where it has fewer; the result says how many.
"""

import argparse
import itertools
import json
import multiprocessing
import statistics
import time
from datetime import UTC, datetime

import abele
import torch
from support.machine import RESULTS, busy_seconds, describe
from torch import nn

BLOCKS, DEVICES, MICRO_BATCHES = 24, 4, 8
WIDTH, HEADS, LENGTH, VOCABULARY, BATCH = 128, 4, 64, 2000, 4


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        heads = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids, target):
        x = self.embed(ids)
        for number, layer in enumerate(self.layers):
            with abele.NameScope(f"block{number}"):
                x = layer(x)
        loss = nn.functional.cross_entropy(self.head(x).flatten(0, 1), target.flatten())
        return abele.identity_loss(loss, reduction="none")


def build(cuts):
    """cuts: blocks that begin the second and every later stage; None: AutoSplit. Returns: (compiled model, batch)."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Transformer()
    if cuts is None:
        strategy = abele.PipelinedExecution(abele.AutoStage.AutoSplit).devices(DEVICES)
    else:
        for stage, block in enumerate(cuts):
            abele.BeginBlock(model.layers[block], f"stage{stage + 1}")
        strategy = abele.PipelinedExecution(abele.AutoStage.AutoIncrement)
    options = abele.Options().randomSeed(1).setExecutionStrategy(strategy)
    options.Training.gradientAccumulation(MICRO_BATCHES)
    options.threadsPerDevice(1)
    compiled = abele.trainingModel(model, options, torch.optim.AdamW(model.parameters(), lr=1e-3))
    ids = torch.randint(VOCABULARY, (BATCH * MICRO_BATCHES, LENGTH + 1))
    batch = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    compiled.compile(*batch)
    return compiled, batch


# --- predicted --------------------------------------------------------------------------------------------------------
def measure_pieces(captures):
    """Every piece of the program with the median of its times over several captures."""
    runs = []
    for _ in range(captures):
        compiled, _ = build(None)
        runs.append(json.loads(compiled._executable.session.pieces()))
        compiled.destroy()
    pieces = runs[0]
    for i, piece in enumerate(pieces):
        for key in ("forward_ns", "backward_ns", "update_ns"):
            piece[key] = statistics.median(run[i][key] for run in runs)
    return pieces


def stages_of(pieces, begins):
    """Costs of the stages that begin at these pieces, the first one included."""
    ends = [*begins[1:], len(pieces)]
    keys = ("forward_ns", "backward_ns", "update_ns")
    return [
        {key: sum(piece[key] for piece in pieces[begin:end]) for key in keys}
        for begin, end in zip(begins, ends, strict=True)
    ]


def predict(pieces, begins):
    return abele.simulate(stages_of(pieces, begins), micro_batches=MICRO_BATCHES)["step_ns"]


def block_of(piece):
    scope = piece["scope"].split("/")[0]
    return int(scope[len("block") :]) if scope.startswith("block") else None


def predict_all(pieces):
    """Returns: (step of AutoSplit's cuts, [(step, cuts between blocks)] with the fastest first)."""
    first_piece = {}
    for index, piece in enumerate(pieces):
        first_piece.setdefault(block_of(piece), index)
    begins = [0] + [i for i in range(1, len(pieces)) if pieces[i]["stage"] != pieces[i - 1]["stage"]]
    assert len(begins) == DEVICES, begins
    between = []
    for cuts in itertools.combinations(range(1, BLOCKS), DEVICES - 1):
        between.append((predict(pieces, [0, *(first_piece[block] for block in cuts)]), cuts))
    where = [f"block {block_of(pieces[i])}, {pieces[i]['op']}" for i in begins[1:]]
    return predict(pieces, begins), where, sorted(between)


# --- measured ---------------------------------------------------------------------------------------------------------
def serve(pipe, cuts):
    compiled, batch = build(cuts)
    for _ in range(3):
        loss = compiled(*batch)
    pipe.send(loss.item())
    while (steps := pipe.recv()) is not None:
        start = time.perf_counter()
        for _ in range(steps):
            compiled(*batch)
        pipe.send((time.perf_counter() - start) / steps)


def measure(candidates, samples, steps, seconds):
    """candidates: name -> cuts. Returns: name -> seconds of each sample. They take turns, for at most `seconds`."""
    context = multiprocessing.get_context("spawn")
    pipes, processes, losses = {}, [], set()
    for name, cuts in candidates.items():
        pipes[name], theirs = context.Pipe()
        processes.append(context.Process(target=serve, args=(theirs, cuts), daemon=True))
        processes[-1].start()
        theirs.close()
        losses.add(pipes[name].recv())
    assert len(losses) == 1, f"cuts changed the loss: {losses}"
    times = {name: [] for name in candidates}
    begin, busy = time.perf_counter(), busy_seconds()
    for turn in range(samples):
        if turn >= 3 and time.perf_counter() - begin > seconds:
            break
        for name in candidates:
            pipes[name].send(steps)
            times[name].append(pipes[name].recv())
    busy = (busy_seconds() - busy) / (time.perf_counter() - begin)
    for pipe in pipes.values():
        pipe.send(None)
    for process in processes:
        process.join()
    return times, busy


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--captures", type=int, default=5)
    parser.add_argument("--samples", type=int, default=15, help="of each candidate")
    parser.add_argument("--steps", type=int, default=2, help="of a sample")
    parser.add_argument("--top", type=int, default=3, help="cuts between blocks that are measured")
    parser.add_argument("--seconds", type=float, default=150, help="at most, for the samples")
    arguments = parser.parse_args()

    pieces = measure_pieces(arguments.captures)
    ours, where, between = predict_all(pieces)
    best = between[0][0]
    print(f"{len(pieces)} pieces; AutoSplit cuts at: {'; '.join(where)}")
    print(
        f"predicted on measured times: AutoSplit {ours / 1e6:.2f} ms, best of {len(between)} cuts between blocks "
        f"{best / 1e6:.2f} ms {between[0][1]}, worst {between[-1][0] / 1e6:.2f} ms: ratio {ours / best:.3f}"
    )
    candidates = {"AutoSplit": None} | {str(cuts): cuts for _, cuts in between[: arguments.top]}
    candidates["slowest: " + str(between[-1][1])] = between[-1][1]
    times, busy = measure(candidates, arguments.samples, arguments.steps, arguments.seconds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    least = min(seconds for name, seconds in medians.items() if name != "AutoSplit")
    for name, seconds in medians.items():
        print(f"measured {seconds * 1e3:8.2f} ms  {seconds / least:6.3f} of the best  {name}")
    print(f"{describe()['cores']} cores, {busy:.2f} of them busy")
    RESULTS.mkdir(exist_ok=True)
    result = {
        "benchmark": "autosplit",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe(),
        "predicted_ms": {"AutoSplit": ours / 1e6, "best": best / 1e6, "worst": between[-1][0] / 1e6},
        "predicted_ratio": ours / best,
        "measured_ms": {name: seconds * 1e3 for name, seconds in medians.items()},
        "measured_ratio": medians["AutoSplit"] / least,
        "samples": {name: len(values) for name, values in times.items()},
    }
    (RESULTS / "autosplit.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Do published vision models give eager PyTorch's bits? Random weights, small images, no downloads.

    pip install --no-deps --target FOLDER -r requirements-vision.txt
    PYTHONPATH=FOLDER ./dev bench walk_vision [--library timm torchvision] [--match resnet] [--most 20] [--json FILE]

Of timm one model of each family (a module of timm.models): the one with the fewest parameters. Of torchvision every
classifier. Each is compared in a process of its own: an inference, and two steps of SGD with momentum; results, weights
and buffers must be the same bits as those of eager PyTorch with one thread. A model that eager PyTorch itself refuses
at every image size tried is left out and counted.
"""

import argparse
import fnmatch
import multiprocessing
import sys
import time

from support.results import write_if_asked

SIZES = (32, 64, 96, 128, 224)
LIMIT_S = 600
CLASSES, BATCH = 4, 2


def timm_names():
    import timm
    import torch

    chosen = []
    for family in timm.list_modules():
        counts = []
        for name in timm.list_models(module=family):
            try:
                with torch.device("meta"):
                    model = timm.create_model(name, num_classes=CLASSES)
                counts.append((sum(p.numel() for p in model.parameters()), name))
            except Exception:  # models that cannot be made without memory: any other of the family will do
                continue
        if counts:
            chosen.append(min(counts)[1])
    return chosen


def names_of(library):
    if library == "timm":
        return timm_names()
    import torchvision

    return [
        name for name in torchvision.models.list_models(module=torchvision.models) if not name.startswith("quantized")
    ]


def make(library, name, size):
    if library == "timm":
        import timm

        try:
            return timm.create_model(name, num_classes=CLASSES, img_size=size)
        except TypeError:
            return timm.create_model(name, num_classes=CLASSES)
    import torchvision

    sizes = {"image_size": size} if name.startswith("vit") else {}
    extra = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    return torchvision.models.get_model(name, weights=None, num_classes=CLASSES, **sizes, **extra)


def logits(result):
    return result[0] if isinstance(result, tuple) else result


def first_size(library, name):
    """The smallest image that eager PyTorch takes in training; None: none of them."""
    import torch

    for size in SIZES:
        try:
            torch.manual_seed(0)
            logits(make(library, name, size).train()(torch.randn(BATCH, 3, size, size))).sum().backward()
            return size
        except Exception:
            continue
    return None


def compare(pipe, library, name):
    """Sends what differs; empty: nothing, "refused: ..." : an error of ours, None: eager PyTorch refuses."""
    import abele
    import torch
    from torch import nn

    class Classifier(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.loss = inner, nn.CrossEntropyLoss()

        def forward(self, x, target=None):
            out = logits(self.inner(x))
            return out if target is None else (out, self.loss(out, target))

    def built():
        torch.manual_seed(0)
        return Classifier(make(library, name, size))

    torch.set_num_threads(1)
    size = first_size(library, name)
    if size is None:
        pipe.send(None)
        return
    x, target = torch.randn(BATCH, 3, size, size), torch.randint(CLASSES, (BATCH,))
    options = lambda: abele.Options().showCompilationProgressBar(False).randomSeed(7)  # noqa: E731
    try:
        plain, mine = built().eval(), built().eval()
        with torch.no_grad():
            expected = plain(x)
        if not torch.equal(abele.inferenceModel(mine, options())(x), expected):
            pipe.send("inference")
            return
        plain, mine = built().train(), built().train()
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9) for m in (plain, mine)]
        executor = abele.trainingModel(mine, options(), optimizers[1])
        torch.manual_seed(7)
        for step in range(2):
            optimizers[0].zero_grad()
            out, loss = plain(x, target)
            loss.backward()
            optimizers[0].step()
            ours = executor(x, target)
            if not (torch.equal(ours[0], out) and torch.equal(ours[1], loss)):
                pipe.send(f"results of step {step}")
                return
        executor.copyWeightsToHost()
        states = plain.state_dict(), mine.state_dict()
        wrong = [key for key, value in states[0].items() if not torch.equal(value, states[1][key])]
        pipe.send(f"weights {wrong[:3]}" if wrong else "")
    except Exception as error:
        pipe.send(f"refused: {type(error).__name__} {error}".splitlines()[0])


def run_apart(library, name):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=compare, args=(theirs, library, name))
    process.start()
    theirs.close()
    try:
        found = ours.recv() if ours.poll(LIMIT_S) else f"no answer in {LIMIT_S} s"
    except EOFError:
        found = "crash"
    process.kill()
    process.join()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", nargs="+", choices=("timm", "torchvision"), default=["timm", "torchvision"])
    parser.add_argument("--match", default="*", help="names, as a shell pattern")
    parser.add_argument("--most", type=int, help="at most so many models of a library")
    parser.add_argument("--json", help="write the results here")
    args = parser.parse_args()
    results = {}
    for library in args.library:
        begin = time.perf_counter()
        names = [name for name in names_of(library) if fnmatch.fnmatch(name, args.match)][: args.most]
        found = {name: run_apart(library, name) for name in names}
        results[library] = found
        for name, text in found.items():
            if text:
                print(f"{library} {name}: {text}")
        equal = sum(text == "" for text in found.values())
        skipped = sum(text is None for text in found.values())
        print(
            f"{library}: {equal} of {len(found) - skipped} models equal, {skipped} that eager PyTorch refuses, "
            f"{time.perf_counter() - begin:.0f} s",
            flush=True,
        )
    write_if_asked(args, results=results)
    return 0 if all(not text for found in results.values() for text in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

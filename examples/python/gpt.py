"""Trains a small GPT on a text, as a pipeline, and lets it write: examples/cpp/gpt.cpp is the same in C++.

    python gpt.py                          the licence of this repository, two devices, a minute
    python gpt.py --devices 4 --text FILE  a text of yours
    python gpt.py --print-losses           every step's loss; the program in C++ prints the same digits

The second program has another forward of the same weights: one token a call, with the keys and values of the tokens
before it in buffers on the devices. Eager PyTorch writes the same text, with the same bits in its cache.
"""

import argparse
import time

import abele
import torch
from gpt_model import GPT, TEXT, Text, Writer, write

MICRO_BATCH, MICRO_BATCHES = 2, 8
CONTEXT = 128  # characters that the model sees at once


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[2], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", default=TEXT, help="a file of text; default: the licence")
    parser.add_argument("--devices", type=int, default=2, choices=(1, 2, 4))
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--prompt", default="You may ")
    parser.add_argument("--length", type=int, default=CONTEXT, help="characters to write, the prompt's among them")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: always the likeliest character")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--print-losses", action="store_true", help="print the loss of every step with all its digits")
    return parser.parse_args()


def settings():
    options = abele.Options().showCompilationProgressBar(False)
    options.threadsPerDevice(1)
    return options


def train(net, text, args):
    """Weights are the module's again afterwards."""
    options = settings()
    options.Training.gradientAccumulation(MICRO_BATCHES)
    options.outputMode(abele.OutputMode.All)
    model = abele.trainingModel(net, options, torch.optim.AdamW(net.parameters(), lr=3e-3))
    random = torch.Generator().manual_seed(args.seed)
    begin = time.perf_counter()
    for step in range(args.steps):
        _, losses = model(*text.pieces(MICRO_BATCH * MICRO_BATCHES, net.context, random))
        if args.print_losses:
            print(f"step {step} loss {losses.mean().item():.9g}")
        elif step % 50 == 0 or step == args.steps - 1:
            print(f"step {step:4}  loss {losses.mean().item():.3f}  {time.perf_counter() - begin:5.1f} s")
    for stage in model.report()["stages"]:
        print(
            f"stage {stage['name']} on device {stage['device']}: {stage['busy_ns'] / 1e6:.1f} ms busy in the last step"
        )
    model.destroy()


def main():
    args = parse()
    text = Text(args.text)
    prompt = text.encode(args.prompt)
    torch.manual_seed(args.seed)
    net = GPT(len(text.characters), args.devices, context=max(CONTEXT, args.length))
    train(net, text, args)

    net.eval()
    compiled = abele.inferenceModel(Writer(net), settings())
    begin = time.perf_counter()
    tokens = write(compiled, prompt, args.length, args.temperature, args.seed)
    seconds = time.perf_counter() - begin
    print(f"\n{text.decode(tokens)}\n")

    eager = Writer(net)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as each device has
    theirs = write(eager, prompt, args.length, args.temperature, args.seed)
    torch.set_num_threads(threads)
    print(f"{args.length / seconds:.0f} characters a second")
    print(f"eager PyTorch writes {'the same' if theirs == tokens else 'ANOTHER TEXT'}")
    compiled.copyWeightsToHost()  # buffers, too
    same = all(torch.equal(compiled.state_dict()[name], value) for name, value in eager.named_buffers())
    print(f"keys and values in the cache: {'equal to eager, bit for bit' if same else 'DIFFERENT'}")
    if not args.temperature:
        likeliest = net(torch.tensor([tokens[:-1]]))[0].argmax(1)[len(prompt) - 1 :]
        same = torch.equal(likeliest, torch.tensor(tokens[len(prompt) :]))
        print(f"without a cache it writes {'the same' if same else 'ANOTHER TEXT'}")


if __name__ == "__main__":
    main()

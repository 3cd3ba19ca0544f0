"""Serves a small network from many threads: requests of any number of rows run together in full batches.

    python serving.py                        8 threads, 400 requests; one in 50 is wrong, and its thread alone hears so

The network reads handwritten digits and is trained first, for a few seconds.
"""

import argparse
import concurrent.futures
import random
import threading

import abele
import digits_data
import torch
from digits_models import VisionTransformer
from torch.utils.data import TensorDataset


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[2], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--batch", type=int, default=32, help="rows of one call of the model")
    parser.add_argument("--longest-wait-ms", type=float, default=2.0, help="of a request for others to fill its batch")
    parser.add_argument("--epochs", type=int, default=3)
    return parser.parse_args()


def train(net, data, epochs):
    options = abele.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(8)
    loader = abele.DataLoader(options, TensorDataset(*data), batch_size=8, shuffle=True)
    model = abele.trainingModel(net, options, torch.optim.AdamW(net.parameters(), lr=3e-3))
    for _ in range(epochs):
        for batch in loader:
            model(*batch)
    model.destroy()


class Clients:
    """Threads that ask for the digits of some images each, and look whether they get the answers to their own."""

    def __init__(self, server, images, expected):
        self.server, self.images, self.expected = server, images, expected
        self._count = threading.Lock()
        self.answered = self.refused = 0

    def __call__(self, number):
        choice = random.Random(number)
        first = choice.randrange(len(self.images) - 40)
        rows = slice(first, first + choice.randint(1, 40))  # more than a batch, too
        wrong = number % 50 == 49
        try:
            logits = self.server(self.images[rows, :, :7] if wrong else self.images[rows])
        except Exception as error:
            if not wrong:
                raise
            with self._count:
                self.refused += 1
                if self.refused == 1:
                    print("the first wrong request heard:", str(error).splitlines()[0])
            return
        torch.testing.assert_close(logits, self.expected[rows])
        with self._count:
            self.answered += 1


def main():
    args = parse()
    torch.manual_seed(0)
    train_data, (images, labels) = digits_data.load()
    net = VisionTransformer()
    train(net, train_data, args.epochs)
    net.eval()
    with torch.no_grad():
        expected = net(images)
    print(f"trained: {100 * (expected.argmax(1) == labels).float().mean().item():.1f} % of the test digits are right")

    options = abele.Options().deviceIterations(4).showCompilationProgressBar(False)  # 4 micro-batches a call
    model = abele.inferenceModel(net, options)
    model.compile(torch.zeros(args.batch, *images.shape[1:]))
    with abele.serve(model, longest_wait_ms=args.longest_wait_ms) as server:
        clients = Clients(server, images, expected)
        with concurrent.futures.ThreadPoolExecutor(args.threads) as threads:
            list(threads.map(clients, range(args.requests)))
        seen = server.statistics()
    print(f"{clients.answered} requests have their own rows back, {clients.refused} wrong ones an error")
    print(f"{seen.rows} rows in {seen.batches} batches; {seen.filling_rows} rows only filled")
    print(f"time from request to answer: half within {1e3 * seen.p50_s:.1f} ms, 99 % within {1e3 * seen.p99_s:.1f} ms")


if __name__ == "__main__":
    main()

"""Costs of a GPT's stages for abele-sim, from its sizes: docs/scale/gpt_*.json are made by it.

    scripts/gpt_costs.py --layers 40 --width 4608 --machine docs/scale/fast_network.json > gpt_10b.json

Counted for each layer and token, of a width d and a sequence s: 24 d^2 + 4 s d operations forward (12 d^2 weights, two
products of attention), twice as many backward, of which 24 d^2 make gradients of weights. Everything is float32:
16 bytes of a weight (itself, its gradient sum, two moments of Adam), 68 d bytes kept for backward, or with --recompute
the input alone, 4 d. An update reads and writes 28 bytes of a weight at MEMORY_BYTES_PER_S.
"""

import argparse
import json
from pathlib import Path

MEMORY_BYTES_PER_S = 2e12
STATE_BYTES, UPDATE_BYTES, NUMBER_BYTES = 16, 28, 4
KEPT_NUMBERS = 17


def stage(operations, weights, tokens, width, kept, flops_per_s, recompute):
    """operations: forward, backward without gradients of weights, gradients of weights."""
    forward, backward, weight_grad = (round(1e9 * tokens * work / flops_per_s) for work in operations)
    return {
        "forward_ns": forward,
        "backward_ns": backward + (forward if recompute else 0),
        "weight_grad_ns": weight_grad,
        "update_ns": round(1e9 * UPDATE_BYTES * weights / MEMORY_BYTES_PER_S),
        "persistent_bytes": STATE_BYTES * weights,
        "gradient_bytes": NUMBER_BYTES * weights,
        "stash_bytes": NUMBER_BYTES * tokens * width * (1 if recompute else kept),
        "forward_bytes": NUMBER_BYTES * tokens * width,
        "backward_bytes": NUMBER_BYTES * tokens * width,
    }


def costs(layers, width, sequence, vocabulary, flops_per_s, recompute=False):
    """A layer is a stage; abele-sim --devices shares them out. The first entry is the embedding, the last the head."""
    product, attention = 24 * width**2, 4 * sequence * width
    layer = (product + attention, product + 2 * attention, product)
    head = 2 * width * vocabulary
    common = {"tokens": sequence, "width": width, "flops_per_s": flops_per_s}
    table = width * vocabulary
    return {
        "stages": [
            stage((0, 0, 0), table, kept=1, recompute=False, **common),
            {**stage(layer, 12 * width**2, kept=KEPT_NUMBERS, recompute=recompute, **common), "repeat": layers},
            stage((head, head, head), table, kept=1, recompute=False, **common),
        ]
    }


def text(content):
    stages = ",\n  ".join(json.dumps(entry) for entry in content["stages"])
    return f'{{"stages": [\n  {stages}]}}\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--sequence", type=int, default=2048, help="tokens of a micro-batch")
    parser.add_argument("--vocabulary", type=int, default=51200)
    parser.add_argument("--machine", type=Path, required=True, help="whose device is asked for its flops_per_s")
    parser.add_argument("--recompute", action="store_true", help="backward makes each layer again from its input")
    given = parser.parse_args()
    flops_per_s = json.loads(given.machine.read_text())["device"]["flops_per_s"]
    print(
        text(costs(given.layers, given.width, given.sequence, given.vocabulary, flops_per_s, given.recompute)), end=""
    )


if __name__ == "__main__":
    main()

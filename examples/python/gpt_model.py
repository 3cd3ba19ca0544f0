"""A small GPT on characters, cut into pipeline stages, and its form that writes text with a cache of keys and values.

examples/cpp/gpt_model.h is the same in C++.
"""

from pathlib import Path

import abele
import torch
import torch.nn.functional as F
from torch import nn

TEXT = Path(__file__).resolve().parents[2] / "LICENSE"


class Text:
    """A text as numbers: each character that occurs has one, in the order of the alphabet."""

    def __init__(self, path=TEXT):
        self.text = Path(path).read_text(encoding="utf-8")
        self.characters = sorted(set(self.text))
        self._number = {character: number for number, character in enumerate(self.characters)}
        self.tokens = self.encode(self.text)

    def encode(self, text):
        unknown = sorted(set(text) - set(self._number))
        if unknown:
            raise ValueError(f"the text has no {', '.join(map(repr, unknown))}")
        return torch.tensor([self._number[character] for character in text])

    def decode(self, tokens):
        return "".join(self.characters[token] for token in tokens)

    def pieces(self, count, length, random):
        """Pieces of the text that begin anywhere, and the character after each of theirs.

        Shapes: two of [count, length]
        """
        begins = torch.randint(len(self.tokens) - length, (count,), generator=random)
        rows = begins.unsqueeze(1) + torch.arange(length)
        return self.tokens[rows], self.tokens[rows + 1]


class Layer(nn.Module):
    """Pre-norm transformer layer."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.proj = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.norm2, self.up, self.down = nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        """Every token sees itself and those before it. Shapes: [rows, tokens, dim]"""
        q, k, v = self._heads_of(x)
        return self._out(x, F.scaled_dot_product_attention(q, k, v, is_causal=True))

    def next(self, x, keys, values, position, seen):
        """The token at `position` alone, which adds its key and value to those before it.

        Shapes: x [rows, 1, dim]; keys and values [rows, heads, context, dim / heads], written in place;
            position [1]; seen [1, context], False where there is no token yet
        """
        q, k, v = self._heads_of(x)
        keys.index_copy_(2, position, k)
        values.index_copy_(2, position, v)
        return self._out(x, F.scaled_dot_product_attention(q, keys, values, attn_mask=seen))

    def _heads_of(self, x):
        rows, tokens, dim = x.shape
        qkv = self.qkv(self.norm1(x)).view(rows, tokens, 3, self.heads, dim // self.heads)
        return qkv.permute(2, 0, 3, 1, 4).unbind(0)

    def _out(self, x, mixed):
        x = x + self.proj(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Shapes: tokens and targets [rows, tokens]; logits [rows, tokens, characters]"""

    def __init__(self, characters, devices=2, context=64, dim=64, heads=4, layers=4):
        super().__init__()
        self.context, self.dim, self.heads, self.devices = context, dim, heads, devices
        self.embed = nn.Embedding(characters, dim)
        self.place = nn.Embedding(context, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, characters)

    def begin(self, layer):
        """Assigns the following operators to the device of this layer. Outside of Abele it does nothing."""
        abele.Block.start(f"layer{layer}", ipu_id=layer * self.devices // len(self.layers))

    def forward(self, tokens, targets=None):
        self.begin(0)
        x = self.embed(tokens) + self.place.weight[: tokens.shape[1]]
        for number, layer in enumerate(self.layers):
            self.begin(number)
            x = layer(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Writer(nn.Module):
    """A GPT that reads one token a call. All shapes are fixed: the keys and values of a whole context are buffers, of
    which a mask hides the part that is not written yet. Position 0 begins a new text.

    Shapes: tokens [rows]; position [1]; logits of the next token [rows, characters]
    """

    def __init__(self, gpt, rows=1):
        super().__init__()
        self.gpt = gpt
        for name in self._names():
            self.register_buffer(name, torch.zeros(rows, gpt.heads, gpt.context, gpt.dim // gpt.heads))

    def _names(self):
        return [f"{what}{number}" for number in range(len(self.gpt.layers)) for what in ("keys", "values")]

    def forward(self, tokens, position):
        gpt = self.gpt
        gpt.begin(0)
        seen = torch.arange(gpt.context).unsqueeze(0) <= position
        x = (gpt.embed(tokens) + gpt.place(position)).unsqueeze(1)
        for number, layer in enumerate(gpt.layers):
            gpt.begin(number)
            keys, values = getattr(self, f"keys{number}"), getattr(self, f"values{number}")
            x = layer.next(x, keys, values, position, seen)
        return gpt.head(gpt.norm(x)).squeeze(1)


def write(step, prompt, length, temperature=0.0, seed=0):
    """Tokens of a text that begins with a prompt.

    Args:
        step: a Writer of one row, eager or compiled.
        prompt: its first tokens, [at least 1].
        length: tokens altogether, at most the Writer's context.
        temperature: 0 takes the likeliest character; 1 draws as the model says.
    """
    random, tokens = torch.Generator().manual_seed(seed), prompt.tolist()
    for position in range(length - 1):
        with torch.no_grad():
            logits = step(torch.tensor([tokens[position]]), torch.tensor([position]))
        if position + 1 < len(prompt):
            continue  # the prompt says what follows
        if temperature:
            tokens.append(torch.multinomial(torch.softmax(logits[0] / temperature, 0), 1, generator=random).item())
        else:
            tokens.append(logits[0].argmax().item())
    return tokens

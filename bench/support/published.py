"""Five training steps of models that people train, built by their libraries with random weights.

    .venv/bin/pip install --no-deps --target build/models -r requirements-models.txt

A real step has 16 (GPT-2) or 64 (BERT) micro-batches and takes minutes on two cores. A step here has 4 or 8, so that
all five models take 20 minutes. That favours eager PyTorch: pipelines wait for a larger part of a short step. "gpt2@16"
is GPT-2 with 16 micro-batches a step. The Llama has 12 of 30 layers, and BERT does not predict next sentences.
"""

import contextlib
import dataclasses
import functools
import io
import sys
from pathlib import Path

import torch
from torch import nn

from .workloads import WORKLOADS, Workload, adamw, labelled_noise, sequences, sgd

LIBRARIES = Path(__file__).resolve().parents[2] / "build" / "models"
MASKED = 20  # tokens that BERT predicts, of 128
_operators = []  # registered as long as they are kept


@contextlib.contextmanager
def libraries():
    """Imports of the libraries work inside."""
    if not _operators:  # a new process may have sys.path of the one that started it
        sys.path.append(str(LIBRARIES))
        # PyPI's torchvision is built for CUDA: its kernels do not load, and its import asks for their names.
        operators = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _operators.append(operators)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # transformers prints notes for its own developers
            yield
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}; install requirements-models.txt into {LIBRARIES}") from None


class Positioned(nn.Module):
    """Tokens and learned positions of a GPT-2."""

    def __init__(self, model):
        super().__init__()
        self.token, self.position = model.wte, model.wpe

    def forward(self, tokens):
        return self.token(tokens) + self.position.weight[: tokens.shape[1]]


class MaskedTokens(nn.Module):
    """Predicts the masked tokens alone. A sequence begins with them, so that none needs to be looked up."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, x):
        return self.head(x[:, :MASKED])


class Patches(nn.Module):
    """Patches, the class token and learned positions of a ViT."""

    def __init__(self, model):
        super().__init__()
        self.embed, self.token, self.position = model.patch_embed, model.cls_token, model.pos_embed

    def forward(self, x):
        x = self.embed(x)
        return torch.cat((self.token.expand(len(x), -1, -1), x), 1) + self.position


class FirstToken(nn.Module):
    def __init__(self, norm, head):
        super().__init__()
        self.norm, self.head = norm, head

    def forward(self, x):
        return self.head(self.norm(x)[:, 0])


class Rotated(nn.Module):
    """A layer of a Llama, with the sines and cosines of its positions."""

    def __init__(self, layer, rotary, length):
        super().__init__()
        self.layer = layer
        for name, value in zip(("cos", "sin"), rotary(torch.empty(0), torch.arange(length)[None]), strict=True):
            self.register_buffer(name, value, persistent=False)

    def forward(self, x):
        return self.layer(x, position_embeddings=(self.cos, self.sin))


def gpt2():
    """GPT-2 small, 124 M parameters; without dropout, as it is trained today."""
    with libraries():
        from transformers import GPT2Config, GPT2LMHeadModel
    model = GPT2LMHeadModel(GPT2Config(embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0))
    body = model.transformer
    return [Positioned(body), *body.h, nn.Sequential(body.ln_f, model.lm_head)]


def bert_base():
    """Phase 1 of its training, with dropout; only the loss of the masked tokens."""
    with libraries():
        from transformers import BertConfig, BertForMaskedLM
    model = BertForMaskedLM(BertConfig())
    return [model.bert.embeddings, *model.bert.encoder.layer, MaskedTokens(model.cls)]


def resnet_50():
    with libraries():
        from torchvision.models import resnet50
    model = resnet50(weights=None)
    blocks = [block for layer in (model.layer1, model.layer2, model.layer3, model.layer4) for block in layer]
    stem = nn.Sequential(model.conv1, model.bn1, model.relu, model.maxpool)
    return [stem, *blocks, nn.Sequential(model.avgpool, nn.Flatten(), model.fc)]


def vit_small():
    with libraries():
        from timm import create_model
    model = create_model("vit_small_patch16_224")
    return [Patches(model), *model.blocks, FirstToken(model.norm, model.head)]


def llama(heads=9, keys=3):
    """12 layers in the shape of SmolLM-135M, with three queries to a key."""
    with libraries():
        from transformers import LlamaConfig, LlamaForCausalLM
    shape = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": heads, "num_key_value_heads": keys}
    model = LlamaForCausalLM(LlamaConfig(**shape, num_hidden_layers=12, vocab_size=49152))
    layers = [Rotated(layer, model.model.rotary_emb, 512) for layer in model.model.layers]
    return [model.model.embed_tokens, *layers, nn.Sequential(model.model.norm, model.lm_head)]


def masked_sequences(vocabulary, length):
    def sample(generator, n):
        tokens = torch.randint(vocabulary, (n, length), generator=generator)
        return tokens, torch.randint(vocabulary, (n, MASKED), generator=generator)

    return sample


IMAGES = labelled_noise((3, 224, 224), 1000)
PUBLISHED = {
    work.name: work
    for work in (
        Workload("gpt2", gpt2, sequences(50257, 1024), adamw, 1, 9, (5, 9, 13), micro_batches=4),
        Workload("bert-base", bert_base, masked_sequences(30522, 128), adamw, 2, 7, (4, 7, 10), micro_batches=8),
        Workload("resnet-50", resnet_50, IMAGES, sgd, 4, 8, (4, 8, 12), micro_batches=4),
        Workload("vit-small", vit_small, IMAGES, adamw, 4, 7, (4, 7, 10), micro_batches=4),
        Workload("llama", llama, sequences(49152, 512), adamw, 1, 10, (6, 10, 13), micro_batches=4),
    )
}
# Two processes share its heads evenly.
EVEN_LLAMA = dataclasses.replace(PUBLISHED["llama"], name="llama-8", parts=functools.partial(llama, heads=8, keys=4))
SETS = {"small": WORKLOADS, "published": PUBLISHED}
ALL = WORKLOADS | PUBLISHED | {"llama-8": EVEN_LLAMA}


def find(name):
    """The workload of a name, or of "name@n": with n micro-batches a step."""
    plain, _, number = name.partition("@")
    if plain not in ALL:
        raise SystemExit(f"no workload {plain}; there are {', '.join(ALL)}")
    return dataclasses.replace(ALL[plain], name=name, micro_batches=int(number)) if number else ALL[plain]


def stem(benchmark, words):
    """The name of a benchmark's results for these workloads."""
    return f"{benchmark}{'-published' if words == 'published' else ''}"


def named(words):
    """The workloads of "small", "published", or of names with commas between them."""
    return [find(name) for name in SETS.get(words, words.split(","))]

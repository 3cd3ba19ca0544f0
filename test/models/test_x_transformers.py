"""Networks of x_transformers, small and with random weights."""

import pytest
import torch
from called import Called, classes
from walk import Row, check

WORDS = 99


def text(rows):
    return {"x": torch.randint(WORDS, (rows, 16)), "labels": torch.randint(WORDS, (rows, 16))}


def next_word(result, batch):
    return classes(result.flatten(0, 1), {"labels": batch["labels"].flatten()})


def row(name, stages, **settings):
    def make():
        import x_transformers

        layers = x_transformers.Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, **settings)
        return Called(x_transformers.TransformerWrapper(num_tokens=WORDS, max_seq_len=32, attn_layers=layers))

    return Row(f"TransformerWrapper, {name}", make, text, stages, loss=next_word)


ROWS = [
    row("rotary_pos_emb", 2, rotary_pos_emb=True),
    row("attn_qk_norm, attn_kv_heads", 3, attn_qk_norm=True, attn_kv_heads=2),
    row("macaron, gate_residual, shift_tokens", 2, macaron=True, gate_residual=True, shift_tokens=1),
    row("ff_glu, use_rmsnorm", 2, ff_glu=True, ff_swish=True, use_rmsnorm=True),
    row("num_residual_streams", 2, num_residual_streams=2),
]


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_class(row, mode):
    pytest.importorskip("x_transformers")
    check(row, mode)

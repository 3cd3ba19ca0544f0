"""Libraries that were published for PopTorch, unmodified: they run, with the losses and weights of eager PyTorch.

Skipped where they are not installed. They pin old versions of much else, so they get a folder of their own:
  pip install --no-deps --target FOLDER -r requirements-clients.txt
  PYTHONPATH=FOLDER python -m pytest test/client/test_published_libraries.py
"""

import copy

import poptorch
import pytest
import torch

ROWS, LENGTH, WORDS = 8, 16, 104
ENCODER = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": WORDS,
    "max_position_embeddings": 80,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
SPEECH = {
    **{key: ENCODER[key] for key in list(ENCODER)[:5]},
    **dict.fromkeys(("mask_time_prob", "layerdrop", "hidden_dropout", "attention_dropout"), 0.0),
    **dict.fromkeys(("feat_proj_dropout", "final_dropout", "activation_dropout"), 0.0),
    "conv_dim": (8, 8),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}
DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 32}
BART = {
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 64),
    "vocab_size": WORDS,
    "d_model": 32,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "dropout": 0.0,
    "decoder_start_token_id": 2,
}
T5 = {
    "vocab_size": WORDS,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.0,
}
GPT2 = {
    "n_embd": 32,
    "n_layer": 4,
    "n_head": 4,
    "vocab_size": WORDS,
    "n_positions": 64,
    "pad_token_id": 0,
    **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
}
IMAGES = {"image_size": 32, "patch_size": 8}


def words(*shape):
    return torch.randint(3, 99, shape)


def text(**labels):
    mask = torch.ones(ROWS, LENGTH, dtype=torch.long)
    mask[:, -3:] = 0
    return {"input_ids": words(ROWS, LENGTH), "attention_mask": mask, **labels}


def classes(count=2, *shape):
    return torch.randint(0, count, (ROWS, *shape))


INPUTS = {
    "ForMaskedLM": lambda: text(labels=words(ROWS, LENGTH)),
    "LMHeadModel": lambda: text(labels=words(ROWS, LENGTH)),
    "ForConditionalGeneration": lambda: text(labels=words(ROWS, LENGTH)),
    "ForPreTraining": lambda: text(labels=words(ROWS, LENGTH), next_sentence_label=classes()),
    "ForSequenceClassification": lambda: text(labels=classes()),
    "ForTokenClassification": lambda: text(labels=classes(2, LENGTH)),
    "ForQuestionAnswering": lambda: text(start_positions=classes(LENGTH), end_positions=classes(LENGTH)),
    "ForImageClassification": lambda: {"pixel_values": torch.randn(ROWS, 3, 32, 32), "labels": classes()},
    "ForCTC": lambda: {"input_values": torch.randn(ROWS, 400), "labels": torch.randint(1, 99, (ROWS, 5))},
    "ForSpeech": lambda: {"input_features": torch.randn(ROWS, 8, 40), "labels": words(ROWS, LENGTH)},
    "ForSounds": lambda: {"input_values": torch.randn(ROWS, 400), "labels": classes()},
}
# Family, settings, layers by device, tasks. A task's inputs, where they are not those of its name, follow "/".
MODELS = [
    ("Bert", ENCODER, [2, 2], "ForSequenceClassification ForTokenClassification ForQuestionAnswering ForMaskedLM"),
    ("Bert", ENCODER, [2, 2], "ForPreTraining"),
    ("Roberta", ENCODER, [2, 2], "ForMaskedLM ForSequenceClassification ForQuestionAnswering ForTokenClassification"),
    ("Deberta", ENCODER | DEBERTA, [2, 2], "ForMaskedLM ForQuestionAnswering"),
    ("MPNet", ENCODER, [2, 2], "ForMaskedLM"),
    ("GPT2", GPT2, [2, 2], "LMHeadModel ForSequenceClassification ForTokenClassification"),
    ("ViT", ENCODER | IMAGES, [2, 2], "ForImageClassification"),
    ("T5", T5, [2, 2], "ForConditionalGeneration"),
    ("MT5", T5, [2, 2], "ForConditionalGeneration"),
    ("Bart", BART | {"max_position_embeddings": 64}, [2, 2], "ForConditionalGeneration"),
    ("Wav2Vec2", SPEECH, [4, 4], "ForCTC"),
    ("Hubert", SPEECH, [2, 2], "ForSequenceClassification/ForSounds"),
    (
        "Whisper",
        BART | {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 32, "suppress_tokens": []},
        [2, 2],
        "ForConditionalGeneration/ForSpeech",
    ),
]
CASES = [(family, task, settings, layers) for family, settings, layers, tasks in MODELS for task in tasks.split()]


def loss_of(result):
    return result.loss if hasattr(result, "loss") else result[0]


@pytest.mark.parametrize(("family", "task", "settings", "layers"), CASES, ids=[f"{c[0]}{c[1]}" for c in CASES])
def test_optimum_graphcore(family, task, settings, layers, one_thread):
    optimum = pytest.importorskip("optimum.graphcore")
    transformers = pytest.importorskip("transformers")
    from optimum.graphcore.modeling_utils import to_pipelined

    task, _, inputs = task.partition("/")
    torch.manual_seed(1)
    plain = getattr(transformers, family + task)(getattr(transformers, f"{family}Config")(**copy.deepcopy(settings)))
    config = optimum.IPUConfig(ipus_per_replica=2, layers_per_ipu=layers, gradient_accumulation_steps=ROWS)
    model, reference = to_pipelined(plain, config), to_pipelined(plain, config)
    for pipelined in (model, reference):
        pipelined.parallelize()
        pipelined.train()
    reference.load_state_dict(model.state_dict())
    opts = config.train().to_options()
    opts.outputMode(poptorch.OutputMode.All)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    executor = poptorch.trainingModel(model, opts, optimizer)
    eager = torch.optim.AdamW(reference.parameters(), lr=1e-3, weight_decay=0.0)
    batch = INPUTS[inputs or task]()
    for _ in range(2):
        losses = loss_of(executor(**batch)).flatten()
        eager.zero_grad()
        for row in range(ROWS):
            loss = loss_of(reference(**{key: value[row : row + 1] for key, value in batch.items()}))
            (loss / ROWS).backward()
            assert torch.equal(losses[row], loss.detach())
        eager.step()
    executor.copyWeightsToHost()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(ours, theirs)

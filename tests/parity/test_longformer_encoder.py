"""The Longformer encoder and its heads against transformers' Longformer: values and gradients."""

import pytest
import torch
from tiny import EXACT, FLOAT32
from torch import nn
from torch.nn import functional
from transformers import (
    LongformerConfig,
    LongformerForMaskedLM,
    LongformerForSequenceClassification,
    LongformerForTokenClassification,
    LongformerModel,
    PreTrainedModel,
)

from transformers_xl.configuration.configuration_longformer_encoder import LongformerEncoderConfig
from transformers_xl.modeling.modeling_longformer_encoder import (
    LongformerEncoderForMaskedLM,
    LongformerEncoderForSequenceClassification,
    LongformerEncoderForTokenClassification,
    LongformerEncoderModel,
)

PAD = 1
SIZES = {
    "vocab_size": 29,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
# three pieces of the band, and no multiple of a window; theirs wants windows of which the largest is a multiple
WINDOWS, LENGTH = [4, 8], 141
HEADS = {
    "masked_lm": (LongformerForMaskedLM, LongformerEncoderForMaskedLM),
    "sequence_classification": (LongformerForSequenceClassification, LongformerEncoderForSequenceClassification),
    "token_classification": (LongformerForTokenClassification, LongformerEncoderForTokenClassification),
}
# ours, and what theirs is called, in this order
NAMES = (
    ("model.embed_tokens.", "longformer.embeddings.word_embeddings."),
    ("model.embeddings.layernorm.", "longformer.embeddings.LayerNorm."),
    ("model.layers.", "longformer.encoder.layer."),
    (".self_attn.global_q_proj.", ".attention.self.query_global."),
    (".self_attn.global_k_proj.", ".attention.self.key_global."),
    (".self_attn.global_v_proj.", ".attention.self.value_global."),
    (".self_attn.q_proj.", ".attention.self.query."),
    (".self_attn.k_proj.", ".attention.self.key."),
    (".self_attn.v_proj.", ".attention.self.value."),
    (".self_attn.o_proj.", ".attention.output.dense."),
    (".input_layernorm.", ".attention.output.LayerNorm."),
    (".mlp.fc1.", ".intermediate.dense."),
    (".mlp.fc2.", ".output.dense."),
    (".post_attention_layernorm.", ".output.LayerNorm."),
    ("transform.dense.", "lm_head.dense."),
    ("transform.layernorm.", "lm_head.layer_norm."),
)
OF_HEADS = {
    "sequence_classification": ("classifier.dense.", "classifier.out_proj."),
    "token_classification": ("", "classifier."),
}


@pytest.fixture(autouse=True)
def softmax_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs rounds every softmax to float32, also in a model of float64."""
    softmax = functional.softmax
    monkeypatch.setattr(functional, "softmax", lambda scores, dim, dtype=None: softmax(scores, dim))


def theirs_of(head: str, name: str) -> str:
    """What transformers calls a parameter of ours."""
    for ours, theirs in NAMES:
        name = name.replace(ours, theirs)
    if head in OF_HEADS:
        dense, score = OF_HEADS[head]
        name = name.replace("score.", score) if name.startswith("score.") else name
        name = dense + name[len("dense.") :] if name.startswith("dense.") else name
    return name


def pair(head: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Theirs and ours, with the same weights."""
    theirs_class, ours_class = HEADS[head]
    torch.manual_seed(0)
    fields = {
        "attention_window": WINDOWS,
        "initializer_range": 0.3,
        "layer_norm_eps": 1e-5,
        "pad_token_id": PAD,
        "num_labels": 3,
    }
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    theirs = theirs_class(
        LongformerConfig(**SIZES, **fields, **no_dropout, type_vocab_size=1, max_position_embeddings=160)
    )
    ours = ours_class(LongformerEncoderConfig(**SIZES, **fields, dropout=0.0, segment_length=158))
    theirs, ours = theirs.double().eval(), ours.double().eval()
    for bias in (each for name, each in theirs.named_parameters() if name.endswith("bias")):
        nn.init.normal_(bias)
    known, embeddings = dict(theirs.named_parameters()), theirs.longformer.embeddings
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            if name.endswith("positions.weight"):
                # theirs begin behind the padding, and all tokens have the one type
                positions = embeddings.position_embeddings.weight[PAD + 1 :]
                parameter.copy_(positions + embeddings.token_type_embeddings.weight)
            else:
                parameter.copy_(known[theirs_of(head, name)])
    return theirs, ours


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, padding and global tokens: two in one row, one in another, none in the last."""
    torch.manual_seed(1)
    ids = torch.randint(3, 29, (3, LENGTH))
    mask = torch.ones_like(ids)
    mask[1, 100:], mask[2, 7:] = 0, 0
    is_global = torch.zeros_like(ids)
    is_global[0, [0, 70]], is_global[1, 99] = 1, 1
    return ids.masked_fill(mask == 0, PAD), mask, is_global


@pytest.mark.parametrize("head", HEADS)
def test_values_and_gradients(head: str):
    theirs, ours = pair(head)
    ids, mask, is_global = batch()
    arguments = {"input_ids": ids, "attention_mask": mask, "global_attention_mask": is_global}
    if head == "sequence_classification":
        del arguments["global_attention_mask"]  # the first token is, by default
        arguments["labels"] = torch.tensor([0, 2, 1])
    else:
        labels = torch.randint(0, 3, ids.shape)
        arguments["labels"] = labels.masked_fill(mask == 0, -100)
    expected, found = theirs(**arguments), ours(**arguments)
    real = slice(None) if head == "sequence_classification" else mask.bool()
    torch.testing.assert_close(found.logits[real], expected.logits[real], **EXACT)
    # transformers computes losses in float32
    torch.testing.assert_close(found.loss.double(), expected.loss.double(), **FLOAT32)
    weights = torch.randn_like(expected.logits[real])
    for output in (expected, found):
        (output.logits[real] * weights).sum().backward()
    wanted = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    positions = wanted["longformer.embeddings.position_embeddings.weight"]
    seen = 0
    for name, parameter in ours.named_parameters():
        if name.endswith("positions.weight"):
            torch.testing.assert_close(parameter.grad, positions[PAD + 1 :], **EXACT)
        else:
            torch.testing.assert_close(parameter.grad, wanted[theirs_of(head, name)], **EXACT)
            seen += 1
    assert seen == len([name for name in wanted if "pooler" not in name]) - 2  # positions and types


def test_hidden_states_of_long_and_short_texts():
    theirs, ours = (each.base_model for each in pair("masked_lm"))
    assert isinstance(theirs, LongformerModel)
    assert isinstance(ours, LongformerEncoderModel)
    for length in (1, 5, 130):
        ids = torch.randint(3, 29, (2, length))
        is_global = torch.zeros_like(ids)
        is_global[0, length // 2] = 1
        with torch.no_grad():
            expected = theirs(ids, global_attention_mask=is_global, output_hidden_states=True)
            found = ours(ids, global_attention_mask=is_global, output_hidden_states=True)
        for one, other in zip(found.hidden_states, expected.hidden_states, strict=True):
            torch.testing.assert_close(one, other[:, :length], **EXACT)

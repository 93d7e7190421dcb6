"""The sections of a report on an encoder: what its variant has learned, or why there is nothing."""

import pytest
from tiny import tiny_model, tokens
from transformers import GPT2Config, GPT2LMHeadModel

from transformers_xl import ByteTokenizer
from transformers_xl.evaluation.html_report import report_sections
from transformers_xl.modeling.auto import ENCODERS

IDS = tokens(1, 21)[0].numpy()
SHOWN = {"pkm_transformer_encoder": "key_usage", "gtrxl_encoder": "gates"}


@pytest.mark.parametrize("head", ["model", "masked_lm"])
@pytest.mark.parametrize(("model_type", "name"), SHOWN.items())
def test_what_its_variant_has_learned(model_type: str, name: str, head: str):
    (section,) = report_sections(tiny_model(model_type, head), ByteTokenizer(), IDS)
    assert section.name == name
    assert section.figure is not None


@pytest.mark.parametrize("model_type", ["longformer_encoder", *(name for name in ENCODERS if name not in SHOWN)])
def test_nothing_to_show(model_type: str):
    with pytest.raises(ValueError, match=rf"{model_type}.*star_transformer\. .*`output_attentions=True`"):
        next(report_sections(tiny_model(model_type), ByteTokenizer(), IDS))


def test_a_model_of_transformers():
    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=8, n_layer=1, n_head=1, n_positions=32))
    with pytest.raises(ValueError, match="`model` is a 'gpt2': give a model of this package"):
        next(report_sections(model, ByteTokenizer(), IDS))

"""The encoders of the table: each against naive loops over one text alone, what they tell apart, and what they refuse."""

import json

import pytest
import tokenizers
import torch
from naive_encoder import by_pairs
from tiny import EXACT, VOCAB_SIZE, tiny_config, tiny_model, tokens
from torch.nn import functional as F
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)
from transformers.models.auto.auto_factory import add_generation_mixin_to_remote_model

import transformers_xl
from transformers_xl.modeling.auto import ENCODERS, VARIANTS, Variant, encoder_of
from transformers_xl.modeling.layers.halting import HaltingAttention

AUTO_CLASSES = {
    "model": AutoModel,
    "masked_lm": AutoModelForMaskedLM,
    "sequence_classification": AutoModelForSequenceClassification,
    "token_classification": AutoModelForTokenClassification,
}
EVERY_HEAD = [(model_type, head) for model_type in ENCODERS for head in AUTO_CLASSES]
# what a paper has that matters on both sides
FIELDS = {"shaw_transformer_encoder": {"max_relative_distance": 2}, "gtrxl_encoder": {"clamp_len": 2}}
PLACES = [[2, 3, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7], [8, 9, 10]]  # of three texts in rows 0, 1, 1; the rest is padding


def batch_of(texts: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Texts in two rows of twelve columns: one with padding on every side and inside, two packed into one row."""
    ids, mask, positions = torch.full((2, 12), 5), torch.zeros(2, 12, dtype=torch.long), torch.full((2, 12), 77)
    for row, places, text in zip((0, 1, 1), PLACES, texts, strict=True):
        ids[row, places], mask[row, places] = text[0], 1
        positions[row, places] = torch.arange(len(places))
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}


def of_texts(states: torch.Tensor) -> torch.Tensor:
    return torch.cat([states[row, places] for row, places in zip((0, 1, 1), PLACES, strict=True)])


TEXTS = [tokens(1, len(places), seed=len(places)) for places in PLACES]


@pytest.mark.parametrize("model_type", ENCODERS)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_values_and_gradients(model_type: str, implementation: str):
    """And without gradients, where positions that have halted are left out."""
    model = tiny_model(model_type, **FIELDS.get(model_type, {}))
    model.set_attn_implementation(implementation)
    batch = batch_of(TEXTS)
    found = of_texts(model(**batch).last_hidden_state)
    with by_pairs():
        expected = torch.cat([model(text).last_hidden_state[0] for text in TEXTS])
    torch.testing.assert_close(found, expected, **EXACT)
    with torch.no_grad():
        torch.testing.assert_close(of_texts(model(**batch).last_hidden_state), expected, **EXACT)
    weights = torch.randn(expected.shape, dtype=expected.dtype)
    parameters = dict(model.named_parameters())
    gradients = [
        torch.autograd.grad((each * weights).sum(), [*parameters.values()], allow_unused=True)
        for each in (found, expected)
    ]
    for name, ours, theirs in zip(parameters, *gradients, strict=True):
        assert (ours is None) == (theirs is None), name
        if ours is not None:
            torch.testing.assert_close(ours, theirs, **EXACT, msg=lambda said, name=name: f"{name}: {said}")


@pytest.mark.parametrize("model_type", ENCODERS)
def test_a_token_sees_both_sides_and_tells_them_apart(model_type: str):
    model, ids = tiny_model(model_type), tokens(1, 9)
    other, swapped = ids.clone(), ids.clone()
    other[0, -1] = 3 + (ids[0, -1] - 2) % (VOCAB_SIZE - 3)
    swapped[0, [3, 5]] = ids[0, [5, 3]]
    with torch.no_grad():
        states, of_other, of_swapped = (model(each).last_hidden_state[0] for each in (ids, other, swapped))
    assert (states[0] - of_other[0]).abs().max() > 1e-6
    assert (states[4] - of_swapped[4]).abs().max() > 1e-6


@pytest.mark.parametrize("model_type", ["universal_transformer_encoder", "depth_adaptive_transformer_encoder"])
def test_halted_positions_are_left_out_and_seen(model_type: str, monkeypatch: pytest.MonkeyPatch):
    """A row whose tokens halt at different steps asks with fewer queries than it has columns."""
    asked = []
    attend = HaltingAttention.attend

    def counted(self, query, key, *args, **kwargs):
        asked.append((query.shape[2], key.shape[2]))
        return attend(self, query, key, *args, **kwargs)

    monkeypatch.setattr(HaltingAttention, "attend", counted)
    head = "model" if model_type.startswith("universal") else "masked_lm"
    model, ids = tiny_model(model_type, head, num_hidden_layers=4), tokens(2, 11)
    at_once = model(ids)
    with torch.no_grad():
        skipped = model(ids)
    assert any(queries < keys for queries, keys in asked)
    torch.testing.assert_close(skipped[0], at_once[0].detach(), **EXACT)


def test_learned_depth_of_a_text_follows_from_all_of_it():
    """`halting="sequence"` reads the mean embedding: in an encoder, of the whole text at each of its tokens."""
    fields = {"halting": "sequence", "exit_by_halting": True, "confidence_thresholds": None, "num_hidden_layers": 4}
    model = tiny_model("depth_adaptive_transformer_encoder", "masked_lm", **fields)
    batch = batch_of(TEXTS)
    output = model(**batch)
    exits = of_texts(output.exit_layers).split([len(places) for places in PLACES])
    assert all(len(set(each.tolist())) == 1 for each in exits)
    for text, each in zip(TEXTS, exits, strict=True):
        mean = model.model.embed_tokens(text)[0].mean(0)
        assert each[0] == model.halting.proj(mean).argmax() + 1


@pytest.mark.parametrize("model_type", ENCODERS)
def test_masked_words_are_predicted_where_they_stand(model_type: str):
    model = tiny_model(model_type, "masked_lm")
    batch = batch_of(TEXTS)
    labels = torch.full_like(batch["input_ids"], -100)
    labels[0, 3], labels[1, [4, 9]] = 7, torch.tensor([8, 9])
    output = model(**batch, labels=labels)
    assert output.logits.shape == (2, 12, VOCAB_SIZE)
    here = labels != -100
    torch.testing.assert_close(output.loss.double(), F.cross_entropy(output.logits[here], labels[here]), **EXACT)
    assert model.train()(**batch, labels=labels).loss.requires_grad
    assert "mems" not in output
    with pytest.raises(ValueError, match=r"`labels` has shape \(2, 3\)"):
        model(**batch, labels=labels[:, :3])


@pytest.mark.parametrize("model_type", ENCODERS)
def test_heads_classify_what_all_tokens_know(model_type: str):
    """A text by the mean of its real tokens, and each token by itself."""
    batch = batch_of(TEXTS)
    rows = {name: batch[name][:1] for name in ("input_ids", "attention_mask")}
    model = tiny_model(model_type, "sequence_classification", num_labels=3)
    alone = model.model(TEXTS[0]).last_hidden_state
    torch.testing.assert_close(model(**rows).logits, model.score(alone.mean(1)), **EXACT)
    torch.testing.assert_close(model(TEXTS[0]).logits, model.score(alone.mean(1)), **EXACT)
    model = tiny_model(model_type, "token_classification", num_labels=3)
    alone = model(TEXTS[0]).logits
    torch.testing.assert_close(model(**rows).logits[:, PLACES[0]], alone, **EXACT)


@pytest.mark.parametrize(("model_type", "head"), EVERY_HEAD[:: len(AUTO_CLASSES) + 1] + EVERY_HEAD[:4])
def test_auto_classes_load_the_encoder(model_type: str, head: str, tmp_path):
    model = tiny_model(model_type, head, torch.float32)
    model.save_pretrained(tmp_path, include_code=False)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert (saved["model_type"], saved["architectures"]) == (model_type, [type(model).__name__])
    assert not (tmp_path / "generation_config.json").exists()
    loaded = AUTO_CLASSES[head].from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert type(AutoModel.from_pretrained(tmp_path)) is ENCODERS[model_type].model_class
    with torch.no_grad():
        torch.testing.assert_close(loaded(TEXTS[1])[0], model(TEXTS[1])[0], atol=0, rtol=0)
    with pytest.raises(ValueError, match="Unrecognized configuration class"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("row", VARIANTS.values(), ids=VARIANTS)
def test_each_variant_has_an_encoder_or_a_reason(row: Variant):
    model_type = row.config_class.model_type
    if isinstance(row.encoder, Variant):
        assert encoder_of(model_type) is encoder_of(f"{model_type}_encoder") is row.encoder
        name = row.model_class.__name__.removesuffix("Model")
        for end in ("Config", "Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"):
            cls = getattr(transformers_xl, f"{name}Encoder{end}")
            assert cls.__qualname__ == f"{name}Encoder{end}"
            assert cls.__doc__
        assert row.encoder.causal_lm_class is None
    elif row.causal:
        with pytest.raises(ValueError, match=f"`model_type`='{model_type}' has no encoder: ") as error:
            encoder_of(model_type)
        assert len(row.encoder) > 10
        assert row.encoder in str(error.value)
    else:  # it is one
        assert encoder_of(model_type) is row
    with pytest.raises(ValueError, match="no variant has this name: the encoders are transformer_xl_encoder, "):
        encoder_of("bert")


@pytest.mark.parametrize("model_type", ENCODERS)
def test_what_an_encoder_refuses(model_type: str):
    model, memory = tiny_model(model_type), tiny_model("transformer_xl")(TEXTS[0]).mems
    for given in ({"mems": memory}, {"use_cache": True}, {"past_key_values": object()}):
        (name,) = given
        with pytest.raises(ValueError, match=f"`{name}` was given, but {type(model).__name__} remembers nothing"):
            model(TEXTS[0], **given)
        for head in ("masked_lm", "sequence_classification", "token_classification"):
            with pytest.raises(ValueError, match=f"`{name}` was given, but {type(model).__name__} remembers nothing"):
                tiny_model(model_type, head)(TEXTS[0], **given)
    assert model(TEXTS[0], use_cache=False).mems is None
    with pytest.raises(ValueError, match="`mem_len`=4 must be 0"):
        tiny_config(model_type, mem_len=4)
    with pytest.raises(ValueError, match="`mem_len`=4 must be 0"):
        model.resize_memory(4)
    with pytest.raises(ValueError, match="`token_type_ids` is not an argument"):
        model(TEXTS[0], token_type_ids=torch.zeros_like(TEXTS[0]))
    head = tiny_model(model_type, "masked_lm")
    with pytest.raises(ValueError, match="cannot generate: its tokens see what comes after them"):
        head.generate(TEXTS[0])
    # else code of a folder would be another class each time that it is loaded, which nothing could pickle
    assert add_generation_mixin_to_remote_model(type(head)) is type(head)
    with pytest.raises(ValueError, match="`shift_labels` was given, but .* predicts each token where it stands"):
        head(TEXTS[0], shift_labels=TEXTS[0])


def test_absolute_positions_end():
    with pytest.raises(ValueError, match="`input_ids` holds 65 tokens, but the model has `segment_length`=64"):
        tiny_model("absolute_transformer_xl_encoder")(tokens(1, 65))


@pytest.mark.parametrize("model_type", ["transformer_xl_encoder", "shaw_transformer_encoder"])
def test_one_graph(model_type: str):
    model, batch = tiny_model(model_type), batch_of(TEXTS)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(**batch)[0], model(**batch)[0], **EXACT)


ANIMALS = [("cat", "drinks", "purrs"), ("dog", "chews", "barks"), ("cow", "eats", "moos")]
SENTENCES = [
    f"the {animal} {verb} the {food} and the {animal} {after} ."
    for animal, verb, after in ANIMALS
    for food in ("milk", "bone", "grass", "bread")
]


def trained_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=80, special_tokens=list(special.values()), show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


LEARN = ("transformer_xl_encoder", "shaw_transformer_encoder", "depth_adaptive_transformer_encoder")


@pytest.mark.parametrize("model_type", LEARN)
def test_a_masked_language_model_learns(model_type: str, tmp_path):
    """By transformers' collator and Trainer: a masked animal follows from what stands before it and after it."""
    tokenizer = trained_tokenizer()
    fields = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "initializer_range": 0.1}
    model = tiny_model(model_type, "masked_lm", torch.float32, **fields)
    data = [tokenizer(sentence, return_token_type_ids=False) for sentence in SENTENCES]
    given = {"per_device_train_batch_size": 12, "max_steps": 150, "learning_rate": 5e-3, "report_to": "none"}
    arguments = TrainingArguments(tmp_path, save_strategy="no", disable_tqdm=True, use_cpu=True, seed=0, **given)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3)
    Trainer(model, arguments, train_dataset=data, data_collator=collator).train()
    model.eval()
    for animal, verb, after in ANIMALS:
        text = f"the {tokenizer.mask_token} {verb} the bread and the {tokenizer.mask_token} {after} ."
        inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        with torch.no_grad():
            predicted = model(**inputs).logits.argmax(-1)[inputs["input_ids"] == tokenizer.mask_token_id]
        assert tokenizer.decode(predicted).split() == [animal, animal]


def test_masked_tokens_weigh_the_same_in_a_trainer_of_transformers(tmp_path):
    """The first token of a row too: labels stand where they are predicted, and all are counted."""
    model = tiny_model("transformer_xl_encoder", "masked_lm", dtype=torch.float32)
    ids = tokens(8, 6)
    labels = torch.full_like(ids, -100)
    labels[:, 0], labels[::2, 3] = ids[:, 0], ids[::2, 3]
    rows = [{"input_ids": row, "labels": label} for row, label in zip(ids, labels, strict=True)]
    arguments = TrainingArguments(str(tmp_path), per_device_eval_batch_size=8, report_to="none", use_cpu=True)
    found = Trainer(model, arguments, eval_dataset=rows).evaluate()["eval_loss"]
    nats = -model(ids).logits.detach().log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    assert found == pytest.approx(float(nats[labels != -100].mean()), rel=1e-5)

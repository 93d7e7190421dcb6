"""Encoder-decoders: every decoder that can, two memories over the sentences of a document, generate, Trainer, reload."""

import subprocess
import sys

import pytest
import torch
from optional_packages import needs
from safetensors.torch import save_file
from tiny import EXACT, VARIANTS, VOCAB_SIZE, assert_same_memory, tiny_config, tokens
from transformers import AutoModelForSeq2SeqLM, DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

from transformers_xl import (
    ByteTokenizer,
    LongformerEncoderConfig,
    Memory,
    MemoryEncoderDecoderConfig,
    MemoryForConditionalGeneration,
    ShawTransformerConfig,
    ShawTransformerEncoderConfig,
    StarTransformerConfig,
    TransformerXLConfig,
    TransformerXLEncoderConfig,
)
from transformers_xl.configuration.configuration_memory_encoder_decoder import REFUSED
from transformers_xl.modeling import modeling_compressive_transformer
from transformers_xl.modeling.layers import attention
from transformers_xl.modeling.layers.cross_attention import CrossAttention, Source
from transformers_xl.modeling.layers.transformer_layer import SublayerLayerNorm
from transformers_xl.modeling.modeling_memory_encoder_decoder import between_labels

SPECIAL = {"pad_token_id": 2, "bos_token_id": 1, "eos_token_id": 0}
SIZES = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "dropout": 0.0,
} | SPECIAL  # fmt: skip
STAR = StarTransformerConfig(**{name: value for name, value in SIZES.items() if name != "intermediate_size"})
MASK = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
DECODERS = [name for name, row in VARIANTS.items() if row.causal_lm_class is not None and name not in REFUSED]
SOURCE, TARGET = tokens(2, 6), tokens(2, 7, seed=1)


def built(decoder: str = "transformer_xl", encoder=None, **fields) -> MemoryForConditionalGeneration:
    """A model in float64 whose attention to the source matters."""
    torch.manual_seed(0)
    decoder_config = tiny_config(decoder, **SPECIAL)
    encoder = encoder or ShawTransformerEncoderConfig(**SIZES | {"vocab_size": decoder_config.vocab_size})
    fields = {"share_embeddings": False} | fields
    config = MemoryEncoderDecoderConfig(encoder=encoder, decoder=decoder_config, **fields)
    model = MemoryForConditionalGeneration(config).double().eval()
    for name, parameter in model.named_parameters():
        if ("cross_attention" in name and parameter.dim() == 2) or "earlier" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def read(model: MemoryForConditionalGeneration, source=SOURCE, mask=MASK, target=TARGET, **kwargs):
    with torch.no_grad():
        return model(source, mask, decoder_input_ids=target, **kwargs)


@pytest.mark.parametrize("attention_name", ["eager", "sdpa"])
@pytest.mark.parametrize("earlier", [0, 2])
def test_attention_to_a_source_is_that_of_a_loop(earlier: int, attention_name: str) -> None:
    """Values and gradients, in float64; what is hidden has no part in them, and earlier sentences have a bias."""
    torch.manual_seed(0)
    config = TransformerXLConfig(**SIZES, attn_implementation=attention_name)
    layer = CrossAttention(config, 5, SublayerLayerNorm(config), 0, reads_earlier=earlier > 0).double()
    bias = torch.zeros(2) if layer.earlier_bias is None else torch.nn.init.normal_(layer.earlier_bias)
    states, source = torch.randn(2, 3, 32).double().requires_grad_(), torch.randn(2, 4, 5).double().requires_grad_()
    visible = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0]]).bool()
    ours = layer(states, Source(source, visible, earlier=earlier))
    rows = []
    for row in range(2):
        out, normed = [], layer.norm(states[row])
        for token in range(3):
            heads = []
            for head in range(2):
                part = slice(16 * head, 16 * head + 16)
                query = (layer.q_proj.weight @ normed[token])[part]
                seen = [column for column in range(4) if visible[row, column]]
                keys = [(layer.k_proj.weight @ source[row, column])[part] for column in seen]
                added = [bias[head] * (column < earlier) for column in seen]
                scores = torch.stack([query @ key / 4 + more for key, more in zip(keys, added, strict=True)])
                values = torch.stack([(layer.v_proj.weight @ source[row, column])[part] for column in seen])
                heads.append(scores.softmax(0) @ values)
            out.append(states[row, token] + layer.o_proj.weight @ torch.cat(heads))
        rows.append(torch.stack(out))
    expected = torch.stack(rows)
    torch.testing.assert_close(ours, expected, **EXACT)
    weight = torch.randn_like(expected)
    inputs = [states, source, *layer.parameters()]
    for pair in zip(*(torch.autograd.grad((each * weight).sum(), inputs) for each in (ours, expected)), strict=True):
        torch.testing.assert_close(*pair, **EXACT)


@pytest.mark.parametrize("decoder", DECODERS)
def test_attention_to_a_source_has_the_norm_of_its_layer(decoder: str) -> None:
    for layer in built(decoder).model.layers:
        theirs, ours = layer.post_attention_layernorm, layer.cross_attention.norm
        assert {name: each.shape for name, each in ours.named_parameters()} == {
            name: each.shape for name, each in theirs.named_parameters()
        }
        states = torch.randn(2, 3, layer.cross_attention.config.hidden_size).double()
        ours.load_state_dict(theirs.state_dict())
        assert ours.before(states).equal(theirs(states) if ours.norm_position == "pre" else states)


@pytest.mark.parametrize("decoder", DECODERS)
def test_every_decoder_reads_a_source(decoder: str) -> None:
    """All learn; one call over a target is the same in two calls; generating with a cache is the same as without."""
    model = built(decoder).train()
    model(SOURCE, MASK, labels=TARGET).loss.backward()
    without = [
        name for name, parameter in model.named_parameters() if parameter.grad is None and "exit_class" not in name
    ]
    assert not [name for name in without if "cross_attention" in name or name.startswith("encoder.layers")], without
    model.eval()
    whole = read(model)
    other = read(model, SOURCE.flip(1), None)
    assert (other.logits - whole.logits).abs().amax((1, 2)).min() > 1e-6
    later = TARGET.clone()
    later[:, 4] = 3 + (later[:, 4] - 2) % (VOCAB_SIZE - 3)
    torch.testing.assert_close(read(model, target=later).logits[:, :4], whole.logits[:, :4], **EXACT)
    if VARIANTS[decoder].memory == "exact":
        first = read(model, target=TARGET[:, :3])
        second = read(model, target=TARGET[:, 3:], mems=first.mems)
        torch.testing.assert_close(torch.cat([first.logits, second.logits], 1), whole.logits, **EXACT)
    asked = {"attention_mask": MASK, "num_beams": 3, "do_sample": False, "max_new_tokens": 5}
    assert model.generate(SOURCE, **asked).equal(model.generate(SOURCE, **asked, use_cache=False))


@pytest.mark.parametrize(
    "encoder",
    [TransformerXLEncoderConfig(**SIZES), LongformerEncoderConfig(**SIZES), STAR],
    ids=lambda config: config.model_type,
)
def test_encoders_and_padding_on_any_side(encoder) -> None:
    """A padded row is the row alone, of the source and of the target, and so is what it remembers."""
    model = built(encoder=encoder, source_mem_len=5)
    for left in (True, False):
        source, target = SOURCE[1:, :4], TARGET[1:, :5]
        pads = [(2, 0) if left else (0, 2)] * 2
        masks = [
            torch.nn.functional.pad(torch.ones_like(each), pad)
            for each, pad in zip((source, target), pads, strict=True)
        ]
        padded = [
            torch.nn.functional.pad(each, pad, value=7) for each, pad in zip((source, target), pads, strict=True)
        ]
        both = read(model, torch.cat([SOURCE[:1], padded[0]]), torch.cat([torch.ones(1, 6).long(), masks[0]]),
                    torch.cat([TARGET[:1], padded[1]]),
                    decoder_attention_mask=torch.cat([torch.ones(1, 7).long(), masks[1]]))  # fmt: skip
        alone = read(model, source, None, target)
        torch.testing.assert_close(both.logits[1:][:, masks[1][0].bool()], alone.logits, **EXACT)
        assert_same_memory(both.mems.rows([1]), alone.mems)
        assert_same_memory(both.source_mems.rows([1]), alone.source_mems)


def test_labels_say_what_the_decoder_reads() -> None:
    """Padding on any side: the loss, and what is remembered, of a row are those of the row alone."""
    model = built()
    alone = model(SOURCE[:1], labels=TARGET[:1, :4])
    for pad in ((3, 0), (0, 3)):
        labels = torch.nn.functional.pad(TARGET[:1, :4], pad, value=-100)
        output = model(SOURCE[:1], labels=labels)
        torch.testing.assert_close(output.loss, alone.loss, **EXACT)
        assert_same_memory(output.mems, alone.mems)
    labels = torch.tensor([[-100, 5, -100, 6, -100]])
    assert between_labels(labels).tolist() == [[False, True, True, True, False]]
    inputs = torch.cat([torch.ones(1, 1).long(), TARGET[:1, :3]], 1)
    losses = torch.nn.functional.cross_entropy(read(model, SOURCE[:1], None, inputs).logits[0], TARGET[0, :4])
    torch.testing.assert_close(alone.loss, losses, **EXACT)


def test_a_source_is_projected_once_for_a_text() -> None:
    model, calls = built(), []
    for module in model.modules():
        if isinstance(module, CrossAttention):
            module.k_proj.register_forward_hook(lambda *_: calls.append(1))
    model.generate(SOURCE, attention_mask=MASK, max_new_tokens=6, min_new_tokens=6, return_dict_in_generate=True)
    assert len(calls) == 2  # one a layer
    cache = read(model, use_cache=True).past_key_values
    calls.clear()
    with torch.no_grad():  # another source in the same cache
        model(SOURCE.flip(1), decoder_input_ids=TARGET, past_key_values=cache)
    assert len(calls) == 2


def test_a_document_is_remembered_on_both_sides() -> None:
    """What is seen of earlier sentences is the encoder's output for each, read alone: the newest, in their order."""
    model, sentences = built(source_mem_len=8), [tokens(1, 5, seed=seed) for seed in range(3)]
    targets, mems, source_mems, outputs = [tokens(1, 4, seed=seed + 9) for seed in range(3)], None, None, []
    for source, target in zip(sentences, targets, strict=True):
        outputs.append(read(model, source, None, target, mems=mems, source_mems=source_mems))
        mems, source_mems = outputs[-1].mems, outputs[-1].source_mems
    assert source_mems.lengths.tolist() == [8]
    assert source_mems.tokens_read.tolist() == [15]
    encoded = [model.encode(source).last_hidden_state for source in sentences]
    earlier = torch.cat(encoded[:2], 1)[:, -8:] + model.earlier_source
    seen = Source(torch.cat([earlier, encoded[2]], 1), None, earlier=8)
    before = outputs[1].mems
    naive = model.decoder(targets[2], mems=before, source=seen).logits
    torch.testing.assert_close(outputs[2].logits, naive, **EXACT)
    alone = read(model, sentences[2], None, targets[2])
    for without in ({"mems": before}, {"source_mems": outputs[1].source_mems}):
        apart = read(model, sentences[2], None, targets[2], **without).logits
        assert (apart - outputs[2].logits).abs().max() > 1e-6
        assert (apart - alone.logits).abs().max() > 1e-6
    # a sentence that is read in two calls takes the source memory of the sentence before both times
    first = read(model, sentences[2], None, targets[2][:, :1], mems=before, source_mems=outputs[1].source_mems)
    second = read(model, sentences[2], None, targets[2][:, 1:], mems=first.mems, source_mems=outputs[1].source_mems)
    torch.testing.assert_close(second.logits, outputs[2].logits[:, 1:], **EXACT)
    assert_same_memory(second.source_mems, source_mems)
    reset = read(
        model, sentences[2], None, targets[2], mems=before, source_mems=source_mems, reset=torch.tensor([True])
    )
    torch.testing.assert_close(reset.logits, alone.logits, **EXACT)
    assert_same_memory(reset.source_mems, alone.source_mems)
    trained = model.train()(sentences[2], labels=targets[2], source_mems=outputs[1].source_mems)
    trained.loss.backward()
    for each in (model.earlier_source, *(layer.cross_attention.earlier_bias for layer in model.model.layers)):
        assert each.grad.abs().sum() > 0
    assert not trained.source_mems.layers[0].columns[0].requires_grad


def test_generating_a_document_is_reading_it() -> None:
    """`generate()` carries both memories as calls do; rows that end early, beams and padding included."""
    model, mems, source_mems = built(source_mem_len=8), None, None
    for number in range(2):
        source = tokens(2, 6, seed=number)
        asked = {"attention_mask": MASK, "mems": mems, "source_mems": source_mems, "max_new_tokens": 5}
        result = model.generate(source, **asked, do_sample=False, return_dict_in_generate=True)
        beams = [model.generate(source, **asked, num_beams=3, use_cache=cached).tolist() for cached in (True, False)]
        assert beams[0] == beams[1]
        ended = (result.sequences == 0).cumsum(1) > 0  # from a row's end on nothing is read
        reads = (~ended)[:, :-1]
        again = read(model, source, MASK, result.sequences[:, :-1], mems=mems, source_mems=source_mems,
                     decoder_attention_mask=reads.long())  # fmt: skip
        assert_same_memory(result.source_mems, again.source_mems)
        assert result.mems.tokens_read.tolist() == again.mems.tokens_read.tolist()
        best = again.logits.argmax(-1)
        assert best[reads].equal(result.sequences[:, 1:][reads])
        mems, source_mems = again.mems, again.source_mems
    whole = model.generate(source, **asked, num_beams=2, return_dict_in_generate=True)
    assert whole.mems is None
    assert whole.source_mems is None


def test_weights_of_the_source_are_shown() -> None:
    """Of each layer, with those of earlier sentences in front; without a flag none; in `generate()` too."""
    model = built(source_mem_len=8)
    model.set_attn_implementation("eager")
    before = read(model)
    assert before.cross_attentions is None
    assert before.encoder_attentions is None
    asked = {"output_attentions": True, "output_hidden_states": True}
    output = read(model, source_mems=before.source_mems, **asked)
    given = before.source_mems.layers[0].columns[0].shape[1]
    assert [each.shape for each in output.cross_attentions] == [(2, 4, 7, given + 6)] * 2
    assert [each.shape for each in output.encoder_attentions] == [(2, 2, 6, 6)] * 2
    assert len(output.encoder_hidden_states) == 3
    assert output.decoder_attentions[0].shape[:3] == (2, 4, 7)
    for weights in output.cross_attentions:
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]), **EXACT)
        assert (weights[1, ..., given + 4 :] == 0).all()
        assert (weights[1, ..., given : given + 4] > 0).all()
    result = model.generate(SOURCE, attention_mask=MASK, max_new_tokens=3, return_dict_in_generate=True, **asked)
    assert [len(step) for step in result.cross_attentions] == [2] * len(result.cross_attentions)
    assert result.cross_attentions[-1][0].shape == (2, 4, 1, 6)
    assert len(result.encoder_attentions) == 2


def test_what_an_encoder_is_asked_for_is_what_the_model_is() -> None:
    """Some hidden states, and outputs of the encoder as a tuple or a list, of which the first are the states."""
    model = built()
    some = read(model, output_hidden_states=[0, 2])
    assert [each is not None for each in some.encoder_hidden_states] == [True, False, True]
    plain, states = read(model), read(model).encoder_last_hidden_state
    for given in ((states,), [states], (states, torch.ones(2, 6)), (states, None, None, 3)):
        other = read(model, encoder_outputs=given)
        torch.testing.assert_close(other.logits, plain.logits, **EXACT)
        assert other.encoder_hidden_states is None


def test_weights_are_shown_once_where_layers_run_again() -> None:
    model = built().train()
    model.set_attn_implementation("eager")
    model.gradient_checkpointing_enable()
    output = model(SOURCE, MASK, labels=TARGET, output_attentions=True)
    output.loss.backward()
    assert len(output.cross_attentions) == 2


@pytest.mark.parametrize("use_cache", [None, True])
@torch.no_grad()
def test_a_decoder_that_reads_a_long_target_in_parts(use_cache, monkeypatch) -> None:
    model, target = built("compressive_transformer"), tokens(2, 70, seed=1)
    target_mask = torch.ones_like(target)
    target_mask[1, 50:] = 0
    asked = {"decoder_attention_mask": target_mask, "use_cache": use_cache}
    whole = read(model, target=target, **asked)
    for module in (attention, modeling_compressive_transformer):
        monkeypatch.setattr(module, "PIECE_LENGTH", 4)
    parts = read(model, target=target, **asked)
    real = target_mask.bool()
    torch.testing.assert_close(parts.logits[real], whole.logits[real], **EXACT)
    assert_same_memory(parts.mems, whole.mems)


@torch.no_grad()
def test_a_target_is_the_same_where_another_takes_its_labels() -> None:
    """The Trainer does, to smooth them: what the decoder reads must say by itself where it begins, on either side."""
    model = built()
    for side in ("left", "right"):
        labels = torch.full_like(TARGET, -100)
        here = slice(2, None) if side == "left" else slice(None, -2)
        labels[0], labels[1, here] = TARGET[0], TARGET[1, : TARGET.shape[1] - 2]
        ids = model.prepare_decoder_input_ids_from_labels(labels)
        alone = model(SOURCE[1:], MASK[1:], labels=labels[1:, here]).logits
        for given in ({"labels": labels}, {"decoder_input_ids": ids}):
            found = model(SOURCE, MASK, **given).logits[1:, here]
            torch.testing.assert_close(found, alone, **EXACT)
    start, pad = model.config.decoder_start_token_id, model.config.pad_token_id
    target = torch.tensor([[start, 5, pad, start, 8]] * 2)  # in the middle of a text nothing is taken for padding
    first = model(SOURCE, MASK, decoder_input_ids=target[:, :2], use_cache=True)
    rest = model(SOURCE, MASK, decoder_input_ids=target[:, 2:], past_key_values=first.past_key_values)
    whole = model(SOURCE, MASK, decoder_input_ids=target)
    torch.testing.assert_close(rest.logits, whole.logits[:, 2:], **EXACT)


@torch.no_grad()
def test_padding_of_the_source_is_that_of_the_encoder() -> None:
    fields = {"share_embeddings": False, "encoder": ShawTransformerEncoderConfig(**SIZES | {"pad_token_id": 7})}
    source = torch.tensor([[7, 0, 3], [4, 0, 3]])
    torch.testing.assert_close(
        built(**fields)(source, decoder_input_ids=TARGET).logits,
        built(**fields)(source, torch.tensor([[0, 1, 1], [1, 1, 1]]), decoder_input_ids=TARGET).logits,
    )


@pytest.mark.parametrize("encoder", [None, STAR], ids=["shaw", "star, which has a mem_len"])
@torch.no_grad()
def test_a_memory_of_what_was_written_is_saved(tmp_path, encoder) -> None:
    model = built(encoder=encoder, source_mem_len=4)
    mems = read(model).mems
    mems.save(tmp_path / "mems", model)
    assert_same_memory(Memory.load(tmp_path / "mems", model)[0], mems)


def test_a_table_that_is_shared_is_exchanged_in_both_parts() -> None:
    model, table = built(share_embeddings=True), torch.nn.Embedding(37, 32)
    model.set_input_embeddings(table)
    assert model.encoder.get_input_embeddings() is model.decoder.get_input_embeddings() is table


def test_refusals() -> None:
    encoder, decoder = ShawTransformerEncoderConfig(**SIZES), ShawTransformerConfig(**SIZES)
    for name, reason in REFUSED.items():
        with pytest.raises(ValueError, match=reason):
            MemoryEncoderDecoderConfig(encoder=encoder, decoder={"model_type": name})
    with pytest.raises(ValueError, match="cannot be one: did you mean 'transformer_xl_encoder'"):
        MemoryEncoderDecoderConfig(encoder=TransformerXLConfig(**SIZES), decoder=decoder)
    with pytest.raises(ValueError, match="`decoder` is a 'shaw_tr.* did you mean 'shaw_transformer'"):
        MemoryEncoderDecoderConfig(encoder=encoder, decoder=encoder)
    with pytest.raises(ValueError, match="`encoder`=None"):
        MemoryEncoderDecoderConfig(decoder=decoder)
    with pytest.raises(ValueError, match="did you mean 'transformer_xl"):
        MemoryEncoderDecoderConfig(encoder={"model_type": "transfomer_xl_encoder"}, decoder=decoder)
    with pytest.raises(ValueError, match="`share_embeddings`=True"):
        MemoryEncoderDecoderConfig(encoder=ShawTransformerEncoderConfig(**SIZES | {"vocab_size": 9}), decoder=decoder)
    with pytest.raises(ValueError, match="`mem_len`=4 is a field of the parts"):
        MemoryEncoderDecoderConfig(encoder=encoder, decoder=decoder, mem_len=4)
    with pytest.raises(ValueError, match="did you mean `source_mem_len`"):
        MemoryEncoderDecoderConfig(encoder=encoder, decoder=decoder, source_memlen=4)
    without = dict.fromkeys(SPECIAL)
    with pytest.raises(ValueError, match="`decoder_start_token_id`=None"):
        MemoryEncoderDecoderConfig(encoder=encoder, decoder=ShawTransformerConfig(**SIZES | without))
    model = built()
    with pytest.raises(ValueError, match="`source_mem_len`=0"):
        read(model, source_mems=read(built(source_mem_len=4)).source_mems)
    with pytest.raises(ValueError, match="`decoder_input_ids`=None"):
        model(SOURCE)
    for reset in (torch.ones(2, 7).bool(), [True, False]):
        with pytest.raises(ValueError, match="`reset` (has shape|is a list)"):
            read(model, reset=reset)
    with pytest.raises(ValueError, match="`decoder_input_ids` has 1 rows, but the source 2"):
        model(SOURCE, decoder_input_ids=TARGET[:1])
    with pytest.raises(ValueError, match=r"`labels` has shape \(2, 2\)"):
        model(SOURCE, decoder_input_ids=TARGET, labels=TARGET[:, :2])
    remembers = built(source_mem_len=4)
    wrong = read(remembers)
    for mems in (wrong.mems, wrong.source_mems.rows(torch.tensor([0])), torch.zeros(2, 3, 32)):
        with pytest.raises(ValueError, match="`source_mems` holds .* `mems` is another memory"):
            read(remembers, source_mems=mems)
    with pytest.raises(ValueError, match="`source_mems` holds"):
        remembers.generate(SOURCE, source_mems=wrong.mems)
    with pytest.raises(ValueError, match="`unknown` is not an argument"):
        read(model, unknown=1)


def test_a_config_is_kept_whole(tmp_path) -> None:
    """Fields that equal defaults of transformers, but not our own, too."""
    fields = {"hidden_act": "gelu", "tie_word_embeddings": False, "max_relative_distance": 3}
    config = MemoryEncoderDecoderConfig(
        encoder=ShawTransformerEncoderConfig(**SIZES | fields),
        decoder=ShawTransformerConfig(**SIZES | fields),
        source_mem_len=3,
    )
    config.save_pretrained(tmp_path)
    loaded = MemoryEncoderDecoderConfig.from_pretrained(tmp_path)
    assert loaded.is_encoder_decoder
    for name in ("encoder", "decoder"):
        ours, theirs = getattr(config, name), getattr(loaded, name)
        assert theirs.to_diff_dict() == ours.to_diff_dict()
        assert {field: getattr(theirs, field) for field in fields} == fields
    assert (loaded.source_mem_len, loaded.decoder_start_token_id) == (3, 1)


def test_a_trainer_of_transformers_trains_and_reloads_it(tmp_path) -> None:
    """`Seq2SeqTrainer` with `predict_with_generate`, on 200 pairs that a rule makes; words are tied after a reload."""
    needs("datasets")
    tokenizer, generator = ByteTokenizer(), torch.Generator().manual_seed(0)
    special = {name: getattr(tokenizer, name) for name in SPECIAL}
    sizes = SIZES | special | {"vocab_size": len(tokenizer), "hidden_size": 32}
    config = MemoryEncoderDecoderConfig(
        encoder=ShawTransformerEncoderConfig(**sizes),
        decoder=TransformerXLConfig(**sizes, mem_len=16),
        source_mem_len=4,
    )
    torch.manual_seed(0)
    model = MemoryForConditionalGeneration(config)
    words = ["".join(chr(97 + int(each)) for each in torch.randint(4, (3,), generator=generator)) for _ in range(200)]
    rows = [{"input_ids": tokenizer(word).input_ids, "labels": [*tokenizer(word.upper()).input_ids, tokenizer.eos_token_id]}
            for word in words]  # fmt: skip
    arguments = Seq2SeqTrainingArguments(
        tmp_path / "run", predict_with_generate=True, per_device_train_batch_size=20, num_train_epochs=20,
        learning_rate=1e-2, report_to=[], generation_max_length=6, use_cpu=True, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = Seq2SeqTrainer(
        model, arguments, train_dataset=rows, eval_dataset=rows[:40], processing_class=tokenizer,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model),
        compute_metrics=lambda found: {"right": sum(
            tokenizer.decode(ids[ids >= 0], skip_special_tokens=True) == word.upper()
            for ids, word in zip(found.predictions, words, strict=False)) / 40},
    )  # fmt: skip
    trainer.train()
    assert trainer.evaluate()["eval_right"] > 0.9
    trainer.save_model(tmp_path / "saved")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "saved").eval()
    assert loaded.decoder.lm_head.weight is loaded.decoder.model.embed_tokens.weight
    assert loaded.encoder.embed_tokens.weight is loaded.decoder.lm_head.weight
    assert loaded.generation_config.eos_token_id == tokenizer.eos_token_id
    source = tokenizer([words[0], words[1]], return_tensors="pt")
    made = [each.generate(**source, num_beams=2, max_length=6).tolist() for each in (model.eval(), loaded)]
    assert made[0] == made[1]
    loaded.resize_token_embeddings(len(tokenizer) + 5)
    assert loaded.encoder.embed_tokens.weight is loaded.decoder.lm_head.weight
    assert loaded(**source, labels=source.input_ids).logits.shape[-1] == len(tokenizer) + 5
    loaded.resize_memory(5)
    assert loaded(**source, labels=source.input_ids).mems.num_columns <= 5


CODE = """
import sys
sys.modules["transformers_xl"] = None
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM
kept = load_file(sys.argv[1] + "/expected.safetensors")
for folder in sys.argv[1:]:
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True).eval()
    assert type(model).__module__.startswith("transformers_modules.")
    assert model.decoder.lm_head.weight is model.encoder.embed_tokens.weight
    result = model(kept["source"], decoder_input_ids=kept["target"]).logits
    torch.testing.assert_close(result, kept["logits"], atol=1e-5, rtol=1e-5)
    assert model.generate(kept["source"], num_beams=2, max_new_tokens=4).tolist() == kept["made"].tolist()
    if folder != sys.argv[-1]:
        model.save_pretrained(sys.argv[-1])
"""


def test_it_takes_the_code_of_its_parts_along(tmp_path) -> None:
    """Loaded where the package is not installed, and saved again there."""
    config = MemoryEncoderDecoderConfig(
        encoder=ShawTransformerEncoderConfig(**SIZES), decoder=TransformerXLConfig(**SIZES, mem_len=8)
    )
    torch.manual_seed(0)
    model = MemoryForConditionalGeneration(config).eval()
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    made = model.generate(SOURCE, num_beams=2, max_new_tokens=4)
    with torch.no_grad():
        logits = model(SOURCE, decoder_input_ids=TARGET).logits
    save_file({"source": SOURCE, "target": TARGET, "logits": logits, "made": made}, folder / "expected.safetensors")
    command = [sys.executable, "-W", "ignore", "-c", CODE, str(folder), str(tmp_path / "again")]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-2000:]

"""`kind="tokens"` around many language models, against a loop over the segments of one row at a time."""

import logging

import pytest
import torch
from tiny import EXACT, FLOAT32
from tiny_bases import VOCAB_SIZE, tiny_base
from torch import nn

from transformers_xl import SegmentMemoryForCausalLM, add_memory
from transformers_xl.modeling.layers import memory_tokens

SEGMENT, TOKENS = 4, 2
HYBRIDS = ["falcon_h1", "qwen3_next"]
FAMILIES = [
    "llama", "qwen3", "mistral", "gemma3_text", "phi3", "smollm3", "gpt_neox", "gpt_oss", "deepseek_v3", "olmo2", "gpt2",
    "bloom", "mpt", *HYBRIDS,
]  # fmt: skip
LOOSE = {"atol": 1e-4, "rtol": 1e-4}
# what is computed in float32 whatever the type: an attention, a router, the states of a recurrent layer
ROUNDED = {"bloom": FLOAT32, "mpt": FLOAT32, "deepseek_v3": FLOAT32, "falcon_h1": LOOSE, "qwen3_next": LOOSE}


def wrapped(family: str = "llama", bptt_segments: int = 8, **fields) -> SegmentMemoryForCausalLM:
    """A small base with memory tokens, large enough to be seen."""
    base = tiny_base(family)
    torch.manual_seed(0)
    model = add_memory(
        base,
        kind="tokens",
        num_memory_tokens=TOKENS,
        segment_length=SEGMENT,
        bptt_segments=bptt_segments,
        memory_scale=0.7,
        memory_initializer_range=1.0,
        **fields,
    )
    model.generation_config.eos_token_id = None
    return model.eval()


def tokens(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, VOCAB_SIZE, (batch, length), generator=torch.Generator().manual_seed(seed))


def by_hand(model: SegmentMemoryForCausalLM, ids: torch.Tensor, bptt_segments: int = 8) -> torch.Tensor:
    """Logits `(length, words)` of one row, segment by segment, as the paper reads them."""
    base, added, written, logits = model.backbone, model.reader.memory_tokens, None, []
    pieces = base.get_input_embeddings()(ids)[None].split(SEGMENT, dim=1)
    for index, piece in enumerate(pieces):
        if written is not None and (len(pieces) - index) % bptt_segments == 0:
            written = written.detach()
        read = added.start[None] if written is None else written * added.scale
        embeds = torch.cat([read, piece, read], dim=1)
        output = base(inputs_embeds=embeds, use_cache=False, output_hidden_states=True)
        logits.append(output.logits[0, TOKENS : TOKENS + piece.shape[1]])
        written = output.hidden_states[-1][:, -TOKENS:]
    return torch.cat(logits)


def read_in(
    model: SegmentMemoryForCausalLM, ids: torch.Tensor, lengths: list[int], use_cache: bool, mask: torch.Tensor
) -> torch.Tensor:
    """Logits of calls of these lengths."""
    logits, memory = [], {}
    for here, real in zip(ids.split(lengths, dim=1), mask.split(lengths, dim=1), strict=True):
        output = model(here, attention_mask=real, use_cache=use_cache, **memory)
        memory = {"past_key_values": output.past_key_values} if use_cache else {"mems": output.mems}
        logits.append(output.logits)
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_any_cut_and_padding_anywhere_is_the_loop_by_hand(family):
    """Rows of unequal length too, whose segments end at different columns, in both forms of the memory."""
    model, ids = wrapped(family), tokens(3, 13)
    mask = torch.ones_like(ids)
    mask[0, :3] = mask[1, 5:7] = mask[1, 11:] = 0  # on the left, between tokens, and on the right
    with torch.no_grad():
        expected = [by_hand(model, row[real.bool()]) for row, real in zip(ids, mask, strict=True)]
        for lengths in ([13], [5, 1, 1, 6]):
            for use_cache in (False, True):
                logits = read_in(model, ids, lengths, use_cache, mask)
                for row, real, wanted in zip(logits, mask, expected, strict=True):
                    torch.testing.assert_close(row[real.bool()], wanted, **ROUNDED.get(family, EXACT))


@pytest.mark.parametrize("bptt_segments", [1, 2, 8])
def test_gradients_go_back_through_the_last_segments(bptt_segments):
    """The call is cut into segments that learn together, counted from its end; padding changes nothing."""
    ids, weights = tokens(2, 14), torch.randn(2, 14, VOCAB_SIZE, dtype=torch.float64)
    mask = torch.ones_like(ids)
    mask[:, :2] = 0
    ours, theirs = wrapped(bptt_segments=bptt_segments), wrapped()
    ours.train()
    logits = ours(ids, attention_mask=mask).logits
    (logits * weights)[:, 2:].sum().backward()
    sum((by_hand(theirs, ids[row, 2:], bptt_segments) * weights[row, 2:]).sum() for row in range(2)).backward()
    for (name, actual), expected in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, expected.grad, **EXACT, msg=lambda text, name=name: f"{name}: {text}")


def test_activation_checkpointing_changes_nothing():
    ids, model = tokens(2, 11), wrapped().train()
    gradients = []
    for _ in range(2):
        model(ids, labels=ids).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
        model.zero_grad()
        model.gradient_checkpointing_enable()
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


def test_documents_begin_anywhere():
    """Each is read as if it were alone, and its segments are counted from its first token; the last one goes on."""
    model, ids, after = wrapped(), tokens(2, 15), tokens(2, 3, seed=2)
    reset = torch.zeros_like(ids, dtype=torch.bool)
    reset[0, 6] = reset[1, 3] = reset[1, 4] = True
    before = tokens(2, 6, seed=1)
    with torch.no_grad():
        for use_cache in (False, True):
            output = model(before, use_cache=use_cache)
            memory = {"past_key_values": output.past_key_values} if use_cache else {"mems": output.mems}
            output = model(ids, reset=reset, **memory)
            memory = {"past_key_values": output.past_key_values} if use_cache else {"mems": output.mems}
            logits = torch.cat([output.logits, model(after, **memory).logits], dim=1)
            for row in range(2):
                number = reset[row].long().cumsum(0)
                texts = [ids[row][number == document] for document in range(int(number[-1]) + 1)]
                texts[-1] = torch.cat([texts[-1], after[row]])
                first = by_hand(model, torch.cat([before[row], texts[0]]))[6:]
                expected = torch.cat([first, *(by_hand(model, text) for text in texts[1:])])
                torch.testing.assert_close(logits[row], expected, **EXACT)


def reread(model: SegmentMemoryForCausalLM, ids: torch.Tensor, new: int) -> torch.Tensor:
    """Greedy continuations of rows without padding, all read again for every token."""
    for _ in range(new):
        newest = torch.stack([by_hand(model, row)[-1] for row in ids]).argmax(-1, keepdim=True)
        ids = torch.cat([ids, newest], dim=1)
    return ids


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2", "bloom", *HYBRIDS])
def test_generate_goes_on_over_segments(family):
    """Greedy is what is read again for every token, with padding, from memory and with the memory of a result."""
    model, ids = wrapped(family), tokens(2, 6)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    settings = {"do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        expected = [reread(model, ids[:1, 3:], 9)[0, 3:], reread(model, ids[1:], 9)[0, 6:]]
        generated = model.generate(ids, attention_mask=mask, max_new_tokens=9, **settings)
        assert torch.equal(generated[:, 6:], torch.stack(expected))
        read = model(ids[:, :4], attention_mask=mask[:, :4])
        first = model.generate(ids[:, 4:], mems=read.mems, max_new_tokens=4, return_dict_in_generate=True, **settings)
        second = model.generate(first.sequences[:, -1:], mems=first.mems, max_new_tokens=5, **settings)
    assert torch.equal(torch.cat([first.sequences[:, 2:], second[:, 1:]], dim=1), generated[:, 6:])


@pytest.mark.parametrize("family", ["llama", "qwen3_next"])
def test_beams_carry_their_own_memory(family):
    """The scores are those of the sequences when they are read again; of the beams that ran last nothing is remembered."""
    model, ids = wrapped(family), tokens(2, 6)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    settings = {"do_sample": False, "pad_token_id": 0, "attention_mask": mask}
    result = model.generate(
        ids, num_beams=3, max_new_tokens=7, length_penalty=0.0, return_dict_in_generate=True, output_scores=True, **settings
    )  # fmt: skip
    assert result.mems is None
    tolerance = ROUNDED.get(family, FLOAT32)  # transformers' scores are float32
    with torch.no_grad():
        for row, start in enumerate((3, 0)):
            text = result.sequences[row, start:]
            scores = by_hand(model, text).log_softmax(-1)[-8:-1].gather(1, text[-7:, None])
            torch.testing.assert_close(scores.sum().float(), result.sequences_scores[row], **tolerance)


def test_a_generated_token_costs_a_token():
    """The base reads each token once, and memory tokens at the ends of a segment. Its head sees what is asked for."""
    model, read, predicted = wrapped(), [], []
    model.backbone.model.register_forward_hook(
        lambda module, given, named, output: read.append(named["inputs_embeds"].shape[1]), with_kwargs=True
    )
    model.backbone.lm_head.register_forward_hook(lambda module, given, output: predicted.append(output.shape[1]))
    model.generate(tokens(2, 9), max_new_tokens=6, do_sample=False, pad_token_id=0)
    whole = TOKENS + SEGMENT + TOKENS
    begun = TOKENS + 1
    assert read == [whole, whole, begun, 1, 1, 1 + TOKENS, begun, 1]
    assert sum(predicted) < 6 * (1 + TOKENS) + TOKENS


@pytest.mark.parametrize("padding", [slice(0), slice(3), slice(8, None)], ids=["none", "left", "right"])
def test_what_is_kept_of_the_logits_is_the_end_of_all(padding):
    model, ids = wrapped(), tokens(2, 11)
    mask = torch.ones_like(ids)
    mask[0, padding] = 0
    with torch.no_grad():
        logits = model(ids, attention_mask=mask).logits
        for use_cache in (False, True):
            for kept in (1, 5, 9, torch.tensor([1, 7])):
                output = model(ids, attention_mask=mask, logits_to_keep=kept, use_cache=use_cache)
                expected = logits[:, -kept:] if isinstance(kept, int) else logits[:, kept]
                real = mask[:, -kept:] if isinstance(kept, int) else mask[:, kept]
                torch.testing.assert_close(output.logits[real.bool()], expected[real.bool()], **EXACT)


def test_memory_tokens_start_as_large_as_embeddings():
    """Written vectors are brought to the size of embeddings, whatever the last norm makes them."""
    base = tiny_base("llama")
    nn.init.constant_(base.model.norm.weight, 5.0)
    model = add_memory(base, kind="tokens", num_memory_tokens=64, segment_length=SEGMENT)
    embeds = base.get_input_embeddings().weight
    added = model.reader.memory_tokens
    written = model(tokens(4, SEGMENT)).mems.layers[0].state[0]
    size = (written * added.scale).square().mean().sqrt()
    torch.testing.assert_close(size, embeds.square().mean().sqrt(), rtol=0.2, atol=0)
    torch.testing.assert_close(added.start.std(), embeds.std(), rtol=0.2, atol=0)


def test_a_call_that_trains_no_writing_says_so(caplog, monkeypatch):
    monkeypatch.setattr(memory_tokens.logger, "propagate", True)
    memory_tokens.logger.warning_once.__func__.cache_clear()
    model = wrapped().train()
    with caplog.at_level(logging.WARNING):
        model(tokens(1, 2 * SEGMENT))
        assert not caplog.records
        model(tokens(1, SEGMENT))
    assert "nothing that writes them" in caplog.text


def test_what_cannot_be_read_is_refused_in_words():
    model = wrapped()
    with pytest.raises(ValueError, match=r"`mem_len`=5 has no meaning for `kind`='tokens'"):
        model.resize_memory(5)
    with pytest.raises(ValueError, match="`output_attentions`=True"):
        model(tokens(1, 3), output_attentions=True)
    with pytest.raises(ValueError, match="stateful"):
        model.generate(tokens(1, 3), prompt_lookup_num_tokens=2, max_new_tokens=3)
    with pytest.raises(ValueError, match=r"is a mamba, whose `forward` takes no `past_key_values`"):
        add_memory(tiny_base("mamba"), kind="tokens")
    with pytest.raises(ValueError, match=r"make 264 positions, and `text_config` has a table of 256"):
        add_memory(tiny_base("gpt2"), kind="tokens", num_memory_tokens=4, segment_length=256)
    base = tiny_base("llama")
    base.config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    with pytest.raises(ValueError, match=r"make 264 positions, and beyond 256 the angles of `rope_type`='dynamic'"):
        add_memory(base, kind="tokens", num_memory_tokens=4, segment_length=256)


def test_activation_checkpointing_with_a_cache():
    """What a base would append to its cache is appended again when its layers are computed again."""
    ids, gradients = tokens(2, 14), []
    for is_checkpointed in (False, True):
        model = wrapped().train()
        if is_checkpointed:
            model.activation_checkpointing_enable({"use_reentrant": True})
        model(ids, labels=ids, use_cache=True).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    torch.testing.assert_close(*gradients, **EXACT)


@pytest.mark.parametrize("use_cache", [False, True])
def test_gradients_reach_back_so_many_segments_with_a_cache_too(use_cache):
    model = wrapped(bptt_segments=1).train()
    embeds = model.get_input_embeddings()(tokens(1, 5 * SEGMENT)).detach().requires_grad_()
    model(inputs_embeds=embeds, use_cache=use_cache).logits[:, -1].sum().backward()
    assert embeds.grad.abs().sum(-1).nonzero()[:, 1].tolist() == list(range(4 * SEGMENT, 5 * SEGMENT))


@torch.no_grad()
@pytest.mark.parametrize("use_cache", [False, True])
def test_more_logits_to_keep_than_tokens(use_cache):
    model, ids = wrapped(), tokens(1, SEGMENT + 2)
    kept = model(ids, use_cache=use_cache, logits_to_keep=99).logits
    torch.testing.assert_close(kept, model(ids).logits, **EXACT)


def test_what_was_written_cannot_be_taken_back():
    """The cache knows it too, where the model without its head fills it: of padded rows few logits are asked for."""
    mask = torch.tensor([[1] * 6, [0] * 2 + [1] * 4])
    cache = wrapped()(tokens(2, 6), mask, use_cache=True, logits_to_keep=1).past_key_values
    with pytest.raises(ValueError, match="no token can be taken back"):
        cache.crop(-1)

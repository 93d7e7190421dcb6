"""Windows around bases of transformers: values and gradients, many families, positions that move back."""

import copy
import itertools

import pytest
import torch
from naive_window import STEP, naive_logits
from tiny import read, tokens
from tiny_bases import FIELDS, read_with_band, tiny_base
from transformers.masking_utils import create_masks_for_generate

from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.modeling.modeling_segment_memory import add_memory
from transformers_xl.modeling.pretrained import sinks as attention_sinks
from transformers_xl.modeling.pretrained import window_reader
from transformers_xl.modeling.pretrained.rotation import measure_rotations

WINDOW = 9
UNREAD = ("gpt2", "bloom", "mamba", "falcon_h1", "qwen3_next")  # what windows refuse
FAMILIES = [family for family in FIELDS if family not in UNREAD]
# the parts of these that compute in float32 whatever the model's type: softmax, routing, scores
ROUGH = {"gemma2": 1e-5, "mpt": 1e-5, "gptj": 1e-5, "deepseek_v3": 1e-5}


@pytest.fixture(autouse=True)
def _steps_of_sinks_are_short(monkeypatch):
    monkeypatch.setattr(attention_sinks, "STEP", STEP)


def close_to(family: str) -> dict[str, float]:
    """How equal logits are: in float64, or in float32 where a family computes in it."""
    return {"atol": ROUGH.get(family, 1e-10), "rtol": 0.0}


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_every_token_sees_the_window_however_a_text_is_cut(family):
    """Calls with memory are one call of the base with the mask of a band."""
    base, ids = tiny_base(family), tokens(2, 33)
    expected = read_with_band(base, ids, WINDOW)
    model = add_memory(base, mem_len=WINDOW, num_sinks=0)
    for lengths, use_cache in (([33], None), ([1, 7, 9, 10, 6], None), ([7, 1, 1, 8, 16], True)):
        ours, _ = read(model, ids, lengths, use_cache=use_cache)
        torch.testing.assert_close(ours, expected, **close_to(family))
    assert not torch.allclose(expected, read_with_band(base, ids, WINDOW - 1), atol=1e-4)


@pytest.mark.parametrize(
    "family", [family for family in FAMILIES if family not in ("gemma2", "mpt")]
)  # NaN in float64
@torch.no_grad()
def test_rows_with_padding_and_documents_are_rows_alone(family):
    model, ids = add_memory(tiny_base(family), mem_len=WINDOW, num_sinks=0), tokens(2, 24)
    mask, reset = torch.ones(2, 24, dtype=torch.long), torch.zeros(2, 24, dtype=torch.bool)
    mask[0, :5] = mask[0, 14:16] = mask[1, 20:] = 0
    reset[1, 15] = True
    ours, _ = read(model, ids, [12, 12], attention_mask=mask, reset=reset)
    alone = model(ids[:1, mask[0].bool()]).logits[0]
    torch.testing.assert_close(ours[0, mask[0].bool()], alone, **close_to(family))
    for columns in (slice(0, 15), slice(15, 20)):
        torch.testing.assert_close(ours[1, columns], model(ids[1:, columns]).logits[0], **close_to(family))


@pytest.mark.parametrize("sinks", [0, 3])
@pytest.mark.parametrize("use_cache", [None, True])
@torch.no_grad()
def test_values_are_those_of_the_naive_loop(sinks, use_cache):
    base, ids = tiny_base("llama"), tokens(2, 30)
    expected = naive_logits(base, ids, [30], WINDOW, sinks)
    for lengths in ([2, 6, 1, 6, 6, 1, 8], [30]):
        ours, _ = read(add_memory(base, mem_len=WINDOW, num_sinks=sinks), ids, lengths, use_cache=use_cache)
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
    if sinks:
        assert not torch.allclose(ours, naive_logits(base, ids, [30], WINDOW, sinks - 1), atol=1e-2)


@pytest.mark.parametrize("own", [12, 32])
@torch.no_grad()
def test_a_window_of_the_base_sees_all_sinks_or_none(own):
    """Wherever a text is cut: it reaches as far as they stand, or it does not."""
    model, ids = add_memory(tiny_base("mistral", sliding_window=own), mem_len=WINDOW, num_sinks=3), tokens(1, 40)
    other = {12: {"mem_len": WINDOW, "num_sinks": 0}, 32: {"mem_len": WINDOW, "num_sinks": 3}}[own]
    expected = add_memory(tiny_base("mistral", sliding_window=None), **other)(ids).logits
    for lengths in ([40], [7, 1, 22, 1, 9]):
        torch.testing.assert_close(read(model, ids, lengths)[0], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("sinks", [0, 2])
def test_gradients_are_those_of_the_naive_loop(sinks):
    """Through a call, not into what is remembered."""
    base, ids, lengths = tiny_base("llama"), tokens(2, 24), [5, 11, 8]
    weights = torch.randn(2, 24, 37, dtype=torch.float64)
    naive = copy.deepcopy(base)
    (naive_logits(naive, ids, lengths, WINDOW, sinks) * weights).sum().backward()
    model = add_memory(base, mem_len=WINDOW, num_sinks=sinks)
    (read(model, ids, lengths)[0] * weights).sum().backward()
    for ours, theirs in zip(base.parameters(), naive.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-3, rtol=1e-4)


@torch.no_grad()
def test_sinks_of_padded_and_fresh_rows_are_those_of_rows_alone():
    """Rows that read their first tokens in different calls, and one that begins anew."""
    model, ids = add_memory(tiny_base("llama"), mem_len=6, num_sinks=3), tokens(3, 32)
    mask, reset = torch.ones(3, 8, dtype=torch.long), torch.tensor([False, False, True])
    mask[0, :7] = 0
    mask[1, 3:] = 0
    first = model(ids[:, :8], attention_mask=mask)
    second = model(ids[:, 8:16], reset=reset, mems=first.mems)
    ours, _ = read(model, ids[:, 16:], [8, 8], memory={"mems": second.mems})
    for row, begin in enumerate((7, 0, 8)):
        count = (1, 3, 0)[row]
        text = torch.cat([ids[row, begin : begin + count], ids[row, 8:]])
        alone = model(text[None]).logits
        torch.testing.assert_close(ours[row], alone[0, -16:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@pytest.mark.parametrize("use_cache", [None, True])
@torch.no_grad()
def test_documents_inside_a_call_have_their_own_sinks(family, use_cache):
    """One ends far from its sinks in the call in which the next one begins. A row has padding inside."""
    model, ids = add_memory(tiny_base(family), mem_len=WINDOW, num_sinks=3), tokens(2, 54)
    mask, reset = torch.ones_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    begins = [(0, 9, 46, 54), (0, 2, 7, 41, 54)]
    for row, starts in enumerate(begins):
        reset[row, starts[1:-1]] = True
    mask[1, 14:16] = mask[1, 30:34] = mask[1, 50:] = 0
    for lengths in ([12, 12, 30], [10, 1, 1, 12, 30]):
        ours, _ = read(model, ids, lengths, use_cache=use_cache, attention_mask=mask, reset=reset)
        for row, starts in enumerate(begins):
            for columns in itertools.starmap(slice, itertools.pairwise(starts)):
                real = mask[row, columns].bool()
                alone = model(ids[row, columns][real][None]).logits[0]
                torch.testing.assert_close(ours[row, columns][real], alone, atol=1e-5, rtol=0)


def test_a_document_inside_a_call_that_leaves_its_sinks_is_refused():
    model, reset = add_memory(tiny_base("llama"), mem_len=6, num_sinks=3), torch.zeros(1, 11, dtype=torch.bool)
    reset[0, 4] = True
    model(tokens(1, 10), reset=reset[:, :10])
    with pytest.raises(
        ValueError, match="A document of 7 tokens begins inside.*`num_sinks`=3 it may have `mem_len`=6"
    ):
        model(tokens(1, 11), reset=reset)
    add_memory(tiny_base("llama"), mem_len=6, num_sinks=0)(tokens(1, 11), reset=reset)


def next_positions(mems: Memory) -> torch.Tensor:
    """Where the next token of each row stands, `(batch,)`, after what its text has been moved back by."""
    (moved,) = mems.state
    return mems.tokens_read - moved


@pytest.mark.parametrize(
    ("family", "sinks", "use_cache"),
    [*zip(FAMILIES, itertools.cycle([0, 2]), itertools.cycle([None, None, True, True]), strict=False)],
)
@torch.no_grad()
def test_positions_move_back_and_nothing_else_changes(family, sinks, use_cache, monkeypatch):
    """What is remembered turns with them, as measured: whatever the layout, and where values carry the position."""
    model, ids = add_memory(tiny_base(family), mem_len=WINDOW, num_sinks=sinks), tokens(2, 90)
    lengths = [9] * 10
    expected, _ = read(model, ids, lengths)
    monkeypatch.setattr(window_reader, "LAST_POSITION", 40)
    ours, memory = read(model, ids, lengths, use_cache=use_cache)
    mems = memory["past_key_values"].memory if use_cache else memory["mems"]
    assert next_positions(mems).max() <= 40
    assert mems.tokens_read.tolist() == [90, 90]
    torch.testing.assert_close(ours, expected, atol=2e-5, rtol=0)


@torch.no_grad()
def test_rotations_are_measured_as_the_base_has_them():
    """Also from positions at which it has turned thousands of times."""
    base = tiny_base("llama")
    for layer in measure_rotations(base, 2**15):
        assert layer.values is None
        torch.testing.assert_close(layer.keys.angles, base.model.rotary_emb.inv_freq.double(), atol=1e-9, rtol=0)


@torch.no_grad()
def test_rows_move_back_each_by_its_own(monkeypatch):
    monkeypatch.setattr(window_reader, "LAST_POSITION", 36)
    model, ids = add_memory(tiny_base("llama"), mem_len=WINDOW, num_sinks=0), tokens(2, 50)
    first = model(ids[:, :30])
    second = model(ids[:, 30:40], mems=first.mems, reset=torch.tensor([False, True]))
    assert next_positions(second.mems).tolist() == [WINDOW - 1 + 10, 10]
    third = model(ids[:, 40:], mems=second.mems)
    torch.testing.assert_close(third.logits[:1], model(ids[:1]).logits[:, 40:], atol=1e-5, rtol=0)
    torch.testing.assert_close(third.logits[1:], model(ids[1:, 30:]).logits[:, 10:], atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gpt_oss", "deepseek_v3"])
@pytest.mark.parametrize("sinks", [0, 2])
def test_gradient_checkpointing_changes_no_number(family, sinks, monkeypatch):
    """And nobody says that there is no cache."""
    monkeypatch.setattr("transformers.utils.generic.logger.warning_once", pytest.fail)
    ids, gradients = tokens(2, 16), []
    for checkpointing in (False, True):
        model = add_memory(tiny_base(family), mem_len=WINDOW, num_sinks=sinks).train()
        if checkpointing:
            model.activation_checkpointing_enable()
        logits, _ = read(model, ids, [5, 5, 6])
        logits.square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    torch.testing.assert_close(gradients[1], gradients[0], atol=0, rtol=0)
    assert len(gradients[0]) > 10


@torch.no_grad()
def test_the_memory_is_keys_and_values_as_the_base_made_them():
    base, ids = tiny_base("gpt_neox"), tokens(2, 12)
    model = add_memory(base, mem_len=WINDOW, num_sinks=0)
    layers = base(ids[:, :8], use_cache=True).past_key_values.layers
    mems = model(ids[:, :8]).mems
    for layer, remembered in zip(layers, mems.layers, strict=True):
        assert torch.equal(remembered.columns[0], layer.keys)
        assert torch.equal(remembered.columns[1], layer.values)
    assert mems.tokens_read.tolist() == [8, 8]
    after = model(ids, mems=mems).mems
    assert [tuple(each.shape) for layer in after.layers for each in layer.columns] == [(2, 4, 8, 8)] * 4


@torch.no_grad()
def test_a_mask_is_made_once_for_all_calls_of_one_shape(monkeypatch):
    made = []

    def note(*args, **kwargs):
        made.append(kwargs["inputs_embeds"].shape)
        return create_masks_for_generate(*args, **kwargs)

    monkeypatch.setattr(window_reader, "create_masks_for_generate", note)
    model = add_memory(tiny_base("llama"), mem_len=WINDOW, num_sinks=0)
    made.clear()  # those of its trial
    read(model, tokens(2, 64), [8] * 8)
    assert len(made) == 1  # the first call is causal, the others see a full window
    made.clear()
    read(model, tokens(2, 30), [1] * 30, use_cache=True)
    assert made == []  # one token sees all that is kept
    model = add_memory(tiny_base("llama"), mem_len=WINDOW, num_sinks=2)
    made.clear()
    read(model, tokens(2, 64), [8] * 8)
    assert len(made) == 2  # the second call, whose first tokens have all sinks in their windows, and all behind it


@pytest.mark.slow
@torch.no_grad()
def test_a_quarter_of_a_million_tokens():
    """The numbers at the end are those of the last tokens alone: positions move back 7 times, and no error grows."""
    torch.manual_seed(0)
    base = tiny_base("llama").float()
    model, ids = (
        add_memory(base, mem_len=64, num_sinks=0),
        torch.randint(3, 37, (1, 2**18), generator=torch.Generator()),
    )
    cache = None
    for piece in ids.split(2**9, dim=1):
        output = model(piece, past_key_values=cache, use_cache=True, logits_to_keep=16)
        cache = output.past_key_values
    assert cache.get_seq_length() == 2**18
    assert all(layer.num_columns == 63 for layer in cache.memory.layers)
    fresh = model(ids[:, -(2 * 64 + 16) :]).logits[:, -16:]
    torch.testing.assert_close(output.logits, fresh, atol=2e-3, rtol=0)  # logits of size 1; float32

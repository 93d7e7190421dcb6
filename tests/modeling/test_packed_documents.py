"""Documents packed into one row by `position_ids`, and the arguments of other models that ours do not read."""

import pytest
import torch
from tiny import EXACT, memory_of, result_of, tiny_model, tokens, variants
from transformers import DataCollatorWithFlattening

from transformers_xl.modeling.memory.segment import Call

PACKED = variants(memory=("exact", "none"), causal_lm=True)
CARRYING = variants(memory=("exact",))
use_cache = pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])
DOCUMENTS = [tokens(1, length, seed=length)[0].tolist() for length in (5, 4, 11)]


def packed(*documents: list[int]) -> dict[str, torch.Tensor]:
    """What transformers' collator makes of documents."""
    batch = DataCollatorWithFlattening()([{"input_ids": document} for document in documents])
    return {name: value for name, value in batch.items() if torch.is_tensor(value)}


def read_alone(model, documents: list[list[int]]) -> torch.Tensor:
    return torch.cat([result_of(model(torch.tensor([document]))) for document in documents], dim=1)


@pytest.mark.parametrize("model_type", PACKED)
@use_cache
def test_packed_documents_do_not_see_each_other(model_type, use_cache):
    model = tiny_model(model_type, head="causal_lm")
    batch = packed(*DOCUMENTS)
    output = model(**batch, use_cache=use_cache)
    torch.testing.assert_close(output.logits, read_alone(model, DOCUMENTS), **EXACT)
    rows = [torch.tensor([document]) for document in DOCUMENTS]
    total = sum(model(row, labels=row).loss * (row.shape[1] - 1) for row in rows)
    # transformers computes losses in float32
    torch.testing.assert_close(output.loss * sum(row.shape[1] - 1 for row in rows), total, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("model_type", CARRYING)
@use_cache
def test_the_last_document_goes_on_with_the_next_call(model_type, use_cache):
    model = tiny_model(model_type)
    first, last = DOCUMENTS[0], DOCUMENTS[2]
    batch = packed(first, last[:6])
    output = model(batch["input_ids"], position_ids=batch["position_ids"], use_cache=use_cache)
    rest = model(torch.tensor([last[6:]]), position_ids=torch.arange(6, len(last))[None], **memory_of(output))
    torch.testing.assert_close(result_of(rest), result_of(model(torch.tensor([last])))[:, 6:], **EXACT)


@pytest.mark.parametrize("side", ["left", "right", "interior"])
def test_positions_of_padding_do_not_count(side):
    model = tiny_model("transformer_xl")
    ids = tokens(2, 9)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, {"left": slice(0, 3), "right": slice(6, 9), "interior": slice(3, 6)}[side]] = 0
    from_mask = mask.cumsum(dim=1) - 1
    for positions in (from_mask, from_mask.masked_fill(mask == 0, 0), from_mask.masked_fill(mask == 0, 77)):
        with_positions = model(ids, attention_mask=mask, position_ids=positions)
        assert torch.equal(result_of(with_positions), result_of(model(ids, attention_mask=mask)))


@pytest.mark.parametrize("model_type", CARRYING)
def test_positions_may_be_those_of_all_rows(model_type):
    model, ids = tiny_model(model_type), tokens(2, 20)
    positions = torch.cat([torch.arange(7), torch.arange(13)])[None]
    expected = model(ids, position_ids=positions.expand(2, -1))
    assert torch.equal(result_of(model(ids, position_ids=positions)), result_of(expected))


def test_starts_of_documents():
    position_ids = torch.tensor([[0, 1, 2, 0, 1, 5], [3, 4, 0, 0, 5, 6]])
    call = Call.of(None, None, position_ids)
    assert call.document_ids.tolist() == [[0, 0, 0, 1, 1, 2], [0, 0, 1, 2, 3, 3]]
    mask = torch.tensor([[1, 1, 1, 1, 0, 1], [1, 1, 0, 0, 1, 1]]).bool()
    call = Call.of(mask, None, position_ids)  # padding after the tokens, in the document of the last one
    assert call.document_ids.tolist() == [[0, 0, 0, 1, 2, 2], [0] * 6]
    assert call.closed is None  # positions of padding begin nothing
    reset = torch.tensor(
        [[0, 1, 0, 0, 1, 0], [0, 0, 0, 1, 0, 0]]
    ).bool()  # that of padding begins the next token's document
    call = Call.of(mask, reset, position_ids)
    assert call.document_ids.diff(dim=1).bool().tolist() == [
        [True, False, True, True, False],
        [False, True, False, False, False],
    ]
    assert call.closed.tolist() == [False, False]
    last = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 1, 1]]).bool()
    assert Call.of(last, reset, position_ids).closed.tolist() == [True, False]
    assert Call.of(None, None, torch.arange(6)[None]).document_ids is None


@use_cache
def test_positions_from_zero_behind_a_memory_want_a_reset(use_cache):
    model = tiny_model("transformer_xl")
    ids, positions = tokens(2, 4, seed=1), torch.arange(4).expand(2, -1)
    memory = memory_of(model(tokens(2, 6), use_cache=use_cache))
    with pytest.raises(ValueError, match=r"rows \[0, 1\].*`reset`"):
        model(ids, position_ids=positions, **memory)
    with pytest.raises(ValueError, match=r"rows \[1\].*`reset`"):
        model(ids, position_ids=positions, reset=torch.tensor([True, False]), **memory)
    fresh = model(ids, position_ids=positions)
    reset = torch.zeros(2, 4, dtype=torch.bool)
    reset[:, 0] = True
    torch.testing.assert_close(
        result_of(model(ids, reset=reset, position_ids=positions, **memory)), result_of(fresh), **EXACT
    )


def test_positions_that_begin_with_a_row_reset_are_fresh():
    model = tiny_model("transformer_xl")
    ids, positions = tokens(2, 4, seed=1), torch.arange(4).expand(2, -1)
    memory = memory_of(model(tokens(2, 6)))
    everyone = torch.tensor([True, True])
    states = result_of(model(ids, position_ids=positions, reset=everyone, **memory))
    torch.testing.assert_close(states, result_of(model(ids)), **EXACT)


def test_a_start_of_zeros_cannot_begin_inside_a_segment():
    model = tiny_model("transformer_xl", initial_memory="zeros")
    with pytest.raises(ValueError, match="`initial_memory`='zeros'"):
        model(torch.tensor([[5, 6, 7, 8]]), position_ids=torch.tensor([[0, 1, 0, 1]]))
    ids = tokens(2, 5)
    assert torch.equal(result_of(model(ids, position_ids=torch.arange(5)[None])), result_of(model(ids)))


def test_a_relay_is_shared_by_a_whole_segment():
    with pytest.raises(ValueError, match="`position_ids`"):
        tiny_model("star_transformer")(torch.tensor([[5, 6, 7, 8]]), position_ids=torch.tensor([[0, 1, 0, 1]]))


@pytest.mark.parametrize("beams", [1, 2])
def test_generation_reads_documents_where_positions_were_given_only(beams):
    model = tiny_model("transformer_xl", head="causal_lm")
    settings = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "num_beams": beams}
    settings |= {"return_dict_in_generate": True, "pad_token_id": 0}
    memory = model(tokens(1, 9, seed=3)).mems
    # positions that `generate()` would make begin at 0, also behind a memory
    continued = model.generate(tokens(1, 4), mems=memory, **settings)
    first, second = DOCUMENTS[:2]
    batch = packed(first, second)
    result = model.generate(batch["input_ids"], position_ids=batch["position_ids"], **settings)
    alone = model.generate(torch.tensor([second]), **settings)
    assert torch.equal(result.sequences[:, len(first) :], alone.sequences)
    following = tokens(1, 3, seed=5)
    if beams == 1:
        rest, expected = (model(following, mems=each.mems).logits for each in (result, alone))
        torch.testing.assert_close(rest, expected, **EXACT)
    assert continued.sequences.shape == (1, 10)


@pytest.mark.parametrize("head", ["model", "causal_lm", "sequence_classification", "token_classification"])
@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("token_type_ids", torch.zeros(1, 4, dtype=torch.long), "return_token_type_ids"),
        ("cache_position", torch.arange(4), "leave it out"),
        ("cu_seq_lens_q", torch.tensor([0, 2, 4]), "position_ids"),
        ("seq_idx", torch.zeros(1, 4, dtype=torch.int), "position_ids"),
        ("head_mask", torch.ones(2, 4), "leave it out"),
        ("atention_mask", torch.ones(1, 4), "spelling"),
        ("attention_mask", torch.ones(1, 1, 4, 4), r"\(batch, length\)"),
        ("attention_mask", {"full_attention": None}, r"\(batch, length\)"),
        ("position_ids", torch.zeros(3, 1, 4, dtype=torch.long), r"\(batch, length\)"),
        ("position_ids", torch.zeros(1, 5, dtype=torch.long), r"\(batch, length\)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_would_be_ignored_is_refused(head, name, value, remedy):
    model = tiny_model("transformer_xl", head=head)
    with pytest.raises(ValueError, match=f"`{name}`.*{remedy}"):
        model(torch.tensor([[5, 6, 7, 8]]), **{name: value})


def test_arguments_of_kernels_say_nothing_beside_position_ids():
    """Collators of packed rows give both; alone they are refused, as above."""
    model = tiny_model("transformer_xl", "causal_lm")
    collator = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    batch = collator([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}])
    expected = model(batch["input_ids"], position_ids=batch["position_ids"]).logits
    assert torch.equal(model(**batch).logits, expected)

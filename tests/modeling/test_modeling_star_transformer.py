"""What the Star-Transformer adds: a ring of satellites around a relay, and the relay that is handed on."""

import math

import pytest
import torch
from tiny import EXACT, memory_of, tiny_config, tiny_model, tokens
from torch.nn import functional as F
from torch.utils.data import Dataset

from transformers_xl.training.trainer import MemoryTrainer, MemoryTrainingArguments

STAR = "star_transformer"
rings = pytest.mark.parametrize("ring", ["cyclic", "open"])
# three rows in segments of 9 with unequal numbers of tokens, one of them zero: (columns * 5 + row) % 9 shuffles 0..8
MASK = torch.stack(
    [
        torch.cat([(torch.arange(9) * 5 + row) % 9 < count for count in counts])
        for row, counts in enumerate([(9, 6, 3), (4, 9, 0), (1, 2, 9)])
    ]
)


def attention_by_hand(module, query: torch.Tensor, keys: list, values: list, config) -> torch.Tensor:
    """One query `(width,)` over projected keys and values, head by head."""
    heads = []
    for head in range(config.num_attention_heads):
        here = slice(head * config.head_dim, (head + 1) * config.head_dim)
        scores = torch.stack([query[here] @ key[here] / math.sqrt(config.head_dim) for key in keys])
        heads.append(sum(p * value[here] for p, value in zip(scores.softmax(0), values, strict=True)))
    return module.o_proj(torch.cat(heads))


def row_by_hand(model, ids: torch.Tensor, handed_on: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Satellites `(tokens, width)` and relay `(width,)` of one row without padding, by the equations of section 3.2."""
    config, n = model.config, len(ids)
    is_post = config.norm_position == "post"

    def norm(states, module):
        return F.layer_norm(states, states.shape[-1:], module.weight, module.bias, module.eps)

    embedded = [model.embed_tokens(ids[i]) + model.positions.table.weight[i] for i in range(n)]
    satellites, relay = embedded, sum(embedded) / n + handed_on
    for layer in model.layers:
        ring, star, new = layer.ring_attn, layer.relay_attn, []
        read = satellites if is_post else [norm(h, layer.ring_layernorm) for h in satellites]
        for i in range(n):
            sources = [read[(i - 1) % n], read[i], read[(i + 1) % n], embedded[i], relay]
            keys, values = [ring.k_proj(c) for c in sources], [ring.v_proj(c) for c in sources]
            if config.ring == "open":
                for end, position in ((0, 0), (2, n - 1)):
                    if i == position:
                        keys[end], values[end] = torch.zeros_like(keys[end]), torch.zeros_like(values[end])
            attended = layer.act_fn(attention_by_hand(ring, ring.q_proj(read[i]), keys, values, config))
            new.append(norm(attended, layer.ring_layernorm) if is_post else attended)
        satellites, sources = new, [relay, *new]
        keys, values = [star.k_proj(c) for c in sources], [star.v_proj(c) for c in sources]
        relay = layer.act_fn(attention_by_hand(star, star.q_proj(relay), keys, values, config))
        relay = norm(relay, layer.relay_layernorm) if is_post else relay
    if config.use_final_norm:
        satellites, relay = [norm(h, model.norm) for h in satellites], norm(relay, model.norm)
    return torch.stack(satellites), relay


@rings
@pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])
@pytest.mark.parametrize(
    "form",
    [
        {"norm_position": "post"},
        {"norm_position": "pre"},
        {"norm_position": "pre", "use_final_norm": False, "hidden_act": "leaky_relu", "attention_bias": True},
    ],
    ids=["paper", "pre", "code"],
)
def test_a_batch_is_its_equations(ring, form, use_cache):
    """Values and gradients of three padded rows and segments, against loops over rows, tokens and heads."""
    model = tiny_model(STAR, hidden_size=12, num_attention_heads=2, ring=ring, **form)
    ids, mask = tokens(3, 27), MASK
    remembered = [torch.zeros(12, dtype=torch.float64)] * 3
    memory, ours, expected = {}, [], []
    for segment in range(3):
        here = slice(9 * segment, 9 * segment + 9)
        output = model(ids[:, here], attention_mask=mask[:, here], use_cache=use_cache, **memory)
        memory = memory_of(output)
        for row in range(3):
            real = mask[row, here]
            if real.any():
                satellites, relay = row_by_hand(model, ids[row, here][real], remembered[row])
                ours += [output.last_hidden_state[row, real], output.relay[row]]
                expected += [satellites, relay]
                remembered[row] = relay.detach()
        torch.testing.assert_close(output.relay, torch.stack(remembered), **EXACT)
    torch.testing.assert_close(ours, expected, **EXACT)
    directions = [torch.randn_like(result) for result in expected]
    gradients = [
        torch.autograd.grad(
            sum((r * d).sum() for r, d in zip(results, directions, strict=True)), [*model.parameters()]
        )
        for results in (ours, expected)
    ]
    torch.testing.assert_close(*gradients, **EXACT)


@rings
def test_tokens_meet_through_the_relay(ring):
    """In one layer a token reads its neighbours and the mean of all; in two, the relay has told it of every token."""
    ids = tokens(1, 12)
    swapped = ids.clone()
    swapped[0, [4, 8]] = ids[0, [8, 4]]  # the mean stays what it was
    for layers, moved in ((1, {3, 4, 5, 7, 8, 9}), (2, set(range(12)))):
        model = tiny_model(STAR, num_hidden_layers=layers, max_position_embeddings=None, ring=ring)
        difference = model(ids).last_hidden_state - model(swapped).last_hidden_state
        assert set((difference.abs().amax(-1)[0] > 1e-10).nonzero().flatten().tolist()) == moved


def test_a_cyclic_ring_has_no_beginning():
    """Without positions the text may begin anywhere on the ring; an open one knows its ends."""
    ids = tokens(2, 9)
    for ring, same in (("cyclic", True), ("open", False)):
        model = tiny_model(STAR, ring=ring, max_position_embeddings=None)
        here, turned = model(ids), model(ids.roll(4, dims=1))
        assert torch.allclose(turned.last_hidden_state, here.last_hidden_state.roll(4, dims=1), **EXACT) == same
        assert torch.allclose(turned.relay, here.relay, **EXACT) == same


def test_what_a_call_keeps_grows_with_the_length_and_not_its_square():
    """Numbers that the backward pass needs, of texts of 64, 128 and 256 tokens: each doubling adds twice the last."""
    model = tiny_model(STAR).train()
    kept = []
    for length in (64, 128, 256):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: s.append(t.numel()) or t, lambda t: t):
            model(tokens(2, length))
        kept.append(sum(sizes))
    assert kept[2] - kept[1] == 2 * (kept[1] - kept[0]) > 0


# --- memory


def test_memory_is_the_relay():
    model = tiny_model(STAR)
    first = model(tokens(2, 7))
    (relay,) = first.mems.state
    assert relay.shape == (2, 32)
    assert not relay.requires_grad
    assert first.relay.requires_grad
    torch.testing.assert_close(relay, first.relay.detach(), atol=0, rtol=0)
    assert all(layer == ((), (), ()) for layer in first.mems.layers)
    fresh, following = model(tokens(2, 5, seed=1)), model(tokens(2, 5, seed=1), mems=first.mems)
    assert not torch.allclose(fresh.last_hidden_state, following.last_hidden_state)
    zeros = model(tokens(2, 5, seed=1), mems=first.mems._replace(state=(torch.zeros_like(relay),)))
    torch.testing.assert_close(zeros.last_hidden_state, fresh.last_hidden_state, **EXACT)
    reset = model(tokens(2, 5, seed=1), mems=first.mems, reset=torch.tensor([True, False]))
    torch.testing.assert_close(reset.last_hidden_state[0], fresh.last_hidden_state[0], **EXACT)
    torch.testing.assert_close(reset.last_hidden_state[1], following.last_hidden_state[1], **EXACT)


@pytest.mark.parametrize("use_cache", [None, False, True])
def test_mem_len_zero_remembers_nothing(use_cache):
    model = tiny_model(STAR, mem_len=0, same_length=False)
    output = model(tokens(2, 7), use_cache=use_cache)
    assert output.mems is None
    assert output.past_key_values is None
    with pytest.raises(ValueError, match="`mem_len`=0"):
        model(tokens(2, 7), mems=tiny_model(STAR)(tokens(2, 7)).mems)


# --- heads


def test_sequence_head_reads_the_relay_and_the_largest_satellites():
    model = tiny_model(STAR, "sequence_classification", num_labels=3)
    ids, mask = tokens(3, 9), MASK[:, :9].long()
    output, states = model(ids, attention_mask=mask), model.model(ids, attention_mask=mask)
    for row in range(3):
        largest = states.last_hidden_state[row, mask[row].bool()].amax(dim=0)
        expected = model.score.weight @ ((states.relay[row] + largest) / 2)
        torch.testing.assert_close(output.logits[row], expected, **EXACT)
    torch.testing.assert_close(output.relay, states.relay, **EXACT)
    nothing = model(ids, attention_mask=torch.zeros_like(mask))
    torch.testing.assert_close(nothing.logits, torch.zeros_like(nothing.logits))


def test_token_head_reads_the_satellite_and_the_relay():
    model = tiny_model(STAR, "token_classification", num_labels=3)
    ids, mask = tokens(3, 9), MASK[:, :9]
    output, states = model(ids, attention_mask=mask), model.model(ids, attention_mask=mask)
    expected = model.score((states.last_hidden_state + states.relay[:, None]) / 2)
    torch.testing.assert_close(output.logits[mask], expected[mask], **EXACT)


class TaggedLanes(Dataset):
    """Four segments of two lanes; the tag of each token says whether the token before it was even."""

    lanes = 2

    def __init__(self):
        self.ids = tokens(2, 24)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        segment, lane = divmod(index, 2)
        ids = self.ids[lane, 6 * segment : 6 * segment + 6]
        labels = torch.cat([torch.tensor([-100]), (ids[:-1] % 2 == 0).long()])
        return {"input_ids": ids, "labels": labels, "reset": torch.tensor(segment == 0)}


def test_memory_trainer_hands_the_relay_from_batch_to_batch(tmp_path):
    model = tiny_model(STAR, "token_classification", dtype=torch.float32)
    args = MemoryTrainingArguments(
        str(tmp_path), per_device_train_batch_size=2, max_steps=40, learning_rate=1e-2, label_names=["labels"],
        report_to="none", save_strategy="no", disable_tqdm=True, logging_steps=20, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = MemoryTrainer(model, args, train_dataset=TaggedLanes())
    trainer.train()
    (relay,) = trainer.memory["train"].state
    assert relay.shape == (2, 32)
    first, second = (row["loss"] for row in trainer.state.log_history if "loss" in row)
    assert second < 0.7 * first


# --- what is refused


def test_a_document_cannot_begin_inside_of_a_segment():
    model, reset = tiny_model(STAR), torch.zeros(2, 5, dtype=torch.bool)
    reset[1, 2] = True
    with pytest.raises(ValueError, match=r"`reset` of shape \(batch, length\).* one relay.*Cut the text"):
        model(tokens(2, 5), reset=reset)


@pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])
@pytest.mark.parametrize(
    ("state", "message"),
    [
        ((), r"`mems.state` has 0 tensors: this model remembers 1"),
        ((torch.zeros(2, 32),) * 2, r"`mems.state` has 2 tensors: this model remembers 1"),
        ((torch.zeros(3, 32),), r"`mems.state`.* has shape \(3, 32\).*: it must be .*\(2, 32\)"),
        ((torch.zeros(2, 4, 32),), r"`mems.state`.* has shape \(2, 4, 32\).*: it must be .*\(2, 32\)"),
        ((torch.zeros(2, 32).long(),), r"`mems.state`.* has .*type torch.int64"),
    ],
    ids=["none", "two", "rows", "window", "type"],
)
def test_memory_of_another_model(state, message, use_cache):
    model = tiny_model(STAR)
    mems = model(tokens(2, 5)).mems._replace(state=state)
    with pytest.raises(ValueError, match=message):
        model(tokens(2, 5), use_cache=use_cache, mems=mems)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ring": "closed"}, "`ring`='closed' must be one of .*cyclic.*open"),
        ({"max_position_embeddings": 0}, "`max_position_embeddings`=0 must be at least 1, or None"),
    ],
    ids=str,
)
def test_config_values(fields, message):
    with pytest.raises(ValueError, match=message):
        tiny_config(STAR, **fields)


def test_a_segment_longer_than_its_positions():
    with pytest.raises(ValueError, match="`input_ids` holds 9 tokens.*`max_position_embeddings`=8"):
        tiny_model(STAR, max_position_embeddings=8)(tokens(1, 9))
    assert tiny_model(STAR, max_position_embeddings=None)(tokens(1, 600)).relay.isfinite().all()

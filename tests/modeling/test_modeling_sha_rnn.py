"""What SHA-RNN adds: LSTMs that carry their state, one attention to a memory without projections, sums of chunks."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from contexts import context_of
from tiny import EXACT, MEM_LEN, allows, memory_of, read, tiny_config, tiny_model, tokens
from torch import nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from transformers_xl import MemoryTrainer, ShaRNNConfig
from transformers_xl.data.text_stream import TextStream
from transformers_xl.modeling.layers.boom import Boom
from transformers_xl.modeling.layers.segment_lstm import LSTMChunk, split_chunks
from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.modeling.memory.segment import Call, Segment
from transformers_xl.training.trainer import MemoryTrainingArguments

ALL_MAPS = {"project_keys": True, "project_values": True, "mix_query": True, "boom_shortcut": False}


# --- one row `(length, width)` in loops


def norm_by_hand(norm: nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def lstm_by_hand(lstm: nn.LSTM, x: torch.Tensor) -> torch.Tensor:
    hidden = cell = x.new_zeros(x.shape[1])
    outputs = []
    for token in x:
        gates = lstm.weight_ih_l0 @ token + lstm.bias_ih_l0 + lstm.weight_hh_l0 @ hidden + lstm.bias_hh_l0
        enters, stays, new, leaves = gates.chunk(4)
        cell = stays.sigmoid() * cell + enters.sigmoid() * new.tanh()
        hidden = leaves.sigmoid() * cell.tanh()
        outputs.append(hidden)
    return torch.stack(outputs)


def attention_by_hand(attention: nn.Module, x: torch.Tensor, memory: torch.Tensor, config) -> torch.Tensor:
    content, gate = attention.overparameterization.proj(attention.value_gate.sigmoid()).split(config.hidden_size)
    query = attention.query_gate.sigmoid() * norm_by_hand(attention.q_norm, attention.q_proj(x))
    key = attention.key_gate.sigmoid() * (attention.k_proj(memory) if config.project_keys else memory)
    value = gate.sigmoid() * content.tanh() * (attention.v_proj(memory) if config.project_values else memory)
    rows = []
    for i in range(len(x)):
        heads = []
        for head in range(config.num_attention_heads):
            part = slice(head * config.head_dim, (head + 1) * config.head_dim)
            seen = range(max(0, i - config.mem_len + 1), i + 1)
            scores = torch.stack([query[i, part] @ key[j, part] / config.head_dim**0.5 for j in seen])
            heads.append(sum(w * value[j, part] for w, j in zip(scores.softmax(0), seen, strict=True)))
        rows.append(torch.cat(heads))
    mixed = torch.stack(rows)
    if config.mix_query:
        added = attention.mix_proj(torch.cat([mixed, query], dim=-1))
        mixed = attention.mix_gate.sigmoid() * mixed + added * (1.702 * added).sigmoid()
    return mixed


def boom_by_hand(mlp: nn.Module, x: torch.Tensor, config) -> torch.Tensor:
    inner = mlp.fc1(x)
    inner = inner * (1.702 * inner).sigmoid()
    if not config.boom_shortcut:
        return mlp.fc2(inner)
    width = config.hidden_size
    return sum(inner[:, start : start + width] for start in range(0, inner.shape[1] - width + 1, width))


def model_by_hand(model, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The output for one row of ids, and what the last block with attention remembers of all positions."""
    config, x = model.config, model.embed_tokens.weight[ids]  # its scale is undone by the first norm
    for index, layer in enumerate(model.layers):
        x = lstm_by_hand(layer.lstm, norm_by_hand(layer.input_layernorm, x))
        if index in config.attention_layers:
            memory, x = norm_by_hand(layer.memory_layernorm, x), norm_by_hand(layer.query_layernorm, x)
            x = x + attention_by_hand(layer.self_attn, x, memory, config)
        boom = boom_by_hand(layer.mlp, norm_by_hand(layer.mlp_layernorm, x), config)
        x = norm_by_hand(layer.residual_layernorm, x) + boom
    return x, memory


@pytest.mark.parametrize(
    ("num_hidden_layers", "attention_layers"), [(2, None), (4, None), (3, [0, 1, 2]), (3, [0, 2]), (1, [0])]
)
@pytest.mark.parametrize("num_attention_heads", [1, 4])
@pytest.mark.parametrize("fields", [{}, ALL_MAPS], ids=["plain", "all maps"])
def test_the_model_is_its_equations(num_hidden_layers, attention_layers, num_attention_heads, fields):
    """Values and gradients, at once; values in segments, by both forms of the memory."""
    model = tiny_model(
        "sha_rnn",
        num_hidden_layers=num_hidden_layers,
        attention_layers=attention_layers,
        num_attention_heads=num_attention_heads,
        mem_len=5,
        intermediate_size=75,  # two chunks of 32, and 11 features that are dropped
        **fields,
    )
    for layer in model.config.attention_layers:
        for gate in ("query_gate", "key_gate", "value_gate"):
            nn.init.normal_(getattr(model.layers[layer].self_attn, gate))
    ids = tokens(1, 11)
    expected, memory = model_by_hand(model, ids[0])
    output = model(ids)
    torch.testing.assert_close(output.last_hidden_state[0], expected, **EXACT)
    (*_, (kept,)) = [layer.columns for layer in output.mems.layers if layer.columns]  # of the last attention
    torch.testing.assert_close(kept[0], memory[-5:].detach(), **EXACT)

    direction, parameters = torch.randn_like(expected), list(model.parameters())
    by_hand, ours = (
        torch.autograd.grad((result * direction).sum(), parameters)
        for result in (expected, output.last_hidden_state[0])
    )
    torch.testing.assert_close(ours, by_hand, atol=1e-8, rtol=1e-8)  # of the embedding's, which are large
    for use_cache in (None, True):
        in_segments, _ = read(model, ids, [3, 1, 2, 5], use_cache=use_cache)
        torch.testing.assert_close(in_segments[0], expected, **EXACT)


@pytest.mark.parametrize("layers", [[], [2], [-1]])
def test_blocks_with_attention_are_blocks(layers):
    with pytest.raises(ValueError, match=r"`attention_layers`=.* must hold at least one of the blocks 0\.\.1"):
        tiny_config("sha_rnn", attention_layers=layers)


def test_any_divisor_of_the_width_is_a_number_of_heads():
    assert [heads for heads in range(1, 33) if allows("sha_rnn", num_attention_heads=heads)] == [1, 2, 4, 8, 16, 32]
    assert ShaRNNConfig().num_attention_heads == 1


# --- the idea


def test_keys_and_values_are_the_memory_times_a_vector_each():
    """Of the last block but one, and of no other: the rest remembers the states of its LSTM alone."""
    model = tiny_model("sha_rnn", num_hidden_layers=4, num_attention_heads=1)
    assert [layer.has_attention for layer in model.layers] == [False, False, True, False]
    attention = model.layers[2].self_attn
    for gate in (attention.query_gate, attention.key_gate, attention.value_gate):
        nn.init.normal_(gate)
    mems, projected = (model(tokens(2, 12), use_cache=use_cache).mems for use_cache in (None, True))
    for memory in (mems, projected):
        assert [layer.num_columns for layer in memory.layers] == [0, 0, MEM_LEN, 0]
        assert [tuple(state.shape) for layer in memory.layers for state in layer.state] == [(2, 32)] * 8
    (memory,), columns = mems.layers[2].columns, projected.layers[2].columns
    for each in columns:  # a query and an output meet the vectors: what is kept needs none
        torch.testing.assert_close(each[:, 0], memory, **EXACT)
    keys = attention.key_gate.sigmoid() * memory
    content, gate = attention.overparameterization.proj(attention.value_gate.sigmoid()).chunk(2)
    values = gate.sigmoid() * content.tanh() * memory
    query = torch.randn(2, 1, 1, 32, dtype=torch.float64)
    attended, _ = attention.attend(query, *columns, context_of(1, MEM_LEN - 1, batch=2))
    weights = (query[:, 0] @ keys.mT / 32**0.5).softmax(-1)
    torch.testing.assert_close(attended[:, :, 0], weights @ values, **EXACT)
    projections = [name for name, module in attention.named_modules() if isinstance(module, nn.Linear)]
    assert projections == ["q_proj", "overparameterization.proj"]


def test_the_attention_sees_exactly_mem_len_positions():
    model = tiny_model("sha_rnn", mem_len=5)
    model.set_attn_implementation("eager")
    (weights,) = model(tokens(1, 12), output_attentions=True).attentions
    distance = torch.arange(12)[:, None] - torch.arange(12)
    seen = (distance >= 0) & (distance < 5)
    assert (weights[0, :, seen] > 0).all()
    assert (weights[0, :, ~seen] == 0).all()


def without_states(memory: Memory) -> Memory:
    """The memory with zeros in the place of the LSTMs' states."""
    layers = (layer._replace(state=tuple(map(torch.zeros_like, layer.state))) for layer in memory.layers)
    return memory._replace(layers=tuple(layers))


def test_the_lstms_carry_what_the_attention_does_not_see():
    """With a window of the token itself, the state alone tells of what came before."""
    model = tiny_model("sha_rnn", mem_len=1)
    ids = tokens(1, 12)
    other = ids.clone()
    other[0, 0] = (ids[0, 0] + 1) % 37
    memories = [memory_of(model(text[:, :-1])) for text in (ids, other)]
    here, there = (model(ids[:, -1:], **memory).last_hidden_state for memory in memories)
    assert not torch.allclose(here, there, atol=1e-6)
    for memory in memories:
        memory["mems"] = without_states(memory["mems"])
    here, there = (model(ids[:, -1:], **memory).last_hidden_state for memory in memories)
    torch.testing.assert_close(here, there, **EXACT)


def test_no_sum_leads_around_the_lstm():
    """A block whose LSTM says nothing says nothing of its input."""
    model = tiny_model("sha_rnn")
    with torch.no_grad():
        for parameter in model.layers[0].lstm.parameters():
            parameter.zero_()
    states = model(tokens(1, 6)).last_hidden_state
    torch.testing.assert_close(states, model(tokens(1, 6, seed=1)).last_hidden_state, **EXACT)


@pytest.mark.parametrize("intermediate_size", [32, 63, 64, 100])
def test_boom_drops_what_fills_no_chunk(intermediate_size):
    boom = Boom(tiny_config("sha_rnn", intermediate_size=intermediate_size)).double()
    assert [name for name, _ in boom.named_parameters()] == ["fc1.weight", "fc1.bias"]
    x = torch.randn(3, 32, dtype=torch.float64)
    torch.testing.assert_close(boom(x), boom_by_hand(boom, x, tiny_config("sha_rnn")), **EXACT)
    boom(x).sum().backward()
    used = boom.fc1.bias.grad != 0
    assert used.tolist() == [index < intermediate_size // 32 * 32 for index in range(intermediate_size)]


@pytest.mark.parametrize("attention_layers", [None, [0, 1]])
def test_the_gates_of_the_values_collapse_to_vectors(tmp_path, attention_layers):
    model = tiny_model("sha_rnn", "causal_lm", attention_layers=attention_layers)
    nn.init.normal_(model.model.layers[0].self_attn.value_gate)
    expected, before = model(tokens(2, 10)).logits, model.num_parameters()
    model.prepare_for_inference()
    assert before - model.num_parameters() == len(model.config.attention_layers) * (32 * 64 + 64)
    torch.testing.assert_close(model(tokens(2, 10)).logits, expected, **EXACT)
    model.prepare_for_inference()  # once more changes nothing
    model.save_pretrained(tmp_path)
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] | info["unexpected_keys"]
    torch.testing.assert_close(loaded(tokens(2, 10)).logits, expected, **EXACT)


# --- padding and documents of the LSTM


def test_a_plain_segment_is_one_call_of_the_lstm(monkeypatch):
    model, calls = tiny_model("sha_rnn"), []
    forward = nn.LSTM.forward
    monkeypatch.setattr(
        nn.LSTM, "forward", lambda lstm, x, states: calls.append(x.shape[1]) or forward(lstm, x, states)
    )
    model(tokens(3, 10))
    assert calls == [10, 10]
    calls.clear()
    mask = torch.ones(3, 10)
    mask[1, :4] = mask[2, 7:] = 0  # inside, padding stands after the tokens: rows 1 and 2 end at columns 6 and 7
    model(tokens(3, 10), attention_mask=mask)
    assert calls == [6, 3] * 2  # one position is a call of the cell


@pytest.mark.parametrize("is_training", [False, True], ids=["evaluation", "training"])
def test_one_position_is_read_as_torchs_lstm_reads_it(is_training):
    lstm = tiny_model("sha_rnn").layers[0].lstm.train(is_training)
    for weight in lstm.parameters():
        nn.init.normal_(weight, std=0.3)
    width = lstm.hidden_size
    inputs = torch.randn(3, 1, width, dtype=torch.double, requires_grad=True)
    hidden, cell = torch.randn(2, 3, width, dtype=torch.double)
    output, (last, state) = nn.LSTM.forward(lstm, inputs, (hidden[None], cell[None]))
    expected = output, last[0], state[0]
    found = lstm(inputs, hidden, cell, [LSTMChunk(slice(0, 1))])
    weights = [inputs, *lstm.parameters()]
    grads = [torch.autograd.grad(sum(each.sin().sum() for each in states), weights) for states in (found, expected)]
    torch.testing.assert_close((*found, *grads[0]), (*expected, *grads[1]))


def segment_of(mask: torch.Tensor | None, reset: torch.Tensor) -> Segment:
    """That of tokens `(batch, length)` that nothing stands before."""
    none = torch.zeros(len(reset), dtype=torch.long)
    return Segment.of(0, none, none, reset.shape[1], Call.of(mask, reset, None))


def test_a_segment_is_cut_where_a_row_ends_or_begins_anew():
    mask = torch.tensor([[0, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 1]]).bool()
    reset = torch.tensor([[0, 0, 1, 0, 0, 1], [0, 0, 0, 0, 1, 0]]).bool()
    parts = [
        (p.columns.start, p.columns.stop, p.reads.tolist(), p.begins.tolist())
        for p in split_chunks(segment_of(mask, reset))
    ]
    assert parts == [
        (0, 1, [True, True], [False, False]),
        (1, 3, [True, True], [True, False]),
        (3, 4, [True, True], [True, False]),
        (4, 6, [False, True], [False, True]),
    ]
    first = torch.tensor([[True, False]])  # a document may begin with the segment
    assert [part.begins.tolist() for part in split_chunks(segment_of(None, first))] == [[True]]


# --- training


def test_the_trainer_carries_the_states(tmp_path):
    """The losses of `MemoryTrainer` are those of a loop that hands on all of `mems`, and not those without them."""
    ids = np.random.default_rng(0).integers(0, 37, 2 * 6 * 5 + 1)
    arguments = MemoryTrainingArguments(
        str(tmp_path), per_device_train_batch_size=2, num_train_epochs=1, learning_rate=0.0, logging_steps=1,
        report_to="none", save_strategy="no", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    model = tiny_model("sha_rnn", "causal_lm", dtype=torch.float32)
    trainer = MemoryTrainer(model, arguments, train_dataset=TextStream(ids, 6, 2))
    trainer.train()
    logged = torch.tensor([row["loss"] for row in trainer.state.log_history if "loss" in row])
    rows, targets = (torch.from_numpy(ids[start : start + 60]).view(2, 30) for start in (0, 1))

    def losses(carried: Callable[[Memory], Memory]) -> torch.Tensor:
        memory, found = {}, []
        for start in range(0, 30, 6):
            output = model(rows[:, start : start + 6], **memory)
            found.append(F.cross_entropy(output.logits.flatten(0, 1), targets[:, start : start + 6].flatten()))
            memory = {"mems": carried(output.mems)}
        return torch.stack(found).detach()

    torch.testing.assert_close(losses(lambda mems: mems), logged, atol=1e-4, rtol=0)  # logs are rounded
    for forgetful in (without_states, lambda mems: mems.newest([0, 0])):
        assert not torch.allclose(losses(forgetful), logged, atol=1e-3)


@pytest.mark.parametrize(
    ("fields", "remedy"),
    [
        ({"num_hidden_layers": 1}, "at least 2"),
        ({"num_attention_heads": 5}, "must divide"),
        ({"head_dim": 6}, "leave `head_dim` out"),
        ({"norm_position": "post"}, "'pre'"),
        ({"intermediate_size": 31}, "`boom_shortcut=False`"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_is_no_sha_rnn_is_refused(fields, remedy):
    (name,) = fields
    with pytest.raises(ValueError, match=rf"`{name}`={fields[name]!r}.*{remedy}"):
        tiny_config("sha_rnn", **fields)

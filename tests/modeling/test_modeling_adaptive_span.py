"""What adaptive span adds: heads that learn how far back they look, and layers that keep no more than that."""

import pytest
import torch
from tiny import EXACT, memory_of, read, result_of, tiny_config, tiny_model, tokens
from transformers import AutoModelForCausalLM

from transformers_xl.modeling.memory.memory_value import Memory

# none of them ends a mask on a position, where its gradient may be either of two
SPANS = [[0.02, 0.2, 0.45, 0.1], [0.3, 0.02, 0.03, 0.05]]
use_cache = pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])


def spanning_model(head: str = "model", spans=SPANS, **fields):
    """A model of 12 positions whose heads have the shares `spans` of them, by layer."""
    defaults = {"mem_len": 12, "span_ramp": 3, "num_hidden_layers": len(spans)}
    model = tiny_model("adaptive_span", head, **(defaults | fields))
    with torch.no_grad():
        for layer, shares in zip(model.base_model.layers, spans, strict=True):
            layer.self_attn.span_mask.span.copy_(torch.tensor(shares))
    return model


def attend_by_hand(attention, inputs: torch.Tensor, table: torch.Tensor, config) -> torch.Tensor:
    """The attention of one row `(length, width)`, one query, head and distance at a time."""
    query, key, value = (
        projection(inputs).unflatten(-1, (config.num_attention_heads, -1))
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    outputs = []
    for i in range(len(inputs)):
        heads = []
        for head in range(config.num_attention_heads):
            z = attention.span_mask.span[head] * config.max_span
            total, output = inputs.new_zeros(()), inputs.new_zeros(config.head_dim)
            for distance in range(1, min(i, config.max_span) + 1):
                mask = ((config.span_ramp + z - (distance - 1)) / config.span_ramp).clamp(0, 1)
                relative = table[config.max_span - distance]
                score = query[i, head] @ (key[i - distance, head] + relative) / config.head_dim**0.5
                total = total + mask * score.exp()
                output = output + mask * score.exp() * value[i - distance, head]
            heads.append(output if i == 0 else output / total)
        outputs.append(torch.cat(heads))
    return attention.o_proj(torch.stack(outputs))


def states_by_hand(model, ids: torch.Tensor) -> torch.Tensor:
    x = model.embed_tokens(ids)[0]
    for layer in model.layers:
        inputs = layer.input_layernorm.before(x)
        attended = attend_by_hand(layer.self_attn, inputs, model.positions.table, model.config)
        x = layer.input_layernorm.after(x + attended)
        x = layer.post_attention_layernorm.after(x + layer.mlp(layer.post_attention_layernorm.before(x)))
    return x if model.norm is None else model.norm(x)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("trimmed", [False, True], ids=["full", "trimmed"])
def test_a_model_is_its_equations(norm_position, attention, trimmed):
    """Values and gradients, the spans' included, against loops over the whole text; at once and in segments."""
    model, ids = spanning_model(norm_position=norm_position), tokens(1, 17)
    model.set_attn_implementation(attention)
    if trimmed:
        model.trim_spans()
    expected = states_by_hand(model, ids)
    output = model(ids).last_hidden_state[0]
    torch.testing.assert_close(output, expected, **EXACT)
    direction, parameters = torch.randn_like(expected), list(model.parameters())
    ours, by_hand = (torch.autograd.grad((states * direction).sum(), parameters) for states in (output, expected))
    torch.testing.assert_close(ours, by_hand, **EXACT)
    for cache in (None, True):
        cut_up, _ = read(model, ids, [4, 1, 7, 5], use_cache=cache)
        torch.testing.assert_close(cut_up[0], expected, **EXACT)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 1.0])
def test_a_head_sees_its_span_and_its_ramp(share):
    """The token `ceil(z) + R` before another moves it, none further back does; and a token never attends to itself."""
    model = spanning_model(spans=[[share]], num_attention_heads=1, max_span=12, mem_len=20)
    (reach,) = model.spans().flatten().tolist()
    assert reach == min(12, -int(-share * 12 // 1) + 3)
    ids = tokens(1, 20)
    here = result_of(model(ids))[0, -1]
    for distance, is_seen in ((reach, True), (reach + 1, False)):
        changed = ids.clone()
        changed[0, 19 - distance] = (ids[0, 19 - distance] + 1) % 37
        assert torch.allclose(result_of(model(changed))[0, -1], here, atol=1e-12) != is_seen
    model.set_attn_implementation("eager")
    (weights,) = model(ids, output_attentions=True).attentions
    distances = torch.arange(20)[:, None] - torch.arange(20)
    assert (weights[0, 0][(distances < 1) | (distances > reach)] == 0).all()
    assert (weights[0, 0][(distances >= 1) & (distances <= reach)] > 0).all()


def windows_of(memory: Memory) -> list[int]:
    return [layer.num_columns for layer in memory.layers]


@use_cache
@pytest.mark.parametrize("initial_memory", ["empty", "zeros"])
def test_trimming_makes_it_smaller_and_changes_no_result(use_cache, initial_memory):
    """Each layer keeps, and projects, no more than its longest span."""
    model, ids = spanning_model(initial_memory=initial_memory), tokens(2, 40)
    mask = torch.ones(2, 40, dtype=torch.bool)
    mask[0, 9:14] = mask[1, 2:5] = mask[1, 30:] = False
    expected, _ = read(model, ids, [10] * 4, use_cache=use_cache, attention_mask=mask)
    model.trim_spans()
    assert model.config.layer_spans == model.spans().amax(1).tolist() == [9, 7]
    ours, memory = read(model, ids, [10] * 4, use_cache=use_cache, attention_mask=mask)
    torch.testing.assert_close(ours[mask], expected[mask], **EXACT)
    if use_cache:
        assert windows_of(memory["past_key_values"].memory) == [9, 7]
        return
    assert windows_of(memory["mems"]) == [9, 7]
    projected = []
    for layer in model.layers:
        layer.self_attn.k_proj.register_forward_hook(
            lambda module, arguments, output: projected.append(output.shape[1])
        )
    model(ids[:, :10], **memory)
    assert projected == [10, 9, 10, 7] or projected == [9, 10, 7, 10]


def test_a_cache_from_before_the_trimming_goes_on():
    model, ids = spanning_model(), tokens(2, 40)
    expected = result_of(model(ids))
    first, memory = read(model, ids[:, :20], [13, 7], use_cache=True)
    model.trim_spans()
    second, _ = read(model, ids[:, 20:], [1, 19], memory=memory)
    torch.testing.assert_close(torch.cat([first, second], dim=1), expected, **EXACT)


def test_a_trimmed_model_is_saved_and_loaded_trimmed(tmp_path):
    model, ids = spanning_model("causal_lm"), tokens(1, 20)
    model.prepare_for_inference()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).double()
    assert loaded.config.layer_spans == [9, 7]
    assert windows_of(loaded(ids).mems) == [9, 7]
    assert torch.equal(loaded.spans(), model.spans())
    ours, expected = (each.generate(ids, max_new_tokens=15, do_sample=False) for each in (loaded, model))
    assert torch.equal(ours, expected)


@use_cache
def test_spans_may_grow_again(use_cache):
    """A memory from before is handed on; when it has filled up, the result is that of the longer spans."""
    model, ids = spanning_model(spans=[[0.1, 0.0, 0.0, 0.0]]), tokens(2, 40)
    model.trim_spans()
    memory = memory_of(model(ids[:, :20]))
    assert windows_of(memory["mems"]) == [5]
    with torch.no_grad():
        model.layers[0].self_attn.span_mask.span.fill_(0.5)
    model.trim_spans()
    assert model.config.layer_spans == [9]
    at_once = result_of(model(ids))
    ours, memory = read(model, ids[:, 20:], [7, 13], use_cache=use_cache, memory=memory)
    torch.testing.assert_close(ours[:, 4:], at_once[:, 24:], **EXACT)
    assert not torch.allclose(ours[:, 0], at_once[:, 20])
    if not use_cache:
        assert windows_of(memory["mems"]) == [9]


def test_layers_that_kept_less_than_others_may_see_further():
    """Only one of two layers grows: their memories fill up at different times, with padding."""
    model, ids = spanning_model(spans=[[0.0] * 4, [0.6] * 4]), tokens(2, 30)
    model.trim_spans()
    mask = torch.ones(2, 30, dtype=torch.bool)
    mask[1, 8:12] = mask[0, 3] = False
    memory = memory_of(model(ids[:, :15], attention_mask=mask[:, :15]))
    assert windows_of(memory["mems"]) == [3, 11]
    with torch.no_grad():
        model.layers[0].self_attn.span_mask.span.fill_(0.5)
    model.trim_spans()
    output = model(ids[:, 15:], attention_mask=mask[:, 15:], **memory)
    assert windows_of(output.mems) == [9, 11]
    for row in range(2):
        alone = model(ids[row : row + 1, 15:][:, mask[row, 15:]], mems=memory["mems"].rows([row]))
        torch.testing.assert_close(result_of(output)[row, mask[row, 15:]], result_of(alone)[0], **EXACT)
    with torch.no_grad():
        model.layers[0].self_attn.span_mask.span.fill_(0.6)
    model.trim_spans()  # now the layers keep equally much, and the memory does not yet
    assert model.config.layer_spans == [11, 11]
    assert windows_of(model(ids[:, :3], **memory).mems) == [6, 11]


def test_parameters_outside_of_0_to_1_are_cut_and_brought_back():
    model = spanning_model(spans=[[-0.5, 1.5, 0.5, 0.0]])
    assert model.spans().tolist() == [[3, 12, 9, 3]]
    model.trim_spans()
    assert model.layers[0].self_attn.span_mask.span.tolist() == [0.0, 1.0, 0.5, 0.0]


@pytest.mark.parametrize("head", ["causal_lm", "sequence_classification", "token_classification"])
def test_the_training_loss_pays_for_spans(head):
    """In training mode only: the mean span of each layer's heads, in positions, times `span_loss_coef`."""
    model = spanning_model(head, span_loss_coef=0.01)
    labels = torch.tensor([0, 1]) if head == "sequence_classification" else tokens(2, 9) % 2
    plain = model(tokens(2, 9), labels=labels).loss
    loss = model.train()(tokens(2, 9), labels=labels).loss
    expected = torch.tensor(0.01 * 12 * sum(sum(shares) / 4 for shares in SPANS)).double()
    torch.testing.assert_close((loss - plain).double(), expected, atol=1e-6, rtol=1e-6)
    (0.01 * model.base_model.auxiliary_loss(None)).backward()
    for layer in model.base_model.layers:
        torch.testing.assert_close(layer.self_attn.span_mask.span.grad, torch.full((4,), 0.01 * 12 / 4).double())


def test_max_span_is_mem_len_and_stands_in_the_table():
    assert tiny_config("adaptive_span", mem_len=7).max_span == 7
    assert tiny_config("adaptive_span", mem_len=7).layer_windows == [8, 8]
    assert tiny_config("adaptive_span", mem_len=7, max_span=5).layer_windows == [6, 6]
    assert tiny_config("adaptive_span", mem_len=7, max_span=9, layer_spans=[9, 2]).layer_windows == [8, 3]
    assert tiny_model("adaptive_span", max_span=5).positions.table.shape == (5, 8)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"max_span": 0}, "max_span"),
        ({"span_ramp": 0}, "span_ramp"),
        ({"span_loss_coef": -1.0}, "span_loss_coef"),
        ({"initial_span": 1.5}, "initial_span"),
        ({"layer_spans": [3]}, "layer_spans"),
        ({"layer_spans": [3, 0]}, "layer_spans"),
        ({"layer_spans": [3, 9], "max_span": 8}, "layer_spans"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(fields, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        tiny_config("adaptive_span", **fields)

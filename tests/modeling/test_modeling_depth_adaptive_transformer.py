"""What the Depth-adaptive Transformer adds: every layer predicts, tokens leave early, and are copied for those that run."""

import math

import pytest
import torch
from by_hand import greedy, language_model, text_by_hand
from reference import attention, part
from tiny import EXACT, VOCAB_SIZE, memory_of, pairwise, read, read_row_alone, tiny_config, tiny_model, tokens
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

NAME = "depth_adaptive_transformer"
LAYERS = 3
# the ways to leave early, so that tokens of the tiny model leave after each of its layers
WAYS = {
    "one threshold": {"confidence_thresholds": 0.5},
    "thresholds": {"confidence_thresholds": [0.7, 0.4]},
    "own classifiers": {"confidence_thresholds": 0.6, "shared_classifier": False},
    "geometric": {"halting": "geometric", "exit_by_halting": True},
    "multinomial": {"halting": "multinomial", "exit_by_halting": True},
    "sequence": {"halting": "sequence", "exit_by_halting": True},
}
every_way = pytest.mark.parametrize("way", WAYS)
norm_position = pytest.mark.parametrize("norm_position", ["pre", "post"])
LOSSES = pairwise(
    [None, "geometric", "multinomial", "sequence"], ["uniform", "linear", "inverse"], ["likelihood", "correctness"],
    ["pre", "post"],
)  # fmt: skip


def leaving_model(way: str, **fields):
    defaults = {"num_hidden_layers": LAYERS, "initializer_range": 0.6, "tie_word_embeddings": False, "mem_len": 5}
    return tiny_model(NAME, "causal_lm", **(defaults | {"confidence_thresholds": None} | WAYS[way] | fields))


def chosen_by_hand(model, embeds: list[torch.Tensor], outputs: list[torch.Tensor]) -> int | None:
    """The layer that a token leaves after, as its row's embeddings so far and its own outputs so far show it; or None."""
    config, final_norm = model.config, model.final_norm
    if config.halting == "sequence":
        return model.halting.proj(torch.stack(embeds).mean(0)).argmax().item() + 1
    if config.halting == "multinomial":
        return model.halting.proj(final_norm(outputs[0])).argmax().item() + 1
    for number, output in enumerate(outputs[: config.num_hidden_layers - 1], start=1):
        if config.halting == "geometric":
            proj = model.halting.proj
            leaves = (proj.weight[number - 1] @ final_norm(output) + proj.bias[number - 1]).sigmoid() > 0.5
        else:
            thresholds = config.confidence_thresholds
            threshold = thresholds[number - 1] if isinstance(thresholds, list) else thresholds
            classifier = model.lm_head if config.shared_classifier else model.exit_classifiers[number - 1]
            leaves = classifier(final_norm(output)).softmax(-1).max() >= threshold
        if leaves:
            return number
    return None


def read_by_hand(model, ids: torch.Tensor, exits: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and exits, row by row, token by token, layer by layer: a token that has left brings its state to the layers
    above, where later tokens attend to it."""
    weights, config = dict(model.named_parameters()), model.config
    layers, is_pre = config.num_hidden_layers, config.norm_position == "pre"
    bias = tuple(part(weights, "model.positions.bias.").values())

    def norm(states: torch.Tensor, name: str, here: bool) -> torch.Tensor:
        named = part(weights, f"{name}.")
        return F.layer_norm(states, states.shape[-1:], named["weight"], named["bias"], 1e-5) if here else states

    def layer(hidden: torch.Tensor, memory: torch.Tensor, name: str) -> torch.Tensor:
        first, second = f"{name}.input_layernorm", f"{name}.post_attention_layernorm"
        normed = [norm(states, first, is_pre) for states in (hidden, memory)]
        attended = attention(part(weights, f"{name}.self_attn."), bias, *normed, config)
        hidden = norm(hidden + attended, first, not is_pre)
        mlp = part(weights, f"{name}.mlp.")
        inner = F.relu(norm(hidden, second, is_pre) @ mlp["fc1.weight"].T + mlp["fc1.bias"])
        return norm(hidden + inner @ mlp["fc2.weight"].T + mlp["fc2.bias"], second, not is_pre)

    logits, found = [], []
    for row in range(len(ids)):
        embeds, inputs = [], [[] for _ in range(layers)]
        for token, token_id in enumerate(ids[row]):
            hidden = (weights["model.embed_tokens.weight"][token_id] * math.sqrt(config.hidden_size))[None, None]
            embeds.append(hidden[0, 0])
            outputs, leaves = [], None if exits is None else exits[row, token]
            for index in range(layers):
                memory = torch.cat([hidden[:, :0], *inputs[index]], dim=1)
                inputs[index].append(hidden)
                if leaves is not None and leaves <= index:
                    continue
                hidden = layer(hidden, memory, f"model.layers.{index}")
                outputs.append(hidden[0, 0])
                if exits is None:
                    leaves = chosen_by_hand(model, embeds, outputs)
            found.append(len(outputs))
            shared = config.shared_classifier or len(outputs) == layers
            classifier = model.lm_head if shared else model.exit_classifiers[len(outputs) - 1]
            logits.append(classifier(model.final_norm(outputs[-1])))
    return torch.stack(logits).view(*ids.shape, -1), torch.tensor(found).view_as(ids)


# --- leaving


@every_way
@norm_position
def test_tokens_leave_and_are_copied_upward(way, norm_position):
    """Values and gradients against a loop; in inference, where halted tokens cost nothing, the same values."""
    model, ids = leaving_model(way, norm_position=norm_position), tokens(2, 9)
    expected, exits = read_by_hand(model, ids)
    assert len(exits.unique()) > 1
    output = model(ids)
    torch.testing.assert_close(output.logits, expected, **EXACT)
    assert torch.equal(output.exit_layers, exits)
    direction = torch.randn_like(expected)
    parameters = dict(model.named_parameters())
    by_hand, ours = (
        torch.autograd.grad((logits * direction).sum(), parameters.values(), materialize_grads=True)
        for logits in (expected, output.logits.double())
    )
    for name, gradient, wanted in zip(parameters, ours, by_hand, strict=True):
        torch.testing.assert_close(gradient, wanted, **EXACT, msg=lambda m, n=name: f"{n}: {m}")
    with torch.no_grad():
        packed = model(ids, output_hidden_states=True)
    torch.testing.assert_close(packed.logits, expected, **EXACT)
    assert torch.equal(packed.exit_layers, exits)
    for number, states in enumerate(packed.hidden_states[:-2]):  # what has left stays what it was
        left = exits <= number
        torch.testing.assert_close(packed.hidden_states[number + 1][left], states[left], **EXACT)


@pytest.mark.parametrize(("way", "use_cache", "grad"), pairwise(list(WAYS), [None, True], [True, False]), ids=str)
def test_exits_hang_on_nothing_but_the_text_before(way, use_cache, grad):
    """Any cut of the text, padding on any side, rows beside, documents: each token leaves where it leaves alone."""
    model, ids = leaving_model(way), tokens(3, 18)
    mask = torch.ones(3, 18, dtype=torch.bool)
    mask[0, :4] = mask[1, 5:9] = mask[1, 12] = mask[2, 14:] = False
    reset = torch.zeros(3, 18, dtype=torch.bool)
    reset[0, 11] = reset[2, 3] = True
    with torch.set_grad_enabled(grad):
        whole = model(ids).logits
        for lengths in ([9, 9], [1] * 18, [7, 1, 10]):
            torch.testing.assert_close(read(model, ids, lengths, use_cache=use_cache)[0], whole, **EXACT)
        arguments = {"attention_mask": mask, "reset": reset}
        ours, _ = read(model, ids, [9, 9], use_cache=use_cache, **arguments)
        for row in range(3):
            alone = read_row_alone(model, ids[row], [9, 9], attention_mask=mask[row], reset=reset[row])
            torch.testing.assert_close(ours[row, mask[row]], alone, **EXACT)
        exits = model(ids, attention_mask=mask).exit_layers
        assert torch.equal(exits == 0, ~mask)
        start = memory_of(model(ids, use_cache=use_cache))
        again = model(ids, reset=torch.tensor([True, False, True]), **start).logits
        torch.testing.assert_close(again[[0, 2]], whole[[0, 2]], **EXACT)
        assert not torch.allclose(again[1], whole[1])


@every_way
def test_generate_leaves_as_forward_does(way):
    fields = {"num_hidden_layers": LAYERS, "confidence_thresholds": None} | WAYS[way]
    model, ids = language_model(NAME, **fields), tokens(3, 7)
    expected = text_by_hand(model, ids, new=20)
    assert torch.equal(greedy(model, ids, new=20), expected)
    assert torch.equal(greedy(model, ids, new=20, use_cache=False), expected)
    first = greedy(model, ids, new=8, return_dict_in_generate=True)
    second = greedy(model, first.sequences[:, -1:], new=12, mems=first.mems)
    assert torch.equal(torch.cat([first.sequences, second[:, 1:]], dim=1), expected)
    full = language_model(NAME, **(fields | {"exit_by_halting": False, "confidence_thresholds": None}))
    assert not torch.equal(greedy(full, ids, new=20), expected)


@every_way
@pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])
def test_who_has_left_costs_no_work(way, use_cache):
    """Queries and feed-forwards see the tokens that run, keys and values see all; without any, `mems` needs no keys."""
    model, rows = leaving_model(way), {}
    for index, layer in enumerate(model.model.layers):
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp"):
            layer.get_submodule(name).register_forward_hook(
                lambda module, arguments, output, key=(index, name): rows.__setitem__(
                    key, rows.get(key, 0) + arguments[0].shape[:-1].numel()
                )
            )
    memory, exits = {}, []
    with torch.no_grad():
        for length in (6, 1, 1, 1, 3):
            output = model(tokens(4, length, seed=length), use_cache=use_cache, **memory)
            memory = memory_of(output)
            exits.append(output.exit_layers)
    exits = torch.cat(exits, dim=1)
    assert len(exits.unique()) > 1
    for index in range(LAYERS):
        running = int((exits > index).sum())
        assert rows.get((index, "mlp"), 0) == rows.get((index, "self_attn.q_proj"), 0) == running
        assert rows.get((index, "self_attn.o_proj"), 0) == running
        if use_cache:
            assert rows[index, "self_attn.k_proj"] == exits.numel()


def test_thresholds_from_none_to_all():
    """Above 1 nobody leaves; at 0 all leave after the first layer, and the model is one of one layer."""
    model, ids = leaving_model("one threshold"), tokens(2, 9)
    model.config.confidence_thresholds = None
    full = model(ids)
    assert (full.exit_layers == LAYERS).all()
    model.config.confidence_thresholds = 1.1
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(model(ids).logits, full.logits, **EXACT)
    assert torch.equal(greedy(model, ids), text_by_hand(model, ids))
    model.config.confidence_thresholds = 0
    shallow = leaving_model("one threshold", num_hidden_layers=1)
    shallow.load_state_dict(model.state_dict(), strict=False)
    shallow.config.confidence_thresholds = None
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            output = model(ids)
            assert (output.exit_layers == 1).all()
            torch.testing.assert_close(output.logits, shallow(ids).logits, **EXACT)
    assert torch.equal(greedy(model, ids, new=15), greedy(shallow, ids, new=15))


def test_training_mode_reads_at_full_depth():
    model = leaving_model("one threshold").train()
    assert (model(tokens(2, 9)).exit_layers == LAYERS).all()
    assert (model(tokens(2, 9), labels=tokens(2, 9)).exit_layers == LAYERS).all()
    assert (model.model.eval()(tokens(2, 9)).exit_layers == LAYERS).all()


def test_attention_maps_are_whole():
    model = leaving_model("one threshold")
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(tokens(2, 9), output_attentions=True)
        torch.testing.assert_close(output.logits, model(tokens(2, 9)).logits, **EXACT)
    assert [weights.shape for weights in output.attentions] == [(2, 4, 9, 9)] * LAYERS


def test_leaving_compiles():
    torch._dynamo.reset()
    model, ids = leaving_model("geometric"), tokens(2, 9)
    with torch.no_grad():
        expected = model(ids)
        ours = torch.compile(model, fullgraph=True, backend="eager")(ids)
    torch.testing.assert_close(ours.logits, expected.logits, **EXACT)
    assert torch.equal(ours.exit_layers, expected.exit_layers)


def test_a_mean_cannot_be_taken_back():
    model, ids = leaving_model("sequence"), tokens(1, 5)
    with pytest.raises(ValueError, match="stateful"):
        greedy(model, ids, prompt_lookup_num_tokens=4)
    with pytest.raises(ValueError, match="`tokens_to_remove`=-2: this memory has a state"):
        model(ids, use_cache=True).past_key_values.crop(-2)
    static = greedy(model, ids, cache_implementation="static", disable_compile=True)
    assert torch.equal(static, greedy(model, ids))
    mems = model(ids).mems
    torch.testing.assert_close(mems.layers[0].state, (model.get_input_embeddings()(ids).mean(1),), **EXACT)
    assert mems.tokens_read.tolist() == [5]


# --- training


def log_likelihood(logits: torch.Tensor, target: int) -> torch.Tensor:
    return logits[target] - logits.logsumexp(-1)


def oracle_by_hand(config, worth: list[list[float]], position: int) -> int:
    """The best layer, 1.., of what each prediction of a row is worth: `worth[layer][position]`."""
    totals = []
    for number, row in enumerate(worth, start=1):
        near = [1.0 if config.halting == "sequence" else math.exp(-((position - s) ** 2) / config.oracle_sigma)
                for s in range(len(row))]  # fmt: skip
        totals.append(sum(k * value for k, value in zip(near, row, strict=True)) - config.oracle_penalty * number)
    return totals.index(max(totals)) + 1


def exit_loss_by_hand(model, logits: list[torch.Tensor], states: list[torch.Tensor], targets) -> torch.Tensor:
    config, halting, nats = model.config, model.halting.proj, []
    for row in range(len(targets)):
        real = [t for t in range(targets.shape[1]) if targets[row, t] != -100]
        worth = [[0.0] * targets.shape[1] for _ in logits]
        for number, each in enumerate(logits):
            for t in real:
                likelihood = log_likelihood(each[row, t], targets[row, t]).item()
                is_right = float(each[row, t].argmax() == targets[row, t])
                worth[number][t] = likelihood if config.halting_oracle == "likelihood" else is_right
        for t in real:
            best = oracle_by_hand(config, worth, t)
            if config.halting == "geometric":
                q = torch.ones((), dtype=torch.float64)
                for n in range(1, best):
                    q = q * (1 - (halting.weight[n - 1] @ states[n][row, t] + halting.bias[n - 1]).sigmoid())
                if best < len(logits):
                    q = q * (halting.weight[best - 1] @ states[best][row, t] + halting.bias[best - 1]).sigmoid()
            else:
                source = states[0][row].mean(0) if config.halting == "sequence" else states[1][row, t]
                q = halting(source).softmax(-1)[best - 1]
            nats.append(-q.log())
    return sum(nats) / len(nats)


@pytest.mark.parametrize(("halting", "weights", "oracle", "norm_position"), LOSSES)
def test_aligned_loss_is_its_sum(norm_position, oracle, halting, weights):
    """Values and gradients, with tokens that have no target and a layer's classifier of its own."""
    model = leaving_model(
        "own classifiers", norm_position=norm_position, halting=halting, halting_oracle=oracle,
        exit_loss_weights=weights, halting_loss_weight=0.7, oracle_penalty=0.3, oracle_sigma=2.0,
    ).train()  # fmt: skip
    ids, targets = tokens(2, 7), tokens(2, 7, seed=1)
    targets[0, 2] = targets[1, 5] = -100
    output = model(ids, shift_labels=targets, output_hidden_states=True)
    states = [output.hidden_states[0], *(model.final_norm(each) for each in output.hidden_states[1:-1])]
    logits = [model.exit_classifiers[n - 1](states[n]) for n in range(1, LAYERS)] + [output.logits]
    scale = {"uniform": [1, 1, 1], "linear": [1, 2, 3], "inverse": [1, 1 / 2, 1 / 3]}[weights]
    expected = sum(
        weight * F.cross_entropy(each.flatten(0, 1), targets.flatten())
        for weight, each in zip(scale, logits, strict=True)
    ) / sum(scale)
    if halting is not None:
        expected = expected + 0.7 * exit_loss_by_hand(model, logits, states, targets)
    tolerance = {"atol": 1e-5, "rtol": 1e-4}  # transformers computes losses in float32
    torch.testing.assert_close(output.loss.double(), expected, **tolerance)
    parameters = list(model.parameters())
    ours, by_hand = (torch.autograd.grad(loss, parameters, retain_graph=True) for loss in (output.loss, expected))
    torch.testing.assert_close(ours, by_hand, **tolerance)
    divided = model(ids, shift_labels=targets, num_items_in_batch=torch.tensor(24)).loss
    torch.testing.assert_close(divided.double(), expected * 12 / 24, **tolerance)
    shifted = F.pad(ids[:, 1:], (0, 1), value=-100)
    torch.testing.assert_close(model(ids, labels=ids).loss, model(ids, shift_labels=shifted).loss)
    as_dict, as_tuple = model(ids, labels=ids), model(ids, labels=ids, return_dict=False)
    assert as_tuple[0] == as_dict["loss"]
    assert len(as_tuple) == len(as_dict)
    assert "hidden_states" not in as_dict


@pytest.mark.parametrize("num_exit_paths", [1, 3])
@pytest.mark.parametrize("shared_classifier", [True, False])
@norm_position
def test_mixed_loss_is_that_of_random_exits(norm_position, shared_classifier, num_exit_paths):
    """Values and gradients against the loop over the same paths; the memory is that of the first."""
    model = leaving_model(
        "one threshold", exit_training="mixed", num_exit_paths=num_exit_paths, norm_position=norm_position,
        shared_classifier=shared_classifier,
    ).train()  # fmt: skip
    ids, targets = tokens(2, 6), tokens(2, 6, seed=1)
    torch.manual_seed(3)
    output = model(ids, shift_labels=targets)
    torch.manual_seed(3)
    exits = [torch.randint(1, LAYERS + 1, (2, 6)) for _ in range(num_exit_paths)]
    assert torch.equal(output.exit_layers, exits[0])
    readings = [read_by_hand(model, ids, path)[0] for path in exits]
    expected = sum(F.cross_entropy(logits.flatten(0, 1), targets.flatten()) for logits in readings) / len(readings)
    tolerance = {"atol": 1e-5, "rtol": 1e-4}
    torch.testing.assert_close(output.loss.double(), expected, **tolerance)
    torch.testing.assert_close(output.logits, readings[0], **EXACT)
    parameters = dict(model.named_parameters())
    ours, by_hand = (
        torch.autograd.grad(loss, parameters.values(), materialize_grads=True) for loss in (output.loss, expected)
    )
    torch.testing.assert_close(ours, by_hand, **tolerance)
    left = exits[0] == 1
    second, third = (layer.columns[0][:, -5:] for layer in output.mems.layers[1:3])
    torch.testing.assert_close(second[left[:, -5:]], third[left[:, -5:]], **EXACT)


def test_random_exits_are_uniform():
    model = leaving_model("one threshold")
    exits = model.random_exit_layer(0, torch.zeros(30, 100, 32))
    shares = torch.bincount(exits.flatten(), minlength=LAYERS + 1)[1:] / 3000
    torch.testing.assert_close(shares, torch.full((LAYERS,), 1 / LAYERS), atol=0.05, rtol=0)


def test_halting_learns_in_mixed_training_too():
    """Its oracle asks every layer: the segment is read once more, at full depth."""
    model = leaving_model("one threshold", exit_training="mixed", halting="geometric").train()
    ids = tokens(2, 6)
    torch.manual_seed(3)
    both = model(ids, labels=ids)
    alone = leaving_model("one threshold", exit_training="mixed").train()
    alone.load_state_dict({name: value for name, value in model.state_dict().items() if "halting" not in name})
    torch.manual_seed(3)
    mixed = alone(ids, labels=ids)
    assert torch.equal(both.exit_layers, mixed.exit_layers)
    model.config.exit_training = "aligned"
    aligned = model(ids, labels=ids).loss
    model.config.halting_loss_weight = 0.0
    torch.testing.assert_close(both.loss - mixed.loss, aligned - model(ids, labels=ids).loss, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("exit_training", ["aligned", "mixed"])
@pytest.mark.parametrize("halting", [None, "geometric", "multinomial", "sequence"])
def test_every_parameter_learns(halting, exit_training):
    model = leaving_model("own classifiers", halting=halting, exit_training=exit_training, num_exit_paths=4).train()
    mems = model(tokens(2, 9)).mems
    model(tokens(2, 9), labels=tokens(2, 9, seed=1), mems=mems).loss.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize("exit_training", ["aligned", "mixed"])
def test_activation_checkpointing_changes_nothing(exit_training):
    results = []
    for checkpointing in (False, True):
        model = leaving_model("own classifiers", halting="sequence", exit_training=exit_training).train()
        if checkpointing:
            model.activation_checkpointing_enable()
        torch.manual_seed(3)
        output = model(tokens(2, 9), labels=tokens(2, 9, seed=1))
        output.loss.backward()
        results.append((output.loss, output.exit_layers, {n: p.grad for n, p in model.named_parameters()}))
    torch.testing.assert_close(results[1], results[0], **EXACT)


def test_evaluation_loss_is_that_of_the_exits():
    model, ids = leaving_model("own classifiers"), tokens(2, 9)
    logits, _ = read_by_hand(model, ids)
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(model(ids, labels=ids).loss.double(), expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(model(ids, logits_to_keep=2).logits, logits[:, -2:], **EXACT)


def test_own_classifiers_and_halting_are_saved_and_resized(tmp_path):
    model = leaving_model("own classifiers", halting="geometric", dtype=torch.float32)
    model.save_pretrained(tmp_path)
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert loaded.config.confidence_thresholds == 0.6
    torch.testing.assert_close(loaded(tokens(2, 9)).logits, model(tokens(2, 9)).logits)
    before = [model.classifier(n)(torch.ones(32)) for n in range(1, LAYERS + 1)]
    model.resize_token_embeddings(VOCAB_SIZE + 4)
    for number, logits in enumerate(before, start=1):
        after = model.classifier(number)(torch.ones(32))
        assert after.shape == (VOCAB_SIZE + 4,)
        torch.testing.assert_close(after[:VOCAB_SIZE], logits)
    ids = torch.full((2, 5), VOCAB_SIZE + 3)
    assert model.train()(ids, labels=ids).loss.isfinite()


@every_way
def test_bfloat16(way):
    model = leaving_model(way, dtype=torch.bfloat16)
    with torch.no_grad():
        first = model(tokens(2, 9), use_cache=True)
        second = model(tokens(2, 9), past_key_values=first.past_key_values)
    assert second.logits.dtype == torch.bfloat16
    assert len(second.exit_layers.unique()) > 1


@every_way
@pytest.mark.parametrize("grad", [True, False], ids=["masked", "packed"])
def test_autocast(way, grad):
    model = leaving_model(way, dtype=torch.float32)
    with torch.set_grad_enabled(grad), torch.autocast("cpu", dtype=torch.bfloat16):
        first = model(tokens(2, 9))
        assert model(tokens(2, 9), mems=first.mems).logits.isfinite().all()


# --- what cannot be meant


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"exit_training": "random"}, ["exit_training", "random", "aligned"]),
        ({"exit_loss_weights": "square"}, ["exit_loss_weights", "square", "inverse"]),
        ({"num_exit_paths": 0}, ["num_exit_paths", "0"]),
        ({"halting": "poisson"}, ["halting", "poisson", "geometric"]),
        ({"halting_oracle": "accuracy"}, ["halting_oracle", "accuracy", "correctness"]),
        ({"halting_loss_weight": -1}, ["halting_loss_weight", "-1"]),
        ({"oracle_penalty": -0.1}, ["oracle_penalty", "-0.1"]),
        ({"oracle_sigma": 0}, ["oracle_sigma", "0"]),
        ({"halting": "geometric", "num_hidden_layers": 1}, ["halting", "num_hidden_layers"]),
        ({"confidence_thresholds": [0.5, 0.5]}, ["confidence_thresholds", r"\[0.5, 0.5\]", "but the last: 1"]),
        ({"confidence_thresholds": -0.5}, ["confidence_thresholds", "-0.5"]),
        ({"confidence_thresholds": [-0.5]}, ["confidence_thresholds", "-0.5"]),
        ({"exit_by_halting": True, "confidence_thresholds": None}, ["exit_by_halting", "`halting`=None"]),
        ({"exit_by_halting": True, "halting": "sequence"}, ["exit_by_halting", "confidence_thresholds"]),
    ],
    ids=str,
)
def test_values_of_the_config(fields, names):
    with pytest.raises(ValueError) as error:
        tiny_config(NAME, **fields)
    for name in names:
        assert error.match(name)


def test_thresholds_that_are_set_later_are_checked_too():
    model = leaving_model("one threshold")
    model.config.confidence_thresholds = [0.5]
    with pytest.raises(ValueError, match="`confidence_thresholds`"):
        model(tokens(2, 9))


def test_mixed_training_takes_no_cache():
    model, ids = leaving_model("one threshold", exit_training="mixed"), tokens(2, 9)
    cache = model(ids, use_cache=True).past_key_values
    model.train()
    for arguments in ({"use_cache": True}, {"past_key_values": cache}):
        with pytest.raises(ValueError, match="`exit_training`='mixed'"):
            model(ids, labels=ids, **arguments)

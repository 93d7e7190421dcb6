"""Every variant as a model of transformers: outputs, gradients, saving and loading, types, attention forms, compilation."""

import pytest
import torch
from tiny import (
    AROUND_BASES,
    EXACT,
    FEW_MEMORIES,
    FLOAT32,
    HEADS,
    ROWS,
    SEGMENT_BY_SEGMENT,
    VOCAB_SIZE,
    allows,
    held_by,
    in_turn,
    lacks,
    memory_if_any,
    memory_of,
    models,
    norm_positions,
    result_of,
    right_padded,
    said_by,
    tensors_of,
    tiny_config,
    tiny_model,
    tokens,
    types_of_memory,
)
from torch.nn import functional as F
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from transformers_xl.modeling.memory.memory_cache import MemoryCache

AUTO_CLASSES = {
    "model": AutoModel,
    "causal_lm": AutoModelForCausalLM,
    "sequence_classification": AutoModelForSequenceClassification,
    "token_classification": AutoModelForTokenClassification,
    "masked_lm": AutoModelForMaskedLM,
}
every_head = pytest.mark.parametrize(("model_type", "head"), HEADS)
# heads are one code for all variants (`modeling/heads.py`): every variant meets one of its own, in turn
COMPUTE_HEADS = (
    *("vanilla_transformer", "depth_adaptive_transformer", "complex_order_transformer", "star_transformer"),
    *("longformer_encoder", "segment_memory", "segment_memory/tokens"),
)
SOME_HEADS = [
    (model_type, heads[turn % len(heads)])
    for turn, model_type in enumerate(ROWS)
    for heads in [[head for name, head in HEADS if name == model_type]]
]
FEW = [each for each in models(causal_lm=True) if each in FEW_MEMORIES]
# and those that a variant computes in its own way: the others are one code for all (`modeling/heads.py`)
OWN_HEADS = [each for each in HEADS if each in SOME_HEADS or each[0] in COMPUTE_HEADS]
some_heads = pytest.mark.parametrize(("model_type", "head"), SOME_HEADS)
every_variant = pytest.mark.parametrize("model_type", models())
OF_OUR_OWN = [each for each in models() if each not in AROUND_BASES]
of_our_own = pytest.mark.parametrize("model_type", OF_OUR_OWN)
language_model = pytest.mark.parametrize("model_type", models(causal_lm=True))
tied_or_not = pytest.mark.parametrize(("model_type", "tied"), in_turn(models(causal_lm=True), [True, False]))


# --- outputs


@pytest.mark.parametrize(("model_type", "head"), OWN_HEADS)
def test_shapes(model_type, head):
    model = tiny_model(model_type, head, num_labels=5)
    output = model(tokens(2, 10), attention_mask=right_padded())
    shapes = {
        "model": (2, 10, 32),
        "causal_lm": (2, 10, VOCAB_SIZE),
        "sequence_classification": (2, 5),
        "token_classification": (2, 10, 5),
        "masked_lm": (2, 10, VOCAB_SIZE),
    }
    assert result_of(output).shape == shapes[head]
    assert "loss" not in output


@every_head
def test_auto_classes_build_the_variant(model_type, head):
    with torch.device("meta"):
        model = AUTO_CLASSES[head].from_config(tiny_config(model_type))
    assert type(model) is getattr(ROWS[model_type], f"{head}_class")


@some_heads
def test_tuple_is_dict(model_type, head):
    model = tiny_model(model_type, head)
    output = model(tokens(2, 10), output_hidden_states=True)
    as_tuple = model(tokens(2, 10), output_hidden_states=True, return_dict=False)
    assert isinstance(as_tuple, tuple)
    torch.testing.assert_close(as_tuple, output.to_tuple(), atol=0, rtol=0)


@pytest.mark.parametrize("model_type", [each for each in models() if ROWS[each].causal_lm_class is not None])
def test_the_loss_is_the_first_of_a_tuple(model_type):
    """As everywhere in transformers."""
    model, ids = tiny_model(model_type, "causal_lm"), tokens(2, 10)
    for given in ({}, {"logits_to_keep": 1}):
        output, as_tuple = (model(ids, labels=ids, return_dict=each, **given) for each in (True, False))
        assert next(iter(output)) == "loss"
        assert torch.equal(as_tuple[0], output.loss)


@pytest.mark.parametrize("model_type", [each for each in models() if each not in SEGMENT_BY_SEGMENT])
def test_hidden_states_and_attentions(model_type):
    model = tiny_model(model_type)
    model.set_attn_implementation("eager")
    first = model(tokens(2, 10, seed=1))
    mask = right_padded()
    output = model(
        tokens(2, 10),
        attention_mask=mask,
        output_hidden_states=True,
        output_attentions=True,
        **memory_if_any(model_type, first),
    )
    real = mask.bool()
    assert len(output.hidden_states) == model.config.num_hidden_layers + 1
    assert all(states.shape == (2, 10, 32) for states in output.hidden_states)
    if model_type in AROUND_BASES:
        assert len(output.attentions) == len(model.layers)
        return
    attention_class = model._can_record_outputs.get("attentions")
    if attention_class is None:  # an attention without softmax has no weights
        assert output.attentions is None
        return
    attends = [any(isinstance(module, attention_class) for module in layer.modules()) for layer in model.layers]
    assert len(output.attentions) == sum(attends) > 0
    for weights in output.attentions:
        assert weights.shape[:3] == (2, 4, 10)
        total = weights.sum(-1).transpose(1, 2)[real]
        torch.testing.assert_close(total, torch.ones_like(total), **EXACT)


@pytest.mark.parametrize("model_type", [each for each in models() if each not in (*AROUND_BASES, *SEGMENT_BY_SEGMENT)])
def test_what_is_shown_of_a_padded_row_has_a_gradient(model_type):
    model = tiny_model(model_type)
    model.set_attn_implementation("eager")
    mask = right_padded()
    output = model(tokens(2, 10), attention_mask=mask, output_hidden_states=True, output_attentions=True)
    plain = model(tokens(2, 10), attention_mask=mask)
    torch.testing.assert_close(result_of(output), result_of(plain), **EXACT)
    shown = [*output.hidden_states, *(output.attentions or ())]
    for states in shown:
        states.retain_grad()
    result_of(output)[mask.bool()].square().sum().backward()
    assert all(states.grad is not None and states.grad.abs().sum() > 0 for states in shown)


@pytest.mark.parametrize(
    ("model_type", "selection", "numbers"), in_turn(models(), [([0, 2], [0, 2]), ([-1], [2]), (1, [1])]), ids=str
)
def test_hidden_states_of_some_layers(model_type, selection, numbers):
    model, mask = tiny_model(model_type), right_padded()
    every = model(tokens(2, 10), attention_mask=mask, output_hidden_states=True).hidden_states
    some = model(tokens(2, 10), attention_mask=mask, output_hidden_states=selection).hidden_states
    assert [number for number, states in enumerate(some) if states is not None] == numbers
    assert all(torch.equal(some[number], every[number]) for number in numbers)


@every_variant
def test_hidden_states_of_a_padded_row_stand_at_its_tokens(model_type):
    model = tiny_model(model_type)
    padded = model(tokens(2, 10), attention_mask=right_padded(), output_hidden_states=True).hidden_states
    alone = model(tokens(2, 10)[1:, :4], output_hidden_states=True).hidden_states
    for ours, expected in zip(padded, alone, strict=True):
        torch.testing.assert_close(ours[1, :4], expected[0], **EXACT)


@every_variant
def test_embeddings_can_be_given(model_type):
    of_ids = {} if lacks(model_type, "ngram_orders") else {"ngram_orders": []}  # what has no id is in no n-gram
    model = tiny_model(model_type, **of_ids)
    embeds = model.get_input_embeddings()(tokens(2, 10))
    torch.testing.assert_close(result_of(model(inputs_embeds=embeds)), result_of(model(tokens(2, 10))), **EXACT)


@language_model
def test_losses(model_type):
    """`labels` are shifted inside, `shift_labels` are used as they are, and `num_items_in_batch` divides the sum."""
    model = tiny_model(model_type, "causal_lm")
    ids, targets = tokens(2, 10), tokens(2, 10, seed=1)
    targets[0, 3] = ids[1, 4] = -100
    readable = ids.clamp(min=0)
    logits = model(readable).logits.float()  # transformers computes losses in float32
    inside = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    given = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(model(readable, labels=ids).loss.float(), inside)
    torch.testing.assert_close(model(readable, shift_labels=targets).loss.float(), given)
    torch.testing.assert_close(model(readable, labels=ids, shift_labels=targets).loss.float(), given)
    divided = model(readable, shift_labels=targets, num_items_in_batch=torch.tensor(40)).loss
    torch.testing.assert_close(divided.float(), total / 40)


def in_training(model, training: bool, **given):
    """What a model says of some tokens, with the same random numbers every time."""
    torch.manual_seed(0)
    output = model.train(training)(tokens(2, 10), **given)
    model.eval()
    return output


@language_model
def test_logits_to_keep(model_type):
    model = tiny_model(model_type, "causal_lm")
    logits = model(tokens(2, 10)).logits
    torch.testing.assert_close(model(tokens(2, 10), logits_to_keep=1).logits, logits[:, -1:], **EXACT)
    some = torch.tensor([2, 7])
    torch.testing.assert_close(model(tokens(2, 10), logits_to_keep=some).logits, logits[:, some], **EXACT)
    for kept in (1, some, torch.arange(9, -1, -1), torch.tensor([5] * 10), torch.tensor([5] * 12)):
        for training in (False, True):  # the loss is that of all tokens
            expected, loss = (
                in_training(model, training, labels=tokens(2, 10), logits_to_keep=each).loss for each in (0, kept)
            )
            torch.testing.assert_close(loss, expected, **EXACT)


@pytest.mark.parametrize(("model_type", "side"), in_turn(OF_OUR_OWN, ["left", "right", "by pad_token_id"]))
def test_a_sequence_is_classified_without_its_padding(model_type, side):
    model = tiny_model(model_type, "sequence_classification", num_labels=3, pad_token_id=0)
    ids = tokens(2, 10)
    mask = right_padded() if side != "left" else right_padded().flip(1)
    ids[mask == 0] = 0
    padded = model(ids, attention_mask=None if side == "by pad_token_id" else mask, labels=torch.tensor([0, 2]))
    for row in range(2):
        alone = model(ids[row : row + 1, mask[row].bool()]).logits[0]
        torch.testing.assert_close(padded.logits[row], alone, **EXACT)
    torch.testing.assert_close(padded.loss.float(), F.cross_entropy(padded.logits.float(), torch.tensor([0, 2])))


@of_our_own
def test_every_token_is_classified(model_type):
    model = tiny_model(model_type, "token_classification", num_labels=3)
    labels = tokens(2, 10) % 3
    labels[0, 2] = -100
    output = model(tokens(2, 10), labels=labels)
    torch.testing.assert_close(
        output.loss.float(), F.cross_entropy(output.logits.float().flatten(0, 1), labels.flatten())
    )


# --- training


@pytest.mark.parametrize(
    ("model_type", "head", "norm_position"),
    [
        (model_type, head, position)
        for model_type, head in HEADS
        if head == "causal_lm" or (model_type, head) in OWN_HEADS
        for position in norm_positions(model_type)
        if head == "causal_lm" or position == norm_positions(model_type)[0]  # heads know nothing of norms
    ],
)
def test_every_parameter_gets_a_gradient(model_type, head, norm_position):
    own_biases = {"share_relative_bias": False} if allows(model_type, share_relative_bias=False) else {}
    model = tiny_model(model_type, head, norm_position=norm_position, **own_biases).train()
    first = model(tokens(2, 10))
    given = {"labels": tokens(2, 10, seed=1)} if head == "causal_lm" else {}  # for what only a loss reaches
    if model_type == "longformer_encoder":
        given["global_attention_mask"] = (torch.arange(10) == 3).expand(2, -1)
    output = model(tokens(2, 10, seed=1), **given, **memory_if_any(model_type, first))
    # after a final norm the plain sum is a constant, whatever the weights
    sum((result * torch.randn_like(result)).sum() for result in said_by(output)).backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    if model_type in AROUND_BASES and head == "model":  # the head of the base stays beside it, unused
        without = [name for name in without if "lm_head" not in name]
    if model_type in SEGMENT_BY_SEGMENT:  # all rows have written: none reads what a fresh one does
        without = [name for name in without if not name.endswith("memory_tokens.start")]
    if (model_type, head) == (
        "longformer_encoder",
        "sequence_classification",
    ):  # one token is read, which is not global
        without = [name for name in without if "layers.1.self_attn.global" not in name]
    if model_type == "block_recurrent":  # so have they
        without.remove(next(name for name in without if name.endswith("state.start.weight")))
    assert without == []


@pytest.mark.parametrize(("model_type", "use_reentrant"), in_turn(models(memory=("exact", "own")), [False, True]))
def test_activation_checkpointing_changes_nothing(model_type, use_reentrant):
    def train_two_segments(model):
        memory = {}
        for segment in range(2):
            output = model(tokens(2, 6, seed=segment), attention_mask=right_padded()[:, :6], **memory)
            memory = memory_of(output)
            sum(result.square().sum() for result in said_by(output)).backward()
        return result_of(output), memory, {name: parameter.grad for name, parameter in model.named_parameters()}

    plain, checkpointed = tiny_model(model_type).train(), tiny_model(model_type).train()
    checkpointed.activation_checkpointing_enable({"use_reentrant": use_reentrant})
    assert checkpointed.is_activation_checkpointing
    expected, ours = train_two_segments(plain), train_two_segments(checkpointed)
    assert ours[1]["mems"] is not None
    torch.testing.assert_close(ours, expected, **EXACT)


@of_our_own
def test_dropout_acts_in_training_only(model_type):
    model = tiny_model(model_type, dropout=0.5)
    assert torch.equal(result_of(model(tokens(2, 10))), result_of(model(tokens(2, 10))))
    model.train()
    assert not torch.equal(result_of(model(tokens(2, 10))), result_of(model(tokens(2, 10))))


# --- saving and loading


@some_heads
def test_save_load_run_is_run(model_type, head, tmp_path):
    """Loading builds the model on the meta device: weights, buffers and memory must be those that were saved."""
    model = tiny_model(model_type, head)
    model.save_pretrained(tmp_path / "first")
    loaded, info = AUTO_CLASSES[head].from_pretrained(tmp_path / "first", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(loaded) is type(model)
    torch.testing.assert_close(dict(loaded.named_buffers()), dict(model.named_buffers()), atol=0, rtol=0)
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), atol=0, rtol=0)
    first, expected = loaded(tokens(2, 10)), model(tokens(2, 10))
    memories = [memory_if_any(model_type, output) for output in (first, expected)]
    ours, theirs = (
        result_of(m(tokens(2, 10, seed=1), **memory)) for m, memory in zip((loaded, model), memories, strict=True)
    )
    # the weights are bit for bit the same; where they lie in memory may change the order of a sum
    torch.testing.assert_close(ours, theirs, **EXACT)
    # saved again it writes the same files
    loaded.save_pretrained(tmp_path / "second")
    first, second = ({f.name: f.read_bytes() for f in (tmp_path / name).iterdir()} for name in ("first", "second"))
    assert first.keys() == second.keys()
    assert {"config.json", "model.safetensors"} <= first.keys()
    assert [name for name in first if first[name] != second[name]] == []


@pytest.mark.parametrize(("model_type", "head"), [each for each in SOME_HEADS if each[0] in FEW_MEMORIES])
def test_missing_and_unexpected_keys_are_reported(model_type, head, tmp_path):
    model = tiny_model(model_type, head)
    state = model.state_dict()
    lost = next(name for name in state if name.endswith("q_proj.weight"))
    state = {name: tensor for name, tensor in state.items() if name != lost} | {"stray.weight": torch.zeros(2)}
    model.save_pretrained(tmp_path, state_dict=state)
    info = AUTO_CLASSES[head].from_pretrained(tmp_path, output_loading_info=True)[1]
    assert set(info["missing_keys"]) == {lost}
    assert set(info["unexpected_keys"]) == {"stray.weight"}


@pytest.mark.parametrize(
    ("model_type", "head"),
    in_turn(
        [each for each in FEW if each not in AROUND_BASES],
        ["model", "sequence_classification", "token_classification"],
    ),
)
def test_head_can_be_changed_on_loading(model_type, head, tmp_path):
    model = tiny_model(model_type, "causal_lm")
    model.save_pretrained(tmp_path)
    loaded, info = AUTO_CLASSES[head].from_pretrained(tmp_path, output_loading_info=True)
    new = {name for name in loaded.state_dict() if not name.startswith("model.")} if head != "model" else set()
    assert set(info["missing_keys"]) == new
    backbone = loaded if head == "model" else loaded.model
    torch.testing.assert_close(backbone.state_dict(), model.model.state_dict(), atol=0, rtol=0)


@tied_or_not
def test_tied_weights(model_type, tied, tmp_path):
    model = tiny_model(model_type, "causal_lm", tie_word_embeddings=tied)
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == tied
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert (loaded.lm_head.weight is loaded.get_input_embeddings().weight) == tied
    torch.testing.assert_close(loaded(tokens(2, 10)).logits, model(tokens(2, 10)).logits, **EXACT)


@tied_or_not
def test_vocabulary_can_be_resized(model_type, tied):
    model = tiny_model(model_type, "causal_lm", tie_word_embeddings=tied)
    before = model(tokens(2, 10)).logits
    model.resize_token_embeddings(VOCAB_SIZE + 4)
    assert model.config.vocab_size == VOCAB_SIZE + 4
    output = model(torch.full((2, 3), VOCAB_SIZE + 3), labels=torch.full((2, 3), VOCAB_SIZE + 3))
    assert output.logits.shape == (2, 3, VOCAB_SIZE + 4)
    assert output.loss.isfinite()
    if model.lm_head.bias is not None:  # new tokens take no probability from the others
        torch.nn.init.constant_(model.lm_head.bias[VOCAB_SIZE:], -100.0)
    torch.testing.assert_close(model(tokens(2, 10)).logits[..., :VOCAB_SIZE], before, **EXACT)


# --- types, forms


@some_heads
def test_bfloat16_stays_bfloat16(model_type, head):
    model = tiny_model(model_type, head, dtype=torch.bfloat16)
    first = model(tokens(2, 10))
    second = model(tokens(2, 10, seed=1), attention_mask=right_padded(), **memory_if_any(model_type, first))
    for output in (first, second):
        assert result_of(output).dtype == torch.bfloat16
        memory = tensors_of(output.mems) if output.mems is not None else ()
        types = {state.dtype for state in memory if state.is_floating_point()}
        assert types == (types_of_memory(model, torch.bfloat16) if types else set())
        coarse = {parameter.dtype for name, parameter in model.named_parameters() if "reader." not in name}
        assert coarse == {torch.bfloat16}  # a memory around a base has its own: test_modeling_segment_memory.py
    if ROWS[model_type].memory != "none" and head in ("model", "causal_lm"):
        cache = model(tokens(2, 10), use_cache=True).past_key_values
        assert {rows.dtype for rows in held_by(cache)} == types_of_memory(model, torch.bfloat16)


@pytest.mark.parametrize(("model_type", "use_cache"), in_turn(models(memory=("exact", "own")), [None, True]))
def test_float32_memory_goes_into_a_bfloat16_model(model_type, use_cache):
    """Accelerate's mixed precision hands back bfloat16 memories as float32."""
    model = tiny_model(model_type, dtype=torch.bfloat16)
    # of their own storage, as what is widened: where numbers lie may change the order of a sum
    mems = model(tokens(2, 10)).mems.map(torch.clone)
    widened = mems.to(dtype=torch.float32)
    expected = model(tokens(2, 10, seed=1), mems=mems, use_cache=use_cache)
    output = model(tokens(2, 10, seed=1), mems=widened, use_cache=use_cache)
    assert result_of(output).dtype == torch.bfloat16
    torch.testing.assert_close(result_of(output), result_of(expected), atol=0, rtol=0)
    types = {state.dtype for state in tensors_of(output.mems) if state.is_floating_point()}
    assert types == types_of_memory(model, torch.bfloat16)


@pytest.mark.parametrize(
    ("model_type", "same_length"),
    [(model_type, False) for model_type in models()]
    + [(model_type, True) for model_type in models(memory=("exact", "own"))],
)
def test_eager_is_sdpa(model_type, same_length):
    """Values and gradients, with memory, padding and a document that starts inside a segment."""
    results = []
    reset = torch.zeros(2, 10, dtype=torch.bool)
    if ROWS[model_type].memory == "exact":
        reset[0, 6] = True
    for attention in ("eager", "sdpa"):
        model = tiny_model(model_type, same_length=same_length)
        model.set_attn_implementation(attention)
        assert model.config._attn_implementation == attention
        first = model(tokens(2, 10), attention_mask=right_padded())
        output = model(
            tokens(2, 10, seed=1),
            attention_mask=right_padded().flip(1),
            reset=reset if reset.any() else None,
            **memory_if_any(model_type, first),
        )
        result = result_of(output)[right_padded().flip(1).bool()]  # what is made of padding is nobody's
        result.square().mean().backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        results.append((result, None if model_type in AROUND_BASES else output.mems, gradients))
    # the eager softmax of a base is float32
    torch.testing.assert_close(results[0], results[1], **(FLOAT32 if model_type in AROUND_BASES else EXACT))


@every_variant
def test_a_static_cache_is_promised_where_there_is_one(model_type):
    """`_can_compile_fullgraph` is how transformers asks a class whether it generates with a static cache."""
    model = tiny_model(model_type)
    if not model._can_compile_fullgraph:
        if ROWS[model_type].causal_lm_class is not None:
            with pytest.raises(ValueError, match="`cache_implementation`='static'"):
                tiny_model(model_type, "causal_lm").generate(tokens(2, 5), cache_implementation="static")
        return
    empty = model.new_memory(2, torch.empty(0, dtype=torch.float64), static=True)
    shapes = [tensor.shape for tensor in tensors_of(model(tokens(2, 1), mems=empty, use_cache=True).mems)]
    cache, expected = MemoryCache(empty, static=True), model(tokens(2, 12)).last_hidden_state
    for index in range(12):
        output = model(tokens(2, 12)[:, index : index + 1], past_key_values=cache)
        torch.testing.assert_close(output.last_hidden_state, expected[:, index : index + 1], **EXACT)
        assert [tensor.shape for tensor in tensors_of(output.mems)] == shapes


@pytest.mark.parametrize("model_type", models())
def test_ids_may_be_of_32_bits(model_type: str):
    model, ids = tiny_model(model_type), tokens(2, 7)
    torch.testing.assert_close(result_of(model(ids.int())), result_of(model(ids)), **EXACT)
    if ROWS[model_type].causal_lm_class is not None:
        model, targets = tiny_model(model_type, "causal_lm"), ids.index_fill(1, torch.tensor([3]), -100)
        for training in (False, True):
            torch.manual_seed(0)
            expected = model.train(training)(ids, labels=targets).loss
            torch.manual_seed(0)
            torch.testing.assert_close(model(ids, labels=targets.int()).loss, expected, **EXACT)
    for head, labels in (("sequence_classification", ids[:, 0] % 2), ("token_classification", ids % 2)):
        if getattr(ROWS[model_type], f"{head}_class") is None:
            continue
        model = tiny_model(model_type, head)
        torch.testing.assert_close(model(ids, labels=labels.int()).loss, model(ids, labels=labels).loss, **EXACT)


@pytest.mark.parametrize("model_type", [*FEW, "segment_memory"])
@pytest.mark.parametrize("use_cache", [False, True])
def test_scripts_may_say_whether_a_cache_is_used(model_type: str, use_cache: bool, tmp_path):
    model, ids = tiny_model(model_type, "causal_lm"), tokens(2, 7)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, use_cache=use_cache, dtype=torch.float64)
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits, **EXACT)

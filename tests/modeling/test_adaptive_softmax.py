"""Adaptive input and softmax: the layers against loops over words, and the language models of all variants with them."""

import math

import pytest
import torch
from largest import Largest
from tiny import AROUND_BASES, EXACT, VARIANTS, VOCAB_SIZE, in_turn, tiny_config, tiny_model, tokens, variants
from transformers import AutoModelForCausalLM

from transformers_xl.modeling.layers.adaptive_embedding import AdaptiveEmbedding
from transformers_xl.modeling.layers.adaptive_softmax import AdaptiveSoftmax, linear_cross_entropy

CUTOFFS = [10, 21]
FORMS = {
    "narrower": {"cutoffs": CUTOFFS, "div_val": 2},
    "narrower-four": {"cutoffs": [5, *CUTOFFS], "div_val": 4, "embedding_size": 64},
    "same width": {"cutoffs": CUTOFFS},
    "projected": {"cutoffs": CUTOFFS, "embedding_size": 12},
    "first not projected": {"cutoffs": CUTOFFS, "div_val": 2, "proj_same_dim": False},
    "not scaled": {"cutoffs": CUTOFFS, "div_val": 2, "scale_embedding": False},
    "no clusters": {"embedding_size": 12},
    "no bias": {"cutoffs": CUTOFFS, "div_val": 2, "lm_head_bias": False},
}
every_form = pytest.mark.parametrize("fields", FORMS.values(), ids=FORMS)
WITH_WORDS = [each for each in variants(causal_lm=True) if each not in AROUND_BASES]
every_model = pytest.mark.parametrize("model_type", WITH_WORDS)
# the head and the embedding are one code; these add to the loss (of tokens, layers, halting), have the states of waves, or
# a state beside the window
FEW = [
    *("transformer_xl", "vanilla_transformer", "universal_transformer", "depth_adaptive_transformer"),
    *("complex_order_transformer", "sha_rnn", "recurrent_memory_transformer"),
]
few = pytest.mark.parametrize("model_type", FEW)


def randomised(layer: torch.nn.Module) -> torch.nn.Module:
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return layer.double()


def cluster_of(config, word: int) -> tuple[int, int]:
    """Its cluster, and its place in it."""
    starts = [0, *config.cutoffs]
    cluster = max(index for index, start in enumerate(starts) if word >= start)
    return cluster, word - starts[cluster]


def embedding_by_hand(weights: dict, config, word: int) -> torch.Tensor:
    cluster, place = cluster_of(config, word)
    vector = weights[f"tables.{cluster}.weight"][place]
    projection = weights.get(f"projections.{cluster if config.div_val > 1 else 0}.weight")
    vector = vector if projection is None else projection @ vector
    return vector * math.sqrt(config.hidden_size) if config.scale_embedding else vector


def log_probs_by_hand(weights: dict, config, state: torch.Tensor) -> torch.Tensor:
    """Of all words, one cluster after the other: a word of a tail is first its cluster."""

    def read(cluster: int) -> torch.Tensor:
        projection = weights.get(f"projections.{cluster}.weight")
        return state if projection is None else projection.T @ state

    def score(name: str, row: int, vector: torch.Tensor) -> torch.Tensor:
        bias = weights.get(f"{name}.bias")
        return weights[f"{name}.weight"][row] @ vector + (0.0 if bias is None else bias[row])

    sizes = [size for size, _ in config.clusters]
    head = [score("clusters.0", row, read(0)) for row in range(sizes[0])]
    head += [score("tails", row, read(0)) for row in range(len(sizes) - 1)]
    head = torch.stack(head).log_softmax(0)
    words = [head[: sizes[0]]]
    for cluster in range(1, len(sizes)):
        tail = torch.stack([score(f"clusters.{cluster}", row, read(cluster)) for row in range(sizes[cluster])])
        words.append(head[sizes[0] + cluster - 1] + tail.log_softmax(0))
    return torch.cat(words)


@every_form
def test_the_embedding_is_its_definition(fields):
    config = tiny_config("transformer_xl", **fields)
    layer = randomised(AdaptiveEmbedding(config))
    ids = tokens(2, 15)
    expected = torch.stack(
        [embedding_by_hand(dict(layer.named_parameters()), config, word) for word in ids.flatten().tolist()]
    )
    weight = torch.randn(2, 15, config.hidden_size, dtype=torch.float64)
    output = layer(ids)
    torch.testing.assert_close(output, expected.view_as(output), **EXACT)
    ours = torch.autograd.grad((output * weight).sum(), list(layer.parameters()))
    by_hand = torch.autograd.grad((expected.view_as(output) * weight).sum(), list(layer.parameters()))
    torch.testing.assert_close(ours, by_hand, **EXACT)


@pytest.mark.parametrize("model_type", [each for each in VARIANTS if each not in AROUND_BASES])
def test_vectors_of_words_need_not_be_scaled(model_type):
    ids, width = tokens(2, 5), tiny_config(model_type).token_width
    scaled, plain = (tiny_model(model_type, scale_embedding=scale).get_input_embeddings() for scale in (True, False))
    # waves have amplitudes first, and then what is never scaled
    torch.testing.assert_close(plain(ids)[..., :width], plain.weight[ids], **EXACT)
    torch.testing.assert_close(scaled(ids)[..., :width], plain.weight[ids] * math.sqrt(width), **EXACT)


def test_a_cluster_as_wide_as_the_model_needs_no_projection():
    fields = {"cutoffs": CUTOFFS, "div_val": 2, "tie_projs": False}
    with_projection, without = (
        tiny_model("transformer_xl", "causal_lm", **fields, proj_same_dim=same) for same in (True, False)
    )
    assert with_projection.num_parameters() - without.num_parameters() == 2 * 32 * 32
    assert "model.embed_tokens.projections.0.weight" not in without.state_dict()
    assert "lm_head.projections.0.weight" not in without.state_dict()


@every_form
def test_the_softmax_is_its_definition(fields):
    """Log-probabilities of all words, and the losses of some in their order, with gradients."""
    config = tiny_config("transformer_xl", **fields)
    layer = randomised(AdaptiveSoftmax(config, bias=config.lm_head_bias))
    states = torch.randn(2, 3, config.hidden_size, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[9, 36, -100], [10, 0, 21]])
    weights = dict(layer.named_parameters())
    expected = torch.stack([log_probs_by_hand(weights, config, state) for state in states.flatten(0, 1)])
    expected = expected.view(2, 3, VOCAB_SIZE)
    log_probs = layer(states)
    torch.testing.assert_close(log_probs, expected, **EXACT)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(2, 3, dtype=torch.float64), **EXACT)

    losses = layer.cross_entropy(states, targets)
    by_hand = -expected.gather(-1, targets.clamp(min=0)[..., None]).squeeze(-1) * (targets != -100)
    torch.testing.assert_close(losses, by_hand, **EXACT)
    scale = torch.arange(1.0, 7.0, dtype=torch.float64).view(2, 3)  # so that the order of the losses matters
    of = [states, *layer.parameters()]
    ours, expected_grads = (torch.autograd.grad((loss * scale).sum(), of) for loss in (losses, by_hand))
    torch.testing.assert_close(ours, expected_grads, **EXACT)


def test_labels_are_smoothed_where_all_words_are_one_cluster():
    """They were not, and nothing was said: `embedding_size` and `div_val` make such a softmax too."""
    config = tiny_config("transformer_xl", **FORMS["no clusters"])
    layer = randomised(AdaptiveSoftmax(config, bias=True))
    states = torch.randn(2, 3, config.hidden_size, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[9, 36, -100], [10, 0, 21]])
    of = [states, *layer.parameters()]
    losses = linear_cross_entropy(layer, states, targets, label_smoothing=0.3)
    expected = torch.nn.functional.cross_entropy(
        layer(states).flatten(0, 1), targets.flatten(), reduction="none", label_smoothing=0.3
    )
    torch.testing.assert_close(losses.flatten(), expected, **EXACT)
    scale = torch.arange(1.0, 7.0, dtype=torch.float64)
    grads = [torch.autograd.grad((loss.flatten() * scale).sum(), of) for loss in (losses, expected)]
    torch.testing.assert_close(*grads, **EXACT)


def test_targets_of_one_cluster_give_every_weight_a_gradient():
    """One process of many may see no word of a cluster: the others wait for its gradients all the same."""
    layer = randomised(AdaptiveSoftmax(tiny_config("transformer_xl", **FORMS["narrower"]), bias=True))
    layer.cross_entropy(
        torch.randn(2, 3, 32, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.long)
    ).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    layer.cross_entropy(torch.randn(2, 3, 32, dtype=torch.float64), torch.full((2, 3), -100)).sum().backward()


@few
@pytest.mark.parametrize("training", [True, False])
def test_targets_may_be_of_32_bits(model_type, training):
    model, ids = tiny_model(model_type, "causal_lm", **FORMS["narrower"]).train(training), tokens(2, 12)
    torch.testing.assert_close(model(ids, labels=ids.int()).loss, model(ids, labels=ids).loss, **EXACT)


@every_model
def test_training_has_the_loss_of_the_predictions_without_making_them(model_type):
    ids, targets = tokens(2, 12), tokens(2, 12, seed=1)
    targets[0, 3] = -100

    def losses(**fields):
        model = tiny_model(model_type, "causal_lm", **fields)
        evaluated = model(ids, shift_labels=targets)
        trained = model.train()(ids, shift_labels=targets)
        return model, evaluated, trained

    model, evaluated, trained = losses(**FORMS["narrower"])
    assert trained.logits is None
    assert evaluated.logits.shape == (2, 12, VOCAB_SIZE)
    expected = (
        linear_cross_entropy(model.lm_head, None, targets, logits=evaluated.logits).sum() / (targets != -100).sum()
    )
    torch.testing.assert_close(evaluated.loss.double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(evaluated.logits.logsumexp(-1), torch.zeros(2, 12, dtype=torch.float64), **EXACT)
    assert trained.loss.isfinite()
    trained.loss.backward()
    assert all(parameter.grad is not None for parameter in model.lm_head.parameters())

    _, plain_evaluated, plain_trained = losses()
    if torch.equal(plain_evaluated.loss, plain_trained.loss):  # the variant adds nothing to the loss in training
        torch.testing.assert_close(trained.loss.double(), expected, atol=1e-5, rtol=1e-5)
        divided = model(ids, shift_labels=targets, num_items_in_batch=46).loss
        torch.testing.assert_close(divided.double(), expected / 2, atol=1e-5, rtol=1e-5)
        shifted = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
        torch.testing.assert_close(model(ids, labels=ids).loss, model(ids, shift_labels=shifted).loss)


@few
@pytest.mark.parametrize("fields", [{}, FORMS["narrower"]], ids=["plain", "adaptive"])
def test_a_text_is_scored_with_the_logits_of_its_last_token_alone(model_type, fields):
    model = tiny_model(model_type, "causal_lm", **fields)
    ids = tokens(2, 12)
    whole, last = (model(ids, shift_labels=ids, logits_to_keep=kept) for kept in (0, 1))
    torch.testing.assert_close(last.loss.double(), whole.loss.double(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(last.logits, whole.logits[:, -1:], **EXACT)


@few
def test_no_tensor_of_training_has_all_tokens_and_all_words(model_type):
    words = 4000
    fields = {"vocab_size": words, "cutoffs": [50, 1000], "div_val": 4, "mem_len": 4}
    if VARIANTS[model_type].memory == "none":
        del fields["mem_len"]
    if model_type == "pkm_transformer":
        fields |= {"num_memory_keys": 8, "memory_topk": 4}  # its own memory is small
    model = tiny_model(model_type, "causal_lm", **fields).train()
    # most words of a text are frequent ones
    ids = torch.cat([torch.arange(40).repeat(4, 1), torch.tensor([[60, 999, 1000, 3999]] * 4)], dim=1)
    with Largest() as largest:
        model(ids, shift_labels=ids).loss.backward()
    assert largest.numel < ids.numel() * words / 2
    with Largest() as largest:
        model.eval()(ids, shift_labels=ids)
    assert largest.numel >= ids.numel() * words  # what the test looks for is there when logits are made


@pytest.mark.parametrize(("model_type", "tied"), in_turn(FEW, ["words", "projections", "neither"]))
def test_ties_are_saved_and_loaded(model_type, tied, tmp_path):
    fields = {"tie_word_embeddings": tied == "words", "tie_projs": [False, tied != "neither", tied != "neither"]}
    model = tiny_model(model_type, "causal_lm", **(FORMS["narrower"] | fields))
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    for each in (model, loaded):
        embedding, head = each.get_input_embeddings(), each.lm_head
        for index, (table, projection) in enumerate(zip(embedding.tables, embedding.projections, strict=True)):
            assert (head.clusters[index].weight is table.weight) == (tied == "words")
            assert (head.projections[index].weight is projection.weight) == (tied != "neither" and index > 0)
    assert loaded.num_parameters() == model.num_parameters()
    torch.testing.assert_close(loaded(tokens(2, 10)).logits, model(tokens(2, 10)).logits, **EXACT)


@few
def test_new_words_go_into_the_last_cluster(model_type):
    model = tiny_model(model_type, "causal_lm", **FORMS["narrower"])
    with torch.no_grad():  # transformers changes weights in place, which a graph that is kept would notice
        before = model(tokens(2, 10)).logits
    model.resize_token_embeddings(VOCAB_SIZE + 4)
    assert model.config.vocab_size == VOCAB_SIZE + 4
    assert model.config.clusters[-1] == (VOCAB_SIZE + 4 - CUTOFFS[-1], model.config.clusters[-1][1])
    new = torch.full((2, 3), VOCAB_SIZE + 3)
    with torch.no_grad():
        assert model(new, labels=new).logits.shape == (2, 3, VOCAB_SIZE + 4)
    torch.nn.init.constant_(model.lm_head.clusters[-1].bias[-4:], -100.0)
    torch.testing.assert_close(model(tokens(2, 10)).logits[..., :VOCAB_SIZE], before, **EXACT)
    model.train()(new, labels=new).loss.backward()
    with pytest.raises(ValueError, match="`new_num_tokens`=21 leaves nothing of the last cluster"):
        model.resize_token_embeddings(21)
    model.resize_token_embeddings(30, pad_to_multiple_of=8)
    assert model.get_input_embeddings().num_embeddings == model.lm_head.out_features == 32


@few
def test_generation_continues_a_memory(model_type):
    model = tiny_model(model_type, "causal_lm", **FORMS["narrower"])
    generated = model.generate(tokens(2, 5), max_new_tokens=6, do_sample=False, pad_token_id=0)
    rescored = model(generated[:, :-1]).logits[:, 4:].argmax(-1)
    assert torch.equal(rescored, generated[:, 5:])


@few
def test_bfloat16_predicts_in_bfloat16_and_learns_in_float32(model_type):
    model = tiny_model(model_type, "causal_lm", dtype=torch.bfloat16, **FORMS["narrower"])
    evaluated = model(tokens(2, 12), labels=tokens(2, 12))
    trained = model.train()(tokens(2, 12), labels=tokens(2, 12))
    assert evaluated.logits.dtype == torch.bfloat16
    assert trained.loss.dtype == torch.float32
    trained.loss.backward()
    assert {parameter.grad.dtype for parameter in model.lm_head.parameters()} == {torch.bfloat16}


def test_reading_is_one_graph():
    """Embedding and head; what stands between them: test_compilation.py."""
    model, ids = tiny_model("transformer_xl", "causal_lm", **FORMS["narrower"]), tokens(2, 6)
    for module, given in ((model.get_input_embeddings(), ids), (model.lm_head, model.model(ids).last_hidden_state)):
        compiled = torch.compile(module, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(given), module(given), **EXACT)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cutoffs": [0, 10]}, r"`cutoffs`=\[0, 10\] must rise from above 0 to below `vocab_size`=37"),
        ({"cutoffs": [10, 10]}, "`cutoffs`"),
        ({"cutoffs": [10, 37]}, "`cutoffs`"),
        ({"div_val": 0}, "`div_val`=0 must be at least 1"),
        ({"cutoffs": [5, 10], "div_val": 8}, "`div_val`=8 leaves words of the last of 3 clusters a width of 0"),
        ({"embedding_size": 0}, "`embedding_size`=0 must be at least 1"),
        ({"cutoffs": [5], "tie_projs": [True]}, "must have one value for each of the 2 clusters"),
    ],
    ids=str,
)
def test_config_values(fields, said):
    with pytest.raises(ValueError, match=said):
        tiny_config("transformer_xl", **fields)


def test_a_wish_for_the_most_likely_word_is_refused():
    with pytest.raises(ValueError, match="`halting_oracle`='correctness' needs the most likely word"):
        tiny_config("depth_adaptive_transformer", halting="geometric", halting_oracle="correctness", cutoffs=CUTOFFS)

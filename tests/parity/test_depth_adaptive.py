"""The Depth-adaptive Transformer against a naive reference of its equations: losses, halting, oracles and exits.

The reference has no positions: our relative ones are turned off by zeros. It has all halting networks side by side; ours
has one at a time, so one model is built for each, and the sum of their gradients is the gradient there.
"""

import golden
import pytest
import torch
from golden import Case

from transformers_xl import DepthAdaptiveTransformerConfig, DepthAdaptiveTransformerForCausalLM
from transformers_xl.modeling.layers.depth_halting import correctness, oracle_layers, smooth

NAMES = {"fc1": "mlp.fc1", "fc2": "mlp.fc2", "ln1": "input_layernorm", "ln2": "post_attention_layernorm"}
# which of the networks a model with this halting has
NETWORKS = {None: None, "geometric": "halt", "multinomial": "multinomial", "sequence": "multinomial"}


def our_name(name: str, hyper: dict, halting: str | None) -> str | None:
    """Where a weight stands in a model with this halting; None: that model has it not, or has it as its embedding."""
    if name == "emb":
        return None
    module, kind = name.rsplit(".", 1)
    if module in ("halt", "multinomial"):
        return f"halting.proj.{kind}" if module == NETWORKS[halting] else None
    if module.startswith("classifier"):
        number = int(module.removeprefix("classifier"))
        is_last = hyper["shared_classifier"] or number == hyper["n_layer"] - 1
        return f"lm_head.{kind}" if is_last else f"exit_classifiers.{number}.{kind}"
    layer, part = module.removeprefix("layer").split(".")
    return f"model.layers.{layer}.{NAMES.get(part, f'self_attn.{part}_proj')}.{kind}"


def build(case: Case, **fields) -> DepthAdaptiveTransformerForCausalLM:
    hyper = case.hyper
    batch, length = case.inputs["x"].shape
    hyper.only_describe(batch=batch, len=length)
    config = DepthAdaptiveTransformerConfig(
        vocab_size=hyper["vocab"],
        hidden_size=hyper["d_model"],
        num_hidden_layers=hyper["n_layer"],
        num_attention_heads=hyper["n_head"],
        intermediate_size=hyper["d_ff"],
        norm_position="post",
        attention_bias=True,
        tie_word_embeddings=False,
        dropout=0.0,
        shared_classifier=hyper["shared_classifier"],
        oracle_sigma=hyper["sigma"],
        oracle_penalty=hyper["lam"],
        halting_loss_weight=hyper["alpha"],
        **fields,
    )
    model = DepthAdaptiveTransformerForCausalLM(config).to(case.dtype)
    ours = {our_name(name, hyper, config.halting): tensor for name, tensor in case.weights.items()}
    ours[None] = case.weights["emb"]
    ours["model.embed_tokens.weight"] = ours.pop(None)
    missing, unexpected = model.load_state_dict(ours, strict=False)
    assert not unexpected
    for name in missing:  # what positions are made of
        assert "r_proj" in name or "positions.bias" in name, name
        torch.nn.init.zeros_(model.get_parameter(name))
    return model


class Runs:
    """One training step of models with different halting, over the same embeddings."""

    def __init__(self, case: Case):
        self.case = case
        self.embedding = case.weights["emb"].clone().requires_grad_()  # it is not scaled there
        self.embeds, self.targets = self.embedding[case.inputs["x"].long()], case.inputs["target"].long()
        self.models: list[DepthAdaptiveTransformerForCausalLM] = []

    def __call__(self, **fields):
        """The model, its outputs, the logits of all layers and the log-likelihood of the targets behind each."""
        model = build(self.case, **fields).train()
        self.models.append(model)
        outputs = model(inputs_embeds=self.embeds, shift_labels=self.targets, output_hidden_states=True)
        logits = model.layer_logits(outputs)
        return model, outputs, logits, -model.layer_losses(outputs, logits, self.targets).detach()

    def check(self, name: str, actual: torch.Tensor) -> torch.Tensor:
        expected = self.case.tensors.get(f"out.{name}", actual)
        self.case.check(name, actual.reshape(expected.shape))
        return actual

    def gradients(self) -> dict[str, torch.Tensor]:
        found = {"emb": self.embedding.grad}
        for name in self.case.weights:
            places = [(model, our_name(name, self.case.hyper, model.config.halting)) for model in self.models]
            parts = [model.get_parameter(place).grad for model, place in places if place is not None]
            parts = [part for part in parts if part is not None]
            if parts:
                found[name] = sum(parts)
        return found


def check_uniform(run: Runs) -> None:
    hyper = run.case.hyper
    _, outputs, logits, likelihoods = run()
    for layer, each in enumerate(logits):
        run.check(f"logprob.{layer}", each.log_softmax(-1))
    run.check("aligned_loss_uniform", outputs.loss)
    correct = correctness(logits, run.targets)
    run.check("log_likelihood", likelihoods)
    run.check("smoothed_ll", smooth(likelihoods, hyper["sigma"]))
    run.check("smoothed_correct", smooth(correct, hyper["sigma"]))
    for name, scores in (("likelihood", likelihoods), ("correctness", correct)):
        for kind, sigma in (("", hyper["sigma"]), ("sequence_", None)):
            run.check(f"oracle_{kind}{name}", oracle_layers(scores, hyper["lam"], sigma))
    run.check("aligned_loss_inverse", run(exit_loss_weights="inverse")[1].loss)


def check_geometric(run: Runs) -> list[torch.Tensor]:
    """Both losses that have their part in the objective."""
    layers = run.case.hyper["n_layer"]
    model, outputs, _, likelihoods = run(halting="geometric")
    run.check("total_loss", outputs.loss)
    log_probs = model.exit_log_probs(outputs)
    run.check("exit_loss_geometric_likelihood", model.exit_loss(log_probs, likelihoods, run.targets))
    probabilities = log_probs.exp()
    run.check("q_geometric", probabilities.movedim(-1, 0))
    run.check("expected_depth", (probabilities * torch.arange(1, layers + 1)).sum(-1))
    chi = [model.halting.score(n, outputs.hidden_states[n]).sigmoid() for n in range(1, layers)]
    run.check("chi", torch.stack(chi))
    total = outputs.loss
    model, outputs, logits, _ = run(halting="geometric", halting_oracle="correctness")
    loss = model.exit_loss(model.exit_log_probs(outputs), correctness(logits, run.targets), run.targets)
    return [total, run.check("exit_loss_geometric_correctness", loss)]


def check_multinomial(run: Runs) -> list[torch.Tensor]:
    losses = []
    for halting, suffix, name in (
        ("multinomial", "", "multinomial_likelihood"),
        ("sequence", "_sequence", "sequence"),
    ):
        model, outputs, _, likelihoods = run(halting=halting)
        log_probs = model.exit_log_probs(outputs)
        probabilities = log_probs.exp()
        run.check(
            f"q_multinomial{suffix}", probabilities.movedim(-1, 0) if halting == "multinomial" else probabilities
        )
        losses.append(run.check(f"exit_loss_{name}", model.exit_loss(log_probs, likelihoods, run.targets)))
    return losses


@golden.cases("act_depth")
def test_values_and_gradients(case: Case):
    case.hyper.change_nothing("thresholds")  # of exits: the next test
    run = Runs(case)
    check_uniform(run)
    linear = run.check("aligned_loss_linear", run(exit_loss_weights="linear")[1].loss)
    scalar = golden.squares(linear, *check_geometric(run), *check_multinomial(run))
    run.check("scalar", scalar)
    scalar.backward()
    case.check_gradients(run.gradients())
    case.finish("exit_layer_*", "exit_logprob_*", "exit_hidden_*")  # the next test


@golden.cases("act_depth")
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "masked"])
@pytest.mark.parametrize("kind", ["confidence", "halting"])
@pytest.mark.parametrize("size", [1, 2, None])
def test_exits(case: Case, kind: str, size: int | None, packed: bool):
    """Tokens that leave early, read at once, in segments and one by one, with their work left out and without."""
    fields = {
        "confidence": {"confidence_thresholds": case.hyper["thresholds"]},
        "halting": {"halting": "geometric", "exit_by_halting": True},
    }
    if not case.has(f"exit_layer_{kind}"):
        pytest.skip(f"the case has no exits by {kind}")
    embeds = case.weights["emb"][case.inputs["x"].long()]
    assert case.inputs["target"].shape == embeds.shape[:2]  # given, whatever is predicted
    model, parts, mems = build(case, **fields[kind]).eval(), [], None
    for segment in embeds.split(size or embeds.shape[1], dim=1):
        with torch.set_grad_enabled(not packed):
            parts.append(model(inputs_embeds=segment, mems=mems, output_hidden_states=True))
        mems = parts[-1].mems
    case.check(f"exit_layer_{kind}", torch.cat([part.exit_layers for part in parts], dim=1))
    logits = torch.cat([part.logits for part in parts], dim=1)
    case.check(f"exit_logprob_{kind}", logits.log_softmax(-1))
    case.check(f"exit_hidden_{kind}", torch.cat([part.hidden_states[-1] for part in parts], dim=1))
    case.finish("*")

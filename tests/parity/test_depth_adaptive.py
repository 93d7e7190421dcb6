"""The Depth-adaptive Transformer against a naive reference of its equations: losses, halting, oracles and exits.

The reference has no positions: our relative ones are turned off by zeros. It has all halting networks side by side; ours
has one at a time, so one model is built for each, and the sum of their gradients is the gradient there.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from transformers_xl import DepthAdaptiveTransformerConfig, DepthAdaptiveTransformerForCausalLM
from transformers_xl.modeling.layers.depth_halting import correctness, oracle_layers, smooth


def pytest_generate_tests(metafunc):
    files = sorted(Path(metafunc.config.getoption("--golden-dir")).glob("act_depth__*.json"))
    metafunc.parametrize("case_file", files, ids=[file.stem for file in files])


@pytest.fixture
def case(case_file: Path) -> tuple[dict, dict[str, torch.Tensor]]:
    return json.loads(case_file.read_text()), load_file(case_file.with_suffix(".safetensors"))


NAMES = {"fc1": "mlp.fc1", "fc2": "mlp.fc2", "ln1": "input_layernorm", "ln2": "post_attention_layernorm"}


def build(hyper: dict, tensors: dict[str, torch.Tensor], **fields) -> DepthAdaptiveTransformerForCausalLM:
    shared, layers = hyper["shared_classifier"], hyper["n_layer"]
    config = DepthAdaptiveTransformerConfig(
        vocab_size=hyper["vocab"],
        hidden_size=hyper["d_model"],
        num_hidden_layers=layers,
        num_attention_heads=hyper["n_head"],
        intermediate_size=hyper["d_ff"],
        norm_position="post",
        attention_bias=True,
        tie_word_embeddings=False,
        dropout=0.0,
        shared_classifier=shared,
        oracle_sigma=hyper["sigma"],
        oracle_penalty=hyper["lam"],
        halting_loss_weight=hyper["alpha"],
        **fields,
    )
    model = DepthAdaptiveTransformerForCausalLM(config)
    ours = {"model.embed_tokens.weight": tensors["w.emb"]}
    for name in ("content_bias", "position_bias"):
        ours[f"model.positions.bias.{name}"] = torch.zeros(config.num_attention_heads, config.head_dim)
    for kind in ("weight", "bias"):
        ours[f"lm_head.{kind}"] = tensors[f"w.classifier{0 if shared else layers - 1}.{kind}"]
        if not shared:
            for layer in range(layers - 1):
                ours[f"exit_classifiers.{layer}.{kind}"] = tensors[f"w.classifier{layer}.{kind}"]
        if config.halting is not None:
            network = "halt" if config.halting == "geometric" else "multinomial"
            ours[f"halting.proj.{kind}"] = tensors[f"w.{network}.{kind}"]
        for layer in range(layers):
            name = f"model.layers.{layer}"
            for part in "qkvo":
                ours[f"{name}.self_attn.{part}_proj.{kind}"] = tensors[f"w.layer{layer}.{part}.{kind}"]
            for theirs, our_name in NAMES.items():
                ours[f"{name}.{our_name}.{kind}"] = tensors[f"w.layer{layer}.{theirs}.{kind}"]
    for layer in range(layers):
        ours[f"model.layers.{layer}.self_attn.r_proj.weight"] = torch.zeros(config.hidden_size, config.hidden_size)
    model.load_state_dict(ours)
    return model


def test_values_and_gradients(case):
    description, tensors = case
    hyper, tolerance = description["hyper"], description["tolerance"]
    close = {"atol": tolerance["out_atol"], "rtol": tolerance["out_rtol"]}

    def check(ours: torch.Tensor, name: str) -> None:
        expected = tensors[f"out.{name}"]
        torch.testing.assert_close(
            ours.detach().reshape(expected.shape), expected, **close, msg=lambda m: f"{name}: {m}"
        )

    # the embedding is not scaled there
    embedding = tensors["w.emb"].clone().requires_grad_()
    inputs, targets = tensors["in.x"].long(), tensors["in.target"].long()
    embeds, models = embedding[inputs], []

    def run(**fields):
        model = build(hyper, tensors, **fields).train()
        models.append(model)
        outputs = model(inputs_embeds=embeds, shift_labels=targets, output_hidden_states=True)
        return model, outputs, model.layer_logits(outputs)

    model, outputs, logits = run()
    for layer, each in enumerate(logits):
        check(each.log_softmax(-1), f"logprob.{layer}")
    check(outputs.loss, "aligned_loss_uniform")
    likelihoods = -model.layer_nats(outputs, logits, targets).detach()
    correct = correctness(logits, targets)
    check(likelihoods, "log_likelihood")
    check(smooth(likelihoods, hyper["sigma"]), "smoothed_ll")
    check(smooth(correct, hyper["sigma"]), "smoothed_correct")
    for name, scores in (("likelihood", likelihoods), ("correctness", correct)):
        for kind, sigma in (("", hyper["sigma"]), ("sequence_", None)):
            check(oracle_layers(scores, hyper["lam"], sigma), f"oracle_{kind}{name}")
    model, linear, _ = run(exit_loss_weights="linear")
    check(linear.loss, "aligned_loss_linear")
    check(run(exit_loss_weights="inverse")[1].loss, "aligned_loss_inverse")

    total_model, total, logits = run(halting="geometric")
    check(total.loss, "total_loss")
    likelihoods = -total_model.layer_nats(total, logits, targets).detach()
    check(total_model.exit_loss(total, likelihoods, targets), "exit_loss_geometric_likelihood")
    log_probs = total_model.exit_log_probs(total)
    check(log_probs.exp().movedim(-1, 0), "q_geometric")
    numbers = torch.arange(1, hyper["n_layer"] + 1)
    check((log_probs.exp() * numbers).sum(-1), "expected_depth")
    chi = [total_model.halting.score(n, total.hidden_states[n]).sigmoid() for n in range(1, hyper["n_layer"])]
    check(torch.stack(chi), "chi")

    model, outputs, logits = run(halting="geometric", halting_oracle="correctness")
    geometric = model.exit_loss(outputs, correctness(logits, targets), targets)
    check(geometric, "exit_loss_geometric_correctness")
    model, outputs, logits = run(halting="multinomial")
    check(model.exit_log_probs(outputs).exp().movedim(-1, 0), "q_multinomial")
    likelihoods = -model.layer_nats(outputs, logits, targets).detach()
    multinomial = model.exit_loss(outputs, likelihoods, targets)
    check(multinomial, "exit_loss_multinomial_likelihood")
    model, outputs, logits = run(halting="sequence")
    check(model.exit_log_probs(outputs).exp(), "q_multinomial_sequence")
    likelihoods = -model.layer_nats(outputs, logits, targets).detach()
    sequence = model.exit_loss(outputs, likelihoods, targets)
    check(sequence, "exit_loss_sequence")

    scalar = sum(loss.square() for loss in (total.loss, linear.loss, geometric, multinomial, sequence))
    check(scalar, "scalar")
    scalar.backward()

    def gradient(name: str, halting: tuple[str, ...] | None = None) -> torch.Tensor:
        chosen = [m for m in models if halting is None or m.config.halting in halting]
        gradients = [m.get_parameter(name).grad for m in chosen]
        return sum(each for each in gradients if each is not None)

    classifier = "lm_head" if hyper["shared_classifier"] else "exit_classifiers.0"
    found = {
        "emb": embedding.grad,
        "halt.weight": gradient("halting.proj.weight", ("geometric",)),
        "halt.bias": gradient("halting.proj.bias", ("geometric",)),
        "multinomial.weight": gradient("halting.proj.weight", ("multinomial", "sequence")),
        "classifier0.weight": gradient(f"{classifier}.weight"),
        "layer0.q.weight": gradient("model.layers.0.self_attn.q_proj.weight"),
        "layer1.fc1.weight": gradient("model.layers.1.mlp.fc1.weight"),
        "layer3.ln2.weight": gradient("model.layers.3.post_attention_layernorm.weight"),
    }
    assert {f"grad.{name}" for name in found} == {name for name in tensors if name.startswith("grad.")}
    for name, ours in found.items():
        expected = tensors[f"grad.{name}"]
        atol = tolerance["grad_atol"] * max(1.0, expected.abs().max().item())
        torch.testing.assert_close(
            ours, expected, atol=atol, rtol=tolerance["grad_rtol"], msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "masked"])
def test_exits(case, packed):
    """Tokens that leave early, read at once, in segments and one by one, with their work left out and without."""
    description, tensors = case
    hyper, tolerance = description["hyper"], description["tolerance"]
    close = {"atol": tolerance["out_atol"], "rtol": tolerance["out_rtol"]}
    embeds, length = tensors["w.emb"][tensors["in.x"].long()], hyper["len"]
    ways = {
        "confidence": {"confidence_thresholds": hyper["thresholds"]},
        "halting": {"halting": "geometric", "exit_by_halting": True},
    }
    for name, fields in ways.items():
        model = build(hyper, tensors, **fields).eval()
        for size in (length, 2, 1):
            parts, mems = [], None
            for segment in embeds.split(size, dim=1):
                with torch.set_grad_enabled(not packed):
                    parts.append(model(inputs_embeds=segment, mems=mems, output_hidden_states=True))
                mems = parts[-1].mems
            exits = torch.cat([part.exit_layers for part in parts], dim=1)
            assert torch.equal(exits, tensors[f"out.exit_layer_{name}"].long())
            if name == "confidence":
                logits = torch.cat([part.logits for part in parts], dim=1)
                hidden = torch.cat([part.hidden_states[-1] for part in parts], dim=1)
                torch.testing.assert_close(logits.log_softmax(-1), tensors["out.exit_logprob_confidence"], **close)
                torch.testing.assert_close(hidden, tensors["out.exit_hidden_confidence"], **close)

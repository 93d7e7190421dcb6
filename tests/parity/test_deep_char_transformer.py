"""The vanilla Transformer against a naive reference of its equations, with all auxiliary losses and their schedules.

There, one classifier per target serves all layers; ours are separate, as in the paper: they are given the same weights, and
the sum of their gradients is the gradient there.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from transformers_xl import VanillaTransformerConfig, VanillaTransformerForCausalLM


def pytest_generate_tests(metafunc):
    files = sorted(Path(metafunc.config.getoption("--golden-dir")).glob("deep_char_transformer__*.json"))
    metafunc.parametrize("case_file", files, ids=[file.stem for file in files])


def build(hyper: dict, tensors: dict[str, torch.Tensor]) -> VanillaTransformerForCausalLM:
    config = VanillaTransformerConfig(
        vocab_size=hyper["vocab"],
        hidden_size=hyper["d_model"],
        num_hidden_layers=hyper["n_layer"],
        num_attention_heads=hyper["n_head"],
        intermediate_size=hyper["d_ff"],
        segment_length=hyper["len"],
        norm_position="pre" if hyper["pre_norm"] else "post",
        attention_bias=True,
        tie_word_embeddings=False,
        dropout=0.0,
    )
    model = VanillaTransformerForCausalLM(config)
    ours = {"model.embed_tokens.weight": tensors["w.emb"]}
    for kind in ("weight", "bias"):
        ours[f"lm_head.{kind}"] = tensors[f"w.out1.{kind}"]
        for layer in range(config.num_hidden_layers):
            ours[f"auxiliary.second_token.{layer}.{kind}"] = tensors[f"w.out2.{kind}"]
            if layer < config.num_hidden_layers - 1:
                ours[f"auxiliary.next_token.{layer}.{kind}"] = tensors[f"w.out1.{kind}"]
            theirs, name = f"w.layer{layer}", f"model.layers.{layer}"
            for part, rows in zip("qkv", tensors[f"{theirs}.qkv.{kind}"].chunk(3), strict=True):
                ours[f"{name}.self_attn.{part}_proj.{kind}"] = rows
            ours[f"{name}.self_attn.o_proj.{kind}"] = tensors[f"{theirs}.o.{kind}"]
            for theirs_name, our_name in (
                ("fc1", "mlp.fc1"), ("fc2", "mlp.fc2"), ("ln1", "input_layernorm"), ("ln2", "post_attention_layernorm")
            ):  # fmt: skip
                ours[f"{name}.{our_name}.{kind}"] = tensors[f"{theirs}.{theirs_name}.{kind}"]
    for layer in range(config.num_hidden_layers):
        ours[f"model.layers.{layer}.positions.weight"] = tensors["w.pos"][layer]
    model.load_state_dict(ours)
    return model


def test_values_and_gradients(case_file: Path):
    case = json.loads(case_file.read_text())
    hyper, tolerance = case["hyper"], case["tolerance"]
    tensors = load_file(case_file.with_suffix(".safetensors"))
    model = build(hyper, tensors)
    close = {"atol": tolerance["out_atol"], "rtol": tolerance["out_rtol"]}
    # the embedding is not scaled there
    embedding = tensors["w.emb"].clone().requires_grad_()
    inputs, targets = tensors["in.x"].long(), tensors["in.target"].long()

    model.eval()
    output = model(inputs_embeds=embedding[inputs], output_hidden_states=True, shift_labels=targets)
    for layer in range(hyper["n_layer"]):
        torch.testing.assert_close(output.hidden_states[layer + 1], tensors[f"out.hidden.{layer}"], **close)
    torch.testing.assert_close(output.logits.log_softmax(-1), tensors["out.logprob_next"], **close)
    torch.testing.assert_close(output.loss, tensors["out.loss_final_layer"].squeeze(), **close)

    model.train()
    total = 0.0
    for kind in ("hard", "linear"):
        model.config.intermediate_losses = kind
        for index, progress in enumerate(hyper["progress"]):
            model.training_progress = progress
            torch.testing.assert_close(torch.tensor(model.layer_weights()), tensors[f"out.weights_{kind}"][index])
            loss = model(inputs_embeds=embedding[inputs], shift_labels=targets).loss
            torch.testing.assert_close(loss.detach(), tensors[f"out.loss_{kind}"][index], **close)
            total = total + loss.square()
    torch.testing.assert_close(total.detach(), tensors["out.scalar"].squeeze(), atol=1e-3, rtol=1e-4)
    total.backward()

    heads = [model.lm_head, *model.auxiliary.next_token]
    layers = model.model.layers
    found = {
        "emb": embedding.grad,
        "pos": torch.stack([layer.positions.weight.grad for layer in layers]),
        "out1.weight": sum(head.weight.grad for head in heads),
        "out2.weight": sum(head.weight.grad for head in model.auxiliary.second_token),
        "layer0.qkv.weight": torch.cat([getattr(layers[0].self_attn, f"{p}_proj").weight.grad for p in "qkv"]),
        "layer1.fc1.weight": layers[1].mlp.fc1.weight.grad,
        "layer0.ln1.weight": layers[0].input_layernorm.weight.grad,
    }
    assert {f"grad.{name}" for name in found} == {name for name in tensors if name.startswith("grad.")}
    for name, gradient in found.items():
        expected = tensors[f"grad.{name}"]
        atol = tolerance["grad_atol"] * max(1.0, expected.abs().max().item())
        torch.testing.assert_close(
            gradient, expected, atol=atol, rtol=tolerance["grad_rtol"], msg=lambda m, n=name: f"{n}: {m}"
        )

    model.config.intermediate_losses, model.config.num_targets = "none", 1
    model.config.every_position_loss = False
    loss = model(inputs_embeds=embedding[inputs], shift_labels=targets).loss
    torch.testing.assert_close(loss.detach(), tensors["out.loss_last_position_only"].squeeze(), **close)

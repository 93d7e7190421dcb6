"""The vanilla Transformer against a naive reference of its equations, with all auxiliary losses and their schedules.

There, one classifier per target serves all layers; ours are separate, as in the paper: they are given the same weights, and
the sum of their gradients is the gradient there.
"""

import golden
import torch
from golden import Case

from transformers_xl import VanillaTransformerConfig, VanillaTransformerForCausalLM

LAYER_NAMES = {
    "o": "self_attn.o_proj", "fc1": "mlp.fc1", "fc2": "mlp.fc2", "ln1": "input_layernorm", "ln2": "post_attention_layernorm"
}  # fmt: skip


def places_of(name: str, num_layers: int) -> list[str]:
    """Where a weight stands in our model: parts of its rows, or the same in several places."""
    if name == "pos":
        return [f"model.layers.{layer}.positions.weight" for layer in range(num_layers)]
    module, kind = name.rsplit(".", 1)
    if module == "out1":
        layers = range(num_layers - 1)
        return [f"lm_head.{kind}", *(f"auxiliary.next_token.{layer}.{kind}" for layer in layers)]
    if module == "out2":
        return [f"auxiliary.second_token.{layer}.{kind}" for layer in range(num_layers)]
    layer, part = module.removeprefix("layer").split(".")
    if part == "qkv":
        return [f"model.layers.{layer}.self_attn.{each}_proj.{kind}" for each in "qkv"]
    return [f"model.layers.{layer}.{LAYER_NAMES[part]}.{kind}"]


def build(case: Case) -> VanillaTransformerForCausalLM:
    hyper, layers = case.hyper, case.hyper["n_layer"]
    batch, length = case.inputs["x"].shape
    hyper.only_describe(batch=batch, len=length)
    config = VanillaTransformerConfig(
        vocab_size=hyper["vocab"],
        hidden_size=hyper["d_model"],
        num_hidden_layers=layers,
        num_attention_heads=hyper["n_head"],
        intermediate_size=hyper["d_ff"],
        segment_length=hyper["len"],
        norm_position="pre" if hyper["pre_norm"] else "post",
        use_final_norm=False,
        attention_bias=True,
        tie_word_embeddings=False,
        dropout=0.0,
    )
    model = VanillaTransformerForCausalLM(config).to(case.dtype)
    ours = {"model.embed_tokens.weight": case.weights["emb"]}
    for name, tensor in case.weights.items():
        if name == "emb":
            continue
        places = places_of(name, layers)
        is_split = name == "pos" or ".qkv." in name
        parts = (
            tensor.view(len(places), -1, *tensor.shape[1 + (name == "pos") :]) if is_split else [tensor] * len(places)
        )
        ours |= {place: part.view(model.get_parameter(place).shape) for place, part in zip(places, parts, strict=True)}
    model.load_state_dict(ours)
    return model


def found_gradients(case: Case, model: VanillaTransformerForCausalLM) -> dict[str, torch.Tensor]:
    """The gradients of ours under their names, for those that the case has."""
    found = {}
    for name, stored in case.gradients.items():
        if name == "emb":
            continue
        gradients = [model.get_parameter(place).grad for place in places_of(name, case.hyper["n_layer"])]
        if name.startswith("out"):
            found[name] = sum(gradient for gradient in gradients if gradient is not None)
        else:
            found[name] = torch.cat(gradients).view(stored.shape)
    return found


def check_evaluation(case: Case, model: VanillaTransformerForCausalLM, embeds: torch.Tensor) -> None:
    targets = case.inputs["target"].long()
    output = model.eval()(inputs_embeds=embeds, output_hidden_states=True, shift_labels=targets)
    logprobs, second = [], []
    for layer, states in enumerate(output.hidden_states[1:]):
        case.check(f"hidden.{layer}", states)
        logprobs.append(model.lm_head(states).log_softmax(-1))
        second.append(model.auxiliary.second_token[layer](states).log_softmax(-1))
    length = embeds.shape[1]
    for name, each, wanted in (("next", logprobs, targets[:, :length]), ("second", second, targets[:, 1:])):
        case.check(f"logprob_{name}", each[-1])
        case.check(f"nll_{name}", torch.stack([-one.gather(-1, wanted[..., None]).squeeze(-1) for one in each]))
    torch.testing.assert_close(output.logits.log_softmax(-1), logprobs[-1])
    case.check("loss_final_layer", output.loss)


@golden.cases("deep_char_transformer")
def test_values_and_gradients(case: Case):
    model = build(case)
    embedding = case.weights["emb"].clone().requires_grad_()  # it is not scaled there
    embeds, targets = embedding[case.inputs["x"].long()], case.inputs["target"].long()
    check_evaluation(case, model, embeds)

    model.train()
    total = torch.zeros(())
    for kind in ("hard", "linear"):
        if not case.has(f"loss_{kind}"):
            continue
        model.config.intermediate_losses, weights, losses = kind, [], []
        for progress in case.hyper["progress"]:
            model.training_progress = progress
            weights.append(torch.tensor(model.layer_weights(), dtype=case.dtype))
            losses.append(model(inputs_embeds=embeds, shift_labels=targets).loss)
        case.check(f"weights_{kind}", torch.stack(weights))
        case.check(f"loss_{kind}", torch.stack(losses))
        total = total + torch.stack(losses).square().sum()
    case.check("scalar", total)
    total.backward()
    case.check_gradients(found_gradients(case, model) | {"emb": embedding.grad})

    model.config.intermediate_losses, model.config.num_targets = "none", 1
    model.config.every_position_loss = False
    case.check("loss_last_position_only", model(inputs_embeds=embeds, shift_labels=targets).loss)
    case.finish()

"""Complex-order embeddings against recorded numbers of the paper's equation, with every sharing scheme."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from transformers_xl import ComplexOrderTransformerConfig
from transformers_xl.modeling.layers.complex_embedding import ComplexOrderEmbedding, at_positions


def pytest_generate_tests(metafunc):
    files = sorted(Path(metafunc.config.getoption("--golden-dir")).glob("complex_order_embedding__*.json"))
    metafunc.parametrize("case_file", files, ids=[file.stem for file in files])


# what each scheme shares, and its tables in the recording
SCHEMES = {
    "full": (("word_and_dimension", "freq"), ("word_and_dimension", "phase")),
    "no_phase": (("word_and_dimension", "freq"), ("none", None)),
    "word_freq": (("word", "freq_word"), ("none", None)),
    "dim_freq": (("dimension", "freq_dim"), ("none", None)),
}


def test_values_and_gradients(case_file: Path):
    case = json.loads(case_file.read_text())
    hyper, tolerance = case["hyper"], case["tolerance"]
    tensors = load_file(case_file.with_suffix(".safetensors"))
    weights = {name[2:]: tensor.requires_grad_() for name, tensor in tensors.items() if name.startswith("w.")}
    positions = torch.arange(hyper["start"], hyper["start"] + hyper["length"])[None]
    total = torch.zeros(())
    for scheme, ((frequency_per, frequency), (phase_per, phase)) in SCHEMES.items():
        config = ComplexOrderTransformerConfig(
            vocab_size=hyper["vocab"],
            hidden_size=2 * hyper["dim"],
            num_attention_heads=1,
            frequency_per=frequency_per,
            phase_per=phase_per,
        )
        embedding = ComplexOrderEmbedding(config)
        # the embedding multiplies amplitudes by the root of their width
        state = {
            "weight": weights["amplitude"] / hyper["dim"] ** 0.5,
            "frequency.weight": weights[frequency].view_as(embedding.frequency.weight),
        }
        if phase is not None:
            state["phase.weight"] = weights[phase].view_as(embedding.phase.weight)
        assert state.keys() == embedding.state_dict().keys()
        waves = torch.func.functional_call(embedding, state, (tensors["in.x"],))
        for kind, values in zip(("real", "imag"), at_positions(waves, positions).chunk(2, dim=-1), strict=True):
            torch.testing.assert_close(
                values, tensors[f"out.{scheme}_{kind}"], atol=tolerance["out_atol"], rtol=tolerance["out_rtol"]
            )
            weighting = torch.linspace(-1, 1, values.numel()).view_as(values)
            total = total + (values * weighting).sum() + (values - weighting).square().sum()
    torch.testing.assert_close(total[None], tensors["out.scalar"], rtol=tolerance["out_rtol"], atol=0)
    total.backward()
    for name, weight in weights.items():
        expected = tensors[f"grad.{name}"]
        atol = tolerance["grad_atol"] * max(1.0, expected.abs().max().item())
        torch.testing.assert_close(
            weight.grad, expected, atol=atol, rtol=tolerance["grad_rtol"], msg=lambda m, n=name: f"{n}: {m}"
        )

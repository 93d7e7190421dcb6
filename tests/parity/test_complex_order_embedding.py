"""Complex-order embeddings against recorded numbers of the paper's equation, with every sharing scheme."""

import golden
import torch
from golden import Case

from transformers_xl import ComplexOrderTransformerConfig
from transformers_xl.modeling.layers.complex_embedding import ComplexOrderEmbedding, at_positions

# what each scheme shares, and its tables in the recording
SCHEMES = {
    "full": (("word_and_dimension", "freq"), ("word_and_dimension", "phase")),
    "no_phase": (("word_and_dimension", "freq"), ("none", None)),
    "word_freq": (("word", "freq_word"), ("none", None)),
    "dim_freq": (("dimension", "freq_dim"), ("none", None)),
}


def waves(case: Case, scheme: str, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    """The embedding of the case's words at its positions: real parts, then imaginary ones."""
    (frequency_per, frequency), (phase_per, phase) = SCHEMES[scheme]
    width = weights["amplitude"].shape[1]
    config = ComplexOrderTransformerConfig(
        vocab_size=len(weights["amplitude"]),
        hidden_size=2 * width,
        num_attention_heads=1,
        frequency_per=frequency_per,
        phase_per=phase_per,
    )
    embedding = ComplexOrderEmbedding(config).to(case.dtype)
    # the embedding multiplies amplitudes by the root of their width
    state = {
        "weight": weights["amplitude"] / width**0.5,
        "frequency.weight": weights[frequency].view_as(embedding.frequency.weight),
    }
    if phase is not None:
        state["phase.weight"] = weights[phase].view_as(embedding.phase.weight)
    assert state.keys() == embedding.state_dict().keys()
    words = case.inputs["x"].long()
    vocab, dim = weights["amplitude"].shape
    case.hyper.only_describe(vocab=vocab, dim=dim, batch=words.shape[0], length=words.shape[1])
    places = torch.arange(case.hyper["start"], case.hyper["start"] + words.shape[1])[None]
    return at_positions(torch.func.functional_call(embedding, state, (words,)), places)


@golden.cases("complex_order_embedding")
def test_values_and_gradients(case: Case):
    weights = {name: tensor.clone().requires_grad_() for name, tensor in case.weights.items()}
    schemes = [name.removesuffix("_real") for name in case.part("out.") if name.endswith("_real")]
    total = torch.zeros(())
    for scheme in schemes:
        for kind, values in zip(("real", "imag"), waves(case, scheme, weights).chunk(2, dim=-1), strict=True):
            case.check(f"{scheme}_{kind}", values)
            total = total + (values * golden.ramp(values)).sum() + golden.squares(values - golden.ramp(values))
    case.check("scalar", total)
    total.backward()
    case.check_gradients({name: weight.grad for name, weight in weights.items()})
    case.finish()

"""A translator that leaves a whole sentence after one layer: Elbayad et al., 2020, section 3.1."""

import pytest
import torch
from tiny import EXACT, tiny_config, tokens

from transformers_xl import MemoryEncoderDecoderConfig, MemoryForConditionalGeneration, TransformerXLEncoderConfig

MASK = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
SOURCE, TARGET = tokens(2, 6), tokens(2, 7, seed=1)


def read(model: MemoryForConditionalGeneration, source=SOURCE, mask=MASK, target=TARGET, **kwargs):
    with torch.no_grad():
        return model(source, mask, decoder_input_ids=target, **kwargs)


@pytest.mark.parametrize("earlier", [False, True], ids=["first sentence", "second sentence"])
def test_a_sentence_leaves_after_the_layer_that_the_mean_of_its_source_says(earlier: bool) -> None:
    """Exits, logits, and the loss with its gradients, by hand. The encoder is narrower; sentences before have no say."""
    torch.manual_seed(0)
    decoder = tiny_config(
        "depth_adaptive_transformer", num_hidden_layers=4, halting="sequence", oracle_penalty=0.02,
        confidence_thresholds=None, initializer_range=0.3, bos_token_id=1, eos_token_id=0, pad_token_id=2,
    )  # fmt: skip
    encoder = TransformerXLEncoderConfig(
        vocab_size=decoder.vocab_size, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        dropout=0.0, pad_token_id=2,
    )  # fmt: skip
    config = MemoryEncoderDecoderConfig(encoder=encoder, decoder=decoder, source_mem_len=8, share_embeddings=False)
    model = MemoryForConditionalGeneration(config).double().eval()
    torch.nn.init.normal_(model.decoder.halting.proj.weight, std=2.0)
    memory = {}
    if earlier:
        before = read(model, tokens(2, 5, seed=5), torch.ones(2, 5), tokens(2, 4, seed=6))
        assert not before.mems.layers[0].state
        memory = {"mems": before.mems, "source_mems": before.source_mems}
    full = read(model, output_hidden_states=True, **memory)
    kept, norm = MASK.double()[..., None], model.decoder.final_norm
    chosen = model.decoder.halting.proj((full.encoder_last_hidden_state * kept).sum(1) / kept.sum(1))
    exits = chosen.argmax(-1) + 1
    assert exits[0] != exits[1]
    assert exits.min() < 4
    expected = [model.decoder.lm_head(norm(full.decoder_hidden_states[n][row])) for row, n in enumerate(exits)]
    model.decoder.config.exit_by_halting = True
    torch.testing.assert_close(read(model, **memory).logits, torch.stack(expected), **EXACT)
    told = {"mems": memory.get("mems"), "source_mems": memory.get("source_mems"), "max_new_tokens": 5}
    greedy = model.generate(SOURCE, attention_mask=MASK, **told)
    assert torch.equal(greedy, model.generate(SOURCE, attention_mask=MASK, use_cache=False, **told))

    one = {"attention_mask": MASK[:1], "max_new_tokens": 5}  # the memory holds no mean that could not be taken back
    assert torch.equal(
        model.generate(SOURCE[:1], prompt_lookup_num_tokens=2, **one), model.generate(SOURCE[:1], **one)
    )

    labels = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 3, -100, -100]])
    loss = model.train()(SOURCE, MASK, labels=labels, **memory).loss
    output = model(SOURCE, MASK, labels=labels, output_hidden_states=True, **memory)
    states = [norm(each) for each in output.decoder_hidden_states[1:4]] + [output.decoder_hidden_states[4]]
    log_probs = torch.stack([model.decoder.lm_head(each).log_softmax(-1) for each in states])
    right = log_probs.gather(-1, labels.clamp(min=0).expand(4, -1, -1)[..., None]).squeeze(-1)
    right, count = right * (labels != -100), (labels != -100).sum(1)
    best = (right.detach().sum(-1) - 0.02 * torch.arange(1, 5)[:, None]).argmax(0)
    mean = (output.encoder_last_hidden_state * kept).sum(1) / kept.sum(1)
    choice = model.decoder.halting.proj(mean).log_softmax(-1)[torch.arange(2), best]
    by_hand = -(right.sum() / 4 + 0.1 * (choice * count).sum()) / count.sum()
    parameters = [each for each in model.parameters() if each.requires_grad]
    gradients = (torch.autograd.grad(each, parameters, allow_unused=True) for each in (loss, by_hand))
    for pair in zip(*gradients, strict=True):
        torch.testing.assert_close(*pair, **EXACT)
    torch.testing.assert_close(loss, by_hand, **EXACT)

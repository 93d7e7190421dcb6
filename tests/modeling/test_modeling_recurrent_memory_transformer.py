"""What the Recurrent Memory Transformer adds: what a segment's write positions become is what the next segment reads."""

import math

import pytest
import torch
from reference import part, sinusoid
from tiny import EXACT, pairwise, read, read_row_alone, tiny_model, tokens
from torch.nn import functional as F

from transformers_xl import RecurrentMemoryTransformerConfig

MODEL = "recurrent_memory_transformer"
SEGMENT, TOKENS, MEM_LEN = 3, 2, 4
use_cache = pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])


def model_of(**fields):
    """Segments of three between two memory tokens, behind a cache of four positions."""
    defaults = {"segment_length": SEGMENT, "num_memory_tokens": TOKENS, "mem_len": MEM_LEN, "num_attention_heads": 2}
    return tiny_model(MODEL, **(defaults | {"hidden_size": 16, "intermediate_size": 16} | fields))


class Naive:
    """One row of one text, segment by segment, query by query and key by key."""

    def __init__(self, model):
        self.state, self.config = dict(model.named_parameters()), model.config
        self.bias = part(self.state, "positions.bias.")

    def norm(self, states: torch.Tensor, prefix: str, position: str) -> torch.Tensor:
        if self.config.norm_position != position:
            return states
        weights = [self.state[f"{prefix}.{name}"] for name in ("weight", "bias")]
        return F.layer_norm(states, states.shape[-1:], *weights, self.config.layer_norm_eps)

    def attend(self, states: torch.Tensor, cache: torch.Tensor, prefix: str) -> torch.Tensor:
        weights, config = part(self.state, f"{prefix}.self_attn."), self.config
        heads, width, first = config.num_attention_heads, config.head_dim, len(cache)
        both = self.norm(torch.cat([cache, states]), f"{prefix}.input_layernorm", "pre")
        query, key, value = ((both @ weights[f"{name}_proj.weight"].T).unflatten(-1, (heads, -1)) for name in "qkv")
        rows = []
        for i in range(len(states)):
            is_text = TOKENS <= i < TOKENS + config.segment_length and i < len(states)
            seen = [j for j in range(first + i + 1) if j >= first or is_text or config.memory_reads_cache]
            scores = []
            for j in seen:
                relative = sinusoid(first + i - j, config.hidden_size, config.clamp_len, both.dtype)
                relative = (weights["r_proj.weight"] @ relative).view(heads, width)
                content = (query[first + i] + self.bias["content_bias"]) * key[j]
                position = (query[first + i] + self.bias["position_bias"]) * relative
                scores.append((content + position).sum(-1) / math.sqrt(width))
            shares = torch.stack(scores).softmax(0)
            rows.append((shares[..., None] * value[seen]).sum(0).flatten())
        return torch.stack(rows) @ weights["o_proj.weight"].T

    def read(self, ids: torch.Tensor) -> torch.Tensor:
        """The last hidden states of a call."""
        config, results = self.config, []
        caches = [torch.zeros(0, config.hidden_size, dtype=torch.float64)] * config.num_hidden_layers
        memory, segments = self.state["memory_tokens.start"], ids.split(config.segment_length)
        for index, segment in enumerate(segments):
            if (len(segments) - index) % config.bptt_segments == 0 and index > 0:
                memory = memory.detach()
            x = self.state["embed_tokens.weight"][segment] * math.sqrt(config.hidden_size)
            is_whole = len(segment) == config.segment_length
            x = torch.cat([memory, x, memory] if is_whole else [memory, x])
            for layer, cache in enumerate(caches):
                prefix = f"layers.{layer}"
                both = torch.cat([cache, x.detach()])
                caches[layer] = both[max(len(both) - config.cache_len, 0) :]
                x = self.norm(x + self.attend(x, cache, prefix), f"{prefix}.input_layernorm", "post")
                mlp, name = part(self.state, f"{prefix}.mlp."), f"{prefix}.post_attention_layernorm"
                inner = (self.norm(x, name, "pre") @ mlp["fc1.weight"].T + mlp["fc1.bias"]).relu()
                x = self.norm(x + inner @ mlp["fc2.weight"].T + mlp["fc2.bias"], name, "post")
            x = self.norm(x, "norm", "pre")
            memory = x[-TOKENS:]
            results.append(x[TOKENS : TOKENS + len(segment)])
        return torch.cat(results)


CACHES = [{}, {"memory_reads_cache": True}, {"segment_reads_cache": False}]


@pytest.mark.parametrize(("cache", "norm_position", "bptt_segments"), pairwise(CACHES, ["pre", "post"], [1, 2, 9]))
def test_values_and_gradients_are_those_of_the_equations(cache, norm_position, bptt_segments):
    model = model_of(**cache, norm_position=norm_position, bptt_segments=bptt_segments)
    ids, parameters = tokens(1, 3 * SEGMENT + 2), dict(model.named_parameters())
    found, wanted = model(ids).last_hidden_state[0], Naive(model).read(ids[0])
    torch.testing.assert_close(found, wanted, **EXACT)
    weight = torch.randn_like(found)
    gradients = [torch.autograd.grad((each * weight).sum(), parameters.values()) for each in (found, wanted)]
    for name, *pair in zip(parameters, *gradients, strict=True):
        torch.testing.assert_close(*pair, **EXACT, msg=lambda text, name=name: f"{name}: {text}")


@use_cache
def test_what_is_written_is_all_that_goes_farther_than_the_cache(use_cache):
    """In one layer the first of many tokens moves the last; not where a segment reads nothing that was written."""
    model, ids = model_of(num_hidden_layers=1, mem_len=1), tokens(1, 30)
    changed = ids.clone()
    changed[0, 0] = (ids[0, 0] + 1) % 37

    def moved() -> float:
        results = [read(model, each, [20, 10], use_cache=use_cache)[0][0, -1] for each in (ids, changed)]
        return float((results[0] - results[1]).detach().abs().max())

    assert moved() > 1e-9
    model.memory_tokens.forward = lambda written, begun: model.memory_tokens.start.expand_as(written)
    assert moved() == 0.0


@use_cache
@pytest.mark.parametrize("segment_reads_cache", [True, False])
def test_padding_and_documents_over_several_segments(segment_reads_cache, use_cache):
    model, ids, lengths = model_of(segment_reads_cache=segment_reads_cache), tokens(3, 30), [11, 1, 18]
    mask, reset = torch.ones(3, 30, dtype=torch.bool), torch.zeros(3, 30, dtype=torch.bool)
    mask[1, 4:9] = mask[1, 22:] = mask[2, :13] = False
    reset[0, 5] = reset[0, 16] = reset[1, 12] = reset[2, 27] = True
    results = read(model, ids, lengths, use_cache=use_cache, attention_mask=mask, reset=reset)[0]
    for row in range(3):
        alone = read_row_alone(model, ids[row], [30], mask[row], reset[row])
        torch.testing.assert_close(results[row, mask[row]], alone, **EXACT)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mem_len": 0}, "`mem_len`=0 must be at least 1; .* `segment_reads_cache=False`"),
        ({"num_memory_tokens": 0}, "`num_memory_tokens`=0 must be at least 1"),
        ({"bptt_segments": 0}, "`bptt_segments`=0 must be at least 1"),
        ({"memory_reads_cache": True, "segment_reads_cache": False}, "`memory_reads_cache`=True needs"),
        ({"memory_initializer_range": -1}, "`memory_initializer_range`=-1 must not be negative"),
    ],
)
def test_what_cannot_run_is_refused(fields: dict, message: str):
    with pytest.raises(ValueError, match=message):
        RecurrentMemoryTransformerConfig(**fields)


def test_names_of_the_authors_code_are_those_of_fields():
    config = RecurrentMemoryTransformerConfig(num_mem_tokens=3, read_mem_from_cache=True)
    assert (config.num_memory_tokens, config.memory_reads_cache) == (3, True)

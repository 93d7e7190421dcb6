"""Small language models of transformers, of many families, and what a window is to them, by hand."""

import functools

import torch
from cached_modules import CachedModule
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCAB_SIZE = 37
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
OWN_WINDOW = 5
MIXED = {"sliding_window": OWN_WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
DEEPSEEK = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 12,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 6,
    "v_head_dim": 10,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
GPT_OSS = {"num_local_experts": 4, "num_experts_per_tok": 2}
MAMBA = {
    "mamba_d_ssm": 32,
    "mamba_n_heads": 4,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
}
DELTA_NET = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
# what each family has that the others have not
FIELDS: dict[str, dict] = {
    "llama": GROUPED,  # grouped queries
    "qwen3": GROUPED
    | MIXED
    | {"use_sliding_window": True},  # normed keys, a narrower window of its own in some layers
    "mistral": GROUPED | {"sliding_window": 12},  # one in all layers
    "gemma3_text": GROUPED | MIXED,  # two rotary bases
    "phi3": {"num_key_value_heads": 2},
    "smollm3": GROUPED | {"no_rope_layers": [1, 0]},  # a layer without positions
    "gpt_neox": {"rope_parameters": ROPE | {"partial_rotary_factor": 0.5}},  # half of the features turn
    "gpt_oss": GROUPED | MIXED | GPT_OSS | {"rope_parameters": ROPE},  # learned sinks
    "deepseek_v3": DEEPSEEK,  # latent attention, interleaved pairs, experts
    "olmo2": {},
    "cohere": {},  # neighbours turn
    "qwen3_moe": GROUPED | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "granite": {"embedding_multiplier": 3.0, "logits_scaling": 2.0},  # scales of its own
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 256},  # ALiBi
    "phi": {},
    "gemma2": GROUPED | {"sliding_window": 5},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 256},
    "falcon": {"alibi": False},
    "gpt2": {"n_positions": 64},
    "bloom": {},
    "mamba": {},
    "falcon_h1": GROUPED | MAMBA,  # attention and a state-space model side by side
    "qwen3_next": GROUPED | DELTA_NET | {"layer_types": ["linear_attention", "full_attention"]},
}


def tiny_base_config(family: str, **fields):
    """The configuration of a small model of this family."""
    fields = SIZES | FIELDS.get(family, {}) | fields
    if "layer_types" in fields:  # the last layer stays the last
        count = fields["num_hidden_layers"]
        fields["layer_types"] = [*fields["layer_types"] * count][-count:]
    return AutoConfig.for_model(family.partition("/")[0], **fields)


@functools.cache
def _built(family: str, fields: tuple[tuple, ...]) -> CachedModule:
    torch.manual_seed(0)
    config = tiny_base_config(family, **dict(fields))
    # grouped products of experts know no float64
    return CachedModule(AutoModelForCausalLM.from_config(config, experts_implementation="eager").double().eval())


def tiny_base(family: str, **fields) -> PreTrainedModel:
    """A small model of this family in float64, in eval mode: a copy of one that is built once."""
    return _built(family, tuple(sorted(fields.items()))).copy()


def band_mask(length: int, window: int, like: torch.Tensor | None = None) -> torch.Tensor:
    """Which keys each of `length` queries sees, `(1, 1, length, length)`: as an eager attention adds it, in the type of
    `like`, or bool."""
    distance = torch.arange(length)[:, None] - torch.arange(length)
    mask = ((distance >= 0) & (distance < window))[None, None]
    return (
        mask
        if like is None
        else torch.zeros_like(mask, dtype=like.dtype).masked_fill(~mask, torch.finfo(like.dtype).min)
    )


def read_with_band(base: PreTrainedModel, input_ids: torch.Tensor, window: int) -> torch.Tensor:
    """Logits of one call of the base, whose tokens see themselves and the `window - 1` tokens before, and no more than a
    layer's own window."""
    config, length = base.config, input_ids.shape[1]
    own = min(window, getattr(config, "sliding_window", None) or window)
    like = next(base.parameters()) if config._attn_implementation == "eager" else None
    narrow, wide = band_mask(length, own, like), band_mask(length, window, like)
    mask = narrow
    if hasattr(config, "layer_types"):
        mask = {"full_attention": wide, "sliding_attention": narrow}
    positions = torch.arange(length)[None]
    return base(input_ids, attention_mask=mask, position_ids=positions, use_cache=False).logits

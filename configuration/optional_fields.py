"""Fields that only some variants have. In version 0.1 all had them, so its saved configs hold them for every variant."""

from typing import Any

# the value by which a saved config asks for nothing: the default
OPTIONAL_FIELDS: dict[str, Any] = {
    # `RelativeAttentionConfig`
    "clamp_len": -1,
    "share_relative_bias": True,
    "recompute_attention": False,
    # `AdaptiveSoftmaxConfig`
    "cutoffs": [],
    "div_val": 1,
    "embedding_size": None,
    "tie_projs": True,
    "proj_same_dim": True,
    "proj_initializer_range": 0.01,
    # `MemoryConfig`, for all but the Star-Transformer
    "intermediate_size": 2048,
    "lm_head_bias": True,
    # the same, for all but those whose memories or windows are their own
    "initial_memory": "empty",
    "same_length": True,
}
# other names of one of these
OTHER_NAMES = {
    "d_inner": "intermediate_size",
    "d_embed": "embedding_size",
    "proj_init_std": "proj_initializer_range",
    "proj_share_all_but_first": "tie_projs",
    "untie_r": "share_relative_bias",
}

__all__ = ["OPTIONAL_FIELDS", "OTHER_NAMES"]

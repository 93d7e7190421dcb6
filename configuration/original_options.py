"""Options of the original Transformer-XL (kimiyoung/transformer-xl: train.py, train_gpu.py) and of the `TransfoXLConfig` of
transformers 1 to 4, whose values mean something else here, or nothing. The others are in `attribute_map`."""

from typing import Any

# a switch there whose opposite is a field here
OPPOSITES = {"untie_r": "share_relative_bias", "not_tied": "tie_word_embeddings"}
NORMAL = (
    "weights start from normal distributions, whose standard deviations are `initializer_range`, `norm_initializer_range` "
    "and `proj_initializer_range`"
)
# What has no field: the values that say what is done here, and what there is instead.
WITHOUT_FIELD: dict[str, tuple[tuple, str]] = {
    "adaptive": ((), "give `cutoffs`, the first id of each cluster of rarer words; without them the softmax is plain"),
    "attn_type": (
        (0,),
        "take a `ShawTransformerConfig` for Shaw's attention (1), a `VanillaTransformerConfig` for 2 and 3",
    ),
    "emb_init": (("normal",), NORMAL),
    "emb_init_range": ((), NORMAL),
    "ext_len": ((0,), "a segment is not read again as context; give a longer `mem_len`"),
    "init": (("normal",), NORMAL),
    "init_range": ((), NORMAL),
    "sample_softmax": ((-1, 0), "the softmax is a full one, or adaptive with `cutoffs`"),
}
TRAINING = (
    "batch_chunk", "batch_size", "clip", "clip_nonemb", "decay_rate", "dynamic_loss_scale", "eta_min", "eval_tgt_len",
    "fp16", "learning_rate", "lr", "lr_min", "max_step", "min_lr_ratio", "mom", "optim", "patience", "scheduler",
    "static_loss_scale", "train_batch_size", "train_steps", "varlen", "warmup_step", "warmup_steps", "weight_decay",
)  # fmt: skip
WITHOUT_FIELD |= dict.fromkeys(
    TRAINING, ((), "it belongs to the training; give its counterpart to `MemoryTrainingArguments`")
)
ORIGINAL_OPTIONS = {"pre_lnorm", "proj_share_all_but_first", *OPPOSITES, *WITHOUT_FIELD}


def settings_of(options: dict[str, Any], num_cutoffs: int) -> list[tuple[str, str, Any]]:
    """The fields of a config that say the same: option, field and value of each.

    Raises:
        ValueError: no field says what an option does, or a switch is no `bool`.
    """
    settings: list[tuple[str, str, Any]] = []
    for option, value in options.items():
        if option in WITHOUT_FIELD:
            neutral, instead = WITHOUT_FIELD[option]
            if value not in neutral:
                raise ValueError(f"`{option}`={value!r} has no field in this config: {instead}.")
            continue
        if not isinstance(value, bool):
            raise ValueError(f"`{option}`={value!r} must be True or False.")
        if option == "pre_lnorm":  # there is no norm after the last layer of the original
            settings += [(option, "norm_position", "pre" if value else "post"), (option, "use_final_norm", False)]
        elif option == "proj_share_all_but_first":
            settings.append((option, "tie_projs", [False] + [value] * num_cutoffs))
        else:
            settings.append((option, OPPOSITES[option], not value))
    return settings


__all__ = ["ORIGINAL_OPTIONS", "settings_of"]

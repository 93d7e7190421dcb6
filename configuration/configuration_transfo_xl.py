"""Configuration of the TransfoXL of transformers 1 to 4, which read checkpoints of Dai et al., 2019,
https://arxiv.org/abs/1901.02860. It is read, and becomes a `TransformerXLConfig`; nobody writes it."""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from transformers_xl.configuration.configuration_transformer_xl import TransformerXLConfig

# the fields that describe a model, with their defaults in transformers 4.35
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 267735,
    "cutoffs": [20000, 40000, 200000],
    "d_model": 1024,
    "d_embed": 1024,
    "n_head": 16,
    "d_head": 64,
    "d_inner": 4096,
    "div_val": 4,
    "pre_lnorm": False,
    "n_layer": 18,
    "mem_len": 1600,
    "clamp_len": 1000,
    "same_length": True,
    "proj_share_all_but_first": True,
    "tie_projs": None,
    "attn_type": 0,
    "sample_softmax": -1,
    "dropout": 0.1,
    "dropatt": 0.0,
    "untie_r": True,
    "init_std": 0.02,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
    "eos_token_id": 0,
}
# names that they also had
_ALIASES = {
    "n_token": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "tie_weight": "tie_word_embeddings",
}
OLD_FIELDS = {*_DEFAULTS, *_ALIASES}
# what a config.json says beside the architecture, and says in the same words today
_KEPT = ("bos_token_id", "dtype", "id2label", "label2id", "num_labels", "pad_token_id", "problem_type", "torch_dtype")


@strict
class TransfoXLConfig(PreTrainedConfig):
    r"""
    The `config.json` of a `transfo-xl` folder. [`~TransfoXLConfig.from_dict`], and therefore
    `AutoConfig.from_pretrained`, returns a [`TransformerXLConfig`] that describes the same model.

    A field `cluster_order` says which row of `crit.cluster_weight` and `crit.cluster_bias` belongs to the i-th cluster of
    rare words, where the weights are read: `"natural"`, the i-th, when it is missing; `"reversed"`, the i-th from the end,
    as in the original repository's checkpoints.
    """

    model_type = "transfo-xl"

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs):
        """The [`TransformerXLConfig`] of an old `config.json`; `kwargs` are fields of either.

        Raises:
            ValueError: a field has a value that no such checkpoint can have, or describes what was never released.
        """
        today = {*TransformerXLConfig.__dataclass_fields__, *TransformerXLConfig.attribute_map}
        given = {name: kwargs.pop(name) for name in [*kwargs] if name in OLD_FIELDS - today}
        kept = {name: config_dict[name] for name in _KEPT if name in config_dict}
        return TransformerXLConfig.from_dict(translated(config_dict | given) | kept, **kwargs)


def translated(old: dict[str, Any]) -> dict[str, Any]:
    """The fields of the [`TransformerXLConfig`] that describes the model of an old `config.json`."""
    old = _checked({_ALIASES.get(name, name): value for name, value in old.items()})
    projected = old["div_val"] > 1 or old["d_embed"] != old["d_model"]
    shared = [False] + [old["proj_share_all_but_first"]] * len(old["cutoffs"])
    return {
        "vocab_size": old["vocab_size"],
        "hidden_size": old["d_model"],
        "num_hidden_layers": old["n_layer"],
        "num_attention_heads": old["n_head"],
        "head_dim": old["d_head"],
        "intermediate_size": old["d_inner"],
        "mem_len": old["mem_len"],
        "same_length": old["same_length"],
        "clamp_len": old["clamp_len"] if old["clamp_len"] > 0 else -1,
        "initial_memory": "zeros",  # of any length: `mem_len` may be another than the file's
        "norm_position": "pre" if old["pre_lnorm"] else "post",
        "use_final_norm": False,
        "share_relative_bias": not old["untie_r"],
        "dropout": old["dropout"],
        "attention_dropout": old["dropatt"],
        "layer_norm_eps": float(old["layer_norm_epsilon"]),
        "initializer_range": float(old["init_std"]),
        "tie_word_embeddings": old["tie_word_embeddings"],
        "cutoffs": old["cutoffs"],
        "div_val": old["div_val"],
        "embedding_size": old["d_embed"],
        # without projections there is nothing to tie, and the list may have any length
        "tie_projs": (shared if old["tie_projs"] is None else old["tie_projs"]) if projected else True,
        "eos_token_id": old["eos_token_id"],
        "tokenizer_class": "TransfoXLTokenizer",
    }


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """All fields of [`_DEFAULTS`], each of the type of its default."""
    fields = _DEFAULTS | {name: value for name, value in given.items() if name in _DEFAULTS}
    for name, value in fields.items():
        default = _DEFAULTS[name]
        if name in ("cutoffs", "tie_projs"):
            kind = int if name == "cutoffs" else bool
            right = value is default or (isinstance(value, list | tuple) and all(type(item) is kind for item in value))
            fields[name] = list(value) if right and value is not None else value
        elif name == "eos_token_id":
            right = value is None or type(value) is int
        else:
            right = type(value) is type(default) or (isinstance(default, float) and type(value) is int)
        # Python's integers have no end, and powers of them are computed
        numbers = value if isinstance(value, list | tuple) else [value]
        right = (
            right and len(numbers) <= 64 and all(type(number) is not int or abs(number) < 2**31 for number in numbers)
        )
        if not right:
            raise ValueError(
                f"`{name}`={value!r} in the `config.json` of a `transfo-xl` model must be a value like {default!r}."
            )
    if fields["attn_type"] != 0:
        raise ValueError(
            f"`attn_type`={fields['attn_type']} was never implemented in transformers: only 0 can be read. Train a new "
            "model with `VanillaTransformerConfig` or `ShawTransformerConfig` for the vanilla or Shaw's attention."
        )
    if fields["sample_softmax"] > 0:
        raise ValueError(f"`sample_softmax`={fields['sample_softmax']} was never implemented in transformers: use -1.")
    return fields


__all__ = ["OLD_FIELDS", "TransfoXLConfig"]

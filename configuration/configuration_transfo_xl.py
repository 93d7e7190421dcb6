"""Configuration of the TransfoXL of transformers 1 to 4, which read checkpoints of Dai et al., 2019,
https://arxiv.org/abs/1901.02860. It is read, and becomes a `TransformerXLConfig`; nobody writes it."""

from typing import Any

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from transformers_xl.configuration.configuration_transformer_xl import TransformerXLConfig

# what a config.json says beside the architecture, and says in the same words today
_KEPT = ("bos_token_id", "dtype", "id2label", "label2id", "num_labels", "pad_token_id", "problem_type", "torch_dtype")


@strict
class TransfoXLConfig(PreTrainedConfig):
    r"""
    What the `config.json` of a `transfo-xl` folder says; the defaults are those of transformers 4.35.

    [`~TransfoXLConfig.from_dict`], and with it `AutoConfig.from_pretrained`, returns a [`TransformerXLConfig`] that
    describes the same model.

    Args:
        cluster_order (`str`, *optional*, defaults to `"natural"`):
            Which row of `crit.cluster_weight` and `crit.cluster_bias` belongs to the i-th cluster of rare words:
            `"natural"`, the i-th; `"reversed"`, the i-th from the end, as in the original repository's checkpoints.
    """

    model_type = "transfo-xl"
    attribute_map = {
        "n_token": "vocab_size",
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "tie_weight": "tie_word_embeddings",
    }

    vocab_size: int = 267735
    cutoffs: list[int] | tuple[int, ...] = (20000, 40000, 200000)
    d_model: int = 1024
    d_embed: int = 1024
    n_head: int = 16
    d_head: int = 64
    d_inner: int = 4096
    div_val: int = 4
    pre_lnorm: bool = False
    n_layer: int = 18
    mem_len: int = 1600
    clamp_len: int = 1000
    same_length: bool = True
    proj_share_all_but_first: bool = True
    tie_projs: list[bool] | None = None
    attn_type: int = 0
    sample_softmax: int = -1
    dropout: float | int = 0.1
    dropatt: float | int = 0.0
    untie_r: bool = True
    init_std: float | int = 0.02
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = True
    eos_token_id: int | None = 0
    cluster_order: str = "natural"

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs):
        """The [`TransformerXLConfig`] of an old `config.json`; `kwargs` are fields of either.

        Raises:
            ValueError: a field has a value that no such checkpoint can have, or describes what was never released.
        """
        old = {name: kwargs.pop(name) for name in [*kwargs] if name in _OLD_NAMES}
        try:
            config = cls(**(config_dict | old))
        except (StrictDataclassError, TypeError) as error:
            raise ValueError(f"the `config.json` of a `transfo-xl` model is not what it should be: {error}") from error
        kept = {name: config_dict[name] for name in _KEPT if name in config_dict}
        return TransformerXLConfig.from_dict(config.translated() | kept, **kwargs)

    def translated(self) -> dict[str, Any]:
        """The fields of the [`TransformerXLConfig`] that describes the same model."""
        if self.attn_type != 0:
            raise ValueError(
                f"`attn_type`={self.attn_type} was never implemented in transformers: only 0 can be read. For the vanilla "
                "and Shaw's attention there are `VanillaTransformerConfig` and `ShawTransformerConfig`, to train anew."
            )
        if self.sample_softmax > 0:
            raise ValueError(f"`sample_softmax`={self.sample_softmax} was never implemented in transformers: use -1.")
        cutoffs = list(self.cutoffs)
        shared = [False] + [self.proj_share_all_but_first] * len(cutoffs)
        projected = self.div_val > 1 or self.d_embed != self.d_model
        return {
            "vocab_size": self.vocab_size,
            "hidden_size": self.d_model,
            "num_hidden_layers": self.n_layer,
            "num_attention_heads": self.n_head,
            "head_dim": self.d_head,
            "intermediate_size": self.d_inner,
            "mem_len": self.mem_len,
            "same_length": self.same_length,
            "clamp_len": self.clamp_len if self.clamp_len > 0 else -1,
            "initial_memory": "zeros" if self.mem_len > 0 else "empty",
            "norm_position": "pre" if self.pre_lnorm else "post",
            "use_final_norm": False,
            "share_relative_bias": not self.untie_r,
            "dropout": self.dropout,
            "attention_dropout": self.dropatt,
            "layer_norm_eps": self.layer_norm_epsilon,
            "initializer_range": self.init_std,
            "tie_word_embeddings": self.tie_word_embeddings,
            "cutoffs": cutoffs,
            "div_val": self.div_val,
            "embedding_size": self.d_embed,
            # without projections there is nothing to tie, and the list may have any length
            "tie_projs": (shared if self.tie_projs is None else self.tie_projs) if projected else True,
            "eos_token_id": self.eos_token_id,
            "tokenizer_class": "TransfoXLTokenizer",
        }


# fields that a caller may give in the old words; those of both worlds go to the new config
_OLD_NAMES = {
    name for name in TransfoXLConfig.__annotations__ if name not in TransformerXLConfig.__dataclass_fields__
} - {*TransformerXLConfig.attribute_map, "cluster_order"}  # which says how weights are read, whatever the config is

__all__ = ["TransfoXLConfig"]

"""The fields that every model with segment memory shares."""

import copy
import difflib
import itertools
import os
from typing import Any, Self

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.utils import logging

from transformers_xl.configuration.original_options import ORIGINAL_OPTIONS, settings_of
from transformers_xl.configuration.saved_with_code import ConfigWithCode

logger = logging.get_logger(__name__)

MAX_LAYERS = 4096  # a typing error, or a hostile file, must not be built


@strict
class MemoryConfig(ConfigWithCode, PreTrainedConfig):
    r"""
    Base configuration of the models in this package. A variant adds its paper's fields and changes defaults.

    Args:
        vocab_size (`int`, *optional*, defaults to 32000):
            Number of token ids.
        hidden_size (`int`, *optional*, defaults to 512):
            Width of the residual stream (`d_model` in the original code).
        num_hidden_layers (`int`, *optional*, defaults to 6):
            Number of layers (`n_layer`).
        num_attention_heads (`int`, *optional*, defaults to 8):
            Number of attention heads (`n_head`).
        head_dim (`int`, *optional*):
            Width of one head (`d_head`); `hidden_size // num_attention_heads` when not given.
        intermediate_size (`int`, *optional*, defaults to 2048):
            Inner width of the feed-forward (`d_inner`).
        hidden_act (`str`, *optional*, defaults to `"relu"`):
            Activation of the feed-forward, a name of `transformers.activations.ACT2FN`.
        mem_len (`int`, *optional*, defaults to 512):
            Length of the memory, in tokens. 0 turns memory off and needs `same_length=False`.
        segment_length (`int`, *optional*, defaults to 128):
            Tokens per training segment (`tgt_len`); read by the training code, not by the model.
        same_length (`bool`, *optional*, defaults to `True`):
            `True`: every token sees exactly the last `mem_len` positions, itself included, so that results do not depend
            on how a text is cut. `False`: one call is one segment, and a token sees the memory and all earlier tokens
            of its call.
        clamp_len (`int`, *optional*, defaults to -1):
            Relative distances above this many positions are treated as this distance; -1 turns it off.
        initial_memory (`str`, *optional*, defaults to `"empty"`):
            What a fresh row remembers: `"empty"`, nothing; `"zeros"`, `mem_len` zero vectors that are attended to (the
            memory of old Hugging Face checkpoints).
        norm_position (`str`, *optional*, defaults to `"pre"`):
            `"pre"` normalises the input of a sub-layer, `"post"` the sum after it (https://arxiv.org/abs/2002.04745).
        use_final_norm (`bool`, *optional*):
            Whether a layer norm follows the last layer; with `norm_position="pre"` only when not given.
        share_relative_bias (`bool`, *optional*, defaults to `True`):
            Whether all layers share one pair of biases u, v of the relative attention, or each layer has its own
            (`untie_r`). Without meaning for variants with other positions.
        attention_bias (`bool`, *optional*, defaults to `False`):
            Whether the projections of queries, keys, values and the attention's output have biases.
        lm_head_bias (`bool`, *optional*, defaults to `True`):
            Whether the language modeling head has a bias.
        dropout (`float`, *optional*, defaults to 0.1):
            Probability of dropout after the embedding, in the feed-forward, and on the output of every sub-layer.
        variational_dropout (`bool`, *optional*, defaults to `False`):
            Whether that dropout drops the same features at all positions of a row's segment, and others in the next segment
            (https://arxiv.org/abs/1512.05287). Dropout on the attention weights stays as it is.
        attention_dropout (`float`, *optional*, defaults to 0.0):
            Probability of dropout on the attention weights (`dropatt`).
        recompute_attention (`bool`, *optional*, defaults to `False`):
            Whether the backward pass computes the weights of the relative attention once more instead of keeping them:
            less memory for about a tenth more time. Without meaning for variants with other positions.
        layer_norm_eps (`float`, *optional*, defaults to 1e-5):
            Epsilon of the layer norms.
        initializer_range (`float`, *optional*, defaults to 0.02):
            Standard deviation of the normal distribution that weights start from.
        norm_initializer_range (`float`, *optional*, defaults to 0.0):
            Standard deviation of the normal distribution around 1 that the gains of the layer norms start from; 0.02 in
            the code of Transformer-XL.
        proj_initializer_range (`float`, *optional*, defaults to 0.01):
            Standard deviation of the normal distribution that the projections of an adaptive input and softmax start from.
        tie_word_embeddings (`bool`, *optional*, defaults to `True`):
            Whether the head uses the weights of the embedding.
        cutoffs (`list[int]`, *optional*, defaults to `[]`):
            Adaptive input and softmax (https://arxiv.org/abs/1809.10853, https://arxiv.org/abs/1609.04309): the first id of
            each cluster of rarer words, ids being sorted by frequency. Words of a cluster cost less the rarer they are.
            Empty: a plain softmax.
        div_val (`int`, *optional*, defaults to 1):
            Cluster i has vectors of width `embedding_size // div_val**i`.
        embedding_size (`int`, *optional*):
            Width of the vectors of the most frequent words (`d_embed`), brought to that of the model by a projection;
            `hidden_size` when not given.
        tie_projs (`bool` or `list[bool]`, *optional*, defaults to `True`):
            Whether the projections of the head are those of the embedding, for all clusters or for each.
    """

    model_type = "memory_transformer"
    keys_to_ignore_at_inference = ["past_key_values", "mems", "mems_mask"]
    attribute_map = {
        "d_model": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "d_head": "head_dim",
        "d_inner": "intermediate_size",
        "d_embed": "embedding_size",
        "dropatt": "attention_dropout",
        "init_std": "initializer_range",
        "layer_norm_epsilon": "layer_norm_eps",
        "n_token": "vocab_size",
        "proj_init_std": "proj_initializer_range",
        "tgt_len": "segment_length",
        "tie_weight": "tie_word_embeddings",
    }

    vocab_size: int = 32000
    hidden_size: int = 512
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    head_dim: int | None = None
    intermediate_size: int = 2048
    hidden_act: str = "relu"
    mem_len: int = 512
    segment_length: int = 128
    same_length: bool = True
    clamp_len: int = -1
    initial_memory: str = "empty"
    norm_position: str = "pre"
    use_final_norm: bool | None = None
    share_relative_bias: bool = True
    attention_bias: bool = False
    lm_head_bias: bool = True
    dropout: float | int = 0.1
    variational_dropout: bool = False
    attention_dropout: float | int = 0.0
    recompute_attention: bool = False
    layer_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    norm_initializer_range: float | int = 0.0
    proj_initializer_range: float | int = 0.01
    tie_word_embeddings: bool = True
    cutoffs: list[int] | tuple[int, ...] = ()
    div_val: int = 1
    embedding_size: int | None = None
    tie_projs: bool | list[bool] = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any):
        for name, value in kwargs.items():
            if (objection := self._objection(name)) is not None:
                raise ValueError(f"`{name}`={value!r} {objection}.")
        aliases = {old: kwargs.pop(old) for old in self.attribute_map if old in kwargs}
        self._set([(old, self.attribute_map[old], value) for old, value in aliases.items()])
        options = {name: kwargs.pop(name) for name in [*kwargs] if name in ORIGINAL_OPTIONS}
        self._set(settings_of(options, len(self.cutoffs)))
        # only now is derived what follows from them
        if self.head_dim is None and self.num_attention_heads > 0:
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.use_final_norm is None:
            self.use_final_norm = self.norm_position == "pre"
        self.cutoffs = list(self.cutoffs)
        # `@strict` wraps what its validators raise into an exception that is no ValueError: check before it does
        self.validate_architecture()
        super().__post_init__(**kwargs)

    def _set(self, settings: list[tuple[str, str, Any]]) -> None:
        """Set fields that were given by other names: name, field and value of each."""
        for name, field, value in settings:
            given = getattr(self, field)
            if given not in (self.__dataclass_fields__[field].default, value):
                raise ValueError(f"`{name}` means `{field}`={value!r}, but `{field}`={given!r}: give one of them.")
            setattr(self, field, value)

    @classmethod
    def _objection(cls, name: str) -> str | None:
        """Why a config cannot be made with this keyword; None where it can."""
        fields = [field for field in cls.__dataclass_fields__ if not field.startswith("_")]
        known = {*fields, *cls.attribute_map, *ORIGINAL_OPTIONS, *vars(PreTrainedConfig)}
        known |= {"name_or_path", "token"}  # of `from_pretrained`
        if name in known:
            return None
        if name == "sliding_window":
            return "cannot be set, it follows from the memory: set `mem_len`"
        if isinstance(getattr(cls, name, None), property):
            return "cannot be set, it follows from the fields"
        close = difflib.get_close_matches(name, [*fields, *cls.attribute_map], cutoff=0.8)
        meant = " or ".join(f"`{field}`" for field in close)
        return f"is not a field of {cls.__name__}: did you mean {meant}?" if close else None

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """The library's: what a `config.json` says, and `kwargs` instead of it.

        Fields that a config cannot be made with are kept, with a warning, where the folder has them: other programs leave
        theirs there. Among `kwargs` they are refused.

        Raises:
            ValueError: `kwargs` hold a misspelled field, or the model cannot run with what they change.
        """
        for name, value in kwargs.items():
            if (objection := cls._objection(name)) is not None:
                raise ValueError(f"`{name}`={value!r} {objection}.")
        options = {name: kwargs.pop(name) for name in [*kwargs] if name in ORIGINAL_OPTIONS}
        cutoffs = kwargs.get("cutoffs", config_dict.get("cutoffs", ()))
        kwargs |= {field: value for _, field, value in settings_of(options, len(cutoffs))}
        foreign = {name for name in config_dict if name in ORIGINAL_OPTIONS or cls._objection(name) is not None}
        loaded = super().from_dict({name: config_dict[name] for name in config_dict.keys() - foreign}, **kwargs)
        config = loaded[0] if isinstance(loaded, tuple) else loaded
        for name in sorted(foreign):
            logger.warning(
                f"`{name}`={config_dict[name]!r} of a saved {cls.__name__} has no effect: it is not a field."
            )
            if not isinstance(getattr(cls, name, None), property):
                setattr(config, name, config_dict[name])
        config.validate_architecture()
        return loaded

    @classmethod
    def from_json_file(cls, json_file: str | os.PathLike) -> Self:
        """The library's, as [`from_dict`] reads it."""
        return cls.from_dict(cls._dict_from_json_file(json_file))

    def validate_architecture(self) -> None:
        """Raise a `ValueError` when the fields do not describe a model that can run."""
        positive = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        for name in (*positive, "segment_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}`={getattr(self, name)} must be at least 1.")
        if self.num_hidden_layers > MAX_LAYERS:
            raise ValueError(f"`num_hidden_layers`={self.num_hidden_layers} must be at most {MAX_LAYERS}.")
        if self.head_dim is not None and self.head_dim < 1:
            raise ValueError(
                f"`head_dim`={self.head_dim} must be at least 1: use at most `hidden_size`={self.hidden_size} heads, "
                f"not `num_attention_heads`={self.num_attention_heads}, or give `head_dim`."
            )
        if self.mem_len < 0:
            raise ValueError(f"`mem_len`={self.mem_len} must not be negative; 0 turns memory off.")
        if self.mem_len == 0 and self.same_length:
            raise ValueError(
                "`mem_len`=0 with `same_length`=True lets a token see nothing, not even itself: "
                "set `same_length=False` for a model without memory, or `mem_len` to at least 1."
            )
        for name, choices in (("norm_position", ("pre", "post")), ("initial_memory", ("empty", "zeros"))):
            if getattr(self, name) not in choices:
                raise ValueError(f"`{name}`={getattr(self, name)!r} must be one of {choices}.")
        self._validate_clusters()
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"`{name}`={getattr(self, name)} must be at least 0 and below 1.")
        for name in ("norm_initializer_range", "proj_initializer_range"):
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}`={getattr(self, name)} must not be negative.")

    def with_mem_len(self, mem_len: int) -> Self:
        """A copy with another length of the memory.

        Raises:
            ValueError: the model cannot run with it.
        """
        changed = copy.copy(self)
        changed.mem_len = mem_len
        changed.validate_architecture()
        return changed

    def _validate_clusters(self) -> None:
        ends = [0, *self.cutoffs, self.vocab_size]
        if any(end <= start for start, end in itertools.pairwise(ends)):
            raise ValueError(
                f"`cutoffs`={self.cutoffs} must rise from above 0 to below `vocab_size`={self.vocab_size}: leave out 0 and "
                "the size itself."
            )
        if self.div_val < 1:
            raise ValueError(f"`div_val`={self.div_val} must be at least 1, which gives all clusters the same width.")
        if self.embedding_size is not None and self.embedding_size < 1:
            raise ValueError(f"`embedding_size`={self.embedding_size} must be at least 1.")
        if self.clusters[-1][1] < 1:
            raise ValueError(
                f"`div_val`={self.div_val} leaves words of the last of {len(self.clusters)} clusters a width of 0: take a "
                "smaller one, or a larger `embedding_size`."
            )
        if isinstance(self.tie_projs, list) and len(self.tie_projs) != len(self.clusters):
            raise ValueError(
                f"`tie_projs`={self.tie_projs} must have one value for each of the {len(self.clusters)} clusters."
            )

    @property
    def token_width(self) -> int:
        """Width of what a token enters the model with."""
        return self.hidden_size

    @property
    def clusters(self) -> list[tuple[int, int]]:
        """Number of words of each cluster, and the width of their vectors."""
        ends = [0, *self.cutoffs, self.vocab_size]
        width = self.embedding_size or self.token_width
        return [(end - start, width // self.div_val**i) for i, (start, end) in enumerate(itertools.pairwise(ends))]

    @property
    def has_projections(self) -> bool:
        """Whether vectors of words are brought to the width of the model by a projection."""
        return self.div_val > 1 or self.embedding_size not in (None, self.token_width)

    @property
    def is_adaptive(self) -> bool:
        """Whether words come in clusters, or through a projection."""
        return bool(self.cutoffs) or self.has_projections

    @property
    def num_hidden_states(self) -> int:
        """How many hidden states a call shows: the inputs of all layers, and the output of the last one."""
        return self.num_hidden_layers + 1

    @property
    def sliding_window(self) -> int:
        """Positions that a token sees when it stands right behind a full memory, itself included."""
        return self.mem_len if self.same_length else self.mem_len + 1

    @property
    def layer_windows(self) -> list[int]:
        """`sliding_window` of each layer that carries memory. A variant whose layers look back differently far, or not at
        all, overrides it, and `layer_mem_lens`."""
        return [self.sliding_window] * self.num_hidden_layers

    @property
    def layer_mem_lens(self) -> list[int]:
        """Positions that each layer's attention remembers: the length of its `mems`."""
        return [self.mem_len] * self.num_hidden_layers

    @property
    def embedding_width(self) -> int:
        """Width of `inputs_embeds`, which are what `get_input_embeddings()` makes of token ids."""
        return self.hidden_size


__all__ = ["MemoryConfig"]

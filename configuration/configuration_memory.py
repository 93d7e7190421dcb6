"""The fields that every model with segment memory shares."""

import copy
import math
import os
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Self

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.utils import logging

from transformers_xl.configuration.configuration_agent import AgentConfig, agent_settings
from transformers_xl.configuration.derived_fields import NOT_GIVEN, Derived
from transformers_xl.configuration.nearest_names import nearest_names
from transformers_xl.configuration.optional_fields import OPTIONAL_FIELDS, OTHER_NAMES
from transformers_xl.configuration.original_options import ORIGINAL_OPTIONS, settings_of
from transformers_xl.configuration.plain_numbers import plain, with_plain_settings

logger = logging.get_logger(__name__)

TOKENS = {f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")}
MAX_LAYERS = 4096  # a typing error, or a hostile file, must not be built


@strict
class MemoryConfig(AgentConfig):
    r"""
    Base configuration of the models in this package. A variant adds its paper's fields and changes defaults. Fields of
    agents are in [`AgentConfig`].

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
            Tokens per training segment (`tgt_len`); a model reads it only where its config says so.
        same_length (`bool`, *optional*, defaults to `True`):
            `True`: every token sees exactly the last `mem_len` positions, itself included, so results do not depend
            on how a text is cut. `False`: one call is one segment, and a token sees the memory and all earlier tokens
            of its call.
        initial_memory (`str`, *optional*, defaults to `"empty"`):
            Memory of a new row: `"empty"`, nothing; `"zeros"`, `mem_len` zero vectors that tokens attend to (as in old
            Hugging Face checkpoints).
        norm_position (`str`, *optional*, defaults to `"pre"`):
            `"pre"` normalises the input of a sub-layer, `"post"` the sum after it (https://arxiv.org/abs/2002.04745).
        use_final_norm (`bool`, *optional*):
            Whether a layer norm follows the last layer; with `norm_position="pre"` only when not given.
        attention_bias (`bool`, *optional*, defaults to `False`):
            Whether the projections of queries, keys, values and the attention's output have biases.
        lm_head_bias (`bool`, *optional*, defaults to `True`):
            Whether the language modeling head has a bias.
        dropout (`float`, *optional*, defaults to 0.1):
            Probability of dropout after the embedding, in the feed-forward, and on the output of every sub-layer.
        embedding_dropout (`float`, *optional*):
            Probability of the dropout after the embedding; `dropout` when not given.
        residual_dropout (`float`, *optional*):
            Probability of the dropout on the output of every sub-layer; `dropout` when not given.
        variational_dropout (`bool`, *optional*, defaults to `False`):
            Whether dropout drops the same features at all positions of a row's segment, and other features in the next
            segment (https://arxiv.org/abs/1512.05287). Does not affect dropout on the attention weights.
        attention_dropout (`float`, *optional*, defaults to 0.0):
            Probability of dropout on the attention weights (`dropatt`).
        layer_norm_eps (`float`, *optional*, defaults to 1e-5):
            Epsilon of the layer norms.
        initializer_range (`float`, *optional*):
            Standard deviation of the normal distribution from which weights are initialized; `sqrt(2 / (5 * hidden_size))`
            when not given: 0.05 at a width of 160, 0.02 at 1,000. The released code has 0.02 at widths from 410 on, with
            which narrower models learn more slowly (docs/memory_worth.md).
        linear_initializer (`str`, *optional*, defaults to `"normal"`):
            `"normal"`: weights of linear maps start from that distribution, biases from 0; `"uniform"`: weights and biases
            start uniform in +-1/sqrt(inputs), as in torch.
        embedding_initializer_range (`float`, *optional*):
            Standard deviation for embeddings; `initializer_range` when not given.
        norm_initializer_range (`float`, *optional*, defaults to 0.0):
            Standard deviation of the normal distribution around 1 from which gains of layer norms are initialized; 0.02 in
            the code of Transformer-XL.
        tie_word_embeddings (`bool`, *optional*, defaults to `True`):
            Whether the head uses the weights of the embedding.
        scale_embedding (`bool`, *optional*, defaults to `True`):
            Whether word vectors are multiplied by the square root of the model's width.
    """

    model_type = "memory_transformer"
    keys_to_ignore_at_inference = ["past_key_values", "mems"]
    attribute_map = {
        "d_model": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "d_head": "head_dim",
        "d_inner": "intermediate_size",
        "dropatt": "attention_dropout",
        "init_std": "initializer_range",
        "layer_norm_epsilon": "layer_norm_eps",
        "n_token": "vocab_size",
        "tgt_len": "segment_length",
        "tie_weight": "tie_word_embeddings",
    }

    vocab_size: int = 32000
    hidden_size: int = 512
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    head_dim: Derived[int] = NOT_GIVEN
    intermediate_size: int = 2048
    hidden_act: str = "relu"
    mem_len: int = 512
    segment_length: int = 128
    same_length: bool = True
    initial_memory: str = "empty"
    norm_position: str = "pre"
    use_final_norm: Derived[bool] = NOT_GIVEN
    attention_bias: bool = False
    lm_head_bias: bool = True
    dropout: float | int = 0.1
    embedding_dropout: float | int | None = None
    residual_dropout: float | int | None = None
    variational_dropout: bool = False
    attention_dropout: float | int = 0.0
    layer_norm_eps: float = 1e-5
    initializer_range: Derived[float | int] = NOT_GIVEN
    linear_initializer: str = "normal"
    embedding_initializer_range: float | int | None = None
    norm_initializer_range: float | int = 0.0
    tie_word_embeddings: bool = True
    scale_embedding: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        # below `@strict`, which checks the type of every field that `__init__` sets
        cls.__init__ = with_plain_settings(cls.__init__)  # type: ignore[method-assign]

    def __post_init__(self, **kwargs: Any):
        if self.head_dim is None and self.num_attention_heads > 0:
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.use_final_norm is None:
            self.use_final_norm = self.norm_position == "pre"
        if self.initializer_range is None and self.hidden_size > 0:
            self.initializer_range = (0.4 / self.hidden_size) ** 0.5
        # `@strict` wraps what its validators raise into an exception that is no ValueError: check before it does
        self.validate_architecture()
        super().__post_init__(**kwargs)

    @classmethod
    def by_fields(cls, settings: dict[str, Any], cutoffs: Sequence[int] | None) -> dict[str, Any]:
        """The `settings` of a model with these `cutoffs` under the names of fields.

        Raises:
            ValueError: a name is misspelled, or is of another variant; or two names of one field have different values.
        """
        for name, value in settings.items():
            if (objection := cls._objection(name)) is not None:
                raise ValueError(f"`{name}`={value!r} {objection}.")
        options = {name: value for name, value in settings.items() if name in ORIGINAL_OPTIONS}
        renamed = [(name, cls.attribute_map[name], settings[name]) for name in settings if name in cls.attribute_map]
        others = options.keys() | cls.attribute_map.keys()
        found = {name: value for name, value in settings.items() if name not in others}
        for name, field, value in renamed + settings_of(options, len(cutoffs or ())):
            given = found.get(field)
            if given not in (None, value):
                raise ValueError(f"`{name}` means `{field}`={value!r}, but `{field}`={given!r}: give one of them.")
            found[field] = value
        return found

    @classmethod
    def _objection(cls, name: str) -> str | None:
        """Why a config cannot be made with this keyword; None where it can."""
        if cls._lacks(OTHER_NAMES.get(name, name)):
            return f"has no meaning for {cls.__name__}: leave it out"
        names = [field.name for field in fields(cls) if not field.name.startswith("_")]
        known = {*names, *cls.attribute_map, *ORIGINAL_OPTIONS, *vars(PreTrainedConfig)}
        known |= {"name_or_path", "token"}  # of `from_pretrained`
        if name in known:
            return None
        if name == "sliding_window":
            return "cannot be set, it follows from the memory: set `mem_len`"
        if isinstance(getattr(cls, name, None), property):
            return "cannot be set, it follows from the fields"
        close = nearest_names(name, [*names, *cls.attribute_map], cutoff=0.8)
        meant = " or ".join(f"`{field}`" for field in close)
        return f"is not a field of {cls.__name__}: did you mean {meant}?" if close else None

    @classmethod
    def _lacks(cls, field: str) -> bool:
        """Whether it is a field of other variants only."""
        return field in OPTIONAL_FIELDS and field not in {each.name for each in fields(cls)}

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in transformers: the config of a `config.json`, with `kwargs` in place of its fields.

        Unknown fields of the folder are kept, with a warning: other programs leave theirs there. Among `kwargs` they are
        refused. Fields of other variants, which version 0.1 wrote for all, are dropped if they hold their default.

        Raises:
            ValueError: `kwargs` hold a misspelled field or a value that the model cannot run with, or a field of other
                variants does not hold its default.
        """
        kwargs = {name: plain(value) for name, value in agent_settings(kwargs).items()}
        # `AutoTokenizer` passes the arguments of the tokenizer to the config that names its class
        kwargs = {name: value for name, value in kwargs.items() if name not in TOKENS or not isinstance(value, str)}
        kwargs = cls.by_fields(kwargs, kwargs.get("cutoffs", config_dict.get("cutoffs")))
        config_dict = cls._without_lost_fields(config_dict)
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
    def _without_lost_fields(cls, config_dict: dict[str, Any]) -> dict[str, Any]:
        for name, value in config_dict.items():
            if cls._lacks(name) and value != OPTIONAL_FIELDS[name]:
                raise ValueError(
                    f"`{name}`={value!r} of a saved {cls.__name__} has no meaning for it: remove it from config.json, "
                    f"or use a variant that has it."
                )
        return {name: value for name, value in config_dict.items() if not cls._lacks(name)}

    @classmethod
    def from_json_file(cls, json_file: str | os.PathLike) -> Self:
        """As in transformers, through [`from_dict`]."""
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
        for name, choices in (
            ("norm_position", ("pre", "post")),
            ("initial_memory", ("empty", "zeros")),
            ("linear_initializer", ("normal", "uniform")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"`{name}`={getattr(self, name)!r} must be one of {choices}.")
        for name in ("dropout", "embedding_dropout", "residual_dropout", "attention_dropout"):
            if not 0 <= (getattr(self, name) or 0) < 1:
                raise ValueError(f"`{name}`={getattr(self, name)} must be at least 0 and below 1.")
        initializers = ("initializer_range", "embedding_initializer_range", "norm_initializer_range")
        for name in ("layer_norm_eps", *initializers):
            if not 0 <= (getattr(self, name) or 0) < math.inf:  # NaN too
                raise ValueError(f"`{name}`={getattr(self, name)} must be a finite number that is not negative.")
        self.validate_agent()
        self.validate_numbers()
        if self.hidden_act not in ACT2FN:
            raise ValueError(f"`hidden_act`={self.hidden_act!r} must be one of {', '.join(sorted(ACT2FN))}.")

    def validate_numbers(self) -> None:
        """Raise a `ValueError` where a field is NaN, which no comparison finds."""
        for field in fields(self):
            value = getattr(self, field.name, None)
            if any(each != each for each in (value if isinstance(value, list) else [value])):
                raise ValueError(f"`{field.name}`={value} must be a number, not NaN.")

    def with_mem_len(self, mem_len: int) -> Self:
        """A copy with another length of the memory.

        Raises:
            ValueError: the model cannot run with it.
        """
        changed = copy.copy(self)
        changed.mem_len = mem_len
        changed.validate_architecture()
        return changed

    @property
    def token_width(self) -> int:
        """Width of what a token enters the model with."""
        return self.hidden_size

    @property
    def num_hidden_states(self) -> int:
        """How many hidden states a call shows: the inputs of all layers, and the output of the last one."""
        return self.num_hidden_layers + 1

    @property
    def sliding_window(self) -> int:
        """Positions that a token sees when it stands right after a full memory, itself included."""
        return self.mem_len if self.same_length else self.mem_len + 1

    @property
    def layer_windows(self) -> list[int]:
        """`sliding_window` of each layer that carries memory. A variant whose layers look back differently far, or not at
        all, overrides it, and `layer_mem_lens`."""
        return [self.sliding_window] * self.num_hidden_layers

    @property
    def layer_reaches(self) -> list[int]:
        """Positions that each layer can read something of, the token itself included: its window, what it looks up, and
        what the vectors there were made of."""
        return self.layer_windows

    @property
    def layer_mem_lens(self) -> list[int]:
        """Positions that each layer's attention remembers: the length of its `mems`."""
        return [self.mem_len] * self.num_hidden_layers

    @property
    def embedding_width(self) -> int:
        """Width of `inputs_embeds`, which are what `get_input_embeddings()` makes of token ids."""
        return self.hidden_size


__all__ = ["MemoryConfig"]

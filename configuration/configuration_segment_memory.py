"""The configuration of memory around a language model of transformers."""

import copy
import functools
from typing import Any, ClassVar, Self, cast

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec
from transformers.utils import logging

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.configuration.derived_fields import NOT_GIVEN, Derived
from transformers_xl.configuration.nearest_names import nearest_names
from transformers_xl.configuration.optional_fields import OPTIONAL_FIELDS
from transformers_xl.configuration.saved_with_code import ConfigWithCode, field_of_part

logger = logging.get_logger(__name__)

UNKNOWN = "is not a field of SegmentMemoryConfig"

# the fields that a kind of memory has; those of the other kind are refused
FIELDS_OF_KIND: dict[str, dict[str, float]] = {
    "window": {"num_sinks": 4},
    "tokens": {"num_memory_tokens": 16, "bptt_segments": 2, "memory_scale": 1.0, "memory_initializer_range": 0.02},
}

# bases with learned sinks: a logit of each head beside those of the keys
WITH_SINKS = frozenset({"deepseek_v4", "flint", "gpt_oss", "granite_swa", "granitemoe_swa", "hy_v4"})


_of_base = functools.partial(field_of_part, "text_config")


def own_windows(base: PreTrainedConfig) -> list[int | None]:
    """Positions that a token sees in each layer of a base without memory, itself included; None: all before it."""
    own = getattr(base, "sliding_window", None) or None
    types = getattr(base, "layer_types", None) or ["sliding_attention"] * base.num_hidden_layers
    return [own if each == "sliding_attention" else None for each in types]


@strict
class SegmentMemoryConfig(ConfigWithCode):
    r"""
    Configuration of a language model of transformers (the base) with segment memory around it.

    Args:
        text_config (`PreTrainedConfig` or `dict`, *optional*):
            Configuration of the base, which is copied. That of a Llama when not given.
        kind (`str`, *optional*, defaults to `"window"`):
            `"window"`: every layer remembers keys and values of the last positions. `"tokens"`: vectors that the base reads
            before a segment and writes after it (https://arxiv.org/abs/2207.06881).
        mem_len (`int`, *optional*):
            Window: positions that a token sees, itself included; 1024 when not given. With more than the base was trained
            for, predictions get worse until it is fine-tuned. Tokens: always `num_memory_tokens`.
        num_sinks (`int`, *optional*):
            Window only: first tokens of a text that every later token sees in addition to the window
            (https://arxiv.org/abs/2309.17453). When not given: 4, and 0 for a base that was trained with learned sinks, or
            to see no more than `mem_len` positions in any layer; in a saved config: 0.
        num_memory_tokens (`int`, *optional*):
            Tokens only: vectors that are read and written; 16 when not given.
        bptt_segments (`int`, *optional*):
            Tokens only: number of segments through which gradients flow, counted from the end of a call; 2 when not given.
            What earlier segments wrote is read without a gradient.
        memory_scale (`float`, *optional*):
            Tokens only: initial value of the learned factor by which written vectors are multiplied; 1.0 when not given.
            [`add_memory`] measures it: embeddings and hidden states of a trained base differ in size.
        memory_initializer_range (`float`, *optional*):
            Tokens only: standard deviation of the initial memory tokens; 0.02 when not given. [`add_memory`] takes that of
            the embeddings, as the authors do.
        segment_length (`int`, *optional*, defaults to 512):
            Tokens per training segment. With `kind="tokens"`, memory is written at the end of each.
    """

    model_type = "segment_memory"
    sub_configs_defaults: ClassVar[dict[str, SubConfigSpec]] = {
        "text_config": SubConfigSpec(config_class=AutoConfig, model_type="llama")
    }
    keys_to_ignore_at_inference = ["past_key_values", "mems"]

    text_config: dict | PreTrainedConfig | None = None
    kind: str = "window"
    mem_len: Derived[int] = NOT_GIVEN
    num_sinks: Derived[int] = NOT_GIVEN
    num_memory_tokens: Derived[int] = NOT_GIVEN
    bptt_segments: Derived[int] = NOT_GIVEN
    memory_scale: Derived[float | int] = NOT_GIVEN
    memory_initializer_range: Derived[float | int] = NOT_GIVEN
    segment_length: int = 512

    def __post_init__(self, **kwargs: Any):
        self._check_keywords(kwargs)
        if self.kind not in FIELDS_OF_KIND:
            raise ValueError(f"`kind`={self.kind!r} must be one of {tuple(FIELDS_OF_KIND)}.")
        are_sinks_given = self.num_sinks is not None
        for kind, fields in FIELDS_OF_KIND.items():
            for name, default in fields.items():
                if kind == self.kind and getattr(self, name) is None:
                    setattr(self, name, default)
                elif kind != self.kind and getattr(self, name) is not None:
                    raise ValueError(
                        f"`{name}`={getattr(self, name)} belongs to `kind`={kind!r}, and this is `kind`={self.kind!r}: "
                        "leave it out."
                    )
        if self.mem_len is None:
            self.mem_len = 1024 if self.num_memory_tokens is None else self.num_memory_tokens
        base = self.text_config
        base_type = base.get("model_type") if isinstance(base, dict) else getattr(base, "model_type", None)
        if base_type == self.model_type:
            raise ValueError(f"`text_config` is a {self.model_type!r}, which has this memory already: give its base.")
        self.text_config = copy.deepcopy(self.text_config)
        # `@strict` wraps what its validators raise into an exception that is no ValueError: check before it does
        self.validate_architecture()
        super().__post_init__(**kwargs)
        if self.kind == "window" and not are_sinks_given and self._base_needs_no_sinks():
            self.num_sinks = 0

    def _base_needs_no_sinks(self) -> bool:
        """Whether the base was trained with its own sinks, or to see no more than this window."""
        windows = own_windows(self.base_config)
        sees_no_more = all(own is not None and own <= self.sliding_window for own in windows)
        return sees_no_more or self.base_config.model_type in WITH_SINKS

    @classmethod
    def _objection(cls, name: str) -> str | None:
        """Why a config cannot be made with this keyword; `UNKNOWN` where nobody knows it, None where it can."""
        fields = [field for field in cls.__dataclass_fields__ if not field.startswith("_")]
        if name in fields or name in OF_LIBRARY or name.startswith("_") or hasattr(PreTrainedConfig, name):
            return None
        if name in OF_BASE:
            return "is a field of the base: set it in `text_config`"
        if isinstance(vars(cls).get(name), property):
            return "cannot be set, it follows from the fields"
        if name in MemoryConfig.__dataclass_fields__ or name in OPTIONAL_FIELDS or name in MemoryConfig.attribute_map:
            return "has no meaning for a memory around a base: leave it out"
        close = nearest_names(name, fields, cutoff=0.8)
        return f"{UNKNOWN}: did you mean `{'` or `'.join(close)}`?" if close else UNKNOWN

    @classmethod
    def _check_keywords(cls, keywords: dict[str, Any]) -> None:
        for name, value in keywords.items():
            if (objection := cls._objection(name)) is not None and objection != UNKNOWN:
                raise ValueError(f"`{name}`={value!r} {objection}.")

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in transformers: the config of a `config.json`, with `kwargs` in place of its fields.

        Unknown fields of the folder are left out with a warning: other programs leave theirs there. Among `kwargs` they are
        refused. With another `kind`, the folder's fields of the memory are left out.
        """
        close = [
            name for name in kwargs if (cls._objection(name) or UNKNOWN) != UNKNOWN
        ]  # others may be for the model
        cls._check_keywords({name: kwargs[name] for name in close})
        own = {name: kwargs.pop(name) for name in [*kwargs] if name in FIELDS}
        foreign = {name for name in config_dict if cls._objection(name) is not None}
        for name in sorted(foreign):
            logger.warning(
                f"`{name}`={config_dict[name]!r} of a saved {cls.__name__} has no effect: it is not a field."
            )
        if own.get("kind", config_dict.get("kind")) != config_dict.get("kind"):
            foreign |= set(FIELDS)
        kept = {name: value for name, value in config_dict.items() if name not in foreign}
        if kept.get("kind") == "window" and kept.get("num_sinks") is None:
            kept["num_sinks"] = 0  # there were none by default, once
        return super().from_dict(kept | own, **kwargs)

    def validate_architecture(self) -> None:
        """Raise a `ValueError` when the fields do not describe a memory that can run."""
        for name, least in (
            ("mem_len", 1), ("num_sinks", 0), ("num_memory_tokens", 1), ("bptt_segments", 1), ("segment_length", 1),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"`{name}`={value} must be at least {least}.")
        if self.kind == "tokens" and self.mem_len != self.num_memory_tokens:
            raise ValueError(
                f"`mem_len`={self.mem_len} has no meaning for `kind`='tokens', which remembers `num_memory_tokens`="
                f"{self.num_memory_tokens} vectors: leave it out. A base is trained with this number: add a new memory "
                "to change it."
            )

    def with_mem_len(self, mem_len: int) -> Self:
        """A copy with another length of the window.

        Raises:
            ValueError: there is no window, or none of this length.
        """
        changed = copy.copy(self)
        changed.mem_len = mem_len
        changed.validate_architecture()
        return changed

    vocab_size = _of_base("vocab_size")
    hidden_size = _of_base("hidden_size")
    num_hidden_layers = _of_base("num_hidden_layers")
    num_attention_heads = _of_base("num_attention_heads")
    tie_word_embeddings = _of_base("tie_word_embeddings")
    pad_token_id = _of_base("pad_token_id")
    bos_token_id = _of_base("bos_token_id")
    eos_token_id = _of_base("eos_token_id")

    @property
    def same_length(self) -> bool:
        """Whether every token sees equally far, wherever a text is cut."""
        return True

    @property
    def base_config(self) -> PreTrainedConfig:
        """`text_config`, which is an object once this one is built."""
        return cast(PreTrainedConfig, self.text_config)

    @property
    def sliding_window(self) -> int:
        """Positions that a token sees, itself included."""
        return cast(int, self.mem_len)

    @property
    def initial_memory(self) -> str:
        """Memory of a new row."""
        return "empty"

    @property
    def embedding_width(self) -> int:
        """Width of `inputs_embeds`, which are what `get_input_embeddings()` makes of token ids."""
        return getattr(self.text_config, "embedding_size", None) or self.hidden_size

    @property
    def token_width(self) -> int:
        """Width of what a token enters the model with."""
        return self.embedding_width

    @property
    def num_hidden_states(self) -> int:
        """How many hidden states a call shows: the inputs of all layers, and the output of the last one."""
        return self.num_hidden_layers + 1

    @property
    def layer_windows(self) -> list[int]:
        """Positions that a token sees in each layer, itself included: no more than the layer sees in the base."""
        if self.kind != "window":
            return []
        return [min(self.sliding_window, own or self.sliding_window) for own in own_windows(self.base_config)]

    @property
    def layer_reaches(self) -> list[int]:
        """Positions that each layer can read something of, the token itself included."""
        return self.layer_windows

    @property
    def layer_mem_lens(self) -> list[int]:
        """Positions that each layer remembers; or the most tokens of an open segment."""
        return [window - 1 for window in self.layer_windows] if self.kind == "window" else [self.segment_length - 1]


OF_BASE = {name for name, value in vars(SegmentMemoryConfig).items() if isinstance(value, property) and value.fset}
FIELDS = ("kind", "mem_len", "segment_length", *(name for fields in FIELDS_OF_KIND.values() for name in fields))
# what transformers hands to a config beside fields
OF_LIBRARY = {
    *("attn_implementation", "experts_implementation", "torch_dtype", "name_or_path", "token", "auto_map"),
    *("gguf_file", "use_cache"),  # passed on by `from_pretrained`, and set by the trainer
}

__all__ = ["SegmentMemoryConfig"]

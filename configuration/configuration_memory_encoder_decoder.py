"""The configuration of an encoder-decoder whose decoder remembers."""

import copy
import functools
from typing import Any, ClassVar, Self, cast

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.configuration.nearest_names import nearest_names
from transformers_xl.configuration.saved_with_code import ConfigWithCode, field_of_part

_ENCODERS: dict[str, type[MemoryConfig]] = {}
_DECODERS: dict[str, type[MemoryConfig]] = {}

# decoders that have no place for attention to another text, or no meaning with it
REFUSED = {
    "block_recurrent": "its layers read blocks, which end in the middle of a sentence",
    "memorizing_transformer": "it looks up what it has read, whatever the source says now",
    "recurrent_memory_transformer": "its memory tokens would read the source too",
    "segment_memory": "its base has its own layers",
    "sha_rnn": "its layers are LSTMs, and only one of them attends",
}


def register_encoder_config(config_class: type[MemoryConfig]) -> None:
    """Let encoders have such a configuration. The package registers all that fit, an exported file its own."""
    _ENCODERS[config_class.model_type] = config_class


def register_decoder_config(config_class: type[MemoryConfig]) -> None:
    """Let decoders have such a configuration."""
    _DECODERS[config_class.model_type] = config_class


_END = {"encoder": "Encoder", "decoder": ""}  # of the names of their classes
_of_decoder = functools.partial(field_of_part, "decoder")


@strict
class MemoryEncoderDecoderConfig(ConfigWithCode):
    r"""
    Configuration of an encoder, a decoder with memory, and attention of each layer of the decoder to the encoder's output.

    Args:
        encoder (`MemoryConfig` or `dict`):
            Configuration of the encoder, which is copied; a dict names its `model_type`.
        decoder (`MemoryConfig` or `dict`):
            Configuration of the decoder, which is copied. `mem_len` is its memory of what it has written, also of earlier
            sentences.
        source_mem_len (`int`, *optional*, defaults to 0):
            Outputs of the encoder for earlier sentences that the decoder still sees, in tokens; 0: those of this sentence
            alone.
        share_embeddings (`bool`, *optional*, defaults to `True`):
            Whether encoder and decoder have one table of words.
        decoder_start_token_id (`int`, *optional*):
            The token before the first one that is written; the decoder's `bos_token_id` when not given, else its
            `pad_token_id`.
    """

    model_type = "memory_encoder_decoder"
    sub_configs_defaults: ClassVar[dict[str, SubConfigSpec]] = {
        name: SubConfigSpec(config_class=PreTrainedConfig) for name in ("encoder", "decoder")
    }
    keys_to_ignore_at_inference = ["past_key_values", "mems", "source_mems", "encoder_last_hidden_state"]

    encoder: dict | PreTrainedConfig | None = None
    decoder: dict | PreTrainedConfig | None = None
    source_mem_len: int = 0
    share_embeddings: bool = True
    is_encoder_decoder: bool = True  # without its type it would be False
    decoder_start_token_id: int | None = None

    def __post_init__(self, **kwargs: Any):
        self._check_keywords(kwargs)
        for name in ("encoder", "decoder"):
            setattr(self, name, self._part(name))
        decoder = cast(MemoryConfig, self.decoder)
        first, pad = decoder.bos_token_id, decoder.pad_token_id
        if self.decoder_start_token_id is None:
            self.decoder_start_token_id = pad if first is None else first
        # `@strict` wraps what its validators raise into an exception that is no ValueError: check before it does
        self.validate_architecture()
        super().__post_init__(**kwargs)

    def _part(self, name: str) -> MemoryConfig:
        """The configuration of the encoder or of the decoder."""
        given = getattr(self, name)
        if given is None:
            raise ValueError(f"`{name}`=None: give a configuration, such as `TransformerXL{_END[name]}Config(...)`.")
        model_type = given.get("model_type") if isinstance(given, dict) else given.model_type
        known = _ENCODERS if name == "encoder" else _DECODERS
        if model_type not in known:
            twin = f"{model_type}_encoder" if name == "encoder" else str(model_type).removesuffix("_encoder")
            close = [twin] if twin in known else nearest_names(str(model_type), [*known], cutoff=0.8)
            remedy = f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(sorted(known))}."
            remedy = f"{REFUSED[model_type]}; take another." if name == "decoder" and model_type in REFUSED else remedy
            raise ValueError(f"`{name}` is a {model_type!r}, which cannot be one: {remedy}")
        made = copy.deepcopy(given) if isinstance(given, PreTrainedConfig) else known[model_type].from_dict(given)
        return cast(MemoryConfig, made)

    @classmethod
    def _check_keywords(cls, keywords: dict[str, Any]) -> None:
        fields = [field for field in cls.__dataclass_fields__ if not field.startswith("_")]
        for name, value in keywords.items():
            if name in MemoryConfig.__dataclass_fields__ and not hasattr(PreTrainedConfig, name):
                raise ValueError(f"`{name}`={value!r} is a field of the parts: set it in `encoder` and in `decoder`.")
            close = nearest_names(name, fields, cutoff=0.8)
            if close and not hasattr(PreTrainedConfig, name):
                raise ValueError(f"`{name}`={value!r} is not a field of {cls.__name__}: did you mean `{close[0]}`?")

    def validate_architecture(self) -> None:
        """Raise a `ValueError` when the fields do not describe a model that can run."""
        encoder, decoder = cast(MemoryConfig, self.encoder), cast(MemoryConfig, self.decoder)
        if self.source_mem_len < 0:
            raise ValueError(f"`source_mem_len`={self.source_mem_len} must not be negative; 0 turns it off.")
        start, size = self.decoder_start_token_id, decoder.vocab_size
        if start is None or not 0 <= start < size:
            raise ValueError(
                f"`decoder_start_token_id`={start} must be in 0..{size - 1}: give it, or `bos_token_id` in `decoder`."
            )
        tables = [
            (each.vocab_size, each.token_width, getattr(each, "is_adaptive", False)) for each in (encoder, decoder)
        ]
        if self.share_embeddings and (tables[0] != tables[1] or tables[0][2]):
            raise ValueError(
                f"`share_embeddings`=True, but the tables of words differ or have clusters: `encoder` has {tables[0][:2]}, "
                f"`decoder` {tables[1][:2]} (words, width). Set it to False, or make them equal."
            )

    def to_diff_dict(self) -> dict[str, Any]:
        """Each part as it would be saved alone: transformers would leave out what equals defaults that are not its own."""
        parts = {name: cast(PreTrainedConfig, getattr(self, name)).to_diff_dict() for name in ("encoder", "decoder")}
        for part in parts.values():
            part.pop("auto_map", None)
        return super().to_diff_dict() | parts

    def with_mem_len(self, mem_len: int) -> Self:
        """A copy with another memory of what is written.

        Raises:
            ValueError: the decoder cannot run with it.
        """
        changed = copy.copy(self)
        changed.decoder = cast(MemoryConfig, self.decoder).with_mem_len(mem_len)
        return changed

    pad_token_id = _of_decoder("pad_token_id")
    bos_token_id = _of_decoder("bos_token_id")
    eos_token_id = _of_decoder("eos_token_id")
    vocab_size = _of_decoder("vocab_size")
    hidden_size = _of_decoder("hidden_size")
    num_hidden_layers = _of_decoder("num_hidden_layers")
    num_attention_heads = _of_decoder("num_attention_heads")
    mem_len = _of_decoder("mem_len")
    same_length = _of_decoder("same_length")
    segment_length = _of_decoder("segment_length")
    layer_mem_lens = _of_decoder("layer_mem_lens")


__all__ = ["MemoryEncoderDecoderConfig", "register_decoder_config", "register_encoder_config"]

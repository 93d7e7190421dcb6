"""The one table of variants. Registration with the Auto classes, the common tests, the cards and the README read it."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, cast

import torch
import transformers
from transformers import AutoTokenizer, PreTrainedModel

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.configuration.configuration_memory_encoder_decoder import (
    REFUSED,
    MemoryEncoderDecoderConfig,
    register_decoder_config,
    register_encoder_config,
)
from transformers_xl.configuration.configuration_segment_memory import SegmentMemoryConfig
from transformers_xl.modeling import (
    modeling_absolute_transformer_xl,
    modeling_adaptive_span,
    modeling_block_recurrent,
    modeling_causal_longformer,
    modeling_complex_order_transformer,
    modeling_compressive_transformer,
    modeling_depth_adaptive_transformer,
    modeling_gtrxl,
    modeling_infini_transformer,
    modeling_longformer_encoder,
    modeling_macaron,
    modeling_memorizing_transformer,
    modeling_pkm_transformer,
    modeling_r_transformer,
    modeling_recurrent_memory_transformer,
    modeling_segment_memory,
    modeling_sha_rnn,
    modeling_shaw_transformer,
    modeling_star_transformer,
    modeling_streaming_transformer,
    modeling_tensorized_transformer,
    modeling_transformer_xl,
    modeling_universal_transformer,
    modeling_vanilla_transformer,
)
from transformers_xl.modeling.auto_actor_critic import AutoModelForActorCritic
from transformers_xl.modeling.conversion import transfo_xl
from transformers_xl.modeling.modeling_memory_encoder_decoder import MemoryForConditionalGeneration, register_part
from transformers_xl.modeling.ops.relative_attention import register_backend
from transformers_xl.tokenization.tokenization_bytes import ByteTokenizer
from transformers_xl.tokenization.tokenization_words import WordTokenizer


@dataclass(frozen=True)
class Variant:
    """One paper, or none (`paper` is empty): its classes, and what its memory promises.

    `causal`: a token sees nothing that comes after it. `memory`: `"exact"`, segments with memory equal one long text;
    `"own"`, the paper's memory is something else; `"none"`. `croppable`: the newest tokens can be taken back, which
    assisted decoding needs. `recurrent`: what a token sees has no bound, because the states of a layer go through all
    tokens. `encoder`: the same for its encoder, in which a token sees both ways, or why there is none.
    """

    config_class: type[MemoryConfig] | type[SegmentMemoryConfig]
    model_class: type[PreTrainedModel]
    causal_lm_class: type[PreTrainedModel] | None
    sequence_classification_class: type[PreTrainedModel] | None
    token_classification_class: type[PreTrainedModel] | None
    masked_lm_class: type[PreTrainedModel] | None
    actor_critic_class: type[PreTrainedModel] | None
    paper: str
    authors: str
    year: int
    url: str
    idea: str
    causal: bool = True
    memory: Literal["exact", "own", "none"] = "exact"
    croppable: bool = True
    recurrent: bool = False
    encoder: "Variant | str" = ""

    def auto_classes(self) -> dict[str, type]:
        """The config and the models, by the names of the Auto classes that build them."""
        classes = {
            "AutoConfig": self.config_class,
            "AutoModel": self.model_class,
            "AutoModelForCausalLM": self.causal_lm_class,
            "AutoModelForSequenceClassification": self.sequence_classification_class,
            "AutoModelForTokenClassification": self.token_classification_class,
            "AutoModelForMaskedLM": self.masked_lm_class,
            "AutoModelForActorCritic": self.actor_critic_class,
        }
        return {auto: cls for auto, cls in classes.items() if cls is not None}


def _variant(module: ModuleType, no_encoder: str = "", **row) -> Variant:
    """A row, with the public classes of the variant's file: they are known by the ends of their names, and those of its
    encoder by their config, or `no_encoder` says why there is none."""
    classes = {
        name: getattr(module, name) for name in module.__all__ if hasattr(getattr(module, name), "config_class")
    }
    config_class = min((cls.config_class for cls in classes.values()), key=lambda each: len(each.__mro__))
    of_encoder = {name: cls for name, cls in classes.items() if cls.config_class is not config_class}
    promises = {"causal": False, "memory": "none", "croppable": False, "recurrent": False}
    row["encoder"] = _row(of_encoder, **(row | promises)) if of_encoder else no_encoder
    return _row({name: cls for name, cls in classes.items() if name not in of_encoder}, **row)


def _row(classes: dict[str, Any], **row) -> Variant:
    def ending(end: str):
        return next((value for name, value in classes.items() if name.endswith(end)), None)

    model_class = next(
        value for name, value in classes.items() if name.endswith("Model") and not name.endswith("PreTrainedModel")
    )
    return Variant(
        config_class=model_class.config_class,
        model_class=model_class,
        causal_lm_class=ending("ForCausalLM"),
        sequence_classification_class=ending("ForSequenceClassification"),
        token_classification_class=ending("ForTokenClassification"),
        masked_lm_class=ending("ForMaskedLM"),
        actor_critic_class=ending("ForActorCritic"),
        **row,
    )


VARIANTS: dict[str, Variant] = {
    variant.config_class.model_type: variant
    for variant in (
        _variant(
            modeling_transformer_xl,
            paper="Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context",
            authors="Dai et al.",
            year=2019,
            url="https://arxiv.org/abs/1901.02860",
            idea="Every layer attends to the inputs it had in earlier segments, by relative positions.",
        ),
        _variant(
            modeling_vanilla_transformer,
            no_encoder="it is about losses of the next two tokens; `absolute_transformer_xl` has the same encoder",
            paper="Character-Level Language Modeling with Deeper Self-Attention",
            authors="Al-Rfou et al.",
            year=2018,
            url="https://arxiv.org/abs/1808.04444",
            idea="Fixed segments without memory: positions before every layer, and auxiliary predictions in training.",
            memory="none",
        ),
        _variant(
            modeling_absolute_transformer_xl,
            paper="Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context",
            authors="Dai et al.",
            year=2019,
            url="https://arxiv.org/abs/1901.02860",
            idea="The baseline of its section 3.2: the memory of Transformer-XL, with absolute positions of a segment.",
        ),
        _variant(
            modeling_shaw_transformer,
            paper="Self-Attention with Relative Position Representations",
            authors="Shaw et al.",
            year=2018,
            url="https://arxiv.org/abs/1803.02155",
            idea="Every clipped distance has a learned vector that is added to keys, and another for values.",
        ),
        _variant(
            modeling_r_transformer,
            paper="R-Transformer: Recurrent Neural Network Enhanced Transformer",
            authors="Wang et al.",
            year=2019,
            url="https://arxiv.org/abs/1907.05572",
            idea="A recurrent network over the last few positions comes before the attention, which needs no positions.",
            croppable=False,
        ),
        _variant(
            modeling_gtrxl,
            paper="Stabilizing Transformers for Reinforcement Learning",
            authors="Parisotto et al.",
            year=2019,
            url="https://arxiv.org/abs/1910.06764",
            idea="A gate takes the place of each residual sum, so that training starts near the identity map.",
        ),
        _variant(
            modeling_macaron,
            paper="Understanding and Improving Transformer From a Multi-Particle Dynamic System Point of View",
            authors="Lu et al.",
            year=2019,
            url="https://arxiv.org/abs/1906.02762",
            idea="The attention stands between two feed-forwards of half a step each.",
        ),
        _variant(
            modeling_pkm_transformer,
            paper="Large Memory Layers with Product Keys",
            authors="Lample et al.",
            year=2019,
            url="https://arxiv.org/abs/1907.05242",
            idea="A large memory of learned values, found by two half keys, takes the place of some feed-forwards.",
        ),
        _variant(
            modeling_tensorized_transformer,
            no_encoder="its attention sums over all positions of a window before a token, which has no other side",
            paper="A Tensorized Transformer for Language Modeling",
            authors="Ma et al.",
            year=2019,
            url="https://arxiv.org/abs/1906.09777",
            idea="Attention without softmax: products of a query, a key and a value for all pairs of nearby positions.",
        ),
        _variant(
            modeling_adaptive_span,
            no_encoder="its heads learn how far back they look",
            paper="Adaptive Attention Span in Transformers",
            authors="Sukhbaatar et al.",
            year=2019,
            url="https://arxiv.org/abs/1905.07799",
            idea="Every head learns how far back it looks; a layer remembers no more than its longest span.",
        ),
        _variant(
            modeling_universal_transformer,
            paper="Universal Transformers",
            authors="Dehghani et al.",
            year=2018,
            url="https://arxiv.org/abs/1807.03819",
            idea="One layer runs again and again, and every position decides after how many steps it halts.",
        ),
        _variant(
            modeling_depth_adaptive_transformer,
            paper="Depth-Adaptive Transformer",
            authors="Elbayad et al.",
            year=2020,
            url="https://arxiv.org/abs/1910.10073",
            idea="Every layer can predict: a token leaves as soon as one is sure, and its state is copied upward.",
        ),
        _variant(
            modeling_star_transformer,
            paper="Star-Transformer",
            authors="Guo et al.",
            year=2019,
            url="https://arxiv.org/abs/1902.09113",
            idea="An encoder: tokens read their neighbours on a ring and one relay, which reads them all, at linear cost.",
            causal=False,
            memory="own",
            croppable=False,
        ),
        _variant(
            modeling_sha_rnn,
            no_encoder="it is a recurrent network, which reads a text from left to right",
            paper="Single Headed Attention RNN: Stop Thinking With Your Head",
            authors="Merity",
            year=2019,
            url="https://arxiv.org/abs/1911.11423",
            idea="A stack of LSTMs, of which one also attends, with a single head, to the memory of its outputs.",
            croppable=False,
            recurrent=True,
        ),
        _variant(
            modeling_compressive_transformer,
            no_encoder="it is about what leaves a memory, and an encoder has none",
            paper="Compressive Transformers for Long-Range Sequence Modelling",
            authors="Rae et al.",
            year=2019,
            url="https://arxiv.org/abs/1911.05507",
            idea="What leaves the memory is compressed into a second one, which reaches several times as far.",
            croppable=False,
        ),
        _variant(
            modeling_block_recurrent,
            no_encoder="its state is written block by block, from left to right",
            paper="Block-Recurrent Transformers",
            authors="Hutchins et al.",
            year=2022,
            url="https://arxiv.org/abs/2203.07852",
            idea="A layer has a state of many vectors, which the tokens of a block read, and each block updates once.",
            croppable=False,
            recurrent=True,
        ),
        _variant(
            modeling_memorizing_transformer,
            no_encoder="it is about looking up what has left a memory, and an encoder has none",
            paper="Memorizing Transformers",
            authors="Wu et al.",
            year=2022,
            url="https://arxiv.org/abs/2203.08913",
            idea="A layer remembers very many keys; each head looks up the nearest and mixes them with local attention.",
            croppable=False,
        ),
        _variant(
            modeling_causal_longformer,
            no_encoder="use `longformer_encoder`",
            paper="Longformer: The Long-Document Transformer",
            authors="Beltagy et al.",
            year=2020,
            url="https://arxiv.org/abs/2004.05150",
            idea="Every layer has its own window, with gaps in some heads: cost is linear in the length.",
        ),
        _variant(
            modeling_longformer_encoder,
            paper="Longformer: The Long-Document Transformer",
            authors="Beltagy et al.",
            year=2020,
            url="https://arxiv.org/abs/2004.05150",
            idea="An encoder: a token sees a window on both sides and global tokens, which see all tokens of the text.",
            causal=False,
            memory="none",
            croppable=False,
        ),
        _variant(
            modeling_complex_order_transformer,
            paper="Encoding word order in complex embeddings",
            authors="Wang et al.",
            year=2020,
            url="https://arxiv.org/abs/1912.12333",
            idea="A word is a wave over positions, with amplitude, frequency and phase; all that follows is complex.",
        ),
        _variant(
            modeling_infini_transformer,
            no_encoder="its matrix is written block by block, from left to right",
            paper="Leave No Context Behind: Efficient Infinite Context Transformers with Infini-attention",
            authors="Munkhdalai et al.",
            year=2024,
            url="https://arxiv.org/abs/2404.07143",
            idea="Complete blocks are written into a memory matrix per head, which has a constant size and no horizon.",
            croppable=False,
            recurrent=True,
        ),
        _variant(
            modeling_recurrent_memory_transformer,
            no_encoder="it is about tokens that go from segment to segment, and an encoder reads one",
            paper="Recurrent Memory Transformer",
            authors="Bulatov et al.",
            year=2022,
            url="https://arxiv.org/abs/2207.06881",
            idea="Memory tokens are read before a segment and written after it, for the next segment to read.",
            croppable=False,
            recurrent=True,
        ),
        _variant(
            modeling_segment_memory,
            no_encoder="it is about the memory of a language model, and an encoder has none",
            paper="Transformer-XL's memory around any language model of transformers",
            authors="Dai et al.",
            year=2019,
            url="https://arxiv.org/abs/1901.02860",
            idea="A language model of transformers keeps the keys and values of the last positions, or writes vectors to "
            "itself.",
        ),
        _variant(
            modeling_streaming_transformer,
            no_encoder="its n-grams and convolutions are those of a text that is read as it comes",
            paper="",
            authors="transformers-xl",
            year=2026,
            url="",
            idea="The package's own: short convolutions, n-gram embeddings, a gated feed-forward, rotary keys as memory.",
            croppable=False,
        ),
    )
}

# the encoders of the variants, by their own model types
ENCODERS: dict[str, Variant] = {
    variant.encoder.config_class.model_type: variant.encoder
    for variant in VARIANTS.values()
    if isinstance(variant.encoder, Variant)
}
# all that has a model type of its own
MODEL_TYPES = VARIANTS | ENCODERS
# the classes of an encoder-decoder, whose parts are variants, by the names of the Auto classes that build them
ENCODER_DECODER: dict[str, type] = {
    "AutoConfig": MemoryEncoderDecoderConfig,
    "AutoModelForSeq2SeqLM": MemoryForConditionalGeneration,
}
_registered = False


def encoder_of(model_type: str) -> Variant:
    """The classes of the encoder of a variant, by its own model type or by that of its encoder.

    Raises:
        ValueError: there is none; says why.
    """
    row = MODEL_TYPES.get(model_type)
    found = row.encoder if row is not None and row.causal else row
    if not isinstance(found, Variant):
        reason = found or f"no variant has this name: the encoders are {', '.join(ENCODERS)}"
        raise ValueError(f"`model_type`={model_type!r} has no encoder: {reason}.")
    return found


def register_parts() -> None:
    """Let an encoder-decoder be made of the variants."""
    for model_type, variant in MODEL_TYPES.items():
        model_class = variant.causal_lm_class if variant.causal else variant.model_class
        if model_class is not None and model_type not in REFUSED:
            register_config = register_decoder_config if variant.causal else register_encoder_config
            register_config(cast(Any, variant.config_class))
            register_part(cast(Any, model_class))


def register_kernels() -> None:
    """Let relative attention on CUDA run in the Triton kernels, where Triton is installed.

    The package registers them; code beside saved weights does not. It computes all scores, as the package does for what the
    kernels do not take.
    """
    try:
        from transformers_xl.modeling.ops.triton_attention import takes, triton_relative_attention
    except ImportError:  # no Triton, or an old one
        return
    types = (torch.float32, torch.bfloat16, torch.float16)
    register_backend("triton", triton_relative_attention, "cuda", types, takes)


def _auto_class(name: str) -> Any:
    return AutoModelForActorCritic if name == "AutoModelForActorCritic" else getattr(transformers, name)


def register() -> None:
    """Make every variant known to the Auto classes. `import transformers_xl` does it; a second call does nothing.

    Raises:
        ValueError: from transformers, when another package has taken one of the model types.
    """
    global _registered
    if _registered:
        return
    _registered = True
    for model_type, variant in MODEL_TYPES.items():
        # a folder's tokenizer_config.json names its class, which has to be known; the first is what a config stands for
        if variant.config_class is not SegmentMemoryConfig:  # its tokenizer is the base's
            tokenizers = {"tokenizer_class": ByteTokenizer, "slow_tokenizer_class": WordTokenizer}
            AutoTokenizer.register(variant.config_class, **tokenizers)
        for auto, cls in variant.auto_classes().items():
            key = model_type if auto == "AutoConfig" else variant.config_class
            _auto_class(auto).register(key, cls)
    register_parts()
    for auto, cls in ENCODER_DECODER.items():
        name = MemoryEncoderDecoderConfig.model_type if auto == "AutoConfig" else MemoryEncoderDecoderConfig
        _auto_class(auto).register(name, cls)
    AutoTokenizer.register(
        MemoryEncoderDecoderConfig, tokenizer_class=ByteTokenizer, slow_tokenizer_class=WordTokenizer
    )
    transfo_xl.register()
    if torch.version.cuda is not None:  # says how torch was built: no device is asked
        register_kernels()

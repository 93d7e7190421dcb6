"""The one table of variants. Registration with the Auto classes, the common tests, the cards and the README read it."""

from dataclasses import dataclass
from typing import Literal

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedModel,
)

from transformers_xl.configuration.configuration_depth_adaptive_transformer import DepthAdaptiveTransformerConfig
from transformers_xl.configuration.configuration_gtrxl import GTrXLConfig
from transformers_xl.configuration.configuration_macaron import MacaronConfig
from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.configuration.configuration_pkm_transformer import PKMTransformerConfig
from transformers_xl.configuration.configuration_r_transformer import RTransformerConfig
from transformers_xl.configuration.configuration_shaw_transformer import ShawTransformerConfig
from transformers_xl.configuration.configuration_transformer_xl import TransformerXLConfig
from transformers_xl.configuration.configuration_vanilla_transformer import VanillaTransformerConfig
from transformers_xl.modeling.modeling_depth_adaptive_transformer import (
    DepthAdaptiveTransformerForCausalLM,
    DepthAdaptiveTransformerForSequenceClassification,
    DepthAdaptiveTransformerForTokenClassification,
    DepthAdaptiveTransformerModel,
)
from transformers_xl.modeling.modeling_gtrxl import (
    GTrXLForCausalLM,
    GTrXLForSequenceClassification,
    GTrXLForTokenClassification,
    GTrXLModel,
)
from transformers_xl.modeling.modeling_macaron import (
    MacaronForCausalLM,
    MacaronForSequenceClassification,
    MacaronForTokenClassification,
    MacaronModel,
)
from transformers_xl.modeling.modeling_pkm_transformer import (
    PKMTransformerForCausalLM,
    PKMTransformerForSequenceClassification,
    PKMTransformerForTokenClassification,
    PKMTransformerModel,
)
from transformers_xl.modeling.modeling_r_transformer import (
    RTransformerForCausalLM,
    RTransformerForSequenceClassification,
    RTransformerForTokenClassification,
    RTransformerModel,
)
from transformers_xl.modeling.modeling_shaw_transformer import (
    ShawTransformerForCausalLM,
    ShawTransformerForSequenceClassification,
    ShawTransformerForTokenClassification,
    ShawTransformerModel,
)
from transformers_xl.modeling.modeling_transformer_xl import (
    TransformerXLForCausalLM,
    TransformerXLForSequenceClassification,
    TransformerXLForTokenClassification,
    TransformerXLModel,
)
from transformers_xl.modeling.modeling_vanilla_transformer import (
    VanillaTransformerForCausalLM,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
    VanillaTransformerModel,
)
from transformers_xl.tokenization.tokenization_bytes import ByteTokenizer


@dataclass(frozen=True)
class Variant:
    """One paper: its classes, and what its memory promises.

    `causal`: a token sees nothing that comes after it. `memory`: `"exact"`, segments with memory equal one long text;
    `"own"`, the paper's memory is something else; `"none"`. `croppable`: the newest tokens can be taken back, which
    assisted decoding needs.
    """

    config_class: type[MemoryConfig]
    model_class: type[PreTrainedModel]
    causal_lm_class: type[PreTrainedModel] | None
    sequence_classification_class: type[PreTrainedModel]
    token_classification_class: type[PreTrainedModel]
    paper: str
    authors: str
    year: int
    url: str
    idea: str
    causal: bool = True
    memory: Literal["exact", "own", "none"] = "exact"
    croppable: bool = True


VARIANTS: dict[str, Variant] = {
    variant.config_class.model_type: variant
    for variant in (
        Variant(
            config_class=TransformerXLConfig,
            model_class=TransformerXLModel,
            causal_lm_class=TransformerXLForCausalLM,
            sequence_classification_class=TransformerXLForSequenceClassification,
            token_classification_class=TransformerXLForTokenClassification,
            paper="Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context",
            authors="Dai et al.",
            year=2019,
            url="https://arxiv.org/abs/1901.02860",
            idea="Every layer attends to the inputs it had in earlier segments, by relative positions.",
        ),
        Variant(
            config_class=VanillaTransformerConfig,
            model_class=VanillaTransformerModel,
            causal_lm_class=VanillaTransformerForCausalLM,
            sequence_classification_class=VanillaTransformerForSequenceClassification,
            token_classification_class=VanillaTransformerForTokenClassification,
            paper="Character-Level Language Modeling with Deeper Self-Attention",
            authors="Al-Rfou et al.",
            year=2018,
            url="https://arxiv.org/abs/1808.04444",
            idea="Fixed segments without memory: positions before every layer, and auxiliary predictions in training.",
            memory="none",
        ),
        Variant(
            config_class=ShawTransformerConfig,
            model_class=ShawTransformerModel,
            causal_lm_class=ShawTransformerForCausalLM,
            sequence_classification_class=ShawTransformerForSequenceClassification,
            token_classification_class=ShawTransformerForTokenClassification,
            paper="Self-Attention with Relative Position Representations",
            authors="Shaw et al.",
            year=2018,
            url="https://arxiv.org/abs/1803.02155",
            idea="Every clipped distance has a learned vector that is added to keys, and another for values.",
        ),
        Variant(
            config_class=RTransformerConfig,
            model_class=RTransformerModel,
            causal_lm_class=RTransformerForCausalLM,
            sequence_classification_class=RTransformerForSequenceClassification,
            token_classification_class=RTransformerForTokenClassification,
            paper="R-Transformer: Recurrent Neural Network Enhanced Transformer",
            authors="Wang et al.",
            year=2019,
            url="https://arxiv.org/abs/1907.05572",
            idea="A recurrent network over the last few positions comes before the attention, which needs no positions.",
            croppable=False,
        ),
        Variant(
            config_class=GTrXLConfig,
            model_class=GTrXLModel,
            causal_lm_class=GTrXLForCausalLM,
            sequence_classification_class=GTrXLForSequenceClassification,
            token_classification_class=GTrXLForTokenClassification,
            paper="Stabilizing Transformers for Reinforcement Learning",
            authors="Parisotto et al.",
            year=2019,
            url="https://arxiv.org/abs/1910.06764",
            idea="A gate takes the place of each residual sum, so that training starts near the identity map.",
        ),
        Variant(
            config_class=MacaronConfig,
            model_class=MacaronModel,
            causal_lm_class=MacaronForCausalLM,
            sequence_classification_class=MacaronForSequenceClassification,
            token_classification_class=MacaronForTokenClassification,
            paper="Understanding and Improving Transformer From a Multi-Particle Dynamic System Point of View",
            authors="Lu et al.",
            year=2019,
            url="https://arxiv.org/abs/1906.02762",
            idea="The attention stands between two feed-forwards of half a step each.",
        ),
        Variant(
            config_class=PKMTransformerConfig,
            model_class=PKMTransformerModel,
            causal_lm_class=PKMTransformerForCausalLM,
            sequence_classification_class=PKMTransformerForSequenceClassification,
            token_classification_class=PKMTransformerForTokenClassification,
            paper="Large Memory Layers with Product Keys",
            authors="Lample et al.",
            year=2019,
            url="https://arxiv.org/abs/1907.05242",
            idea="A large memory of learned values, found by two half keys, takes the place of some feed-forwards.",
        ),
        Variant(
            config_class=DepthAdaptiveTransformerConfig,
            model_class=DepthAdaptiveTransformerModel,
            causal_lm_class=DepthAdaptiveTransformerForCausalLM,
            sequence_classification_class=DepthAdaptiveTransformerForSequenceClassification,
            token_classification_class=DepthAdaptiveTransformerForTokenClassification,
            paper="Depth-Adaptive Transformer",
            authors="Elbayad et al.",
            year=2020,
            url="https://arxiv.org/abs/1910.10073",
            idea="Every layer can predict: a token leaves as soon as one is sure, and its state is copied upward.",
        ),
    )
}

_registered = False


def register() -> None:
    """Make every variant known to the Auto classes. `import transformers_xl` does it; a second call does nothing.

    Raises:
        ValueError: from the library, when another package has taken one of the model types.
    """
    global _registered
    if _registered:
        return
    _registered = True
    for model_type, variant in VARIANTS.items():
        AutoConfig.register(model_type, variant.config_class)
        AutoTokenizer.register(variant.config_class, tokenizer_class=ByteTokenizer)
        for auto_class, model_class in (
            (AutoModel, variant.model_class),
            (AutoModelForCausalLM, variant.causal_lm_class),
            (AutoModelForSequenceClassification, variant.sequence_classification_class),
            (AutoModelForTokenClassification, variant.token_classification_class),
        ):
            if model_class is not None:
                auto_class.register(variant.config_class, model_class)

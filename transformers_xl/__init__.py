"""Transformers that remember past their window, as Hugging Face models.

`import transformers_xl` registers every variant with the Auto classes of transformers.
"""

import importlib as _importlib
import sys as _sys
from pathlib import Path as _Path

__version__ = "0.1.0.dev0"

if not (
    _Path(__file__).parent / "modeling"
).is_dir():  # a checkout, not a wheel: the root folders are the sub-packages
    __path__.append(str(_Path(__file__).parent.parent))

_NAMES = {
    "ByteTokenizer": "tokenization.tokenization_bytes",
    "DepthAdaptiveTransformerConfig": "configuration.configuration_depth_adaptive_transformer",
    "DepthAdaptiveTransformerForCausalLM": "modeling.modeling_depth_adaptive_transformer",
    "DepthAdaptiveTransformerForSequenceClassification": "modeling.modeling_depth_adaptive_transformer",
    "DepthAdaptiveTransformerForTokenClassification": "modeling.modeling_depth_adaptive_transformer",
    "DepthAdaptiveTransformerModel": "modeling.modeling_depth_adaptive_transformer",
    "GTrXLConfig": "configuration.configuration_gtrxl",
    "GTrXLForActorCritic": "modeling.modeling_gtrxl",
    "GTrXLForCausalLM": "modeling.modeling_gtrxl",
    "GTrXLForSequenceClassification": "modeling.modeling_gtrxl",
    "GTrXLForTokenClassification": "modeling.modeling_gtrxl",
    "GTrXLModel": "modeling.modeling_gtrxl",
    "MacaronConfig": "configuration.configuration_macaron",
    "MacaronForCausalLM": "modeling.modeling_macaron",
    "MacaronForSequenceClassification": "modeling.modeling_macaron",
    "MacaronForTokenClassification": "modeling.modeling_macaron",
    "MacaronModel": "modeling.modeling_macaron",
    "MemoryCache": "modeling.memory",
    "MemoryConfig": "configuration.configuration_memory",
    "MemoryTrainer": "training.trainer",
    "PKMTransformerConfig": "configuration.configuration_pkm_transformer",
    "PKMTransformerForCausalLM": "modeling.modeling_pkm_transformer",
    "PKMTransformerForSequenceClassification": "modeling.modeling_pkm_transformer",
    "PKMTransformerForTokenClassification": "modeling.modeling_pkm_transformer",
    "PKMTransformerModel": "modeling.modeling_pkm_transformer",
    "RTransformerConfig": "configuration.configuration_r_transformer",
    "RTransformerForCausalLM": "modeling.modeling_r_transformer",
    "RTransformerForSequenceClassification": "modeling.modeling_r_transformer",
    "RTransformerForTokenClassification": "modeling.modeling_r_transformer",
    "RTransformerModel": "modeling.modeling_r_transformer",
    "ShawTransformerConfig": "configuration.configuration_shaw_transformer",
    "ShawTransformerForCausalLM": "modeling.modeling_shaw_transformer",
    "ShawTransformerForSequenceClassification": "modeling.modeling_shaw_transformer",
    "ShawTransformerForTokenClassification": "modeling.modeling_shaw_transformer",
    "ShawTransformerModel": "modeling.modeling_shaw_transformer",
    "TransformerXLConfig": "configuration.configuration_transformer_xl",
    "TransformerXLForCausalLM": "modeling.modeling_transformer_xl",
    "TransformerXLForSequenceClassification": "modeling.modeling_transformer_xl",
    "TransformerXLForTokenClassification": "modeling.modeling_transformer_xl",
    "TransformerXLModel": "modeling.modeling_transformer_xl",
    "VanillaTransformerConfig": "configuration.configuration_vanilla_transformer",
    "VanillaTransformerForCausalLM": "modeling.modeling_vanilla_transformer",
    "VanillaTransformerForSequenceClassification": "modeling.modeling_vanilla_transformer",
    "VanillaTransformerForTokenClassification": "modeling.modeling_vanilla_transformer",
    "VanillaTransformerModel": "modeling.modeling_vanilla_transformer",
}

__all__ = list(_NAMES)


def __getattr__(name: str):
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


# The command line answers `--help` at once, without the seconds that torch and transformers take to import: its commands
# register when they load a model.
if _Path(getattr(_sys, "argv", [""])[0]).stem != "transformers-xl":
    _importlib.import_module(f"{__name__}.modeling.auto").register()

"""Transformers that remember past their window, as Hugging Face models.

`import transformers_xl` registers every variant with the Auto classes of transformers: at once, or when these are imported.
"""

import importlib as _importlib
from pathlib import Path as _Path

__version__ = "0.2.0"

if not (_Path(__file__).parent / "modeling").is_dir():  # a checkout, not a wheel: root folders are sub-packages too
    __path__.append(str(_Path(__file__).parent.parent))

_NAMES = {
    "AdaptiveSoftmaxConfig": "transformers_xl.configuration.configuration_adaptive_softmax",
    "AutoModelForActorCritic": "transformers_xl.modeling.auto_actor_critic",
    "ByteTokenizer": "transformers_xl.tokenization.tokenization_bytes",
    "Memory": "transformers_xl.modeling.memory.memory_value",
    "MemoryCache": "transformers_xl.modeling.memory.memory_cache",
    "MemoryEncoderDecoderConfig": "transformers_xl.configuration.configuration_memory_encoder_decoder",
    "MemoryForConditionalGeneration": "transformers_xl.modeling.modeling_memory_encoder_decoder",
    "MemoryConfig": "transformers_xl.configuration.configuration_memory",
    "MemoryFeatureExtractionPipeline": "transformers_xl.modeling.feature_extraction",
    "MemoryTrainer": "transformers_xl.training.trainer",
    "RelativeAttentionConfig": "transformers_xl.configuration.configuration_relative_attention",
    "Scheduler": "transformers_xl.serve.scheduler",
    "TextRequest": "transformers_xl.serve.text_request",
    "WordTokenizer": "transformers_xl.tokenization.tokenization_words",
    "add_memory": "transformers_xl.modeling.modeling_segment_memory",
    "cat_memories": "transformers_xl.modeling.memory.memory_value",
    "compile_generation": "transformers_xl.runs.compiled_generation",
    "generate_many": "transformers_xl.serve.scheduler",
}


def _public_names() -> dict[str, str]:
    """The module of each public name: those above, and the configs and models of the table of variants."""
    rows = _importlib.import_module(f"{__name__}.modeling.auto").MODEL_TYPES.values()
    return _NAMES | {cls.__name__: cls.__module__ for row in rows for cls in row.auto_classes().values()}


def __getattr__(name: str):
    names = _public_names() if name == "__all__" or not name.startswith("__") else {}
    if name == "__all__":
        value = list(names)
    elif name in names:
        value = getattr(_importlib.import_module(names[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_public_names()})


_importlib.import_module(f"{__name__}.registration").register_in_time()

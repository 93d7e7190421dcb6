"""What vLLM calls when it starts (entry point `vllm.general_plugins`): from then on it knows the models of this package.

    vllm serve FOLDER
    LLM(FOLDER)

vLLM is imported when it calls, and by nobody else.
"""

from transformers_xl.modeling.auto import VARIANTS

MODEL = "transformers_xl.serve.vllm_model:MemoryForVLLM"
BACKEND = "TRANSFORMERS_XL"  # the name by which vLLM's processes tell each other how a call is described
BACKEND_CLASS = "transformers_xl.serve.vllm_model.MemoryBackend"


def architectures() -> dict[str, str]:
    """The language models of this package, as `architectures` of a config.json names them, and their `model_type`."""
    rows = VARIANTS.items()
    return {row.causal_lm_class.__name__: name for name, row in rows if row.causal_lm_class is not None and row.causal}


def register() -> None:
    """Tell vLLM of the models. A second call changes nothing."""
    from vllm import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP
    from vllm.transformers_utils.model_arch_config_convertor import MODEL_ARCH_CONFIG_CONVERTORS
    from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum, register_backend

    from transformers_xl.serve.vllm_settings import MemoryArchitecture, MemorySettings

    if BACKEND not in MambaAttentionBackendEnum.__members__:
        register_backend(BACKEND, BACKEND_CLASS, is_mamba=True)
    for architecture, model_type in architectures().items():
        ModelRegistry.register_model(architecture, MODEL)
        MODELS_CONFIG_MAP[architecture] = MemorySettings
        MODEL_ARCH_CONFIG_CONVERTORS[model_type] = MemoryArchitecture


__all__ = ["architectures", "register"]

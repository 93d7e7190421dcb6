"""The settings of vLLM that a model with memory needs, and those that it cannot honour."""

from typing import Any

from vllm.config import CompilationMode, CUDAGraphMode, ModelConfig, VllmConfig
from vllm.model_executor.models.config import VerifyAndUpdateConfig
from vllm.transformers_utils.model_arch_config_convertor import ModelArchConfigConvertorBase

# a request's tokens, where `max_model_len` is not given: the memory has no bound, but vLLM keeps a table of so many numbers
# for each request that runs
MAX_MODEL_LEN = 131_072


class MemoryArchitecture(ModelArchConfigConvertorBase):
    """A model without attention in vLLM's eyes, whose texts may have any length."""

    def get_head_size(self) -> int:
        return 0

    def get_total_num_kv_heads(self) -> int:
        return 0

    def derive_max_model_len_and_key(self) -> tuple[float, str | None]:
        return float("inf"), None


class MemorySettings(VerifyAndUpdateConfig):
    """One state a request, no recorded graphs, and nothing that would need a state that vLLM can take apart."""

    @staticmethod
    def verify_and_update_model_config(model_config: ModelConfig) -> None:
        if model_config.original_max_model_len in (None, -1):
            model_config.max_model_len = MAX_MODEL_LEN

    @staticmethod
    def verify_and_update_config(vllm_config: VllmConfig) -> None:
        """
        Raises:
            ValueError: something was asked for that this memory cannot do in vLLM.
        """
        for setting, remedy in refused_settings(vllm_config):
            raise ValueError(f"`{setting}` cannot be used with a model of transformers-xl in vLLM: {remedy}.")
        cache = vllm_config.cache_config
        cache.mamba_cache_mode, cache.mamba_block_size = "none", vllm_config.model_config.max_model_len
        # what a call does depends on which requests it has: there is no one graph of it
        vllm_config.compilation_config.mode = CompilationMode.NONE
        vllm_config.compilation_config.cudagraph_mode = CUDAGraphMode.NONE


def refused_settings(vllm_config: Any) -> list[tuple[str, str]]:
    """What was asked for and cannot be done, each with what to do instead."""
    parallel, cache = vllm_config.parallel_config, vllm_config.cache_config
    whole = "a model runs whole: run several replicas"
    found = [
        ("tensor_parallel_size", parallel.tensor_parallel_size > 1, whole),
        ("pipeline_parallel_size", parallel.pipeline_parallel_size > 1, whole),
        (
            "enable_prefix_caching",
            cache.enable_prefix_caching,
            "a memory is kept at the end of a text alone, leave it out",
        ),
        ("speculative_config", vllm_config.speculative_config is not None, "no token can be taken back, leave it out"),
        (
            "enable_lora",
            vllm_config.lora_config is not None,
            "merge the adapter (`merge_and_unload`) and save the model",
        ),
        ("quantization", vllm_config.model_config.quantization is not None, "give a folder with plain weights"),
        ("kv_transfer_config", vllm_config.kv_transfer_config is not None, "a memory stays where it is, leave it out"),
    ]
    return [(setting, remedy) for setting, is_asked, remedy in found if is_asked]


__all__ = ["MemoryArchitecture", "MemorySettings", "refused_settings"]

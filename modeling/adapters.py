"""What PEFT asks of a model: https://github.com/huggingface/peft."""

import sys
from collections.abc import Sequence
from typing import Any

from torch import nn


def offer_lora_targets(model_type: str, targets: Sequence[str] | str) -> None:
    """Let a `LoraConfig` without `target_modules` adapt these modules, names or a pattern, in models of this type.

    PEFT looks for them in a table of its own. It is not imported for that, which takes seconds: models that are built after
    `import peft` are known to it. Memory around a base is of one type, whatever the base: what was built last counts.
    """
    if (table := _peft_targets()) is not None:
        table.pop(model_type, None)
        if targets:
            table[model_type] = targets if isinstance(targets, str) else list(targets)


def lora_targets_of(model_type: str) -> Sequence[str] | str:
    """What a `LoraConfig` without `target_modules` adapts in models of this type; nothing where PEFT does not know."""
    return (_peft_targets() or {}).get(model_type, ())


def _peft_targets() -> dict[str, list[str] | str] | None:
    """PEFT's table of what it adapts by types of models, where it is imported."""
    return getattr(sys.modules.get("peft.utils"), "TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING", None)


def without_adapters(model: Any) -> Any:
    """The model that the adapters of a `PeftModel` are in; any other model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def check_prompt_learning(model: nn.Module | None, with_memory: bool) -> None:
    """Refuse methods of PEFT that put virtual tokens before a text, where a model that remembers would read them wrongly.

    Args:
        model: what is trained or generates; anything but a `PeftModel` of such a method passes.
        with_memory: whether texts are read with the memory of earlier ones.
    """
    config = getattr(model, "active_peft_config", None)
    if config is None or not config.is_prompt_learning:
        return
    if config.peft_type in ("PREFIX_TUNING", "CARTRIDGE"):
        reason = "it uses a cache of transformers, which cannot hold this model's memory"
    elif with_memory:
        reason = (
            "its virtual tokens would come again before every segment, after what is remembered and into the memory, and "
            "`shift_labels` knows nothing of them"
        )
    else:
        return
    raise ValueError(
        f"`peft_type`={config.peft_type.value!r} cannot be used here: {reason}. Use LoRA, or prompt tuning without memory "
        "(docs/peft_trl.md)."
    )


__all__ = ["check_prompt_learning", "lora_targets_of", "offer_lora_targets", "without_adapters"]

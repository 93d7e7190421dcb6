"""`generate()` with memory: https://arxiv.org/abs/1901.02860, section 3.2. Each step reads one token."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from transformers.generation import (
    CompileConfig,
    GenerateBeamDecoderOnlyOutput,
    GenerateDecoderOnlyOutput,
    GenerationConfig,
    GenerationMixin,
    GenerationMode,
    StoppingCriteriaList,
)
from transformers.utils import ModelOutput

from transformers_xl.modeling.adapters import check_prompt_learning
from transformers_xl.modeling.checks import check_memory, check_row_reset
from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.memory_value import Memory, with_columns_of
from transformers_xl.modeling.memory.segment import document_starts
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel

# Tokens of a prompt that are read at once: with `same_length` all cuts give the same results.
PREFILL_CHUNK = 512


class WithMemory:
    """Memory of a generated text, as a property: a field would be copied into the answers of a pipeline."""

    past_key_values: Any  # a `MemoryCache`, or None

    @property
    def mems(self) -> Memory | None:
        """The memory after all but the last token of each sequence; pass it as `generate(..., mems=result.mems)`.

        The next call begins with `result.sequences[:, -1:]`. A row that ended before the others remembers nothing from its
        end on. None for a model without memory, and after beam search: the beams that ran last are not those that won. Read
        their sequences to continue them.
        """
        cache = self.past_key_values
        if cache is None or cache.memory is None or not cache.static:
            return None if cache is None else cache.memory
        return cache.memory.map(torch.clone)  # the cache writes to its own


class MemoryGenerateOutput(WithMemory, GenerateDecoderOnlyOutput):
    """Result of `generate(return_dict_in_generate=True)`, with `mems`."""


class MemoryGenerateBeamOutput(WithMemory, GenerateBeamDecoderOnlyOutput):
    """Result of beam search, whose `mems` are None."""


def check_unread_tokens(cache: MemoryCache, unread: int | None) -> None:
    """Raise a `ValueError` where a prompt has no `unread` tokens after those that `cache` holds."""
    if unread is not None and unread < 1:
        raise ValueError(
            f"`past_key_values` holds {int(cache.num_tokens)} tokens, and the prompt has none after them: give all tokens "
            "from the beginning, or the new ones alone with `mems=` in the place of the cache."
        )


class _NotingStoppingCriteria(StoppingCriteriaList):
    """Stopping criteria that tell the memory which rows have ended while others continue."""

    def __init__(self, criteria: StoppingCriteriaList, cache: MemoryCache):
        super().__init__(criteria)
        self.cache = cache

    def __call__(self, input_ids: torch.LongTensor, scores, **kwargs) -> torch.BoolTensor:
        done = super().__call__(input_ids, scores, **kwargs)
        self.cache.end_rows(done)
        return done


class MemoryGenerationMixin(MemoryPreTrainedModel, GenerationMixin):
    """`GenerationMixin` for a model with memory."""

    model: MemoryModel
    generation_step: Any = None  # what `compile_generation` made
    result_classes: tuple[type[ModelOutput], type[ModelOutput]] = (MemoryGenerateOutput, MemoryGenerateBeamOutput)

    def generate(
        self, inputs: torch.Tensor | None = None, generation_config: GenerationConfig | None = None, **kwargs
    ) -> ModelOutput | torch.Tensor:
        r"""
        All arguments of transformers' `generate()`, and:

        Args:
            mems ([`Memory`], *optional*):
                What to remember before the prompt: `mems` of a model's output, or of an earlier result. Nothing in it is
                changed: the same memory can be continued in several ways.
            reset (`torch.Tensor` of shape `(batch,)`, *optional*):
                Bool, rows that forget `mems` before the prompt.

        Returns:
            Token ids `(batch, length)`, or with `return_dict_in_generate=True` a result that has `.mems` too.

        Raises:
            ValueError: a cache that cannot hold the memory, a `reset` of another shape, or `mems` of another model.
        """
        if not self.can_generate():  # here: transformers makes a new class of a loaded one that overrides the method
            raise ValueError(
                f"{type(self).__name__} cannot generate: its tokens see what comes after them. Use the causal model."
            )
        configs = [kwargs, vars(generation_config or GenerationConfig()), vars(self.generation_config)]
        self._refuse_caches(configs)
        if kwargs.get("mems") is None:
            kwargs.pop("mems", None)  # transformers takes any key of this name for a cache
        # a `PeftModel` puts its own method over this one while it generates
        caller = getattr(self.prepare_inputs_for_generation, "__self__", self)
        check_prompt_learning(caller, "mems" in kwargs or kwargs.get("past_key_values") is not None)
        check_row_reset(kwargs.get("reset"))
        if self._returns_ids_alone(configs):
            with torch.inference_mode():  # autograd's books cost some twentieth of a token
                ids: Any = super().generate(inputs, generation_config=generation_config, **kwargs)
            return ids.clone()  # such a tensor could not be trained on
        try:
            result: Any = super().generate(inputs, generation_config=generation_config, **kwargs)
        except BaseException:  # Ctrl-C too: rows that had ended would stay so
            if isinstance(kwargs.get("past_key_values"), MemoryCache):
                kwargs["past_key_values"].finish()
            raise
        is_result = isinstance(result, ModelOutput)
        cache = result.past_key_values if is_result else kwargs.get("past_key_values")
        if isinstance(cache, MemoryCache) and not getattr(generation_config, "is_assistant", False):
            cache.finish()  # an assistant's next call takes tokens back
        if not is_result:
            return result
        has_beams = "beam_indices" in type(result).__dataclass_fields__
        kept = cache if isinstance(cache, MemoryCache) and not has_beams else None
        return self.result_classes[has_beams](**{**result, "past_key_values": kept})

    def _returns_ids_alone(self, configs: list[dict]) -> bool:
        """Whether no other tensor that is made on the way can be seen afterwards."""
        given = ("return_dict_in_generate", "past_key_values", "streamer", "assistant_model", "cache_implementation")
        values = [config.get(name) for config in configs for name in given]
        asked = any(
            value is not None and value is not False for value in values
        )  # a cache without layers has no length
        return not asked and not any(getattr(module, "_forward_hooks", True) for module in self.modules())

    def _refuse_caches(self, configs: list[dict]) -> None:
        kind = next((c["cache_implementation"] for c in configs if c.get("cache_implementation") is not None), None)
        possible = (None, "dynamic", "static") if self._can_compile_fullgraph else (None, "dynamic")
        if kind not in possible:
            remedy = "leave it out, or use 'static'" if "static" in possible else "leave it out"
            raise ValueError(
                f"`cache_implementation`={kind!r} cannot hold this model's memory: {remedy}. The memory never grows beyond "
                f"`mem_len`={self.config.mem_len} positions."
            )

    def _valid_auto_compile_criteria(self, model_kwargs: dict, generation_config: GenerationConfig) -> bool:
        step = None if generation_config.disable_compile else self.generation_step
        if step is not None and step.fits(model_kwargs.get("past_key_values")):
            return True
        return super()._valid_auto_compile_criteria(model_kwargs, generation_config)

    def get_compiled_call(self, compile_config: CompileConfig | None) -> Callable:
        if self.generation_step is not None and self.device.type == "cpu":
            return self.generation_step.of(self)
        return super().get_compiled_call(compile_config)

    def generate_batch(self, *args, **kwargs):
        raise ValueError(
            "Continuous batching uses a paged cache, which cannot hold this model's memory: use `generate()`."
        )

    init_continuous_batching = continuous_batching_context_manager = generate_batch

    def _prepare_cache_for_generation(
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict,
        generation_mode: GenerationMode,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        if self.config.mem_len == 0:
            if model_kwargs.get("inputs_embeds") is not None:
                raise ValueError(
                    "`inputs_embeds` cannot be read again at every token: with `mem_len`=0 give `input_ids`."
                )
            generation_config.use_cache = False
        if generation_config.use_cache is False:
            return  # every step reads `mems` and the whole text again
        cache, mems = model_kwargs.get("past_key_values"), model_kwargs.pop("mems", None)
        rows = batch_size * max(generation_config.num_beams, generation_config.num_return_sequences)
        check_memory(self.model, rows, cache, mems)
        check_row_reset(reset := model_kwargs.pop("reset", None), rows)
        if cache is None:
            step = None if self.training else self.generation_step
            by_step = step is not None and step.reads(generation_config, generation_mode, rows)
            static = generation_config.cache_implementation == "static" or by_step
            new = self.model.new_memory(rows, torch.empty(0, dtype=self.dtype, device=self.device), static)
            if mems is not None:
                new = with_columns_of(mems, new) if static else mems
            cache = model_kwargs["past_key_values"] = MemoryCache(new, static)
        else:
            cache._is_user_defined = True
            if cache.static and cache.memory is not None:  # all columns from the beginning
                new = self.model.new_memory(rows, torch.empty(0, dtype=self.dtype, device=self.device), static=True)
                if any(a.num_columns != b.num_columns for a, b in zip(cache.memory.layers, new.layers, strict=True)):
                    cache.memory = with_columns_of(cache.memory, new)
        if reset is not None and cache.memory is not None:
            cache.memory = self.model.forget(cache.memory, reset)
        if generation_config.is_assistant:
            cache.activate_past_recording()

    def _sample(
        self, input_ids: torch.LongTensor, *args, stopping_criteria: StoppingCriteriaList, **kwargs
    ) -> ModelOutput | torch.LongTensor:
        cache: Any = kwargs.get("past_key_values")
        if isinstance(cache, MemoryCache):
            stopping_criteria = _NotingStoppingCriteria(stopping_criteria, cache)
        return super()._sample(input_ids, *args, stopping_criteria=stopping_criteria, **kwargs)

    def _assisted_decoding(self, input_ids: torch.LongTensor, *args, **kwargs) -> ModelOutput | torch.LongTensor:
        cache, mask = kwargs.get("past_key_values"), kwargs.get("attention_mask")
        length = getattr(kwargs["generation_config"], "_mask_length", -1) if mask is None else mask.shape[1]
        if isinstance(cache, MemoryCache) and length == input_ids.shape[1]:
            # the prompt is all of the text; in other modes transformers cuts off what was read before
            cache.num_repeated = int(cache.num_tokens)
            check_unread_tokens(cache, length - cache.num_repeated)
        return super()._assisted_decoding(input_ids, *args, **kwargs)

    def _expand_inputs_for_generation(self, expand_size: int = 1, **kwargs):
        input_ids, model_kwargs = super()._expand_inputs_for_generation(expand_size=expand_size, **kwargs)
        for name in ("mems", "source_mems"):  # transformers repeats tensors only
            if expand_size > 1 and model_kwargs.get(name) is not None:
                model_kwargs[name] = model_kwargs[name].repeat(expand_size)
        return input_ids, model_kwargs

    def _update_model_kwargs_for_generation(self, outputs: ModelOutput, model_kwargs: dict, **kwargs) -> dict:
        if "past_key_values" not in outputs:  # transformers would take `mems` for a cache
            outputs = type(outputs)(**{name: value for name, value in outputs.items() if name != "mems"})
        return super()._update_model_kwargs_for_generation(outputs, model_kwargs, **kwargs)

    @functools.wraps(GenerationMixin.prepare_inputs_for_generation)  # transformers looks at its arguments
    def prepare_inputs_for_generation(self, *args, **kwargs) -> dict:
        """As in transformers, but only the last piece of a long prompt: the others are read here."""
        for name in ("tokenizer", "assistant_tokenizer", "assistant_model"):
            kwargs.pop(name, None)  # transformers passes what decodes stop strings to the model, too
        cache = kwargs.get("past_key_values")
        if isinstance(cache, MemoryCache) and cache.num_repeated and kwargs.get("next_sequence_length") is None:
            ids = args[0] if args else kwargs["input_ids"]
            kwargs["next_sequence_length"], cache.num_repeated = ids.shape[1] - cache.num_repeated, 0
        if isinstance(cache, MemoryCache):
            check_unread_tokens(cache, kwargs.get("next_sequence_length"))
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)
        cache = inputs.get("past_key_values")
        name = "input_ids" if inputs.get("inputs_embeds") is None else "inputs_embeds"
        length = inputs[name].shape[1]
        is_captured = inputs.get("output_attentions") or inputs.get("output_hidden_states")
        if length <= PREFILL_CHUNK or not isinstance(cache, MemoryCache) or not self.config.same_length or is_captured:
            return inputs
        self._say_documents(inputs, length)
        given = [key for key in (name, "attention_mask", "reset") if inputs.get(key) is not None]
        # the last piece is a whole one: assisted decoding wants the logits of several tokens
        cuts = tuple(range(length % PREFILL_CHUNK or PREFILL_CHUNK, length, PREFILL_CHUNK))
        pieces = zip(*(inputs[key][:, -length:].tensor_split(cuts, dim=1) for key in given), strict=True)
        *earlier, last = [dict(zip(given, piece, strict=True)) for piece in pieces]
        for piece in earlier:
            self(**piece, past_key_values=cache, logits_to_keep=1)
        inputs |= last
        return inputs

    @staticmethod
    def _say_documents(inputs: dict, length: int) -> None:
        """Say by `reset` where documents begin, in the place of `position_ids`, whose differences a cut would part."""
        positions, mask = inputs.pop("position_ids", None), inputs.get("attention_mask")
        if positions is None:
            return
        starts = document_starts(positions[:, -length:], None if mask is None else mask[:, -length:].bool())
        if bool(starts.any()):
            inputs["reset"] = starts

    def _prepare_position_ids_for_generation(self, inputs_tensor: torch.Tensor, model_kwargs: dict) -> None:
        """None: the memory counts distances itself. Positions that the user passes say where documents begin."""

    @staticmethod
    def create_masks_for_generate(inputs_embeds: torch.Tensor, attention_mask: torch.Tensor | None, **kwargs):
        """Only the new columns: a static cache then sees masks of one shape. The model makes its own masks of them."""
        return None if attention_mask is None else attention_mask[:, -inputs_embeds.shape[1] :]

    @staticmethod
    def _reorder_cache(past_key_values, beam_idx: torch.LongTensor):
        # without a cache it is the start memory that stands here, the same for all beams of a row
        if isinstance(past_key_values, MemoryCache):
            past_key_values.reorder_cache(beam_idx)
        return past_key_values


__all__ = ["MemoryGenerateBeamOutput", "MemoryGenerateOutput", "MemoryGenerationMixin"]

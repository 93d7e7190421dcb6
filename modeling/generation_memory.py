"""`generate()` with memory: https://arxiv.org/abs/1901.02860, section 3.2, at the cost of one token per token."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

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
from transformers_xl.modeling.checks import check_memory, check_one_form
from transformers_xl.modeling.memory_cache import MemoryCache
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel

# Tokens of a prompt that are read at once: with `same_length` all cuts give the same results.
PREFILL_CHUNK = 512


class _WithMemory:
    """Memory of a generated text, as properties: a field would be copied into the answers of a pipeline."""

    past_key_values: Any  # a `MemoryCache`, or None

    @property
    def mems(self) -> MemoryCache | None:
        """The memory after all but the last token of each sequence; hand it on as `generate(..., mems=result.mems)`.

        The next call begins with `result.sequences[:, -1:]`. None for a model without memory. A row that ended before
        the others remembers nothing from its end on.
        """
        return self.past_key_values

    @property
    def mems_mask(self) -> torch.Tensor | None:
        """Bool `(batch, positions)`, which positions of the memory are real; None when all are. `mems` knows it too."""
        return None if self.past_key_values is None else self.past_key_values.mask


class MemoryGenerateOutput(_WithMemory, GenerateDecoderOnlyOutput):
    """Result of `generate(return_dict_in_generate=True)`, with `mems`."""


class MemoryGenerateBeamOutput(_WithMemory, GenerateBeamDecoderOnlyOutput):
    """Result of beam search, with `mems` of the returned sequences."""


class _BeamStart(NamedTuple):
    """What beam search started from, one row per beam."""

    cache: MemoryCache
    already_read: int
    attention_mask: torch.Tensor | None
    inputs_embeds: torch.Tensor | None
    position_ids: torch.Tensor | None


class _NotingStoppingCriteria(StoppingCriteriaList):
    """Stopping criteria that tell the memory which rows have ended while others continue."""

    def __init__(self, criteria: StoppingCriteriaList, cache: MemoryCache):
        super().__init__(criteria)
        self.cache = cache

    def __call__(self, input_ids: torch.LongTensor, scores, **kwargs) -> torch.BoolTensor:
        done = super().__call__(input_ids, scores, **kwargs)
        ended = done if self.cache.ended is None else done | self.cache.ended
        if self.cache.static or bool(ended.any()):
            self.cache.ended = ended
        return done


class MemoryGenerationMixin(MemoryPreTrainedModel, GenerationMixin):
    """`GenerationMixin` for a model with memory."""

    model: MemoryModel
    generation_step: Any = None  # what `compile_generation` made

    def generate(
        self, inputs: torch.Tensor | None = None, generation_config: GenerationConfig | None = None, **kwargs
    ) -> ModelOutput | torch.Tensor:
        r"""
        Everything of transformers' `generate()`, and:

        Args:
            mems (`tuple[torch.Tensor]` or [`MemoryCache`], *optional*):
                What to remember before the prompt: `mems` of a model's output, or of an earlier result. Nothing is changed
                in place: the same memory can be continued in several ways.
            mems_mask (`torch.Tensor` of shape `(batch, <=mem_len)`, *optional*):
                Which positions of `mems` are real.
            reset (`torch.Tensor` of shape `(batch,)`, *optional*):
                Bool, rows that forget `mems` before the prompt.

        Returns:
            Token ids `(batch, length)`, or with `return_dict_in_generate=True` a result that has `.mems` too.
        """
        configs = [kwargs, vars(generation_config or GenerationConfig()), vars(self.generation_config)]
        self._refuse_caches(configs)
        mems = kwargs.get("mems")
        if mems is None and "mems" in kwargs:
            del kwargs["mems"]  # transformers takes any key of this name for a cache
        check_one_form(mems, kwargs.get("past_key_values"))
        # a `PeftModel` puts its own method over this one while it generates
        caller = getattr(self.prepare_inputs_for_generation, "__self__", self)
        check_prompt_learning(caller, mems is not None or kwargs.get("past_key_values") is not None)
        reset = kwargs.get("reset")
        if reset is not None and reset.dim() != 1:
            raise ValueError(
                f"`reset` has shape {tuple(reset.shape)}: `generate()` takes (batch,), rows that start a new text."
            )

        if self._returns_ids_alone(configs):
            with torch.inference_mode():  # autograd's books cost some twentieth of a token
                ids: Any = super().generate(inputs, generation_config=generation_config, **kwargs)
            return ids.clone()  # such a tensor could not be trained on
        result: Any = super().generate(inputs, generation_config=generation_config, **kwargs)
        returned = isinstance(result, ModelOutput)
        cache = result.past_key_values if returned else kwargs.get("past_key_values")
        cache = cache if isinstance(cache, MemoryCache) else None
        start = None if cache is None else cache.start
        if cache is not None and not getattr(generation_config, "is_assistant", False):
            cache.finish()  # an assistant's next call takes tokens back
        if not returned:
            return result
        if isinstance(result, GenerateBeamDecoderOnlyOutput):
            result = MemoryGenerateBeamOutput(**result)
            cache = None if start is None else self._rebuild_cache(result, start)
        else:
            result = MemoryGenerateOutput(**result)
        result.past_key_values = cache
        return result

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
        if kind not in (None, "dynamic", "static"):
            raise ValueError(
                f"`cache_implementation`={kind!r} cannot hold this model's memory: leave it out, or use 'static'. The "
                f"memory never grows beyond `mem_len`={self.config.mem_len} positions."
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
        reset = model_kwargs.pop("reset", None)
        cache = model_kwargs.get("past_key_values")
        rows = batch_size * max(generation_config.num_beams, generation_config.num_return_sequences)
        by_step = self._reads_by_step(generation_config, generation_mode, rows, model_kwargs.get("mems"))
        if cache is None:
            cache = self._start_cache(
                model_kwargs.pop("mems", None),
                model_kwargs.pop("mems_mask", None),
                rows=rows,
                static=generation_config.cache_implementation == "static" or by_step,
            )
            model_kwargs["past_key_values"] = cache
        else:
            cache._is_user_defined = True
        if reset is not None:
            cache.memory.reset_rows(reset)
        if generation_config.is_assistant:
            cache.activate_past_recording()
        if generation_mode in (GenerationMode.BEAM_SEARCH, GenerationMode.BEAM_SAMPLE):
            prompt = [model_kwargs.get(name) for name in _BeamStart._fields[2:]]
            cache.start = _BeamStart(cache.copy(), int(cache.get_seq_length()), *prompt)
        elif generation_mode in (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH):
            vars(generation_config)["_memory_cache"] = (
                cache  # for `_get_stopping_criteria`; this config is private to the call
            )

    def _reads_by_step(
        self, generation_config: GenerationConfig, generation_mode: GenerationMode, rows: int, mems: Any
    ) -> bool:
        """Whether a compiled step is there for a call that names no cache. The memory of a result keeps its form."""
        if generation_config.cache_implementation is not None:
            return False
        if isinstance(mems, MemoryCache):
            return mems.static
        step, modes = self.generation_step, (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH)
        is_off = generation_config.disable_compile or generation_config.is_assistant or self.training
        return step is not None and step.batch == rows and generation_mode in modes and not is_off

    def _start_cache(
        self,
        mems: tuple[torch.Tensor, ...] | MemoryCache | None,
        mems_mask: torch.Tensor | None,
        rows: int,
        static: bool,
    ) -> MemoryCache:
        check_memory(self.model, rows, None, mems, mems_mask)
        if not isinstance(mems, MemoryCache):
            like = torch.empty(0, dtype=self.dtype, device=self.device)
            with torch.no_grad():
                return self.model.make_cache(mems, mems_mask, like, static)
        if mems.static != static:
            raise ValueError(
                "`mems` was made with another `cache_implementation`: continue with the one it was made with."
            )
        return mems.copy(mems_mask)

    def _get_stopping_criteria(self, generation_config: GenerationConfig, *args, **kwargs) -> StoppingCriteriaList:
        criteria = super()._get_stopping_criteria(generation_config, *args, **kwargs)
        cache = vars(generation_config).pop("_memory_cache", None)
        return criteria if cache is None else _NotingStoppingCriteria(criteria, cache)

    def _expand_inputs_for_generation(self, expand_size: int = 1, **kwargs):
        input_ids, model_kwargs = super()._expand_inputs_for_generation(expand_size=expand_size, **kwargs)
        mems = model_kwargs.get("mems")  # transformers repeats tensors only
        if expand_size > 1 and isinstance(mems, MemoryCache):
            model_kwargs["mems"] = mems.copy()
            model_kwargs["mems"].batch_repeat_interleave(expand_size)
        elif expand_size > 1 and mems is not None:
            model_kwargs["mems"] = tuple(memory.repeat_interleave(expand_size, dim=0) for memory in mems)
        return input_ids, model_kwargs

    def _update_model_kwargs_for_generation(self, outputs: ModelOutput, model_kwargs: dict, **kwargs) -> dict:
        if "mems" in outputs:  # transformers would take the value of the memory for a cache
            outputs = type(outputs)(**{name: value for name, value in outputs.items() if name != "mems"})
        return super()._update_model_kwargs_for_generation(outputs, model_kwargs, **kwargs)

    @functools.wraps(GenerationMixin.prepare_inputs_for_generation)  # transformers looks at its arguments
    def prepare_inputs_for_generation(self, *args, **kwargs) -> dict:
        """As in transformers, but only the last piece of a long prompt: the others are read here."""
        for name in ("tokenizer", "assistant_tokenizer", "assistant_model"):
            kwargs.pop(name, None)  # transformers hands what decodes stop strings to the model, too
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)
        cache = inputs.get("past_key_values")
        name = "input_ids" if inputs.get("inputs_embeds") is None else "inputs_embeds"
        length = inputs[name].shape[1]
        is_captured = inputs.get("output_attentions") or inputs.get("output_hidden_states")
        if length <= PREFILL_CHUNK or not isinstance(cache, MemoryCache) or not self.config.same_length or is_captured:
            return inputs
        front = length - PREFILL_CHUNK
        given = [key for key in (name, "attention_mask", "position_ids") if inputs.get(key) is not None]
        self._prefill_memory(cache, {key: inputs[key][:, -length:][:, :front] for key in given}, PREFILL_CHUNK)
        if cache.records_past:
            cache.crop(0)  # no token of a prompt is taken back
        inputs |= {key: inputs[key][:, front:] for key in (name, "position_ids") if key in given}
        return inputs

    def _prepare_position_ids_for_generation(self, inputs_tensor: torch.Tensor, model_kwargs: dict) -> None:
        """None: the memory counts distances itself. Positions that the user hands in say where documents begin."""

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

    @torch.no_grad()
    def _rebuild_cache(self, result: MemoryGenerateBeamOutput, start: _BeamStart) -> MemoryCache:
        """The memory of the sequences that won, which is not that of the beams that ran last: they are read once more."""
        beam_indices = result["beam_indices"]
        rows = beam_indices[:, 0].long()  # the beam that a sequence began in: its start is that of its row
        num_generated = (beam_indices >= 0).sum(dim=1, keepdim=True)
        generated_length = beam_indices.shape[1]
        prompt_ids, generated_ids = result.sequences.tensor_split(
            [result.sequences.shape[1] - generated_length], dim=1
        )
        generated_ids = generated_ids[:, :-1]
        # a sequence's last token is not remembered, and what pads a shorter sequence never is
        columns = torch.arange(generated_length - 1, device=num_generated.device)
        generated_mask = columns < num_generated - 1

        cache = start.cache
        cache.batch_select_indices(rows)
        if start.inputs_embeds is not None:
            prompt = {"inputs_embeds": start.inputs_embeds[rows]}
            length = start.inputs_embeds.shape[1]
        else:
            already_read = start.already_read if start.already_read < prompt_ids.shape[1] else 0
            prompt = {"input_ids": prompt_ids[:, already_read:]}
            length = prompt["input_ids"].shape[1]
        for name in ("attention_mask", "position_ids"):
            if getattr(start, name) is not None:
                prompt[name] = getattr(start, name)[rows, -length:]
        # with `same_length=False` one call is one segment: the prompt, and then a token per call
        self._prefill_memory(cache, prompt, PREFILL_CHUNK if self.config.same_length else length)
        generated = {"input_ids": generated_ids, "attention_mask": generated_mask}
        self._prefill_memory(cache, generated, PREFILL_CHUNK if self.config.same_length else 1)
        return cache

    def _prefill_memory(self, cache: MemoryCache, inputs: dict[str, torch.Tensor], piece: int) -> None:
        """Read `inputs`, each `(batch, length, ...)`, into the cache, at most `piece` tokens at once."""
        length = next(iter(inputs.values())).shape[1]
        for start in range(0, length, piece):
            here = {name: value[:, start : start + piece] for name, value in inputs.items()}
            self(**here, past_key_values=cache, logits_to_keep=1)


__all__ = ["MemoryGenerateBeamOutput", "MemoryGenerateOutput", "MemoryGenerationMixin"]

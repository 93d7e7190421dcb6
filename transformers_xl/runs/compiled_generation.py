"""A token of generation as machine code: AOTInductor compiles one step, `generate()` runs it.

A step is a function of values (`modeling.exporting`), so that one graph of fixed shapes serves a text of any length. What
is compiled has no weights in it: it reads those of the model, and follows them when they change.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel
from transformers.generation import GenerationConfig, GenerationMode
from transformers.utils import ModelOutput, output_capturing

from transformers_xl.files.atomic_write import atomic_write
from transformers_xl.modeling.exporting import ExportableStep, export_module, step_memory
from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.memory_file import adapter_states, result_fields
from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.modeling.outputs import MemoryHeadOutput
from transformers_xl.runs.ring_step import RingMemory, Rings, RingStep, with_rows_of


def compile_generation(
    model: PreTrainedModel, batch: int = 1, folder: str | os.PathLike | None = None
) -> "GenerationStep":
    """Compile the step that reads one token, and let `model.generate()` use it.

    ```python
    model = AutoModelForCausalLM.from_pretrained("my-model").eval()
    compile_generation(model)  # a C++ compiler runs, unless the same graph was compiled before
    model.generate(**inputs, max_new_tokens=10_000)
    ```

    `generate()` reads a prompt as before, and each further token by the compiled step, from a memory of fixed shape.
    Another number of rows, beams, assisted decoding and a model in training mode run as before. Tried with torch 2.13.

    Args:
        model: a language model on the CPU, in evaluation mode, of those that
            [`~transformers_xl.modeling.exporting.export_step`] exports.
        batch: rows of the batches to come.
        folder: where compiled steps are kept, by graph, types, processor and version of torch;
            `~/.cache/transformers-xl/steps` when not given. What lies there is run: give no folder that others write.

    Raises:
        ValueError: the model is in training mode, on another device, has forward hooks, or cannot be exported.
        RuntimeError: there is no C++ compiler.
    """
    if model.device.type != "cpu":
        raise ValueError(
            f"`model` is on {model.device}: this compiles for the CPU. On a GPU `generate(cache_implementation='static')` "
            "compiles by itself."
        )
    if _has_hooks(model):
        raise ValueError("`model` has forward hooks, which would stand in the code: remove them first.")
    module, memory = step_of(model, batch)
    program = export_module(module, memory)
    path = (default_folder() if folder is None else Path(folder)) / f"{_name_of(program)}.pt2"
    if not path.is_file():
        options = {"aot_inductor.package_constants_in_so": False}
        with atomic_write(path) as new, torch.no_grad():
            torch._inductor.aoti_compile_and_package(program, package_path=str(new), inductor_configs=options)
    step = GenerationStep(path, program, module, model, memory, batch)
    model.generation_step = step  # type: ignore[assignment]  # a place for it: `MemoryGenerationMixin`
    return step


class GenerationStep:
    """A compiled step of `batch` rows. `generate()` asks whether it `fits`, and calls what `of` returns. A copy of the
    model has one of its own, and a pickled one does without."""

    def __init__(
        self,
        path: Path,
        program: ExportedProgram,
        module: ExportableStep,
        model: PreTrainedModel,
        memory: Memory | Rings,
        batch: int,
    ):
        self.path, self.batch = path, batch
        self.package: Any = torch._inductor.aoti_load_package(str(path))
        self.made_by_export = dict(program.constants)  # tensors that stand in the model's code, no weights
        self.weights: dict[str, torch.Tensor] = {}  # the package reads them where they are
        self.strides = {name: each.stride() for name, each in program.state_dict.items()}
        self.compiled_for = _described(module.state_dict(keep_vars=True), memory)
        self.settings = _settings_of(model)

    def __deepcopy__(self, memo: dict) -> "GenerationStep | None":
        """A package reads the weights of one model at a time."""
        if not self.path.is_file():
            return None
        other = object.__new__(type(self))
        vars(other).update(vars(self) | {"package": torch._inductor.aoti_load_package(str(self.path)), "weights": {}})
        return other

    def __reduce__(self) -> tuple:
        return type(None), ()

    def reads(self, config: GenerationConfig, mode: GenerationMode, rows: int) -> bool:
        """Whether it reads the tokens of a `generate()` of so many rows that names no cache."""
        is_off = config.disable_compile or config.is_assistant or config.cache_implementation is not None
        return rows == self.batch and mode in (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH) and not is_off

    def fits(self, cache: Any) -> bool:
        """Whether it can read a token into this cache."""
        return isinstance(cache, MemoryCache) and cache.static and cache.batch_size == self.batch

    def of(self, model: PreTrainedModel) -> Callable[..., ModelOutput]:
        """The step with the weights that the model has now: call it as the model, for the rest of a `generate()`.

        Raises:
            ValueError: the model has other weights, in number, shape or type, or other settings than when it was compiled.
                Compiled code would read them all the same.
        """
        # compiled code calls no hooks, and reads no other types than it was compiled for
        if model.training or torch.is_autocast_enabled("cpu") or _has_hooks(model):
            return model.__call__
        step, memory = step_of(model, self.batch)
        if (
            _described(step.state_dict(keep_vars=True), memory) != self.compiled_for
            or _settings_of(model) != self.settings
        ):
            raise ValueError(
                "`generation_step` was compiled for another model: this one has other layers, adapters, types or fields of "
                "its config, such as `mem_len`. Call `compile_generation(model)` "
                "again, or set `model.generation_step = None`."
            )
        own = self.made_by_export | step.state_dict(keep_vars=True)
        self.weights = {name: self._laid_out(name, own[name]) for name in self.package.get_constant_fqns()}
        self.package.load_constants(self.weights, check_full_update=True, user_managed=True)
        return partial(self.read, model)

    def _laid_out(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """A weight with the strides that it was compiled with: compiled code knows no others."""
        strides = self.strides.get(name, weight.stride())
        if weight.stride() == strides:
            return weight
        return torch.empty_strided(weight.shape, strides, dtype=weight.dtype).copy_(weight.detach())

    def read(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        past_key_values: MemoryCache | None = None,
        **inputs: Any,
    ) -> ModelOutput:
        """The model's output for `input_ids` `(batch, 1)`; what is no such token is read by the model itself."""
        shown = inputs.get("output_hidden_states") or inputs.get("output_attentions")
        is_token = input_ids is not None and tuple(input_ids.shape) == (self.batch, 1)
        if not is_token or shown or not self.fits(past_key_values) or not cast(Any, past_key_values).num_tokens:
            return model(input_ids=input_ids, past_key_values=past_key_values, **inputs)
        cache: Any = past_key_values
        if RingStep.fits(model):
            ring = cache.ring or RingMemory(cache.memory, model.config.sliding_window)
            ring.note_ended(cache.ended)
            logits, after = self.package(input_ids, ring.rings)
            ring.close(after)
            cache.ring = ring
            cache.num_tokens += 1
        else:
            logits, memory = self.package(input_ids, cache.memory)
            if cache.ended is not None and bool(cache.ended.any()):
                memory = with_rows_of(cache.memory, memory, cache.ended)
            cache.update_memory(memory, 1)
        return MemoryHeadOutput(logits=logits[:, None], past_key_values=cache)


def step_of(model: PreTrainedModel, batch: int) -> tuple[ExportableStep, Memory | Rings]:
    """The step that is compiled, and a memory for it."""
    memory = step_memory(model, batch)
    if RingStep.fits(model):
        return RingStep(model, memory), RingMemory(memory, model.config.sliding_window).rings
    return ExportableStep(model, memory), memory


def default_folder() -> Path:
    """Where compiled steps are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "transformers-xl" / "steps"


def _name_of(program: ExportedProgram) -> str:
    """What a compiled step depends on: the graph with its shapes and types, torch, and what the processor can do."""
    parts = (str(program), torch.__version__, torch.backends.cpu.get_cpu_capability())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _described(weights: Mapping[str, torch.Tensor], memory: Memory | Rings) -> list[tuple]:
    """What code is compiled for: names, shapes and types of weights, which of them are one tensor, and the memory."""
    first: dict[tuple, str] = {}
    of_weights = [
        (name, tuple(each.shape), each.dtype, first.setdefault((each.data_ptr(), each.shape), name))
        for name, each in sorted(weights.items())
    ]
    return [*of_weights, *((tuple(each.shape), each.dtype) for each in tree_leaves(memory))]


def _has_hooks(model: PreTrainedModel) -> bool:
    """Whether somebody looks at what a module reads or says. transformers' own hooks record what a call asks for."""
    hooks = (
        hook for part in model.modules() for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
    )
    return any(getattr(hook, "__module__", None) != output_capturing.__name__ for hook in hooks)


def _settings_of(model: PreTrainedModel) -> str:
    """What stands in compiled code and is no tensor: fields of the config, and which adapters of PEFT are on, merged, and
    how much each counts."""
    return json.dumps([result_fields(model.config), adapter_states(model)])


__all__ = ["GenerationStep", "compile_generation"]

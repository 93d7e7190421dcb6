"""What a forward pass refuses: a `ValueError` names the argument, what was given and what would be right."""

from typing import Any

import torch
from transformers import Cache, PreTrainedModel

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.memory.memory_layout import MemoryLayout
from transformers_xl.modeling.memory_cache import MemoryCache

# what transformers hands to every model, and what a forward pass here reads
KEYWORDS = frozenset({"num_items_in_batch", "output_attentions", "output_hidden_states", "return_dict"})
PACKING_ARGUMENTS = frozenset({"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"})
PACKING = "say where documents begin with `position_ids` that start again, or with `reset` of shape (batch, length)"
REMEDIES = {
    **dict.fromkeys(PACKING_ARGUMENTS, PACKING),
    "token_type_ids": "this model has no token types, call the tokenizer with `return_token_type_ids=False`",
    "cache_position": "the memory counts its positions itself, leave it out",
    "head_mask": "no head can be switched off, leave it out",
    "is_causal": "who sees whom belongs to the architecture, leave it out",
    "output_router_logits": "the loss of a router is not part of this model's (to TRL say `router_aux_loss_coef`=0.0)",
}


def check_keywords(kwargs: dict, extra: tuple[str, ...] = ()) -> None:
    """Check that a call has no argument that would be ignored. `extra` are those of a variant."""
    for name, value in kwargs.items():
        if value is not None and name not in KEYWORDS and name not in extra:
            remedy = REMEDIES.get(name, "correct its spelling or leave it out")
            raise ValueError(f"`{name}` is not an argument that this model reads: {remedy}.")


def drop_packing(kwargs: dict, position_ids: torch.Tensor | None) -> dict:
    """`kwargs` without what collators give beside `position_ids` (B, T) to kernels that want packed rows in other words.

    Without `position_ids` they stay, and are refused like all that would be ignored.

    Raises:
        ValueError: they name other places where documents begin.
    """
    if position_ids is None or not PACKING_ARGUMENTS & set(kwargs):
        return kwargs
    begins = torch.ones_like(position_ids, dtype=torch.bool)
    begins[:, 1:] = position_ids.diff(dim=1) != 1
    starts = torch.cat([begins.flatten().nonzero().flatten().cpu(), torch.tensor([begins.numel()])])
    for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
        if (ends := kwargs.get(name)) is not None and ends.tolist() != starts.tolist():
            raise _other_documents(f"`{name}`")
    if (numbers := kwargs.get("seq_idx")) is not None and (
        numbers.shape != begins.shape or not torch.equal(numbers.diff(dim=1) != 0, begins[:, 1:])
    ):
        raise _other_documents("`seq_idx`")
    longest = int(starts.diff().max())
    for name in ("max_length_q", "max_length_k"):
        if (bound := kwargs.get(name)) is not None and bound < longest:
            raise _other_documents(f"`{name}`={int(bound)}, where a document has {longest} tokens,")
    return {name: value for name, value in kwargs.items() if name not in PACKING_ARGUMENTS}


def _other_documents(argument: str) -> ValueError:
    return ValueError(
        f"{argument} marks other starts of documents than `position_ids`: leave it out, or give both as one "
        "collator makes them."
    )


def check_inputs(
    config: MemoryConfig,
    input_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    reset: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    has_cache: bool,
) -> tuple[int, int]:
    """Check the shapes of a segment's arguments; batch and length of the segment."""
    name, inputs, dims = ("input_ids", input_ids, 2) if inputs_embeds is None else ("inputs_embeds", inputs_embeds, 3)
    if inputs is None or (input_ids is not None and inputs_embeds is not None):
        raise ValueError("Exactly one of `input_ids` and `inputs_embeds` must be given.")
    if inputs.dim() != dims or 0 in inputs.shape:
        wanted = "(batch, length)" if dims == 2 else "(batch, length, hidden_size)"
        raise ValueError(f"`{name}` has shape {tuple(inputs.shape)}: it must be {wanted}, each at least 1.")
    batch, length = inputs.shape[:2]
    if inputs_embeds is not None and inputs_embeds.shape[2] != config.embedding_width:
        raise ValueError(
            f"`inputs_embeds` has width {inputs_embeds.shape[2]}: with `hidden_size`={config.hidden_size} it must be "
            f"{config.embedding_width}, as `get_input_embeddings()` makes them."
        )
    if isinstance(attention_mask, dict):
        raise ValueError(
            "`attention_mask` is a dict of masks: this model makes its own, give (batch, length), 1 for real tokens."
        )
    if attention_mask is not None:
        fits = attention_mask.dim() == 2 and attention_mask.shape[0] == batch and attention_mask.shape[1] >= length
        if not fits or (attention_mask.shape[1] > length and not has_cache):
            raise ValueError(
                f"`attention_mask` has shape {tuple(attention_mask.shape)}: it must be (batch, length) = "
                f"({batch}, {length}), 1 for real tokens; only with a cache it may be longer, for the whole history."
            )
    _check_documents(config, (batch, length), reset, position_ids)
    return batch, length


def _check_documents(
    config: MemoryConfig, shape: tuple[int, int], reset: torch.Tensor | None, position_ids: torch.Tensor | None
) -> None:
    batch, length = shape
    if reset is not None and (reset.dtype != torch.bool or tuple(reset.shape) not in ((batch,), (batch, length))):
        raise ValueError(
            f"`reset` has shape {tuple(reset.shape)} and type {reset.dtype}: it must be bool, of shape ({batch},) or "
            f"({batch}, {length})."
        )
    if reset is not None and reset.dim() == 2 and config.initial_memory == "zeros":
        raise ValueError(
            "`reset` of shape (batch, length) needs `initial_memory`='empty': a document that starts inside a segment "
            "cannot begin with a memory of zeros. Use `reset` of shape (batch,) at segment starts."
        )
    if position_ids is not None and (
        tuple(position_ids.shape) not in ((batch, length), (1, length)) or position_ids.is_floating_point()
    ):
        raise ValueError(
            f"`position_ids` has shape {tuple(position_ids.shape)} and type {position_ids.dtype}: it must be integers, of "
            f"shape (batch, length) = ({batch}, {length})."
        )


def check_ids(input_ids: torch.Tensor | None, vocab_size: int) -> None:
    """Check that the ids have an embedding: on the CPU and outside of a compiled graph, where looking costs little."""
    if input_ids is None or input_ids.device.type != "cpu" or torch.compiler.is_compiling():
        return
    if input_ids.is_floating_point():
        raise ValueError(f"`input_ids` has type {input_ids.dtype}: token ids are integers. Is it `inputs_embeds`?")
    low, high = (int(extreme) for extreme in input_ids.aminmax())
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"`input_ids` holds {low if low < 0 else high}: ids must lie in 0..{vocab_size - 1} (`vocab_size`-1). "
            "Is it the tokenizer of this model?"
        )


def check_targets(
    input_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
    labels: torch.Tensor | None,
    shift_labels: torch.Tensor | None,
    num_extra_targets: int,
) -> None:
    """Check that every token of a segment has a place in the targets; `shift_labels` may have
    `num_extra_targets` columns more."""
    inputs = input_ids if inputs_embeds is None else inputs_embeds
    for name, targets, more in (("labels", labels, 0), ("shift_labels", shift_labels, num_extra_targets)):
        if inputs is None or targets is None:
            continue
        batch, length = inputs.shape[:2]
        if tuple(targets.shape) not in [(batch, length + extra) for extra in range(more + 1)]:
            raise ValueError(
                f"`{name}` has shape {tuple(targets.shape)}: it must be (batch, length) = ({batch}, {length}), as what is "
                "read. Prompt tuning by PEFT puts tokens before a segment, and `shift_labels` does not follow: train with "
                "`labels`, or with LoRA."
            )


def check_one_form(mems: object, past_key_values: object) -> None:
    """Check that a call has its memory in one form."""
    if mems is not None and past_key_values is not None:
        raise ValueError("`mems` and `past_key_values` are two forms of one memory: pass only one of them.")


def check_memory(
    model: Any,  # a `MemoryModel`: its file imports this one
    batch: int,
    past_key_values: Cache | None,
    mems: tuple[torch.Tensor, ...] | MemoryCache | None,
    mems_mask: torch.Tensor | None,
) -> None:
    """Check that the memory, in either form, is one of this base model and batch, and that it can be used now."""
    if past_key_values is not None:
        _check_cache(model, batch, past_key_values)
    check_one_form(mems, past_key_values)
    if isinstance(mems, MemoryCache):
        _check_cache(model, batch, mems)
    elif mems is not None:
        _check_mems(model.config, model.layout, batch, mems, mems_mask)
    elif mems_mask is not None:
        raise ValueError("`mems_mask` says which of `mems` are real: pass both, as the last output gave them.")


def check_checkpointing(model: PreTrainedModel) -> None:
    """Check that a call with a cache is not one that the backward pass repeats."""
    if model.training and model.gradient_checkpointing:
        raise ValueError(
            "`use_cache`=True and `past_key_values` cannot be combined with activation checkpointing, whose backward pass "
            "would update the cache a second time: train with `mems`, or call `model.eval()` first."
        )


def _check_cache(model: Any, batch: int, cache: Cache) -> None:
    if not isinstance(cache, MemoryCache):
        raise ValueError(
            f"`past_key_values` is a {type(cache).__name__}: it must be a MemoryCache, as "
            "`model(ids, use_cache=True).past_key_values` is. Prefix tuning by PEFT uses a cache of transformers, "
            "which cannot hold this memory: use LoRA."
        )
    layers = len(model.layers) if cache.layers else 0  # none of them may remember anything
    if len(cache) != layers or cache.batch_size not in (-1, batch):
        raise ValueError(
            f"The memory (`past_key_values`, or `mems` of generate) has {len(cache)} layers and {cache.batch_size} rows: "
            f"this call has {layers} layers and {batch} rows. Is it the memory of this model and batch?"
        )


def _check_mems(
    config: MemoryConfig,
    layout: MemoryLayout,
    batch: int,
    mems: tuple[torch.Tensor, ...],
    mems_mask: torch.Tensor | None,
) -> None:
    if config.mem_len == 0:
        raise ValueError("`mems` was given, but `mem_len`=0: this model remembers nothing, leave it out.")
    layout.check(mems)
    if mems_mask is not None and not layout.num_windows:
        raise ValueError(
            "`mems_mask` was given, but this model remembers no positions that it could mask: leave it out."
        )
    lengths = [memory.shape[1] if memory.dim() == 3 else 0 for memory in mems]
    first: dict[str, int] = {}  # of each name, how many columns the first layer has
    owner = next(cls.__name__ for cls in type(config).__mro__ if "layer_windows" in vars(cls))
    shared = owner == "MemoryConfig"  # no layer has its own window; by name: see `uses_adaptive_softmax`
    for index, (memory, tensor) in enumerate(zip(mems, layout.tensors, strict=True)):
        if shared:
            lengths[index] = first.setdefault(tensor.name, lengths[index])
        wanted = (batch, *(lengths[index] if size is None else size for size in tensor.shape))
        if tuple(memory.shape) != wanted:
            meaning = ", that is (batch, <=mem_len, hidden_size)" if None in tensor.shape else ""
            raise ValueError(
                f"`mems`[{index}], {tensor}, has shape {tuple(memory.shape)}: it must be "
                f"({', '.join(map(str, wanted))}){meaning}."
            )
        if tensor.shape and not memory.is_floating_point():  # counters have no further dimension
            raise ValueError(f"`mems`[{index}] has type {memory.dtype}: it must be floating point, as outputs are.")
    if mems_mask is None:
        return
    columns = max(lengths[: layout.num_windows])
    if tuple(mems_mask.shape) != (batch, columns) or mems_mask.dtype != torch.bool:
        raise ValueError(
            f"`mems_mask` has shape {tuple(mems_mask.shape)} and type {mems_mask.dtype}: it must be bool, of shape "
            f"({batch}, {columns})."
        )
    looks = mems_mask.device.type == "cpu" and not torch.compiler.is_compiling()  # where looking costs little
    if looks and bool((mems_mask[:, :-1] & ~mems_mask[:, 1:]).any()):
        raise ValueError(
            "`mems_mask` has padding to the right of a real column: a memory ends where its segment begins. Pass the "
            "`mems_mask` of the last output."
        )

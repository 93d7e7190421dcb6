"""What a forward pass refuses: a `ValueError` names the argument, what was given and what would be right."""

from typing import Any

import torch
from transformers import Cache

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.modeling.ops.columns import is_symbolic

# what transformers passes to every model, and what a forward pass here reads
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


def check_keywords(kwargs: dict, extra: tuple[str, ...], position_ids: torch.Tensor | None) -> dict:
    """The arguments that the model reads. A `ValueError` names one that it would ignore.

    Args:
        extra: the arguments of a variant.
        position_ids: `(B, T)`. Beside them collators say in other words, for some kernels, how rows are packed: that may be
            ignored. Without them it is refused.
    """
    if position_ids is not None:
        kwargs = {name: value for name, value in kwargs.items() if name not in PACKING_ARGUMENTS}
    for name, value in kwargs.items():
        if value is not None and name not in KEYWORDS and name not in extra:
            remedy = REMEDIES.get(name, "correct its spelling or leave it out")
            raise ValueError(f"`{name}` is not an argument that this model reads: {remedy}.")
    return kwargs


def check_inputs(
    config: MemoryConfig,
    input_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    reset: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    has_cache: bool,
) -> tuple[int, int]:
    """Batch and length of the segment. A `ValueError` names an argument of another shape."""
    named = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "reset": reset, "position_ids": position_ids}
    for each, value in named.items():
        if value is not None and not isinstance(value, torch.Tensor):
            raise ValueError(
                f"`{each}` is a {type(value).__name__}: it must be a tensor, such as `torch.tensor({each})`."
            )
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
    mask_shape = tuple(getattr(attention_mask, "shape", ()))  # a dict of masks has none
    is_history = has_cache and len(mask_shape) == 2 and mask_shape[0] == batch and mask_shape[1] > length
    if attention_mask is not None and mask_shape != (batch, length) and not is_history:
        raise ValueError(
            f"`attention_mask` has shape {mask_shape}: it must be one tensor (batch, length) = ({batch}, {length}), 1 for "
            "real tokens, of which the model makes its masks; only with a cache it may be longer, for the whole history."
        )
    if reset is not None and (reset.dtype != torch.bool or tuple(reset.shape) not in ((batch,), (batch, length))):
        raise wrong_tensor("reset", reset, f"bool, of shape ({batch},) or ({batch}, {length})")
    is_row = position_ids is not None and tuple(position_ids.shape) in ((batch, length), (1, length))
    if position_ids is not None and (not is_row or position_ids.is_floating_point()):
        wanted = f"integers, of shape (batch, length) = ({batch}, {length})"
        raise wrong_tensor("position_ids", position_ids, wanted)
    return batch, length


def wrong_tensor(name: str, given: torch.Tensor, wanted: str) -> ValueError:
    """The error that says what a tensor is and what it must be."""
    return ValueError(f"`{name}` has shape {tuple(given.shape)} and type {given.dtype}: it must be {wanted}.")


def check_row_reset(reset: torch.Tensor | None, batch: int | None = None) -> None:
    """Check a `reset` of whole rows, `(batch,)` bool; without `batch` there may be any number of them."""
    if reset is None:
        return
    if not isinstance(reset, torch.Tensor):
        raise ValueError(f"`reset` is a {type(reset).__name__}: it must be a tensor (batch,) of bool.")
    if reset.dim() != 1 or reset.dtype != torch.bool or len(reset) != (len(reset) if batch is None else batch):
        shape = "(batch,)" if batch is None else f"({batch},)"
        raise wrong_tensor("reset", reset, f"bool, of shape {shape}: rows that begin a text")


def check_ids(name: str, ids: torch.Tensor | None, vocab_size: int, ignored: int | None = None) -> None:
    """Check that ids are words of the vocabulary, or the number that is `ignored`: on the CPU and outside of a compiled
    graph, where looking costs little."""
    if ids is None or ids.device.type != "cpu" or is_symbolic(ids):
        return
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f"`{name}` has type {ids.dtype}: token ids are integers, and vectors are `inputs_embeds`.")
    low, high = (int(extreme) for extreme in ids.aminmax())
    if low == ignored:
        low, high = (int(extreme) for extreme in ids.where(ids != ignored, 0).aminmax())
    if low < 0 or high >= vocab_size:
        or_ignored = "" if ignored is None else f", or be {ignored}"
        raise ValueError(
            f"`{name}` holds {low if low < 0 else high}: ids must lie in 0..{vocab_size - 1} (`vocab_size`-1){or_ignored}. "
            "Is it the tokenizer of this model?"
        )


def check_targets(
    input_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
    labels: torch.Tensor | None,
    shift_labels: torch.Tensor | None,
    num_extra_targets: int,
    vocab_size: int,
) -> None:
    """Check that every token of a segment has a place in the targets, which are words or -100; `shift_labels` may have
    `num_extra_targets` columns more."""
    inputs = input_ids if inputs_embeds is None else inputs_embeds
    if isinstance(inputs, torch.Tensor) and inputs.dim() < 2:  # else it fails before the model looks at it
        name = "input_ids" if inputs_embeds is None else "inputs_embeds"
        raise ValueError(
            f"`{name}` has shape {tuple(inputs.shape)}: it must be (batch, length, ...), each at least 1."
        )
    for name, targets, more in (("labels", labels, 0), ("shift_labels", shift_labels, num_extra_targets)):
        if not isinstance(inputs, torch.Tensor) or targets is None:
            continue
        batch, length = inputs.shape[:2]
        shape = tuple(getattr(targets, "shape", ()))  # a list has none
        if shape not in [(batch, length + extra) for extra in range(more + 1)]:
            raise ValueError(
                f"`{name}` has shape {shape}: it must be a tensor (batch, length) = ({batch}, {length}), as what is read. "
                "Prompt tuning by PEFT puts tokens before a segment, and `shift_labels` does not follow: train with "
                "`labels`, or with LoRA."
            )
        check_ids(name, targets, vocab_size, ignored=-100)


def check_starts(reset: torch.Tensor | None, document_ids: torch.Tensor | None) -> None:
    """Refuse documents that begin inside a segment, and any `reset` `(B, T)`, where texts begin with zeros.

    Args:
        reset: `(B,)` or `(B, T)` bool.
        document_ids: `(B, T)`; None: none begins.
    """
    begins = document_ids is not None and not is_symbolic(document_ids)
    if begins or (reset is not None and reset.dim() == 2):
        raise ValueError(
            "`reset` (batch, length), or `position_ids`, begin documents inside a segment, which `initial_memory`='zeros' "
            "excludes: give each document its own row, and `reset` (batch,)."
        )


def check_continued_rows(
    position_ids: torch.Tensor,
    mask: torch.Tensor | None,
    reset: torch.Tensor | None,
    tokens_read: torch.Tensor,
) -> None:
    """Check that no row continues its memory with a token at position 0, which says that it begins there.

    Args:
        position_ids: (B, T) integers.
        mask: (B, T) bool, real tokens; None when all are.
        reset: (B, T) bool, tokens that begin a document; None when none does.
        tokens_read: (B,) how many tokens of its text each row has read.

    Raises:
        ValueError: such a row is there.
    """
    if is_symbolic(position_ids):
        return
    begins = position_ids == 0 if reset is None else (position_ids == 0) & (reset.long().cumsum(dim=1) == 0)
    mask = torch.ones_like(begins) if mask is None else mask
    is_first = mask & (mask.long().cumsum(dim=1) == 1)
    rows = ((is_first & begins).any(dim=1) & (tokens_read > 0)).nonzero().flatten().tolist()
    if rows:
        raise ValueError(
            f"`position_ids` begins at 0 in rows {rows}, which have a memory: pass `reset`, (batch,) bool, for rows whose "
            "document begins with this call, or leave `position_ids` out where the text continues."
        )


def check_memory(model: Any, batch: int, past_key_values: Cache | None, mems: Memory | None) -> None:
    """Check that the memory, of a cache or as `mems`, is one of this backbone `model` and batch."""
    if past_key_values is not None and not isinstance(past_key_values, MemoryCache):
        raise ValueError(
            f"`past_key_values` is a {type(past_key_values).__name__}: it must be a MemoryCache, as "
            "`model(ids, use_cache=True).past_key_values` is. Prefix tuning by PEFT uses a cache of transformers, "
            "which cannot hold this memory: use LoRA."
        )
    if mems is not None and past_key_values is not None:
        raise ValueError("`mems` and `past_key_values` both hold a memory: pass only one of them.")
    name, memory = ("mems", mems) if past_key_values is None else ("past_key_values", past_key_values.memory)
    if memory is None or torch.compiler.is_compiling():
        return
    if not isinstance(memory, Memory):
        raise ValueError(f"`{name}` is a {type(memory).__name__}: it must be a `Memory`, as `output.mems` is.")
    if model.config.mem_len == 0:
        raise ValueError(f"`{name}` was given, but `mem_len`=0: this model remembers nothing, leave it out.")
    if memory.batch_size != batch:
        raise ValueError(
            f"`{name}` has {memory.batch_size} rows, and this call {batch}: give each row its own memory, with "
            "`Memory.rows` or `Memory.repeat`."
        )
    if len(memory.layers) != len(model.config.layer_mem_lens):
        raise ValueError(
            f"`{name}` has {len(memory.layers)} layers: this model has {len(model.config.layer_mem_lens)}. Is it its "
            "memory?"
        )
    if past_key_values is not None and past_key_values.layer_caches:
        return  # a call made it
    new = model.new_memory(0, torch.empty(0, device="cpu"))  # a meta device computes in Python
    for field in ("lengths", "tokens_read"):
        check_tensors(f"{name}.{field}", (getattr(memory, field),), (getattr(new, field),), batch)
    check_tensors(f"{name}.state", memory.state, new.state, batch)
    for index, (held, fresh) in enumerate(zip(memory.layers, new.layers, strict=True)):
        for field, given in held._asdict().items():
            tensors = f"{name}.layers[{index}].{field}", given, getattr(fresh, field)
            check_tensors(*tensors, batch, are_columns=field != "state")


def check_tensors(name: str, given: tuple, new: tuple, batch: int, are_columns: bool = False) -> None:
    """Check tensors `(batch, ..)` against those of an empty memory; there may be any number of columns."""
    are_projected = are_columns and bool(given and new) and given[0].dim() == 4 != new[0].dim()
    if are_projected:
        new = given  # keys and values: the layer compares them with its own
    if len(given) != len(new):
        raise ValueError(
            f"`{name}` has {len(given)} tensors: this model remembers {len(new)} there. Is it its memory?"
        )
    for tensor, other in zip(given, new, strict=True):
        shape, wanted = tuple(tensor.shape), (batch, *other.shape[1:])
        if are_columns and len(shape) == len(wanted):
            wanted = (*wanted[:-2], given[0].shape[-2], wanted[-1])
        is_float = are_projected or other.is_floating_point()
        if shape != wanted or tensor.is_floating_point() != is_float:
            kind = "floating-point numbers" if is_float else "integers"
            raise wrong_tensor(name, tensor, f"{kind} of shape {wanted}, as in a memory of this model")


__all__ = [
    "check_continued_rows",
    "check_ids",
    "check_inputs",
    "check_keywords",
    "check_memory",
    "check_row_reset",
    "check_starts",
    "check_targets",
    "check_tensors",
]

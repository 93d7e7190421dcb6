"""The file of a memory: safetensors with the names of its tensors, and in the header which model made it.

A memory is worth nothing to another model, so the header holds the fields of the configuration that shape results, and
hashes of the weights: of what remembers, and of the head on it. The file's own hash shows what was changed in it.
"""

import hashlib
import json
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from transformers_xl.files.atomic_write import atomic_write

MEMORY_VERSION = "1"
# fields that change no result of a model in eval mode
WITHOUT_RESULT = re.compile(r"dropout|initializer|_token_id$|^use_cache$|^bptt_segments$|^recompute_attention$")
SAMPLES = 16  # numbers of a tensor that are compared
UNREAD_IDS = "unread_ids"  # their name in a file

# of each model that was asked for: what its weights looked like then, and their hashes
_known: WeakKeyDictionary[nn.Module, tuple[list[tuple], dict[str, str]]] = WeakKeyDictionary()


class Remembering(NamedTuple):
    """A model, whatever is wrapped around it, and the part of it that remembers."""

    whole: PreTrainedModel
    backbone: Any  # a `MemoryModel`

    @classmethod
    def of(cls, model: nn.Module) -> "Remembering":
        """
        Raises:
            ValueError: no part of `model` remembers.
        """
        parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
        found = [part for part in parts if hasattr(part, "check_saved_memory")]
        if not found:
            raise ValueError(
                f"`model` is a {type(model).__name__}, which remembers nothing: give the model that made the memory."
            )
        # that of the decoder, where an encoder stands beside it: the encoder remembers nothing between calls
        own = getattr(parts[0], "model", None)
        remembering = next((part for part in found if part.config.mem_len > 0), found[0])
        return cls(parts[0], own if own in found else remembering)


def save_memory(
    path: str | os.PathLike, memory: Any, model: nn.Module, unread_ids: torch.Tensor | Sequence[Sequence[int]] | None
) -> None:
    """What `Memory.save` says, of a `Memory`."""
    backbone, tensors = Remembering.of(model).backbone, memory.named_tensors()
    backbone.check_saved_memory(memory)
    if unread_ids is not None:
        tensors[UNREAD_IDS] = torch.as_tensor(unread_ids)
        check_unread(tensors[UNREAD_IDS], memory.batch_size, backbone.config.vocab_size)
    write_memory(path, tensors, memory.tokens_read.tolist(), model)


def load_memory(
    path: str | os.PathLike, model: nn.Module, from_named_tensors: Callable[[Mapping[str, torch.Tensor]], Any]
) -> tuple[Any, torch.Tensor | None]:
    """What `Memory.load` says: the `Memory`, and tokens that it does not hold yet."""
    backbone, tensors = Remembering.of(model).backbone, read_memory(path, model)
    unread_ids = tensors.pop(UNREAD_IDS, None)
    try:
        memory = from_named_tensors(tensors)
        backbone.check_saved_memory(memory)
        if unread_ids is not None:
            check_unread(unread_ids, memory.batch_size, backbone.config.vocab_size)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)!r} holds no memory of `model`: {error}") from error
    device = torch.get_default_device() if backbone.device.type == "meta" else backbone.device  # it is offloaded
    return memory.to(device), None if unread_ids is None else unread_ids.to(device)


def check_unread(unread_ids: torch.Tensor, batch: int, vocab_size: int) -> None:
    """Check that `unread_ids` are tokens of so many rows.

    Raises:
        ValueError: they are not.
    """
    is_fitting = unread_ids.dim() == 2 and len(unread_ids) == batch and unread_ids.dtype in (torch.int32, torch.int64)
    if not is_fitting or bool(((unread_ids < 0) | (unread_ids >= vocab_size)).any()):
        raise ValueError(
            f"`unread_ids` has shape {tuple(unread_ids.shape)} and type {unread_ids.dtype}: it must be integers in "
            f"0..{vocab_size - 1}, of shape (batch, n) with {batch} rows."
        )


def write_memory(
    path: str | os.PathLike, tensors: Mapping[str, torch.Tensor], tokens_read: list[int], model: nn.Module
) -> None:
    """Write the tensors of a memory that `model` made, whole or not at all.

    Raises:
        OSError: the disk refuses, or a folder is there.
    """
    header = described(model) | {"tokens_read": json.dumps(tokens_read)}
    with atomic_write(path) as new:
        save_tensors(new, tensors, header | {"sha256": hash_of(tensors, header)})


def save_tensors(
    path: str | os.PathLike, tensors: Mapping[str, torch.Tensor], header: dict[str, str] | None = None
) -> None:
    """Write copies: safetensors refuses tensors that share their storage."""
    copies = {name: each.detach().cpu().clone(memory_format=torch.contiguous_format) for name, each in tensors.items()}
    save_file(copies, path, header)


def read_memory(path: str | os.PathLike, model: nn.Module) -> dict[str, torch.Tensor]:
    """The tensors of a memory that this `model` made.

    Raises:
        ValueError: it is no such file, is damaged, or another model made it.
    """
    name = os.fspath(path)
    if not os.path.isfile(name):
        raise ValueError(f"{name!r} is no file: a memory is written by `Memory.save`.")
    try:
        with safe_open(name, framework="pt") as file:
            header = dict(file.metadata() or {})
            # copies: a file that is cut off later would end the process
            tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118  # it is no mapping
    except (SafetensorError, OSError, ValueError, TypeError, RuntimeError, AttributeError) as error:
        raise ValueError(
            f"{name!r} cannot be read: it is damaged, cut off, or no memory ({textwrap.shorten(str(error), 200)})."
        ) from error
    own, sha256 = described(model), header.pop("sha256", None)
    if header.get("memory_version", MEMORY_VERSION) != MEMORY_VERSION:
        raise ValueError(
            f"{name!r} is a memory of version {shown(header['memory_version'])}, and this program reads "
            f"{MEMORY_VERSION!r}: use the version of transformers-xl that wrote it."
        )
    if not own.keys() <= header.keys():
        raise ValueError(f"{name!r} is no memory: `Memory.save` writes them.")
    if sha256 != hash_of(tensors, header):
        raise ValueError(f"{name!r} is damaged or was changed: its hash is not the one that was written with it.")
    check_made_by(name, header, own)
    return tensors


def check_made_by(name: str, header: Mapping[str, str], own: Mapping[str, str]) -> None:
    """Check that the memory `name` with this `header` was made by the model that `own` describes.

    Raises:
        ValueError: names what differs, with both values.
    """
    if header["model_type"] != own["model_type"]:
        raise ValueError(
            f"{name!r} is the memory of a {shown(header['model_type'])}, and `model` is a {own['model_type']!r}: load the "
            "model that made it."
        )
    field, made, here = difference(header["config"], own["config"])
    if field is not None:
        remedy = f"call `model.resize_memory({made})`, or " if field == "mem_len" else ""
        raise ValueError(
            f"{name!r} is a memory of another model: it was made with `{field}`={made}, and `model` has {here}: {remedy}"
            "load the model that made it."
        )
    if header["dtype"] != own["dtype"]:
        raise ValueError(
            f"{name!r} was made by a model in {shown(header['dtype'])}, and `model` is in {own['dtype']!r}: load the model "
            "in that type."
        )
    for part, what in (("weights", "weights"), ("head", "weights in its head")):
        if header[part] != own[part] and (part == "weights" or "" not in (header[part], own[part])):
            raise ValueError(
                f"{name!r} is a memory of another model: it was made with other {what} than `model` has: load the model "
                "that made it."
            )


def difference(made: str, here: str) -> tuple[str | None, str, str]:
    """The first field in which two configurations differ, None where they do not, and both of its values."""
    if made == here:
        return None, "", ""
    try:
        fields = json.loads(made)
    except (ValueError, RecursionError):
        fields = None
    own = json.loads(here)
    if not isinstance(fields, dict):
        return "config", shown(made), "another"
    field = min(name for name in {*fields, *own} if fields.get(name) != own.get(name))
    return field, shown(fields.get(field)), shown(own.get(field))


def shown(value: Any) -> str:
    """A value from a file, in a sentence."""
    return textwrap.shorten(ascii(value), 100)


def described(model: nn.Module) -> dict[str, str]:
    """What the header says of a model."""
    whole, backbone = Remembering.of(model)
    fields = result_fields(backbone.config)
    return {
        "memory_version": MEMORY_VERSION,
        "model_type": backbone.config.model_type,
        "config": json.dumps(fields, sort_keys=True),
        "dtype": str(backbone.dtype),
        **weight_hashes(whole, backbone),
    }


def result_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """The fields of a configuration that shape results, and those of the base, `text_config.hidden_size`."""
    general, fields = PreTrainedConfig.__dataclass_fields__, type(config).__dataclass_fields__
    values = config.to_dict()
    kept: dict[str, Any] = {}
    for name in fields:
        inner = getattr(config, name, None)
        if name in general or name not in values or WITHOUT_RESULT.search(name):
            continue
        if isinstance(inner, PreTrainedConfig):
            kept |= {f"{name}.{field}": value for field, value in result_fields(inner).items()}
            kept[f"{name}.model_type"] = inner.model_type
        else:
            kept[name] = values[name]
    return cast(dict[str, Any], json.loads(json.dumps(kept, default=str)))


def weight_hashes(whole: nn.Module, backbone: nn.Module) -> dict[str, str]:
    """The hash of the weights of a backbone, and of all others of the `whole` model ("": there are none).

    They are computed once for a model, and again when its weights have changed: when one lies elsewhere, was written to (by
    torch's own count, which does not see `.data`), or differs at one of the sampled positions (`SAMPLES`).
    """
    tensors, adapters = weights_of(whole), {"adapters": adapter_states(whole)}
    looks = [*adapters.items(), *((name, *look_of(each)) for name, each in tensors.items())]
    if whole not in _known or _known[whole][0] != looks:
        start = next(name for name, part in whole.named_modules() if part is backbone)
        start = f"{start}." if start else ""
        inside = {name.removeprefix(start): each for name, each in tensors.items() if name.startswith(start)}
        outside = {name: each for name, each in tensors.items() if not name.startswith(start)}
        _known[whole] = looks, {"weights": hash_of(inside, adapters), "head": hash_of(outside) if outside else ""}
    return _known[whole][1]


def adapter_states(model: nn.Module) -> str:
    """What changes results beside weights, layer by layer: which adapters are on and merged, and how much each counts."""
    layers: list[Any] = [part for part in model.modules() if isinstance(getattr(part, "disable_adapters", None), bool)]
    scales = [getattr(part, "scaling", {}) for part in layers]  # methods other than LoRA may have none
    states = [
        [{name: scale.get(name) for name in part.active_adapters}, part.disable_adapters, part.merged_adapters]
        for part, scale in zip(layers, scales, strict=True)
    ]
    return json.dumps(states, default=str)


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """All that a checkpoint of the model holds, by name; what a tensor consists of, where it is quantized.

    Raises:
        ValueError: a weight is not in memory.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, value in model.state_dict().items():
        for inner, tensor in parts_of(name, value):
            tensor = offloaded(model, inner) if tensor.is_meta else tensor.detach()
            tensors[inner] = tensor.dequantize() if tensor.is_quantized else tensor
    return tensors


def parts_of(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The plain tensors that an entry of a `state_dict` consists of, and their names."""
    if isinstance(value, tuple | list):  # of a layer that torch itself has quantized
        for index, inner in enumerate(value):
            yield from parts_of(f"{name}.{index}", inner)
    elif isinstance(value, torch.Tensor) and hasattr(value, "__tensor_flatten__"):
        for inner in value.__tensor_flatten__()[0]:
            yield from parts_of(f"{name}.{inner}", getattr(value, inner))
    elif isinstance(value, torch.Tensor):
        yield name, value


def offloaded(model: nn.Module, name: str) -> torch.Tensor:
    """A weight that Accelerate keeps elsewhere while it is not needed.

    Raises:
        ValueError: it does not.
    """
    module, _, own = name.rpartition(".")
    held = getattr(getattr(model.get_submodule(module), "_hf_hook", None), "weights_map", None) or {}
    if own not in held:
        raise ValueError(f"`model` has no numbers in `{name}`: load its weights before it reads a memory.")
    return held[own]


def look_of(tensor: torch.Tensor) -> tuple:
    """What shows at once that a tensor has changed: its place, torch's count of writes, and some of its numbers."""
    numbers = tensor.reshape(-1)
    some = numbers[:: max(1, numbers.numel() // SAMPLES)]
    version = 0 if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), version, tensor.dtype, tuple(tensor.shape), bytes_of(some).tobytes()


def hash_of(tensors: Mapping[str, torch.Tensor], header: Mapping[str, str] | None = None) -> str:
    """SHA-256 of tensors by their names, and of a header: the same on every machine and device."""
    digest = hashlib.sha256(json.dumps(header or {}, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"\n{name} {tensors[name].dtype} {tuple(tensors[name].shape)}\n".encode())
        digest.update(bytes_of(tensors[name]))
    return digest.hexdigest()


def bytes_of(tensor: torch.Tensor) -> Any:
    """The bytes of a tensor, a numpy array."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


__all__ = ["load_memory", "read_memory", "save_memory", "save_tensors", "write_memory"]

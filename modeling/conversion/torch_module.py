"""Files of `torch.save`, zipped or as before torch 1.6, read without running what they name.

Tensors become [`Weight`] records, whose sizes and strides are checked against the bytes that are there; modules become
[`Inert`] records with their attributes. What a file may name is listed here.
"""

import io
import mmap
import struct
import zipfile
import zlib
from dataclasses import dataclass
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import torch

from transformers_xl.modeling.conversion.safe_pickle import MAX_NAME, Inert, Name, PickleReader, refusal, short_repr

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # how files from before torch 1.6 begin
LOCAL_HEADER = b"PK\x03\x04"
MAX_DIRECTORY = 4 * 2**20  # bytes of a zip file's directory, of 70 for an entry
MAX_WEIGHTS = 20_000  # tensors, or parts of a module; 24 layers make 2 thousand
MAX_NESTING = 8
MAX_DIMENSIONS = 4
MAX_SHARING = 3  # bytes of all tensors for a byte of the file; tied weights are there under two names
# what Python's zipfile raises, one or the other, for damaged files
ZIP_ERRORS = (
    zipfile.BadZipFile, EOFError, KeyError, NotImplementedError, OSError, OverflowError, RuntimeError, ValueError,
    struct.error,
)  # fmt: skip
STORAGES = {
    "torch.FloatStorage": torch.float32,
    "torch.DoubleStorage": torch.float64,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.LongStorage": torch.int64,
}
# classes of the original code and of what it is made of, as modules and as vocabularies
KNOWN_CLASSES = (
    r"torch\.nn\.modules\.\w+\.\w+|torch\.nn\.parallel\.data_parallel\.DataParallel"
    r"|(utils\.)?(mem_transformer|proj_adaptive_softmax|fp16_opt|data_parallel|vocabulary|data_utils)\.\w+"
    # the tokenizer of transformers 4.x pickled everything that it was made of
    r"|sacremoses\.\w+\.\w+|tokenizers\.AddedToken|transformers\.(tokenization_utils|tokenization_utils_base)\.\w+"
    r"|re\._compile|torch\.(Float|Double|Half|BFloat16|Long)Storage"
)


@dataclass(eq=False)
class Storage:
    """A run of numbers in the file."""

    dtype: torch.dtype
    key: str
    count: int

    @property
    def size(self) -> int:
        """In bytes."""
        return self.count * self.dtype.itemsize


@dataclass(eq=False)
class Weight:
    """A tensor in the file: a view of a storage, known to lie within it."""

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class DirectoryFile(io.FileIO):
    """A file for `zipfile`, which reads the whole directory at its end at once, whatever its length."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > MAX_DIRECTORY:
            raise zipfile.BadZipFile(f"its directory of {size:,} bytes is longer than that of any checkpoint")
        return super().read(size)


class TorchFile:
    """A file of `torch.save`, or a plain pickle. It stays mapped into memory as long as a tensor of it is in use.

    Attributes:
        value: what was saved: plain data, [`Inert`] records for objects, [`Weight`] records for tensors.

    Raises:
        ValueError: for anything that such a file does not hold; the file and the reason are named.
        OSError: the file cannot be read.
    """

    def __init__(self, path: str | Path):
        self.path, self.where = Path(path), str(path)
        self.storages: dict[str, Storage] = {}
        self.numbers: dict[str, torch.Tensor] = {}
        self.weights = 0
        with self.path.open("rb") as file:
            if not file.read(1):
                self.refuse("it is empty")
            # torch asks for a buffer to write to; what would be written there never reaches the file
            self.data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        self.is_zip = bytes(self.data[:4]) == LOCAL_HEADER
        self.value = self.read_zip() if self.is_zip else self.read_pickle()

    def refuse(self, reason: str, cause: Exception | None = None) -> NoReturn:
        raise refusal(self.where, reason) from cause

    def reader(self, data) -> PickleReader:
        names = {
            "torch._utils._rebuild_tensor": self.rebuild_tensor,
            "torch._utils._rebuild_tensor_v2": self.rebuild_tensor,
            "torch._utils._rebuild_parameter": self.rebuild_parameter,
            "torch.nn.parameter.Parameter": self.rebuild_parameter,
        }
        return PickleReader(data, self.where, names, KNOWN_CLASSES, self.persistent_load)

    # ---- what the pickle says of tensors

    def persistent_load(self, identity: tuple) -> Storage | Name:
        kind = identity[0] if identity else None
        if kind == "module" and len(identity) == 4 and isinstance(identity[1], Name):
            return identity[1]  # old torch writes the source text of a class beside it, which nobody reads here
        if kind != "storage" or len(identity) not in (5, 6) or (len(identity) == 6 and identity[5] is not None):
            raise ValueError("it refers to something that is not a storage")
        type_name, key, count = identity[1], identity[2], identity[4]
        dtype = STORAGES.get(type_name.name) if isinstance(type_name, Name) else None
        if dtype is None or not isinstance(key, str) or type(count) is not int or count < 0:
            raise ValueError(
                f"it has a storage of an unknown kind ({short_repr(type_name)}, {short_repr(count)} numbers)"
            )
        storage = self.storages.setdefault(key, Storage(dtype, key, count))
        if (storage.dtype, storage.count) != (dtype, count):
            raise ValueError(f"it describes storage {short_repr(key)} in two ways")
        return storage

    def rebuild_tensor(self, args: tuple) -> Weight:
        self.weights += 1
        if self.weights > MAX_WEIGHTS:
            raise ValueError(f"it has more than {MAX_WEIGHTS:,} tensors")
        storage, offset, size, stride = args[:4] if len(args) >= 4 else (None,) * 4
        if not isinstance(storage, Storage) or type(size) is not tuple or type(stride) is not tuple:
            raise ValueError("a tensor is made of something else than a storage, an offset, a size and strides")
        if len(size) != len(stride) or len(size) > MAX_DIMENSIONS:
            raise ValueError(f"a tensor has {len(size)} sizes and {len(stride)} strides")
        numbers = (offset, *size, *stride)
        if any(type(number) is not int or number < 0 for number in numbers):
            raise ValueError("a tensor is made of something else than a storage, an offset, a size and strides")
        last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
        # more numbers than the storage has would be a view that repeats them, and would become large when it is copied
        if not prod(size):
            offset, size, stride = 0, (0,), (1,)  # whatever it says of its shape
        elif last >= storage.count or prod(size) > storage.count:
            raise ValueError(f"a tensor of shape {size} does not fit into its {storage.count} numbers")
        return Weight(storage, offset, size, stride)

    def rebuild_parameter(self, args: tuple) -> Weight:
        if not args or not isinstance(args[0], Weight):
            raise ValueError("a parameter is made of something else than a tensor")
        return args[0]

    # ---- the two formats

    def read_zip(self) -> Any:
        try:
            with DirectoryFile(self.path) as file:
                listed = zipfile.ZipFile(file).infolist()
        except ZIP_ERRORS as error:
            self.refuse(f"it is a damaged zip file ({error})", error)
        self.entries = {entry.filename: entry for entry in listed}
        if len(self.entries) < len(listed):
            self.refuse("its zip file holds two entries of one name")
        for entry in listed:
            if entry.filename.startswith("/") or "\\" in entry.filename or ".." in entry.filename.split("/"):
                self.refuse(f"its zip entry {short_repr(entry.filename)} points outside of the file")
            if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
                self.refuse(f"its zip entry {short_repr(entry.filename)} is compressed, which torch never does")
        if sum(entry.file_size for entry in listed) > len(self.data):
            self.refuse("its zip entries are larger than the file")
        roots = [name for name in self.entries if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(roots) != 1:
            self.refuse("it is a zip file, but none of torch.save: it has no data.pkl")
        self.root = roots[0].removesuffix("data.pkl")
        if f"{self.root}byteorder" in self.entries and self.entry("byteorder") != b"little":
            self.refuse("its numbers are big-endian")
        value = self.reader(self.entry("data.pkl")).read()
        for storage in self.storages.values():
            found = self.entries.get(f"{self.root}data/{storage.key}")
            size = found.file_size if found is not None else 0
            if size != storage.size:
                key, count = short_repr(storage.key), short_repr(storage.count)
                self.refuse(f"storage {key} is to hold {count} numbers, but has {size} bytes")
        return value

    def entry(self, name: str) -> memoryview:
        """The bytes of a zip entry, where they lie in the file, if their check sum is right."""
        entry = self.entries[self.root + name]
        header = self.data[max(entry.header_offset, 0) :][:30]
        if len(header) == 30 and header[:4] == LOCAL_HEADER:
            start = entry.header_offset + 30 + sum(struct.unpack("<2H", header[26:]))
            data = self.data[start : start + entry.file_size]
            if len(data) == entry.file_size and zlib.crc32(data) == entry.CRC:
                return data
        self.refuse(f"its zip entry {short_repr(name)} is damaged")

    def read_pickle(self) -> Any:
        reader = self.reader(self.data)
        value = reader.read()
        if value != MAGIC:
            if reader.position != len(self.data):
                self.refuse(f"{len(self.data) - reader.position} bytes follow the pickle")
            if self.storages:
                self.refuse("the numbers of its tensors are missing")
            return value
        if reader.read() != PROTOCOL:
            self.refuse("it is of another version of torch's old format")
        system = reader.read()
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            self.refuse("its numbers are not little-endian")
        value, keys = reader.read(), reader.read()
        if not isinstance(keys, list) or any(type(key) is not str for key in keys) or set(keys) != set(self.storages):
            self.refuse("its list of storages is not that of its tensors")
        if len(set(keys)) < len(keys):
            self.refuse("its list of storages names one twice")
        self.places: dict[str, int] = {}
        position = reader.position
        for key in keys:
            storage = self.storages[key]
            if int.from_bytes(self.data[position : position + 8], "little") != storage.count:
                self.refuse(f"storage {short_repr(key)} is cut off, or has another length than its tensors say")
            self.places[key] = position + 8
            position += 8 + storage.size
        if position != len(self.data):
            self.refuse(f"its storages end at byte {short_repr(position)} of {len(self.data)}")
        return value

    # ---- numbers

    def tensor(self, weight: Weight) -> torch.Tensor:
        """The numbers of a weight, mapped from the file; weights of one storage share memory."""
        storage = weight.storage
        if storage.key not in self.numbers:
            if self.is_zip:
                data = self.entry(f"data/{storage.key}")
            else:
                start = self.places[storage.key]
                data = self.data[start : start + storage.size]
            # torch refuses an empty buffer
            numbers = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
            if numbers.data_ptr() % storage.dtype.itemsize:
                numbers = numbers.clone()
            self.numbers[storage.key] = numbers.view(storage.dtype)
        return self.numbers[storage.key].as_strided(weight.size, weight.stride, weight.offset)

    def tensors(self, weights: dict[str, Weight]) -> dict[str, torch.Tensor]:
        """The numbers of all weights, unless a small file would become a large model by weights that share numbers."""
        described = sum(prod(weight.size) * weight.storage.dtype.itemsize for weight in weights.values())
        if described > MAX_SHARING * len(self.data):
            self.refuse(f"its weights share their numbers: they would be {described:,} bytes, of {len(self.data):,}")
        return {name: self.tensor(weight) for name, weight in weights.items()}


def is_state_dict(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(type(name) is str and isinstance(item, Weight) for name, item in value.items())
    )


def load_weights(path: str | Path) -> dict[str, torch.Tensor]:
    """The tensors of a state dict, mapped from its file.

    Raises:
        ValueError: the file is damaged, or no state dict.
        OSError: the file cannot be read.
    """
    file = TorchFile(path)
    if not is_state_dict(file.value):
        file.refuse("it holds something else than tensors by name")
    return file.tensors(file.value)


def module_weights(file: TorchFile, module: Inert) -> dict[str, torch.Tensor]:
    """Parameters and buffers of a module and its sub-modules, by the names of `state_dict()`."""
    weights: dict[str, Weight] = {}
    pending, left = [("", module)], MAX_WEIGHTS
    while pending:
        prefix, current = pending.pop()
        kinds = [current.mapping(kind) for kind in ("_parameters", "_buffers", "_modules")]
        left -= 1 + sum(map(len, kinds))  # before they are looked at: many modules may hold the same dict
        if left < 0 or prefix.count(".") > MAX_NESTING:
            file.refuse("its modules are nested without end")
        for name, value in chain.from_iterable(kind.items() for kind in kinds):
            if type(name) is not str or len(name) > MAX_NAME:
                file.refuse(f"its module has a part of the name {short_repr(name)}")
            if isinstance(value, Weight):
                weights[f"{prefix}{name}"] = value
            elif isinstance(value, Inert):
                pending.append((f"{prefix}{name}.", value))
    return file.tensors(weights)


__all__ = ["TorchFile", "Weight", "is_state_dict", "load_weights", "module_weights"]

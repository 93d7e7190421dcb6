"""Files of `torch.save`, zipped or as before torch 1.6, read without running what they name.

Tensors become [`Weight`] records, whose sizes and strides are checked against the bytes that are there; modules become
[`Inert`] records with their attributes. What a file may name is listed here.
"""

import mmap
import struct
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import torch

from transformers_xl.modeling.conversion.safe_pickle import MAX_BYTES, Inert, Name, PickleReader, shown

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # how files from before torch 1.6 begin
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


@dataclass(eq=False)
class Weight:
    """A tensor in the file: a view of a storage, known to lie within it."""

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class TorchFile:
    """An open file of `torch.save`, or a plain pickle.

    Attributes:
        value: what was saved: plain data, [`Inert`] records for objects, [`Weight`] records for tensors.

    Raises:
        ValueError: for anything that such a file does not hold; the file and the reason are named.
        OSError: the file cannot be read.
    """

    def __init__(self, path: str | Path):
        self.path, self.where = Path(path), str(path)
        self.storages: dict[str, Storage] = {}
        self.read_storages: dict[str, torch.Tensor] = {}
        self.zip: zipfile.ZipFile | None = None
        with self.path.open("rb") as file:
            if not file.read(1):
                self.refuse("it is empty")
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self.value = self.read_zip() if self.data[:4] == b"PK\x03\x04" else self.read_pickle()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "TorchFile":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def close(self) -> None:
        self.read_storages.clear()
        if self.zip is not None:
            self.zip.close()

    def refuse(self, reason: str, cause: Exception | None = None) -> NoReturn:
        raise ValueError(f"{self.where!r} is refused: {reason}.") from cause

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
            raise ValueError("it refers to something that is no storage")
        type_name, key, count = identity[1], identity[2], identity[4]
        dtype = STORAGES.get(type_name.name) if isinstance(type_name, Name) else None
        if dtype is None or not isinstance(key, str) or type(count) is not int or count < 0:
            raise ValueError(f"it has a storage of an unknown kind ({shown(type_name)}, {shown(count)} numbers)")
        storage = self.storages.setdefault(key, Storage(dtype, key, count))
        if (storage.dtype, storage.count) != (dtype, count):
            raise ValueError(f"it describes storage {shown(key)} in two ways")
        return storage

    def rebuild_tensor(self, args: tuple) -> Weight:
        storage, offset, size, stride = args[:4] if len(args) >= 4 else (None,) * 4
        numbers = (offset, *size, *stride) if type(size) is tuple and type(stride) is tuple else (None,)
        if not isinstance(storage, Storage) or any(type(number) is not int or number < 0 for number in numbers):
            raise ValueError("a tensor is made of something else than a storage, an offset, a size and strides")
        if len(size) != len(stride) or len(size) > MAX_DIMENSIONS:
            raise ValueError(f"a tensor has {len(size)} sizes and {len(stride)} strides")
        last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
        # more numbers than the storage has would be a view that repeats them, and would become large when it is copied
        if prod(size) and (last >= storage.count or prod(size) > storage.count):
            raise ValueError(f"a tensor of shape {size} does not fit into its {storage.count} numbers")
        return Weight(storage, offset, size, stride)

    def rebuild_parameter(self, args: tuple) -> Weight:
        if not args or not isinstance(args[0], Weight):
            raise ValueError("a parameter is made of something else than a tensor")
        return args[0]

    # ---- the two formats

    def read_zip(self) -> Any:
        try:
            self.zip = zipfile.ZipFile(self.path)
            entries = self.zip.infolist()
        except ZIP_ERRORS as error:
            self.refuse(f"it is a damaged zip file ({error})", error)
        names = [entry.filename for entry in entries]
        if len(set(names)) < len(names):
            self.refuse("its zip file holds two entries of one name")
        for entry in entries:
            if entry.filename.startswith("/") or "\\" in entry.filename or ".." in entry.filename.split("/"):
                self.refuse(f"its zip entry {shown(entry.filename)} points outside of the file")
            if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
                self.refuse(f"its zip entry {shown(entry.filename)} is compressed, which torch never does")
        if sum(entry.file_size for entry in entries) > len(self.data):
            self.refuse("its zip entries are larger than the file")
        roots = [
            name.removesuffix("data.pkl") for name in names if name.count("/") == 1 and name.endswith("/data.pkl")
        ]
        if len(roots) != 1:
            self.refuse("it is a zip file, but none of torch.save: it has no data.pkl")
        self.root = roots[0]
        if f"{self.root}byteorder" in names and self.entry("byteorder") != b"little":
            self.refuse("its numbers are big-endian")
        if self.zip.getinfo(f"{self.root}data.pkl").file_size > MAX_BYTES:
            self.refuse("its data.pkl is longer than any vocabulary or module")
        value = self.reader(self.entry("data.pkl")).read()
        for storage in self.storages.values():
            name = f"{self.root}data/{storage.key}"
            size = self.zip.getinfo(name).file_size if name in names else 0
            if size != storage.count * storage.dtype.itemsize:
                self.refuse(f"storage {shown(storage.key)} is to hold {storage.count} numbers, but has {size} bytes")
        return value

    def entry(self, name: str) -> bytes:
        assert self.zip is not None
        try:
            return self.zip.read(self.root + name)
        except ZIP_ERRORS as error:
            self.refuse(f"its zip entry {shown(name)} is damaged ({error})", error)

    def check_sharing(self, weights: Iterable[Weight]) -> None:
        """Refuse a small file that would become a large model, because its weights share their numbers."""
        described = sum(prod(weight.size) * weight.storage.dtype.itemsize for weight in weights)
        if described > MAX_SHARING * len(self.data):
            self.refuse(f"its weights share their numbers: they would be {described:,} bytes, of {len(self.data):,}")

    def check_sums(self) -> None:
        """Refuse a zip file in which a bit has changed; torch does not look where it maps the file into memory."""
        if self.zip is not None:
            for entry in self.zip.namelist():
                try:
                    with self.zip.open(entry) as stream:
                        while stream.read(2**20):
                            pass
                except ZIP_ERRORS as error:
                    self.refuse(f"its zip entry {shown(entry)} is damaged ({error})", error)

    def read_pickle(self) -> Any:
        reader = self.reader(self.data)
        value = reader.read()
        if value != MAGIC:
            if reader.position != len(self.data):
                self.refuse(f"{len(self.data) - reader.position} bytes follow the pickle")
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
        self.offsets = {}
        for key in keys:
            storage = self.storages[key]
            if reader.number(8) != storage.count:
                self.refuse(f"storage {shown(key)} has another length than its tensors say")
            self.offsets[key] = reader.position
            reader.take(storage.count * storage.dtype.itemsize)
        if reader.position != len(self.data):
            self.refuse(f"{len(self.data) - reader.position} bytes follow the last storage")
        return value

    def tensor(self, weight: Weight) -> torch.Tensor:
        """The numbers of a weight; weights of one storage share memory."""
        storage = weight.storage
        if storage.key not in self.read_storages:
            if self.zip is not None:
                data = bytearray(self.entry(f"data/{storage.key}"))
            else:
                start = self.offsets[storage.key]
                data = bytearray(self.data[start : start + storage.count * storage.dtype.itemsize])
            # torch refuses an empty buffer
            numbers = torch.frombuffer(data, dtype=storage.dtype) if data else torch.empty(0, dtype=storage.dtype)
            self.read_storages[storage.key] = numbers
        return self.read_storages[storage.key].as_strided(weight.size, weight.stride, weight.offset)


def is_state_dict(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(item, Weight) for item in value.values())


def load_weights(path: str | Path) -> dict[str, torch.Tensor]:
    """The tensors of a state dict, by `torch.load(weights_only=True)`. What they say of their sizes was checked before:
    older releases of torch believe it.

    Raises:
        ValueError: the file is damaged, or no state dict.
    """
    with TorchFile(path) as file:
        if not is_state_dict(file.value):
            file.refuse("it holds something else than tensors by name")
        file.check_sharing(file.value.values())
        file.check_sums()
        mapped = file.zip is not None
    try:
        return dict(torch.load(path, map_location="cpu", weights_only=True, mmap=mapped))
    except Exception as error:  # torch's readers raise all kinds
        raise ValueError(f"{str(path)!r} is refused: torch cannot read its weights ({error}).") from error


def module_weights(file: TorchFile, module: Inert) -> dict[str, Weight]:
    """Parameters and buffers of a module and its sub-modules, by the names of `state_dict()`."""
    weights: dict[str, Weight] = {}
    pending, visited = [("", module)], 0
    while pending:
        prefix, current = pending.pop()
        visited += 1
        if visited > 10_000 or prefix.count(".") > 8:
            file.refuse("its modules are nested without end")
        for kind in ("_parameters", "_buffers"):
            for name, weight in (current[kind] or {}).items():
                if isinstance(weight, Weight):
                    weights[f"{prefix}{name}"] = weight
        for name, child in (current["_modules"] or {}).items():
            if isinstance(child, Inert):
                pending.append((f"{prefix}{name}.", child))
    file.check_sharing(weights.values())
    return weights


__all__ = ["TorchFile", "Weight", "is_state_dict", "load_weights", "module_weights"]

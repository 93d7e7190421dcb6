"""A reader of pickles that runs nothing: an interpreter of the opcodes that build data, and of no others.

The pickle format is a program for a stack machine, and Python's own reader imports and calls what the program names. This
one has neither imports nor calls: a name in the file is looked up in a table of ours, and becomes plain data (dict, list,
set) or an `Inert` record, which remembers the name and what it was to be made of. A name outside of the table is refused.

What a hostile file can still do is be large, so there are bounds: bytes, operations, containers, and keys that are
strings or small integers, because hashing a nest of tuples can take for ever.
"""

import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

MAX_BYTES = 256 * 2**20  # of the pickle itself; the vocabulary of WikiText-103 has 9 million
MAX_OPERATIONS = 20_000_000  # that vocabulary takes 2 million
MAX_CONTAINERS = 500_000  # a module of 24 layers makes 20 thousand


class Inert:
    """What an object of a class that we know, but never make, was to be made of."""

    __slots__ = ("args", "name", "state")

    def __init__(self, name: str, args: tuple = ()):
        self.name, self.args, self.state = name, args, None

    def __getitem__(self, attribute: str) -> Any:
        """An attribute of the object, None where it has none."""
        return self.state.get(attribute) if isinstance(self.state, dict) else None


class Name:
    """A class or function that a pickle names, and what stands for a call of it."""

    __slots__ = ("make", "name")

    def __init__(self, name: str, make: Callable[[tuple], Any]):
        self.name, self.make = name, make


def shown(value: Any) -> str:
    """A short word for something out of a file, whose own `repr` could be as long as the file."""
    if isinstance(value, str):
        return ascii(value[:60])
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**63):
        return repr(value)
    return value.name if isinstance(value, Name | Inert) else type(value).__name__


def hashable_key(key: Any) -> str | int | None:
    """`key`, if hashing it is quick; integers are bounded, because there are many large ones with the same hash."""
    if type(key) is str or key is None or (isinstance(key, int) and abs(key) < 2**31):
        return key
    raise ValueError(f"a key is {shown(key)}, neither a string nor a small integer")


def _one_container(args: tuple, *kinds: type) -> Any:
    if not args:
        return kinds[0]()
    if len(args) > 1 or type(args[0]) not in kinds:
        raise ValueError("a container is made of something else than one container")
    return args[0]


def _ordered_dict(args: tuple) -> dict:
    pairs = _one_container(args, list, dict)
    if isinstance(pairs, dict):
        return dict(pairs)
    if any(type(pair) not in (list, tuple) or len(pair) != 2 for pair in pairs):
        raise ValueError("an OrderedDict is made of something else than pairs")
    return {hashable_key(key): value for key, value in pairs}


def _counter(args: tuple) -> dict:
    return dict(_one_container(args, dict))


def _set(args: tuple) -> set:
    return {hashable_key(item) for item in _one_container(args, list, tuple, set)}


PLAIN_DATA: dict[str, Callable[[tuple], Any]] = {
    "collections.OrderedDict": _ordered_dict,
    "collections.Counter": _counter,
    "builtins.set": _set,
    "builtins.frozenset": _set,
}


class PickleReader:
    """Reads pickles of protocol 2 to 5 out of `data`.

    Args:
        data: the bytes of the file.
        where: the file's name, for errors.
        names: further names that a pickle may use, each with what a call of it makes.
        inert: regular expression of the names that become [`Inert`] records.
        persistent_load: what stands for a persistent id, a tuple; without it there may be none.
    """

    def __init__(
        self,
        data: bytes | memoryview,
        where: str,
        names: Mapping[str, Callable[[tuple], Any]] | None = None,
        inert: str = "(?!)",
        persistent_load: Callable[[tuple], Any] | None = None,
    ):
        self.data, self.where, self.position = memoryview(data), where, 0
        self.names = PLAIN_DATA | dict(names or {})
        self.inert = re.compile(inert)
        self.persistent_load = persistent_load
        self.operations = self.containers = 0

    def refuse(self, reason: str, cause: Exception | None = None) -> NoReturn:
        raise ValueError(f"{self.where!r} is refused: {reason} (byte {self.position}).") from cause

    def read(self) -> Any:
        """The value of the pickle at `position`, which is moved behind it.

        Raises:
            ValueError: for what is damaged, too large, or anything else than data; the file and the reason are named.
        """
        self.stack: list = []
        self.marks: list[list] = []
        self.memo: dict[int, Any] = {}
        start, operations, data = self.position, OPERATIONS, self.data
        while True:
            if self.position >= len(data):
                self.refuse("the file is cut off")
            code = data[self.position]
            operation = operations.get(code)
            self.position += 1
            self.operations += 1
            if operation is None:
                self.refuse(f"opcode 0x{code:02x} is none that builds plain data")
            if self.operations > MAX_OPERATIONS or self.position - start > MAX_BYTES:
                self.refuse("the pickle is longer than any vocabulary or module")
            try:
                operation(self)
            except (IndexError, KeyError) as error:
                self.refuse("it takes something that it never made", error)
            except (ValueError, struct.error) as error:
                if str(error).startswith(repr(self.where)):
                    raise
                self.refuse(str(error), error)
            if code == STOP:
                return self.stack[-1]

    def take(self, count: int) -> memoryview:
        end = self.position + count
        if end > len(self.data):
            self.refuse("the file is cut off")
        view, self.position = self.data[self.position : end], end
        return view

    def number(self, size: int, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "little", signed=signed)

    def text(self, size: int) -> str:
        return str(self.take(self.number(size)), "utf-8")

    def line(self) -> str:
        window = bytes(self.data[self.position : self.position + 256])
        if b"\n" not in window:
            raise ValueError("a name is longer than 256 bytes, or cut off")
        end = window.index(b"\n")
        self.position += end + 1
        return window[:end].decode()

    def contain(self, container: Any) -> None:
        """Push what holds other things."""
        self.containers += 1
        if self.containers > MAX_CONTAINERS:
            self.refuse(f"it makes more than {MAX_CONTAINERS:,} containers")
        self.stack.append(container)

    def mark(self) -> None:
        self.marks.append(self.stack)
        self.contain([])
        self.stack = self.stack.pop()

    def since_mark(self) -> list:
        items, self.stack = self.stack, self.marks.pop()
        return items

    def top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise ValueError(f"{shown(self.stack[-1])} stands where a {kind.__name__} belongs")
        return self.stack[-1]

    def pop(self, kind: type) -> Any:
        self.top(kind)
        return self.stack.pop()

    def set_items(self, items: list) -> None:
        target = self.top(dict)
        if len(items) % 2:
            raise ValueError("a dict has a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[hashable_key(key)] = value

    def name(self, module: str, name: str) -> None:
        name = f"{'builtins' if module == '__builtin__' else module}.{name}"
        make = self.names.get(name)
        if make is None:
            if not self.inert.fullmatch(name):
                self.refuse(f"it names {shown(name)}, which is no part of such a file; nothing was run")
            make = lambda args: Inert(name, args)  # noqa: E731
        self.contain(Name(name, make))

    def call(self) -> None:
        args = self.pop(tuple)
        self.contain(self.pop(Name).make(args))

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Inert) and target.state is None:
            target.state = state
        elif type(target) is not dict:  # a state dict has attributes, which are no data
            raise ValueError(f"{shown(target)} is given a state, which it cannot have")

    def persistent(self) -> None:
        if self.persistent_load is None:
            raise ValueError("it refers to something outside of itself")
        self.contain(self.persistent_load(self.pop(tuple)))

    def skip_frame(self) -> None:
        if self.number(8) > len(self.data) - self.position:
            raise ValueError("the file is cut off")

    def protocol(self) -> None:
        if not 2 <= (version := self.number(1)) <= 5:
            raise ValueError(f"it is of pickle protocol {version}, known are 2 to 5")


def _push(make: Callable[[PickleReader], Any]) -> Callable[[PickleReader], None]:
    return lambda reader: reader.stack.append(make(reader))


def _contain(make: Callable[[PickleReader], Any]) -> Callable[[PickleReader], None]:
    return lambda reader: reader.contain(make(reader))


def _tuple(count: int) -> Callable[[PickleReader], None]:
    def operation(reader: PickleReader) -> None:
        items = tuple(reader.stack[-count:])
        if len(items) < count:
            raise IndexError
        del reader.stack[-count:]
        reader.contain(items)

    return operation


def _stack_name(reader: PickleReader) -> None:
    name, module = reader.pop(str), reader.pop(str)
    reader.name(module, name)


def _memoize(reader: PickleReader, index: int) -> None:
    reader.memo[index] = reader.stack[-1]


def _set_item(reader: PickleReader) -> None:
    items = [reader.stack.pop(), reader.stack.pop()][::-1]
    reader.set_items(items)


STOP = ord(".")
# Left out on purpose: what calls by other ways (INST, OBJ, EXT), buffers that are allocated before they are read
# (BYTEARRAY8, NEXT_BUFFER), integers of any length (LONG4), and the text opcodes of protocols 0 and 1.
OPERATIONS: dict[int, Callable[[PickleReader], Any]] = {
    0x80: PickleReader.protocol,
    0x95: PickleReader.skip_frame,
    STOP: lambda reader: reader.stack[-1],
    ord("("): PickleReader.mark,
    ord("0"): lambda reader: reader.stack.pop(),
    ord("1"): PickleReader.since_mark,
    ord("2"): _push(lambda reader: reader.stack[-1]),
    ord("N"): _push(lambda reader: None),
    0x88: _push(lambda reader: True),
    0x89: _push(lambda reader: False),
    ord("K"): _push(lambda reader: reader.number(1)),
    ord("M"): _push(lambda reader: reader.number(2)),
    ord("J"): _push(lambda reader: reader.number(4, signed=True)),
    0x8A: _push(lambda reader: reader.number(reader.number(1), signed=True)),
    ord("G"): _push(lambda reader: struct.unpack(">d", reader.take(8))[0]),
    0x8C: _push(lambda reader: reader.text(1)),
    ord("X"): _push(lambda reader: reader.text(4)),
    0x8D: _push(lambda reader: reader.text(8)),
    ord("U"): _push(lambda reader: reader.text(1)),  # the string of Python 2
    ord("T"): _push(lambda reader: reader.text(4)),
    ord(")"): _push(lambda reader: ()),
    ord("}"): _contain(lambda reader: {}),
    ord("]"): _contain(lambda reader: []),
    0x8F: _contain(lambda reader: set()),
    ord("t"): _contain(lambda reader: tuple(reader.since_mark())),
    0x85: _tuple(1),
    0x86: _tuple(2),
    0x87: _tuple(3),
    ord("a"): lambda reader: (lambda item: reader.top(list).append(item))(reader.stack.pop()),
    ord("e"): lambda reader: (lambda items: reader.top(list).extend(items))(reader.since_mark()),
    ord("s"): _set_item,
    ord("u"): lambda reader: reader.set_items(reader.since_mark()),
    0x90: lambda reader: (lambda items: reader.top(set).update(map(hashable_key, items)))(reader.since_mark()),
    0x91: _contain(lambda reader: frozenset(map(hashable_key, reader.since_mark()))),
    ord("q"): lambda reader: _memoize(reader, reader.number(1)),
    ord("r"): lambda reader: _memoize(reader, reader.number(4)),
    0x94: lambda reader: _memoize(reader, len(reader.memo)),
    ord("h"): _push(lambda reader: reader.memo[reader.number(1)]),
    ord("j"): _push(lambda reader: reader.memo[reader.number(4)]),
    ord("c"): lambda reader: reader.name(reader.line(), reader.line()),
    0x93: _stack_name,
    ord("R"): PickleReader.call,
    0x81: PickleReader.call,
    ord("b"): PickleReader.build,
    ord("Q"): PickleReader.persistent,
}

__all__ = ["Inert", "Name", "PickleReader", "hashable_key", "shown"]

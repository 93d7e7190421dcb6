"""A reader of pickles that runs nothing: an interpreter of the opcodes that build data, and of no others.

The pickle format is a program for a stack machine, and Python's own reader imports and calls what the program names. This
one has neither imports nor calls: a name in the file is looked up in a table of ours, and becomes plain data (dict, list,
set) or an `Inert` record, which remembers the name and what it was to be made of. A name outside of the table is refused.

`pickle.Unpickler` after a scan by `pickletools.genops` is no shorter: it hashes every key, and the hash of nested tuples
overflows the stack or never ends, so the scan would have to track stack and memo to know the keys, which is this machine.

What a hostile file can still do is be large. Everything that a program does is charged to one budget, `MAX_WORK`: each
operation, what it makes and what it copies. Keys are strings or small integers, because hashing others may take for ever.
"""

import re
import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

# A unit is about a microsecond, and at most 100 bytes. The vocabulary of One Billion Word, of 793,471 symbols, takes 5
# million, and 6.4 million with counts; a module of 24 layers takes 50 thousand.
MAX_WORK = 7_000_000
CONTAINER = 4  # units for a container, an object or a mark, beside its items
MAX_NAME = 256  # characters of a module and of a name in it
MAX_MESSAGE = 299  # characters of an error
MAX_PATH = 140  # of them, for the name of the file


class Inert:
    """What an object of a class that we know, but never make, was to be made of."""

    __slots__ = ("args", "name", "state")

    def __init__(self, name: str, args: tuple = ()):
        self.name, self.args, self.state = name, args, None

    def __getitem__(self, attribute: str) -> Any:
        """An attribute of the object, None where it has none."""
        return self.state.get(attribute) if isinstance(self.state, dict) else None

    def mapping(self, attribute: str) -> dict:
        """An attribute that should be a dict, empty where it is none."""
        value = self[attribute]
        return value if isinstance(value, dict) else {}


class Name:
    """A class or function that a pickle names, and what stands for a call of it."""

    __slots__ = ("make", "name")

    def __init__(self, name: str, make: Callable[[tuple], Any]):
        self.name, self.make = name, make


def short_repr(value: Any) -> str:
    """A short word for something out of a file, whose own `repr` could be as long as the file."""
    if isinstance(value, str):
        return ascii(value[:60])[:80]
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**63):
        return repr(value)
    return value.name[:80] if isinstance(value, Name | Inert) else type(value).__name__


def path_repr(where: str) -> str:
    """The name of a file in quotes; of a long one, its end."""
    quoted = repr(where)
    return quoted if len(quoted) <= MAX_PATH else f"'...{quoted[4 - MAX_PATH :]}"


def refusal(where: str, reason: object) -> ValueError:
    """The error for a file that is not read: it names the file, and says in few words why."""
    beginning, text = f"{path_repr(where)} is refused: ", str(reason)
    room = MAX_MESSAGE - len(beginning) - len(".")
    return ValueError(f"{beginning}{text if len(text) <= room else text[: room - 4] + ' ...'}.")


def hashable_key(key: Any) -> str | int | None:
    """`key`, if hashing it is quick; integers are bounded, because there are many large ones with the same hash."""
    if type(key) is str or key is None or (isinstance(key, int) and abs(key) < 2**31):
        return key
    raise ValueError(f"a key is {short_repr(key)}, neither a string nor a small integer")


class PickleReader:
    """Reads pickles of protocol 2 to 5 out of `data`.

    Args:
        data: the bytes of the file.
        where: the file's name, for errors.
        names: further names that a pickle may use, each with what a call of it makes, in constant time and memory.
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
        self.data, self.where, self.position, self.work = memoryview(data), where, 0, 0
        self.names: dict[str, Callable[[tuple], Any]] = {
            "collections.OrderedDict": self.ordered_dict,
            "collections.Counter": lambda args: dict(self.copied(args, dict)),
            "builtins.set": self.set_of,
            "builtins.frozenset": self.set_of,
            **(names or {}),
        }
        self.inert = re.compile(inert)
        self.persistent_load = persistent_load

    def read(self) -> Any:
        """The value of the pickle at `position`, which is moved past it.

        Raises:
            ValueError: for what is damaged, too large, or anything else than data; the file and the reason are named.
        """
        self.stack: list = []
        self.marks: list[list] = []
        self.memo: dict[int, Any] = {}
        data, size, operations = self.data, len(self.data), OPERATIONS
        try:
            while self.position < size:
                code = data[self.position]
                self.position += 1
                self.work += 1
                if self.work > MAX_WORK:
                    self.spend(0)
                if code == STOP:
                    return self.stack[-1]
                operations[code](self)
            raise ValueError("the file is cut off")
        except (IndexError, KeyError) as error:
            raise refusal(self.where, f"byte {self.position} takes something that was never made") from error
        except struct.error as error:
            raise refusal(self.where, "the file is cut off") from error
        except ValueError as error:
            raise refusal(self.where, f"{error} (byte {self.position})") from error

    def spend(self, units: int) -> None:
        """Charge work before it is done."""
        self.work += units
        if self.work > MAX_WORK:
            raise ValueError("the pickle asks for more work than any vocabulary or module")

    def unknown(self) -> None:
        raise ValueError(f"opcode 0x{self.data[self.position - 1]:02x} does not build plain data")

    # ---- arguments in the file

    def number(self, form: struct.Struct) -> int:
        (value,) = form.unpack_from(self.data, self.position)
        self.position += form.size
        return value

    def read_bytes(self, count: int) -> memoryview:
        start = self.position
        if start + count > len(self.data):
            raise ValueError("the file is cut off")
        self.spend(1 + count // 16)  # a character may take four times its byte
        self.position += count
        return self.data[start : self.position]

    def long(self) -> None:
        self.stack.append(int.from_bytes(self.read_bytes(self.number(BYTE)), "little", signed=True))

    def line(self) -> str:
        window = bytes(self.data[self.position : self.position + MAX_NAME])
        if b"\n" not in window:
            raise ValueError(f"a name is longer than {MAX_NAME} bytes, or cut off")
        end = window.index(b"\n")
        self.position += end + 1
        return window[:end].decode()

    def skip_frame(self) -> None:
        if self.number(UINT64) > len(self.data) - self.position:
            raise ValueError("the file is cut off")

    def protocol(self) -> None:
        if not 2 <= (version := self.number(BYTE)) <= 5:
            raise ValueError(f"it is of pickle protocol {version}, known are 2 to 5")

    # ---- the stack

    def contain(self, container: Any) -> None:
        """Push what holds other things."""
        self.spend(CONTAINER)
        self.stack.append(container)

    def mark(self) -> None:
        self.spend(CONTAINER)
        self.marks.append(self.stack)
        self.stack = []

    def since_mark(self) -> list:
        items, self.stack = self.stack, self.marks.pop()
        return items

    def top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise ValueError(f"{short_repr(self.stack[-1])} stands where a {kind.__name__} belongs")
        return self.stack[-1]

    def pop(self, kind: type) -> Any:
        self.top(kind)
        return self.stack.pop()

    def tuple_of(self, count: int) -> None:
        items = tuple(self.stack[-count:])
        if len(items) < count:
            raise IndexError
        del self.stack[-count:]
        self.contain(items)

    def append(self) -> None:
        item = self.stack.pop()
        self.top(list).append(item)

    def extend(self) -> None:
        items = self.since_mark()
        self.top(list).extend(items)

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.top(dict)[hashable_key(key)] = value

    def set_items(self) -> None:
        items = self.since_mark()
        target = self.top(dict)
        if len(items) % 2:
            raise ValueError("a dict has a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[hashable_key(key)] = value

    def add_items(self) -> None:
        items = self.since_mark()
        self.top(set).update(map(hashable_key, items))

    def memoize(self, index: int) -> None:
        self.spend(1)
        self.memo[index] = self.stack[-1]

    # ---- names, and what stands for objects

    def name(self, module: str, name: str) -> None:
        if len(module) + len(name) > MAX_NAME:
            raise ValueError(f"a name is longer than {MAX_NAME} characters")
        self.spend(CONTAINER)  # beside that of the record
        name = f"{'builtins' if module == '__builtin__' else module}.{name}"
        make = self.names.get(name)
        if make is None:
            if not self.inert.fullmatch(name):
                raise ValueError(f"it names {short_repr(name)}, which does not belong in such a file; nothing was run")
            make = partial(Inert, name)
        self.contain(Name(name, make))

    def stack_name(self) -> None:
        name, module = self.pop(str), self.pop(str)
        self.name(module, name)

    def call(self) -> None:
        args = self.pop(tuple)
        self.contain(self.pop(Name).make(args))

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Inert) and target.state is None:
            target.state = state
        elif type(target) is not dict:  # a state dict has attributes, which are no data
            raise ValueError(f"{short_repr(target)} is given a state, which it cannot have")

    def persistent(self) -> None:
        if self.persistent_load is None:
            raise ValueError("it refers to something outside of itself")
        self.contain(self.persistent_load(self.pop(tuple)))

    def copied(self, args: tuple, *kinds: type) -> Any:
        """The one container that a container is made of, charged for its copy."""
        if not args:
            return kinds[0]()
        if len(args) > 1 or type(args[0]) not in kinds:
            raise ValueError("a container is made of something else than one container")
        self.spend(2 * len(args[0]))
        return args[0]

    def ordered_dict(self, args: tuple) -> dict:
        pairs = self.copied(args, list, dict)
        if isinstance(pairs, dict):
            return dict(pairs)
        if any(type(pair) not in (list, tuple) or len(pair) != 2 for pair in pairs):
            raise ValueError("an OrderedDict is made of something else than pairs")
        return {hashable_key(key): value for key, value in pairs}

    def set_of(self, args: tuple) -> set:
        return {hashable_key(item) for item in self.copied(args, list, tuple, set)}


BYTE, UINT16, UINT32, UINT64, INT32 = map(struct.Struct, ("B", "<H", "<I", "<Q", "<i"))
Operation = Callable[[PickleReader], Any]


def _number(form: struct.Struct) -> Operation:
    return lambda reader: reader.stack.append(reader.number(form))


def _text(form: struct.Struct) -> Operation:
    return lambda reader: reader.stack.append(str(reader.read_bytes(reader.number(form)), "utf-8"))


def _remembered(form: struct.Struct) -> Operation:
    return lambda reader: reader.stack.append(reader.memo[reader.number(form)])


STOP = ord(".")
# Left out on purpose: what calls by other ways (INST, OBJ, EXT), buffers that are allocated before they are read
# (BYTEARRAY8, NEXT_BUFFER), integers of any length (LONG4), and the text opcodes of protocols 0 and 1.
_KNOWN: dict[int, Operation] = {
    0x80: PickleReader.protocol,
    0x95: PickleReader.skip_frame,
    ord("("): PickleReader.mark,
    ord("0"): lambda reader: reader.stack.pop(),
    ord("1"): PickleReader.since_mark,
    ord("2"): lambda reader: reader.stack.append(reader.stack[-1]),
    ord("N"): lambda reader: reader.stack.append(None),
    0x88: lambda reader: reader.stack.append(True),
    0x89: lambda reader: reader.stack.append(False),
    ord("K"): _number(BYTE),
    ord("M"): _number(UINT16),
    ord("J"): _number(INT32),
    0x8A: PickleReader.long,
    ord("G"): _number(struct.Struct(">d")),
    0x8C: _text(BYTE),
    ord("X"): _text(UINT32),
    0x8D: _text(UINT64),
    ord("U"): _text(BYTE),  # the strings of Python 2
    ord("T"): _text(UINT32),
    ord(")"): lambda reader: reader.stack.append(()),
    ord("}"): lambda reader: reader.contain({}),
    ord("]"): lambda reader: reader.contain([]),
    0x8F: lambda reader: reader.contain(set()),
    ord("t"): lambda reader: reader.contain(tuple(reader.since_mark())),
    0x85: lambda reader: reader.tuple_of(1),
    0x86: lambda reader: reader.tuple_of(2),
    0x87: lambda reader: reader.tuple_of(3),
    ord("a"): PickleReader.append,
    ord("e"): PickleReader.extend,
    ord("s"): PickleReader.set_item,
    ord("u"): PickleReader.set_items,
    0x90: PickleReader.add_items,
    0x91: lambda reader: reader.contain(frozenset(map(hashable_key, reader.since_mark()))),
    ord("q"): lambda reader: reader.memoize(reader.number(BYTE)),
    ord("r"): lambda reader: reader.memoize(reader.number(UINT32)),
    0x94: lambda reader: reader.memoize(len(reader.memo)),
    ord("h"): _remembered(BYTE),
    ord("j"): _remembered(UINT32),
    ord("c"): lambda reader: reader.name(reader.line(), reader.line()),
    0x93: PickleReader.stack_name,
    ord("R"): PickleReader.call,
    0x81: PickleReader.call,
    ord("b"): PickleReader.build,
    ord("Q"): PickleReader.persistent,
}
OPERATIONS = [_KNOWN.get(code, PickleReader.unknown) for code in range(256)]

__all__ = ["Inert", "Name", "PickleReader", "hashable_key", "path_repr", "refusal", "short_repr"]

"""Golden numbers: which cases there are, their tensors, and one rule of comparison for all parity tests.

A case is `<item>__<case>.json` beside a file of tensors: weights (`w.`), inputs (`in.`), outputs (`out.`) and gradients
(`grad.`). `hyper` says what ran; no test knows a case by its name. A test reads every field of `hyper` and every input,
and names the values that it knows: what it does not know fails, because who passes over an option compares another model.
`--golden-dir` puts another folder in the place of ours.
"""

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from transformers_xl.modeling.memory.memory_value import Memory

SHIPPED = (Path(__file__).parents[1] / "fixtures" / "golden").resolve()


class Location:
    """Where the cases lie: `conftest.py` sets it from `--golden-dir`, before any test is collected."""

    folder = SHIPPED


@cache
def described_in(folder: Path) -> dict[Path, dict]:
    """What each case of a folder is, by its file. A case is known by what stands in the file, not by its name."""
    descriptions = {file: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}
    return {file: description for file, description in descriptions.items() if "hyper" in description}


def files_of(item: str, folder: Path | None = None) -> list[Path]:
    """The cases of an item."""
    described = described_in(folder or Location.folder)
    return [file for file, description in described.items() if description["item"] == item]


def cases(item: str) -> pytest.MarkDecorator:
    """Runs a test with every case of an item, which it takes as `case`."""
    files = files_of(item)
    return pytest.mark.parametrize("case", files, ids=[file.stem for file in files], indirect=True)


def folder_of(name: str) -> Path:
    """An old checkpoint: that of `--golden-dir`, or ours where a folder of further cases has none."""
    given = Location.folder / name
    return given if given.is_dir() else SHIPPED / name


class Fields(Mapping[str, Any]):
    """What stands in a case under names, also inside of one another; it notes what was read.

    To ask whether a name is there (`in`), or to list the names, is not to read.
    """

    def __init__(self, values: Mapping[str, Any], place: str = ""):
        self.place = place
        self.values_by_name = {name: with_fields(value, f"{place}{name}") for name, value in values.items()}
        self.unread_names = set(values)

    def __getitem__(self, name: str) -> Any:
        value = self.values_by_name[name]
        self.unread_names.discard(name)
        return value

    def __contains__(self, name: object) -> bool:
        return name in self.values_by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)

    def unread(self) -> list[str]:
        """The names that nobody has read, a dot between a field and one inside it."""
        found = [f"{self.place}{name}" for name in self if name in self.unread_names]
        for name, value in self.values_by_name.items():
            inside = value if isinstance(value, list) else [value]
            if name not in self.unread_names:
                found += [each for fields in inside if isinstance(fields, Fields) for each in fields.unread()]
        return found

    def only_describe(self, **actual: Any) -> None:
        """Fields that say what the tensors show, where the case has them: another value than `actual` fails."""
        for name, value in actual.items():
            if name in self and self[name] != value:
                pytest.fail(f"{self.place}{name}={self[name]!r}, but the tensors show {value!r}")

    def change_nothing(self, *names: str) -> None:
        """Fields that are known, and whose value nothing that is compared depends on: it may be any."""
        for name in names:
            self.get(name)


def with_fields(value: Any, place: str) -> Any:
    if isinstance(value, Mapping):
        return Fields(value, f"{place}.")
    return (
        [with_fields(each, f"{place}.{index}") for index, each in enumerate(value)] if type(value) is list else value
    )


class Case:
    """
    Attributes:
        hyper: the options of the run. Tensors have their prefix in `tensors`, and none in `weights`, `inputs`, `gradients`.
        dtype: the type that it ran in.
    """

    def __init__(self, file: Path):
        self.file = file
        self.description: dict = described_in(file.parent)[file]
        self.hyper = Fields(self.description["hyper"])
        self.tolerance: dict = self.description["tolerance"]
        self.tensors = load_file(file.with_suffix(".safetensors"))
        self.weights, self.gradients = self.part("w."), self.part("grad.")
        self.inputs = Fields(self.part("in."), "in.")
        self.dtype = next(tensor.dtype for tensor in self.tensors.values() if tensor.is_floating_point())
        self.compared: set[str] = set()

    def part(self, prefix: str) -> dict[str, torch.Tensor]:
        return {name.removeprefix(prefix): each for name, each in self.tensors.items() if name.startswith(prefix)}

    def count(self, pattern: str) -> int:
        """How many tensors have such a name: segments, layers."""
        return sum(fnmatch(name, pattern) for name in self.tensors)

    def leaf(self, name: str) -> torch.Tensor:
        """An input whose gradient is wanted."""
        return self.inputs[name].clone().requires_grad_()

    def lengths(self, *names: str, axis: int) -> list[int]:
        """Of each segment, by the inputs `<name>_seg<number>`, whose shapes `segments` and `n_segments` describe."""
        numbers = range(self.count(f"in.{names[0]}_seg*"))
        found = [[self.inputs[f"{name}_seg{number}"].shape[axis] for number in numbers] for name in names]
        batch = {self.inputs[f"{name}_seg0"].shape[1 - axis] for name in names}
        assert all(each == found[0] for each in found), found
        self.hyper.only_describe(segments=found[0], n_segments=len(numbers), batch=batch.pop())
        assert not batch
        return found[0]

    def choice(self, field: str, *known: Any, but: Iterable[Any] = (), reason: str = "") -> Any:
        """The value of a field, a dot between a field and one inside it, which must be one of those that the test knows.

        Args:
            known: those that it can run.
            but: those that the original knows and the package does not: they skip the case, for this reason.
        """
        value = self.value_of(field)
        if value in [*but]:
            self.out_of_scope(reason, field)
        if value not in known:
            pytest.fail(f"{field}={value!r}: the test knows {', '.join(map(repr, [*known, *but]))}")
        return value

    def value_of(self, field: str) -> Any:
        return reduce(getitem, field.split("."), self.hyper)

    def check_all_read(self) -> None:
        """Every field and every input was read: an option that is passed over is another model."""
        unread = self.hyper.unread() + self.inputs.unread()
        assert not unread, f"{self.file.name} has what the test does not know: {', '.join(unread)}"

    def skip_background(self) -> None:
        if self.description["use"] == "background":
            pytest.skip(f"use='background': {self.description['pins']}")

    def out_of_scope(self, reason: str, *fields: str) -> None:
        """Skip a case for the values of these fields of `hyper`, a dot between a field and one inside it."""
        values = ", ".join(f"{field}={self.value_of(field)!r}" for field in fields)
        pytest.skip(f"{values}: {reason}")

    def has(self, name: str) -> bool:
        return f"out.{name}" in self.tensors

    def check(
        self, name: str, actual: torch.Tensor, part: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> None:
        """An output is the recorded one, or a `part` of it, where the case has it: the one tolerance of all outputs."""
        if not self.has(name):
            return
        self.compared.add(name)
        expected = self.tensors[f"out.{name}"]
        expected = expected if part is None else part(expected)
        actual = actual.detach()
        if actual.numel() == expected.numel() == 1:
            actual = actual.reshape(expected.shape)
        if not expected.is_floating_point():
            assert torch.equal(actual.to(expected.dtype), expected), f"{name}: {actual} is not {expected}"
            return
        bounds = {"atol": self.tolerance["out_atol"], "rtol": self.tolerance["out_rtol"]}
        torch.testing.assert_close(actual.to(expected.dtype), expected, **bounds, msg=lambda text: f"{name}: {text}")

    def check_gradients(
        self,
        found: dict[str, torch.Tensor | None],
        translated: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] = dict,
    ) -> None:
        """Every stored gradient is the one that was found: the one tolerance of all gradients.

        `translated` gives those of weights our names; those of inputs are `in.<name>`. `found` may hold more.
        """
        of_weights = {name: each for name, each in self.gradients.items() if not name.startswith("in.")}
        of_inputs = {name: each for name, each in self.gradients.items() if name.startswith("in.")}
        stored = translated(of_weights) | of_inputs
        assert bool(stored) == bool(self.gradients), "no stored gradient has a name of ours"
        for name, expected in stored.items():
            gradient = found[name]
            assert gradient is not None, f"{name} has no gradient"
            bound = self.tolerance["grad_atol"] * max(1.0, expected.abs().max().item())
            bounds = {"atol": bound, "rtol": self.tolerance["grad_rtol"]}
            torch.testing.assert_close(gradient, expected, **bounds, msg=lambda text, name=name: f"{name}: {text}")

    def finish(self, *left_out: str) -> None:
        """Every output was compared but those `left_out` (patterns): a misspelled name would compare nothing.

        Cases of other folders may have outputs that ours have not: a warning names them.
        """
        assert self.compared, f"nothing of {self.file.name} was compared"
        missed = [
            name
            for name in self.part("out.")
            if name not in self.compared and not any(fnmatch(name, pattern) for pattern in left_out)
        ]
        if missed:
            assert self.file.parent != SHIPPED, f"not compared: {missed}"
            warnings.warn(f"{self.file.name} has outputs that no test compares: {missed}", stacklevel=2)


TOLERANCE = {"out_atol": 1e-5, "out_rtol": 1e-4, "grad_atol": 1e-5, "grad_rtol": 1e-3}


def write_case(file: Path, item: str, hyper: dict, tensors: dict[str, torch.Tensor], **tolerance: float) -> Case:
    """A case that a test makes itself, of tensors by their full names: of options that no recorded case has."""
    description = {"item": item, "use": "in scope", "pins": "it", "hyper": hyper, "tolerance": TOLERANCE | tolerance}
    file.write_text(json.dumps(description), encoding="utf-8")
    save_file({name: each.detach().clone() for name, each in tensors.items()}, file.with_suffix(".safetensors"))
    described_in.cache_clear()
    return Case(file)


def gradients_of(module: torch.nn.Module, **inputs: torch.Tensor) -> dict[str, torch.Tensor | None]:
    """The gradients of a module's parameters by their names, and those of `inputs` as `in.<name>`."""
    named: Iterable = module.named_parameters(remove_duplicate=False)
    return {name: each.grad for name, each in named} | {f"in.{name}": each.grad for name, each in inputs.items()}


def columns_of(memory: Memory | None) -> list[torch.Tensor]:
    """What each layer remembers, `(batch, columns, width)`: the recorded memories are lists of it."""
    return [] if memory is None else [layer.columns[0] for layer in memory.layers if layer.columns]


def with_columns(memory: Memory, columns: Sequence[torch.Tensor]) -> Memory:
    """The memory with others of as many columns in its layers."""
    pairs = zip(memory.layers, columns, strict=True)
    return memory._replace(layers=tuple(layer._replace(columns=(each,)) for layer, each in pairs))


def squares(*outputs: torch.Tensor) -> torch.Tensor:
    """The sum of all squares: the objective of most cases."""
    return sum((output.square().sum() for output in outputs), start=torch.zeros(()))


def ramp(output: torch.Tensor) -> torch.Tensor:
    """Numbers from -1 to 1 in the order of `output`: what some objectives weight it with."""
    return torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)

"""Golden numbers: which cases there are, their tensors, and one rule of comparison for all parity tests.

A case is `<item>__<case>.json` beside a file of tensors: weights (`w.`), inputs (`in.`), outputs (`out.`) and gradients
(`grad.`). `hyper` says what ran; no test knows a case by its name. `--golden-dir` puts another folder in the place of ours.
"""

import json
import warnings
from collections.abc import Callable, Iterable
from fnmatch import fnmatch
from functools import cache, reduce
from operator import getitem
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

SHIPPED = (Path(__file__).parent / "fixtures" / "golden").resolve()


class Location:
    """Where the cases lie: `conftest.py` sets it from `--golden-dir`, before any test is collected."""

    folder = SHIPPED


@cache
def described_in(folder: Path) -> dict[Path, dict]:
    """What each case of a folder is, by its file. A case is known by what stands in the file, not by its name."""
    descriptions = {file: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}
    return {file: description for file, description in descriptions.items() if "hyper" in description}


def files_of(item: str, folder: Path | None = None, **hyper) -> list[Path]:
    """The cases of an item whose `hyper` has these values."""
    return [
        file
        for file, description in described_in(folder or Location.folder).items()
        if description["item"] == item and hyper.items() <= description["hyper"].items()
    ]


def cases(item: str, **hyper) -> pytest.MarkDecorator:
    """Runs a test with every case of an item, which it takes as `case`."""
    files = files_of(item, **hyper)
    return pytest.mark.parametrize("case", files, ids=[file.stem for file in files], indirect=True)


def folder_of(name: str) -> Path:
    """An old checkpoint: that of `--golden-dir`, or ours where a folder of further cases has none."""
    given = Location.folder / name
    return given if given.is_dir() else SHIPPED / name


class Case:
    """
    Attributes:
        hyper: the options of the run. Tensors have their prefix in `tensors`, and none in `weights`, `inputs`, `gradients`.
        dtype: the type that it ran in.
    """

    def __init__(self, file: Path):
        self.file = file
        self.description: dict = described_in(file.parent)[file]
        self.hyper: dict = self.description["hyper"]
        self.tolerance: dict = self.description["tolerance"]
        self.tensors = load_file(file.with_suffix(".safetensors"))
        self.weights, self.inputs, self.gradients = (self.part(kind) for kind in ("w.", "in.", "grad."))
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

    def skip_background(self) -> None:
        if self.description["use"] == "background":
            pytest.skip(f"use='background': {self.description['pins']}")

    def out_of_scope(self, reason: str, *fields: str) -> None:
        """Skip a case for the values of these fields of `hyper`, a dot between a field and one inside it."""
        values = ", ".join(f"{field}={reduce(getitem, field.split('.'), self.hyper)!r}" for field in fields)
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


def gradients_of(module: torch.nn.Module, **inputs: torch.Tensor) -> dict[str, torch.Tensor | None]:
    """The gradients of a module's parameters by their names, and those of `inputs` as `in.<name>`."""
    named: Iterable = module.named_parameters(remove_duplicate=False)
    return {name: each.grad for name, each in named} | {f"in.{name}": each.grad for name, each in inputs.items()}


def squares(*outputs: torch.Tensor) -> torch.Tensor:
    """The sum of all squares: the objective of most cases."""
    return sum((output.square().sum() for output in outputs), start=torch.zeros(()))


def ramp(output: torch.Tensor) -> torch.Tensor:
    """Numbers from -1 to 1 in the order of `output`: what some objectives weight it with."""
    return torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)

"""The folder of `transformers-xl compare`: what is there, what is missing, and the work that is left.

plan.json                       the plan of the last command
trials/MODEL-SETTING.json       what a setting gave on the validation documents
runs/MODEL-SEED.json            the bits of each test document
speeds.json                     seconds of a step
models/MODEL-SEED               the trained models, where they are kept
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers_xl.files.json_files import read_json
from transformers_xl.runs.comparison import check_settings, read_speeds, write_json
from transformers_xl.runs.comparison_models import ComparedModel
from transformers_xl.runs.comparison_plan import ComparisonPlan
from transformers_xl.runs.comparison_runs import run, time_steps, try_setting
from transformers_xl.runs.comparison_search import Setting, best, next_trial
from transformers_xl.runs.comparison_texts import check_apart, read_comparison_texts
from transformers_xl.runs.separate_process import in_a_process

ROUNDS = 9  # of the measurement of steps


class Comparison:
    """A comparison on its way. Each result is a file: what is there is not done again.

    Args:
        plan: what is compared.
        folder: where the files are, or will be.
        keep_models: also write the model of each run that is made.

    Raises:
        ValueError: a model cannot take part, a text is missing or has a document of another, or a file that is there has
            other settings.

    Attributes:
        missing: name and seed of the runs that are not there, or may change with trials that are not there, seed by seed.
    """

    def __init__(self, plan: ComparisonPlan, folder: Path, keep_models: bool = False):
        self.plan, self.folder, self.keep_models = plan, folder, keep_models
        self.models = {name: ComparedModel(name, plan) for name in plan.models}
        check_apart(plan)
        texts = read_comparison_texts(plan)
        if len(texts.test.names) < 2:
            raise ValueError(f"`texts.test`={plan.texts.test!r} has one document: intervals are over two or more.")
        for model in self.models.values():
            next(model.reading.batches(texts.train, plan.batch_size))  # refuses a text that is too short
        self.digests = texts.digests()
        runs = [(name, seed) for seed in range(plan.seeds) for name in plan.models]
        self.missing = [(name, seed) for name, seed in runs if not self._is_there(name, seed)]
        write_json(folder / "plan.json", asdict(plan))

    def choose(self, name: str) -> Setting:
        """The setting of a model that is best on the validation documents, after the trials that are missing.

        Raises:
            ValueError: every training diverged.
        """
        tried = self._tried(name, self._try)
        assert tried is not None
        if min(tried.values()) == float("inf"):
            raise ValueError(
                f"`models.{name}`: each of {len(tried)} trainings diverged: begin with a lower `search.rate`."
            )
        return best(tried)

    def train(self, name: str, seed: int) -> dict[str, Any]:
        """The run of a model from a seed with its best setting: trained and scored in a separate process, and written,
        unless it is there."""
        setting = self.choose(name)
        result = self._run(name, seed, setting)
        if result is None:
            result = self._described(name) | {"seed": seed, "setting": asdict(setting)}
            kept = self.folder / "models" / f"{name}-{seed}" if self.keep_models else None
            result |= in_a_process(run, name, seed, self.plan, setting, kept)
            write_json(self._run_file(name, seed), result)
        return result

    def time_steps(self) -> None:
        """Time a step of each model, unless that was done for all of them."""
        settings = {name: self.choose(name) for name in self.plan.models}
        described = {name: self._described(name)["settings"] for name in settings}
        if read_speeds(self.folder).get("settings") != described:
            found = in_a_process(time_steps, self.plan, settings, ROUNDS)
            write_json(self.folder / "speeds.json", {"settings": described} | found)

    def _tried(
        self, name: str, missing: Callable[[str, Setting], dict[str, Any] | None]
    ) -> dict[Setting, float] | None:
        """Bits per byte of all trials of a model; None where `missing` has nothing for one that is not there."""
        tried: dict[Setting, float] = {}
        while (setting := next_trial(tried, self.models[name].starts, self.plan.search)) is not None:
            found = self._read(name, self._trial_file(name, setting)) or missing(name, setting)
            if found is None:
                return None
            tried[setting] = float("inf") if found["bits_per_byte"] is None else found["bits_per_byte"]
        return tried

    def _try(self, name: str, setting: Setting) -> dict[str, Any]:
        found = self._described(name) | {"setting": asdict(setting)}
        found |= in_a_process(try_setting, name, self.plan, setting)
        write_json(self._trial_file(name, setting), found)
        return found

    def _is_there(self, name: str, seed: int) -> bool:
        """Whether a run is there with the setting that all trials, which are there too, choose."""
        tried = self._tried(name, lambda *_: None)
        return tried is not None and self._run(name, seed, best(tried)) is not None

    def _run(self, name: str, seed: int, setting: Setting) -> dict[str, Any] | None:
        """A run that is there, with this setting."""
        found = self._read(name, self._run_file(name, seed))
        return found if found is not None and found["setting"] == asdict(setting) else None

    def _described(self, name: str) -> dict[str, Any]:
        """What every file says of its model."""
        return {"model": name, "settings": self.plan.settings(name) | {"texts": self.digests}}

    def _read(self, name: str, file: Path) -> dict[str, Any] | None:
        """A file of a model, or None where there is none."""
        if not file.is_file():
            return None
        found = read_json(file)
        check_settings(file, found.get("settings", {}), self._described(name)["settings"])
        return found

    def _trial_file(self, name: str, setting: Setting) -> Path:
        return self.folder / "trials" / f"{name}-{setting.name}.json"

    def _run_file(self, name: str, seed: int) -> Path:
        return self.folder / "runs" / f"{name}-{seed}.json"


__all__ = ["Comparison"]

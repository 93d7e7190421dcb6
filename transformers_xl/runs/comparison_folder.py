"""The folder of `transformers-xl compare`: the runs that are there, those that are missing, and the speeds."""

from pathlib import Path
from typing import Any

from transformers_xl.files.json_files import read_json
from transformers_xl.runs.comparison import check_settings, read_runs, write_json
from transformers_xl.runs.comparison_runs import (
    builders,
    in_a_process,
    inner_widths,
    recl_positions,
    run,
    settings_of,
    try_rate,
)
from transformers_xl.runs.comparison_speeds import speeds
from transformers_xl.runs.comparison_terms import ComparisonTerms
from transformers_xl.runs.fitting import read_texts


class Comparison:
    """A comparison on its way.

    Args:
        texts: text files, read as one.
        folder: where its files are, or will be.
        names: models to compare; all when there are none.
        seeds: runs of each.
        terms: what is the same for all models.
        learning_rates: of several, each model is trained with the one that is best for it in a run of seed 0 which is a
            quarter as long, on the end of the training text; one: that of the terms. Where there are more than those of the
            runs that are there, a run stays if its rate is still the best, and is replaced if not.

    Raises:
        ValueError: a model is not known or cannot be as large as the others, the text is too short, or a run that is there
            has other settings.

    Attributes:
        parameters: of each model, within 3 %.
        found, missing: name and seed of the runs that are there, and of those asked for that are not, or that were chosen
            from fewer learning rates.
    """

    def __init__(
        self,
        texts: list[Path],
        folder: Path,
        names: list[str] | None,
        seeds: int,
        terms: ComparisonTerms,
        learning_rates: list[float],
    ):
        self.texts, self.folder = texts, folder
        runs = read_runs(folder, any_rates=True) if (folder / "runs").is_dir() else []
        names = list(dict.fromkeys(names or builders()))
        _, held_out, _ = read_texts(texts, terms)
        self.widths, self.parameters = inner_widths(terms, names)
        self.settings = settings_of(texts, terms, learning_rates, self.parameters)
        recl_positions(len(held_out), self.settings.recl)  # refuses a text that is too short
        for each in runs:
            more_rates = set(each["settings"].get("learning_rates", ())) <= set(learning_rates)
            file = self._file(each["model"], each["seed"])
            check_settings(file, each["settings"], self.settings.to_dict(), more_rates)
        done = [each for each in runs if each["settings"] == self.settings.to_dict()]
        self.found = [(each["model"], each["seed"]) for each in done]
        self.missing = [(name, seed) for seed in range(seeds) for name in names if (name, seed) not in self.found]

    def train(self, name: str, seed: int) -> dict[str, Any]:
        """Train and measure one model from one seed, in a separate process, and write the run. The model of the first
        seed stays, to time what it writes. A run that is there with the same learning rate only takes the settings over."""
        file, rate = self._file(name, seed), self.learning_rate(name)
        result = read_json(file) | {"settings": self.settings.to_dict()} if file.is_file() else {}
        if result.get("learning_rate") != rate:
            model_folder = None if seed else self._models / name
            given = name, seed, self.widths[name], self.texts, self.settings, rate, model_folder
            result = in_a_process(run, *given)
        write_json(file, result)
        return result

    def learning_rate(self, name: str) -> float:
        """That of a model: the best of several, each of which is tried once, from the lowest on, until two in a row are
        worse than the best."""
        first, *others = sorted(self.settings.learning_rates)
        if not others:
            return first
        tried = {first: self._tried(name, first)["bits_per_byte"]}
        for rate in others:
            if min(tried.values()) < min([*tried.values()][-2:]):
                break
            tried[rate] = self._tried(name, rate)["bits_per_byte"]
        return min(tried, key=tried.__getitem__)

    def _tried(self, name: str, learning_rate: float) -> dict[str, Any]:
        """What a learning rate gave, of its file where it was tried before."""
        file = self.folder / "rates" / f"{name}-{learning_rate:g}.json"
        if file.is_file():
            found = read_json(file)
            check_settings(file, found["settings"], self.settings.to_dict(), any_rates=True)
            return found
        found = in_a_process(try_rate, name, self.widths[name], self.texts, self.settings, learning_rate)
        write_json(file, found)
        return found

    def measure_speeds(self, turns: int) -> None:
        """Time all models of the folder, also those of earlier calls, and write speeds.json."""
        widths = {each["model"]: each["intermediate_size"] for each in read_runs(self.folder)}
        result = in_a_process(speeds, widths, self._models, self.texts, self.settings, turns)
        write_json(self.folder / "speeds.json", result)

    @property
    def _models(self) -> Path:
        return self.folder / "models"

    def _file(self, name: str, seed: int) -> Path:
        return self.folder / "runs" / f"{name}-{seed}.json"


__all__ = ["Comparison"]

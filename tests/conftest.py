"""What all tests share: the folder of golden numbers, a fixed seed, one thread for each process, and examples that do not
depend on time or on earlier runs.

torch is imported where tests run: the process that only deals them out (`pytest -n`) does without."""

import gc
import os
from pathlib import Path

import pytest

search_for_garbage = gc.collect


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden-dir", type=Path, help="folder of golden numbers in the place of ours")
    parser.addoption("--write-readme", action="store_true", help="write the generated tables into README.md and docs")


def pytest_configure(config: pytest.Config) -> None:
    # for this process and those that tests start
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # asking a Hub out of reach takes half a minute
    folder = config.getoption("--golden-dir")
    if folder and not folder.is_dir():
        raise pytest.UsageError(f"--golden-dir {folder} is no folder.")
    deals_out = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if not deals_out:
        prepare_process(folder)


def prepare_process(golden_folder: Path | None) -> None:
    import golden
    import hypothesis
    import torch

    torch.set_num_threads(1)
    gc.set_threshold(50_000, 20, 20)  # searches for garbage were a tenth of what compiling takes
    gc.collect = lambda generation=2: 0  # those that a training begins and ends with take as long as its few steps
    if golden_folder:
        golden.Location.folder = golden_folder.resolve()
    # the same examples in every run; how long one takes, or is drawn for, is no failure: the machine may be busy
    hypothesis.settings.register_profile(
        "same everywhere", deadline=None, derandomize=True, database=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )  # fmt: skip
    hypothesis.settings.load_profile("same everywhere")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    import torch

    asked = [item for item in items if not lacks_options(item)]
    config.hook.pytest_deselected(items=[item for item in items if lacks_options(item)])
    items[:] = asked
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def lacks_options(item: pytest.Item) -> bool:
    """Whether a test asks memory around a base for an option of our own models."""
    options = getattr(item, "callspec", None) and item.callspec.params
    if not options or not str(options.get("model_type")).startswith("segment_memory"):
        return False
    return options.get("same_length") is False or options.get("initial_memory") == "zeros"


@pytest.fixture(autouse=True, scope="module")
def _short_searches_for_garbage() -> None:
    """What is there by now stays: a search for garbage, which every training begins with, need not go through it. What a
    file of tests leaves behind (imports, compiled graphs) made it three quarters of a small training."""
    search_for_garbage()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed() -> None:
    import torch

    # `torch.manual_seed` notes who called it for each accelerator that is not there: as long as a small test takes
    seed = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed
    seed(0)

"""What all tests share: the folder of golden numbers, a fixed seed, and one thread for each test process."""

from pathlib import Path

import pytest
import torch

GOLDEN = Path(__file__).parent / "fixtures" / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden-dir", type=Path, default=GOLDEN, help="folder of golden numbers for the parity tests")
    parser.addoption("--write-readme", action="store_true", help="write the table of variants into README.md")


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)

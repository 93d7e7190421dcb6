"""Parquet files, which anybody may have written."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers_xl.files.blaming import blamed
from transformers_xl.files.bounded_reading import check_parquet


def checked_metadata(path: Path) -> Any:
    """What the end of a file says: rows, columns, sizes.

    Raises:
        ValueError: the file is damaged, or holds far more than its size, or the package pyarrow is missing.
    """
    if find_spec("pyarrow") is None:
        raise ValueError(f"{str(path)!r} is Parquet, which needs the package pyarrow: `pip install pyarrow`.")
    from pyarrow import parquet

    with blamed(path):
        metadata = parquet.read_metadata(path)
    check_parquet(metadata, path.stat().st_size, str(path))
    return metadata


def parquet_rows(path: Path) -> list[dict[str, Any]]:
    """All rows of a file. Errors are those of [`checked_metadata`]."""
    checked_metadata(path)
    from pyarrow import parquet

    with blamed(path):
        return parquet.ParquetFile(path).read().to_pylist()


__all__ = ["checked_metadata", "parquet_rows"]

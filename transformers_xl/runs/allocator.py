"""Fresh memory is dear: the first touch of each page goes to the kernel, for longer than it takes to compute what is
written there."""

import functools

LARGEST = 2**25 - 2**13  # bytes: the largest that glibc draws conclusions from, and its own words before it


@functools.cache  # once is enough
def keep_freed_memory() -> None:
    """Let glibc keep freed memory, up to 64 MiB at the end of its heap, instead of giving it back at once: in the whole
    process, from now on.

    It raises its thresholds to the size of a large block that is freed, whoever frees one: here it is one that nobody
    touched. Other C libraries take no notice, nor does glibc where thresholds were set (`MALLOC_TRIM_THRESHOLD_`).
    """
    bytearray(LARGEST)


__all__ = ["keep_freed_memory"]

"""Memory that was freed between what is still used, given back: glibc keeps it, and a server runs for months."""

import ctypes
import platform


def give_back_freed_memory() -> None:
    """Let glibc give the kernel every whole page that holds nothing; other C libraries take no notice."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


__all__ = ["give_back_freed_memory"]

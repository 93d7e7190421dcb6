"""Memory that was freed is used again without asking the kernel."""

import platform
import subprocess
import sys

import pytest

# whether glibc gives 30 MiB pages of their own, which it gives back when they are freed: it counts them
SCRIPT = """
import ctypes
import sys
from transformers_xl.runs.allocator import keep_freed_memory


class MallInfo(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_int) for name in names.split()]


def own_pages():
    return mallinfo().hblks


libc = ctypes.CDLL(None)
mallinfo, libc.malloc.argtypes = libc.mallinfo, [ctypes.c_size_t]
mallinfo.restype = MallInfo
if sys.argv[1] == "keep":
    keep_freed_memory()
before = own_pages()
libc.malloc(30 * 2**20)
print(own_pages() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries take no notice")
@pytest.mark.parametrize(("how", "environment", "own_pages"), [
    ("as it is", {}, "1"),
    ("keep", {}, "0"),
    ("keep", {"MALLOC_MMAP_THRESHOLD_": "131072"}, "1"),  # what the user has set stays
])  # fmt: skip
def test_large_blocks_come_from_the_heap(how, environment, own_pages, monkeypatch):
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-c", SCRIPT, how]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == own_pages

"""Memory that was freed is used again without asking the kernel."""

import platform
import subprocess
import sys

import pytest

# where glibc puts 30 MiB: into its heap, which it keeps, or into pages that it gives back when they are freed
SCRIPT = """
import sys
import torch
from transformers_xl.cpu.allocator import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()
address = torch.empty(30 * 2**20, dtype=torch.uint8).data_ptr()
with open("/proc/self/maps") as maps:
    heap = next(line.split()[0].split("-") for line in maps if line.rstrip().endswith("[heap]"))
print(int(heap[0], 16) <= address < int(heap[1], 16))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries take no notice")
@pytest.mark.parametrize(("how", "environment", "in_heap"), [
    ("as it is", {}, "False"),
    ("keep", {}, "True"),
    ("keep", {"MALLOC_MMAP_THRESHOLD_": "131072"}, "False"),  # what the user has set stays
])  # fmt: skip
def test_large_blocks_come_from_the_heap(how, environment, in_heap, monkeypatch):
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-c", SCRIPT, how]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == in_heap

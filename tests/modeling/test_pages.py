"""Memory that was freed is used again without asking the kernel."""

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import torch
from transformers_xl.modeling.ops.pages import keep_pages

if sys.argv[1] == "keep":
    keep_pages()
for _ in range(3):
    blocks = [torch.ones(2**21) for _ in range(5)]  # 5 x 8 MiB
    del blocks
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    blocks = [torch.ones(2**21) for _ in range(5)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries take no notice")
def test_fewer_pages_are_asked_for(monkeypatch):
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_"):
        monkeypatch.delenv(name, raising=False)
    faults = [
        int(subprocess.run([sys.executable, "-c", SCRIPT, how], check=True, capture_output=True, text=True).stdout)
        for how in ("as it is", "keep")
    ]
    assert faults[0] > 10_000
    assert faults[1] < faults[0] / 20

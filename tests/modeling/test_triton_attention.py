"""The kernels of relative attention on a CPU: what they compute, in a process of its own, and what they are compiled to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from optional_packages import needs
from patience import PATIENCE

needs("triton")
HERE, ROOT = Path(__file__).parent, Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_values_and_gradients_in_the_interpreter():
    """Triton asks for its interpreter while the kernels are imported, and must not ask in this process."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", HERE / "interpreted_kernels.py"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]

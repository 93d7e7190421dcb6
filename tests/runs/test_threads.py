"""Threads that wait sleep: OpenMP itself says which policy it has, in processes of their own, as it is loaded once."""

import os
import subprocess
import sys

import pytest

IN_A_COMMAND = """
import sys
from typer.testing import CliRunner
from transformers_xl.cli.main import app
assert "torch" not in sys.modules, "OpenMP reads its policy as torch loads it"
CliRunner().invoke(app, ["config"])
import torch
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="another OpenMP, which shows its settings otherwise")
@pytest.mark.parametrize(("given", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_a_command_lets_waiting_threads_sleep(given: str | None, expected: str):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {"OMP_DISPLAY_ENV": "TRUE"} | ({} if given is None else {"OMP_WAIT_POLICY": given})
    ran = subprocess.run(
        [sys.executable, "-c", IN_A_COMMAND], env=environment, capture_output=True, text=True, check=True
    )
    assert f"OMP_WAIT_POLICY = '{expected}'" in ran.stderr

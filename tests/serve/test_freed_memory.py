"""What was freed between what is still used goes back to the kernel while a server runs."""

import asyncio
import platform
import subprocess
import sys

import pytest
from optional_packages import needs

for name in ("fastapi", "uvicorn", "prometheus_client"):
    needs(name)

# of two blocks one is freed: 64 MiB, in holes that are smaller than what glibc gives back by itself
SCRIPT = """
from transformers_xl.runs.allocator import keep_freed_memory
from transformers_xl.serve.freed_memory import give_back_freed_memory

def resident():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

keep_freed_memory()
blocks = [bytes([1]) * 2**16 for _ in range(2048)]
del blocks[::2]
before = resident()
give_back_freed_memory()
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries take no notice")
def test_whole_pages_go_back():
    found = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True).stdout
    assert int(found) > 48 * 1024  # KiB


def test_a_server_gives_back_once_a_minute(monkeypatch: pytest.MonkeyPatch):
    from uvicorn import Config

    from transformers_xl.serve import server_process

    given: list[int] = []
    monkeypatch.setattr(server_process, "give_back_freed_memory", lambda: given.append(1))
    server = server_process.Server(Config(app=lambda: None), engine=None)

    async def minutes() -> None:
        for tick in range(1800):
            assert not await server.on_tick(tick)

    asyncio.run(minutes())
    assert len(given) == 3
    server.should_exit = True
    assert asyncio.run(server.on_tick(0))

"""The name, vendor and family of the processor, on Linux and elsewhere."""

import platform
from pathlib import Path

from transformers_xl.files.processor import Processor, processor

ZEN_4 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC

processor\t: 1
model name\t: another
"""


def test_linux_says_it_in_a_file(monkeypatch, tmp_path: Path):
    (tmp_path / "cpuinfo").write_text(ZEN_4)
    monkeypatch.setattr("transformers_xl.files.processor.CPUINFO", tmp_path / "cpuinfo")
    assert processor() == Processor("AMD EPYC", "AuthenticAMD", 25, 17)
    assert str(processor()) == "AMD EPYC (family 25, model 17)"


def test_other_systems_say_it_in_one_line(monkeypatch, tmp_path: Path):
    monkeypatch.setattr("transformers_xl.files.processor.CPUINFO", tmp_path / "missing")
    for described, expected in (
        ("Intel64 Family 6 Model 167 Stepping 1, GenuineIntel", (6, 167)),
        ("arm", (None, None)),
    ):
        monkeypatch.setattr(platform, "processor", lambda line=described: line)
        assert (processor().name, *processor()[2:]) == (described, *expected)
    assert (processor().vendor, str(processor())) == ("", "arm")
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert processor().name == platform.machine()

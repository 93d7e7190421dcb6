"""What /proc/cpuinfo and `platform` say of the processor."""

import platform
import re
from pathlib import Path
from typing import NamedTuple

CPUINFO = Path("/proc/cpuinfo")  # of Linux


class Processor(NamedTuple):
    """A processor; what the system does not say is "" or None.

    Attributes:
        name: on a virtual machine that of a series, as "AMD EPYC".
        vendor: "AuthenticAMD", "GenuineIntel", ...
        family, model: which virtual machines do not hide.
    """

    name: str
    vendor: str
    family: int | None
    model: int | None

    def __str__(self) -> str:
        return self.name if self.family is None else f"{self.name} (family {self.family}, model {self.model})"


def processor() -> Processor:
    """That of this machine: of /proc/cpuinfo on Linux, of `platform` elsewhere."""
    described = platform.processor()
    text = CPUINFO.read_text(encoding="utf-8") if CPUINFO.is_file() else described
    name = re.search(r"^model name\s*: (.*)", text, re.MULTILINE)
    vendor = re.search(r"AuthenticAMD|GenuineIntel", text)
    family, model = (re.search(rf"\b{key}\s*:?\s*(\d+)", text, re.IGNORECASE) for key in ("family", "model"))
    return Processor(
        name[1].strip() if name else described or platform.machine(),
        vendor[0] if vendor else "",
        int(family[1]) if family else None,
        int(model[1]) if model else None,
    )


__all__ = ["Processor", "processor"]

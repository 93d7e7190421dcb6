"""Threads that wait for the other half of a product: they spin, by default, and take the processor from whoever works."""

import os


def let_waiting_threads_sleep() -> None:
    """Let OpenMP's threads sleep while they wait, in this process and those that it starts, if torch is not imported yet.

    OpenMP reads `OMP_WAIT_POLICY` when it is loaded, and torch loads it. A policy that is set already stays.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


__all__ = ["let_waiting_threads_sleep"]

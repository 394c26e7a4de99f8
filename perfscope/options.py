"""What can be asked of the collectors. Imports little: it is needed before the fork of the target's process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """What the user asked of the collectors.

    python_sampler: auto, bpf, austin or pyspy; "alternate" takes another one for each process in turn, to compare them.
    """

    rate_hz: int = 100
    native: bool = False
    blocking: bool = False
    python_sampler: str = "auto"
    ebpf_backend: str = "auto"
    gpu_rate_hz: int = 10

"""What can be asked of the collectors. Imports little: it is needed before the fork of the target's process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """What the user asked of the collectors.

    python_sampler: auto, pyspy or austin; "alternate" takes austin for every other process only, to compare the two.
    """

    rate_hz: int = 100
    native: bool = False
    blocking: bool = False
    python_sampler: str = "auto"
    ebpf_backend: str = "auto"
    gpu_rate_hz: int = 10

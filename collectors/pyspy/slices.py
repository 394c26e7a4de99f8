"""What a timed file of a sampler comes to: slices of time in which a thread showed one stack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]

ThreadKey = tuple[int, int]
"""(pid, tid): tid is the kernel's id as the process sees it, or -1 - n for the n-th pthread handle without one."""


@dataclass
class Slices:
    """What a file holds, in the order of time of each thread. Times in microseconds since the sampler's start.

    thread: int32[n], index into `threads`. start, end: int64[n]: from the look that saw the stack first to the first
    look that saw another, or that no longer saw the thread. stack: int32[n]. names: of the threads, where the sampler's
    is their own. looks: int64[n], how many saw each slice; None where the file doesn't say.
    events: what the file holds. errors: looks that failed. lost_events: what fits into no sound stack, or no time.
    cut_at: byte offset where reading ended early; why. leaf: innermost function of a slice.
    shared_handles: pthread handles that two processes have, one the other's fork.
    """

    threads: list[ThreadKey] = field(default_factory=list)
    names: dict[ThreadKey, str] = field(default_factory=dict)
    thread: I32 = field(default_factory=lambda: np.zeros(0, np.int32))
    start: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    end: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    stack: I32 = field(default_factory=lambda: np.zeros(0, np.int32))
    looks: I64 | None = None
    first_ts: int = 0
    last_ts: int = 0
    events: int = 0
    errors: int | None = None
    lost_events: int = 0
    shared_handles: int = 0
    cut_at: int | None = None
    cut_why: str = ""
    leaf: Callable[[int], str] = field(default=lambda row: "")

"""A thread's time, cut into slices: what the merge produces and everything above it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

STATES = ("running", "runnable", "disk", "lock", "gil", "gc", "sleep", "stopped", "unknown", "gpu-sync")
"""What a thread was doing in a slice. running: on a CPU. runnable: wanted one. disk, lock, gil: waited for it.
gc: stopped or waiting for the JVM's collector. sleep: any other wait (work, a timer, a socket). stopped: by a signal
or debugger. unknown: no source says (no sched events), so neither CPU nor off-CPU time can be claimed for it.
gpu-sync: asleep in a CUDA call until the device was done; the frame of gpu_sync.WAITING ends its stack."""

RUNNING, RUNNABLE, DISK, LOCK, GIL, GC, SLEEP, STOPPED, UNKNOWN, GPU_SYNC = range(len(STATES))


@dataclass(frozen=True)
class ThreadSlices:
    """All of one thread's observed time: slices follow each other without gap or overlap, in time order.

    start_ns, end_ns: int64[n]; start_ns[i + 1] == end_ns[i], so they may share their memory; sum(end - start) is the
        thread's observed time, exactly.
    stack_id: int32[n], into Session.stacks; ROOT (-1) where no sample says: shown as "[unsampled]".
    state: uint8[n], index into STATES.
    """

    pid: int
    tid: int
    name: str
    process: str
    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    stack_id: npt.NDArray[np.int32]
    state: npt.NDArray[np.uint8]


def joined(parts: Sequence[ThreadSlices]) -> ThreadSlices:
    """One from parts of a thread's time that follow each other; slices that a border had cut in two are whole again."""
    filled = [part for part in parts if len(part.start_ns)]
    if len(filled) < 2:
        return filled[0] if filled else parts[0]
    start, stack, state = (np.concatenate([getattr(p, n) for p in filled]) for n in ("start_ns", "stack_id", "state"))
    first = np.cumsum([len(part.start_ns) for part in filled])[:-1]
    keep = np.ones(len(start), bool)
    keep[first] = (stack[first] != stack[first - 1]) | (state[first] != state[first - 1])
    edges = np.append(start[keep], filled[-1].end_ns[-1])
    return replace(filled[0], start_ns=edges[:-1], end_ns=edges[1:], stack_id=stack[keep], state=state[keep])


STATE_LABELS = {
    RUNNABLE: "[runnable, no CPU]",
    DISK: "[waiting: disk]",
    LOCK: "[waiting: lock]",
    GIL: "[waiting: GIL]",
    GC: "[GC pause]",
    SLEEP: "[sleeping]",
    STOPPED: "[stopped]",
}
"""Leaf frame that shows a state. Running threads have none, nor have those of which nothing is known, nor GPU_SYNC,
whose stack ends in a frame that names the kernel."""

UNSAMPLED = "[unsampled]"
"""Frame of time in which no sample says where the thread was."""

TORN = "[torn stack]"
"""Frame of time whose sample is a stack that can't have existed: its time is kept, its path is not believed."""

"""The one event record, as every backend writes it and probes/bpf/event.h declares it.

Raw files are plain arrays of these records: `events.bin` (EVENT) and `blocks.bin` (BLOCK), nearly in time order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Records = npt.NDArray[np.void]

EVENT = np.dtype(
    [
        ("time", "<u8"),
        ("a", "<u8"),
        ("b", "<u8"),
        ("tgid", "<u4"),
        ("tid", "<u4"),
        ("other", "<u4"),
        ("value", "<i4"),
        ("extra", "<u4"),
        ("cpu", "<u2"),
        ("kind", "u1"),
        ("pad", "u1"),
    ]
)
"""48 bytes. Times are ns on CLOCK_MONOTONIC; what the other fields hold depends on the kind (event.h)."""

BLOCK = np.dtype(
    [
        ("start", "<u8"),
        ("issue", "<u8"),
        ("complete", "<u8"),
        ("sector", "<u8"),
        ("dev", "<u4"),
        ("bytes", "<u4"),
        ("error", "<i4"),
        ("tgid", "<u4"),
        ("tid", "<u4"),
        ("pad", "<u4"),
        ("rwbs", "S16"),
        ("comm", "S16"),
    ]
)
"""88 bytes: a block request, or what one tracepoint of an unpaired backend knows of it (the other times 0)."""

SCHED, WAIT, FORK, EXEC, DEATH, SWITCH, WAKING, WAKE, FUTEX_IN, FUTEX_OUT, ALIVE = range(1, 12)
"""Kinds of EVENT, as in event.h. ALIVE is written at the end for every thread then tracked: a: off since (0: on a
CPU), b: runnable since, other: waker, value: state, extra: records lost, cpu: 1 if it ever switched."""

OP_TIMED = 0x80000000
NO_RESULT = -(2**31)
"""WAIT.value where the call's result isn't known."""
NEWBORN = 0x10000
UNKNOWN = 0x20000
LETTERS = ("R", "S", "D", "T", "X", "N", "I", "?")
"""Letters of sched.state; `state_codes` gives indices into them."""

WAIT_COMMANDS = (0, 6, 9, 11, 13)
"""futex(2) operations that wait: WAIT, LOCK_PI, WAIT_BITSET, WAIT_REQUEUE_PI, LOCK_PI2."""


def state_codes(value: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Index into LETTERS for each kernel task state (include/linux/sched.h, TASK_*)."""
    v = value.astype(np.int64)
    conditions = [
        v == 0,
        (v & 0x402) == 0x402,  # TASK_IDLE
        (v & NEWBORN) != 0,
        (v & UNKNOWN) != 0,
        (v & 0x1) != 0,
        (v & 0x2) != 0,
        (v & 0x1000) != 0,  # TASK_RTLOCK_WAIT
        (v & 0xC) != 0,
        (v & 0xB0) != 0,
        (v & 0x40) != 0,  # parked kernel thread
    ]
    return np.select(conditions, [0, 6, 5, 7, 1, 2, 2, 3, 4, 1], 7).astype(np.int32)


STATE_OF_STAT = {"R": 0, "S": 1, "D": 2, "T": 4, "t": 8, "I": 0x402}
"""Letter in /proc/PID/stat -> task state."""


def name_of(record: Any) -> str:
    """The thread name that FORK, EXEC and DEATH carry in `a` and `b`."""
    raw = int(record["a"]).to_bytes(8, "little") + int(record["b"]).to_bytes(8, "little")
    return raw.split(b"\0", 1)[0].decode(errors="replace")


def chunks(path: Path, dtype: np.dtype[Any], rows: int = 1 << 20) -> Iterator[Records]:
    """The whole records of a raw file, in bounded pieces; a torn last record (killed, disk full) is left out."""
    if not path.exists():
        return
    with path.open("rb") as file:
        while len(data := file.read(rows * dtype.itemsize)) >= dtype.itemsize:
            yield np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype)

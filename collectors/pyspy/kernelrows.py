"""From the kernel's looks at Python stacks to slices of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from perfscope.collectors.pyspy import kernelfile
from perfscope.collectors.pyspy.kernel import Followed
from perfscope.collectors.pyspy.kernelfile import AT_TICK, ENDED, HOLDS_GIL, LOOK, UNREAD
from perfscope.collectors.pyspy.rows import Timed
from perfscope.collectors.pyspy.slices import I64
from perfscope.model.stacks import StackTable

LEAD_NS = 5_000
"""The scheduler's own record of a switch is stamped by another program, up to this much later."""


@dataclass
class KernelRows:
    """rows: slices, by thread and time. gil: of each, whether the thread held the GIL; off: whether
    it was off the CPU all the time. unread: looks at stacks that
    would have cost too much; untold: distinct stacks whose code wasn't told of; unsound: words that make no sense."""

    rows: Timed
    gil: npt.NDArray[np.bool_]
    off: npt.NDArray[np.bool_]
    looks: int
    unread: int
    untold: int
    unsound: int


def read(
    directory: Path,
    followed: Mapping[int, Sequence[Followed]],
    period_ns: int,
    span: tuple[int, int],
    stacks: StackTable,
) -> KernelRows:
    """Rows within span, (start_ns, stop_ns) of the recording."""
    looks = np.fromfile(directory / "looks.bin", LOOK)
    words = kernelfile.read_words(directory / "words.bin")
    distinct, inverse = np.unique(looks["stack"], return_inverse=True)
    known, _ = kernelfile.stack_ids(words, distinct, stacks)
    untold = int(((known < 0) & (distinct != 0)).sum())
    seen = _with_sleepers(looks, known[inverse], followed, stacks)
    start, end, stack, counts, row, off = _slices(seen, followed, period_ns, span)
    looks = seen.looks
    rows = Timed(looks["tgid"][row].astype(np.int32), looks["tid"][row].astype(np.int32), start, end, stack, counts)
    gil = (looks["flags"][row] & HOLDS_GIL) != 0
    unread = int(((looks["flags"] & UNREAD) != 0).sum())
    return KernelRows(rows, gil, off, len(looks), unread, untold, words.unsound)


@dataclass
class _Seen:
    """Looks by thread and time, and the stack_id of each, -1 for none."""

    looks: npt.NDArray[np.void]
    stack: npt.NDArray[np.int32]


def _with_sleepers(
    looks: npt.NDArray[np.void],
    stack: npt.NDArray[np.int32],
    followed: Mapping[int, Sequence[Followed]],
    stacks: StackTable,
) -> _Seen:
    """Adds what was read of those that slept until the end, and sorts all."""
    late, late_stacks = [], []
    for pid, programs in followed.items():
        for thread in programs[-1].asleep:
            late.append((thread.time_ns, thread.since_ns, 0, pid, thread.tid, 0, 0))
            frames = (kernelfile.frame(code, at) for code, at in reversed(thread.frames))
            late_stacks.append(stacks.stack(frames))
    looks = np.concatenate([looks, np.array(late, LOOK)])
    stack = np.concatenate([stack, np.array(late_stacks, np.int32)])
    order = np.lexsort((looks["time"], looks["tid"], looks["tgid"]))
    return _Seen(looks[order], stack[order])


def _slices(
    seen: _Seen, followed: Mapping[int, Sequence[Followed]], period_ns: int, span: tuple[int, int]
) -> tuple[I64, I64, npt.NDArray[np.int32], I64, I64, npt.NDArray[np.bool_]]:
    """(start, end, stack, looks, row of `seen`, whether off the CPU) of each slice.

    A look at a tick speaks for the time from it to the thread's next one. One at a thread that is back on a CPU speaks
    for the time that it was off, in which its stack couldn't change: that is a slice of its own, with as many looks as
    a sampler that looks at each period would have had; what follows up to the next look is another one, with none.
    """
    looks = seen.looks
    time, since = looks["time"].astype(np.int64), looks["since"].astype(np.int64)
    tick = (looks["flags"] & AT_TICK) != 0
    same = np.zeros(len(looks), bool)
    same[1:] = (looks["tid"][1:] == looks["tid"][:-1]) & (looks["tgid"][1:] == looks["tgid"][:-1])
    start = np.where(since > 0, since + np.minimum(LEAD_NS, (time - since) // 2), time)
    anew = ~same | (np.roll(looks["flags"], 1) & ENDED != 0)
    before = np.where(same, np.roll(time, 1), span[0])
    for index in np.flatnonzero(anew & ~tick & (since == 0)).tolist():
        pid, tid, ended_ns = int(looks["tgid"][index]), int(looks["tid"][index]), int(before[index]) * int(same[index])
        start[index] = _asleep_since(followed, pid, tid, ended_ns, int(time[index]))
    start = np.minimum(np.maximum(start, before), time)
    following = np.append(start[1:], span[1])
    following[np.append(~same[1:], True)] = span[1]
    valid = (seen.stack >= 0) & ((looks["flags"] & (ENDED | UNREAD)) == 0)

    row = np.arange(len(looks))
    off = np.flatnonzero(valid & ~tick)
    on = np.flatnonzero(valid)
    begin = np.concatenate([start[off], time[on]])
    end = np.concatenate([time[off], following[on]])
    row = np.concatenate([off, on])
    begin, end = np.clip(begin, *span), np.clip(end, *span)
    counts = np.concatenate([end[: len(off)] // period_ns - begin[: len(off)] // period_ns, tick[on].astype(np.int64)])
    keep = np.flatnonzero(end > begin)
    keep = keep[np.lexsort((begin[keep], row[keep]))]
    return begin[keep], end[keep], seen.stack[row[keep]], counts[keep], row[keep], keep < len(off)


def _asleep_since(followed: Mapping[int, Sequence[Followed]], pid: int, tid: int, ended_ns: int, seen_ns: int) -> int:
    """When a thread began to be followed that was asleep then; when it was seen first, if it is younger.

    ended_ns: when one of that id ended, by exec or for good, 0 if none did: it is another thread from there on.
    """
    for program in followed.get(pid, ()):
        if tid in program.threads and ended_ns <= program.since_ns <= seen_ns:
            return program.since_ns
    return seen_ns


def gil_rows(seen: KernelRows, period_ns: int) -> list[dict[str, object]]:
    """Rows of source "pyspy-gil": how often and for how long a thread held the GIL with a stack.

    A look at a tick stands for a period; of a thread that held the GIL when it left the CPU it is known for how long.
    """
    rows = seen.rows
    assert rows.looks is not None
    held = np.flatnonzero(seen.gil & ((rows.looks > 0) | seen.off))
    key = np.column_stack([rows.pid[held], rows.tid[held], rows.stack[held]])
    places, group = np.unique(key, axis=0, return_inverse=True)
    group = group.reshape(-1)
    length = np.where(seen.off[held], rows.end_ns[held] - rows.start_ns[held], period_ns)
    counts = np.bincount(group, rows.looks[held], len(places)).astype(np.int64)
    times = np.bincount(group, length, len(places)).astype(np.int64)
    return [
        {"source": "pyspy-gil", "pid": pid, "tid": tid, "stack_id": stack, "count": count, "duration_ns": time_ns}
        | {"torn": False}
        for (pid, tid, stack), count, time_ns in zip(places.tolist(), counts.tolist(), times.tolist(), strict=True)
    ]

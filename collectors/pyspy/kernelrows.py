"""From the kernel's looks at Python stacks to slices of time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfscope.collectors.ebpf.records import chunks
from perfscope.collectors.pyspy import kernelfile
from perfscope.collectors.pyspy.kernel import Followed
from perfscope.collectors.pyspy.kernelfile import AT_TICK, ENDED, FAILED, HOLDS_GIL, LOOK, UNREAD
from perfscope.collectors.pyspy.rows import Timed
from perfscope.model.stacks import StackTable

LEAD_NS = 5_000
"""When a thread left its CPU is computed by this program and by that of the scheduler's records, so much apart."""


PART_LOOKS = 1 << 20
"""Looks that are held in memory at once."""


@dataclass(frozen=True)
class KernelRows:
    """rows: slices, by thread and time. gil: of each, whether the thread held the GIL; off: whether it was off the CPU
    all the time."""

    rows: Timed
    gil: npt.NDArray[np.bool_]
    off: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Seen:
    """Looks, the stack_id of each (-1 for none), and whether its slices were given out already."""

    looks: npt.NDArray[np.void]
    stack: npt.NDArray[np.int32]
    done: npt.NDArray[np.bool_]

    def take(self, index: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> _Seen:
        return _Seen(self.looks[index], self.stack[index], self.done[index])

    def and_later(self, later: _Seen) -> _Seen:
        """Both, by thread and time."""
        both = zip((self.looks, self.stack, self.done), (later.looks, later.stack, later.done), strict=True)
        seen = _Seen(*(np.concatenate(pair) for pair in both))
        return seen.take(np.lexsort((seen.looks["time"], seen.looks["tid"], seen.looks["tgid"])))


class KernelReader:
    """What the kernel saw, one part of the recording's time after the other.

    looks: read so far; of these, unread: at stacks that would have cost too much; failed: at memory that couldn't be
    read just then, as the kernel was moving it, or CPython a frame. untold: distinct stacks whose code wasn't told of;
    unsound: words that make no sense.
    """

    def __init__(self, directory: Path, stacks: StackTable) -> None:
        self._path = directory / "looks.bin"
        self._stacks = stacks
        self._words = kernelfile.read_words(directory / "words.bin")
        self._known: dict[int, int] = {0: -1}
        self.unsound = self._words.unsound
        self.looks = self.unread = self.failed = self.untold = 0

    def parts(
        self,
        followed: Mapping[int, Sequence[Followed]],
        period_ns: int,
        span: tuple[int, int],
        part_looks: int = PART_LOOKS,
    ) -> Iterator[KernelRows]:
        """Rows within span, (start_ns, stop_ns) of the recording. A thread's looks stand in the file by time."""
        seen = _Seen(np.empty(0, LOOK), np.empty(0, np.int32), np.empty(0, bool))
        for looks in chunks(self._path, LOOK, part_looks):
            seen = seen.and_later(self._placed(looks))
            yield _slices(seen, period_ns, span, last=False)
            seen = _to_go_on_from(seen)
        yield _slices(seen.and_later(self._sleepers(followed)), period_ns, span, last=True)

    def _placed(self, looks: npt.NDArray[np.void]) -> _Seen:
        distinct, inverse = np.unique(looks["stack"], return_inverse=True)
        new = np.array([number for number in distinct.tolist() if number not in self._known], np.uint64)
        ids = kernelfile.stack_ids(self._words, new, self._stacks)
        self._known |= dict(zip(new.tolist(), ids.tolist(), strict=True))
        self.untold += int((ids < 0).sum())
        self.looks += len(looks)
        self.unread += int(((looks["flags"] & UNREAD) != 0).sum())
        self.failed += int(((looks["flags"] & FAILED) != 0).sum())
        stack = np.array([self._known[number] for number in distinct.tolist()], np.int32)[inverse]
        return _Seen(looks, stack, np.zeros(len(looks), bool))

    def _sleepers(self, followed: Mapping[int, Sequence[Followed]]) -> _Seen:
        """What was read of those that slept until the end."""
        late, stack = [], []
        for pid, programs in followed.items():
            for thread in programs[-1].asleep:
                late.append((thread.time_ns, thread.since_ns, 0, pid, thread.tid, 0, 0))
                path = [kernelfile.frame(code, at) for code, at in reversed(thread.frames)]
                stack.append(self._stacks.stack([kernelfile.CUT, *path] if thread.cut else path))
        self.looks += len(late)
        return _Seen(np.array(late, LOOK), np.array(stack, np.int32), np.zeros(len(late), bool))


def _to_go_on_from(seen: _Seen) -> _Seen:
    """Of each thread its last look, of which it isn't known until when it speaks, and the one before that."""
    key = seen.looks["tgid"].astype(np.int64) << 32 | seen.looks["tid"]
    last = np.append(key[1:] != key[:-1], True)[: len(key)]
    context = np.append(last[1:], False)[: len(key)] & ~last
    ended = (seen.looks["flags"] & ENDED) != 0
    context &= ~np.append(ended[1:], False)[: len(key)]
    kept = seen.take(last | context)
    return _Seen(kept.looks, kept.stack, context[last | context])


def _slices(seen: _Seen, period_ns: int, span: tuple[int, int], *, last: bool) -> KernelRows:
    """Slices of all looks that aren't done, but for each thread's last one where that isn't the last of all.

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
    before = np.where(same, np.roll(time, 1), span[0])
    start = np.minimum(np.maximum(start, before), time)
    open_ended = np.append(~same[1:], True)[: len(looks)]
    following = np.where(open_ended, span[1], np.append(start[1:], span[1])[: len(looks)])
    valid = (seen.stack >= 0) & ((looks["flags"] & (ENDED | UNREAD)) == 0) & ~seen.done & (last | ~open_ended)

    off, on = np.flatnonzero(valid & ~tick), np.flatnonzero(valid)
    row = np.concatenate([off, on])
    begin = np.clip(np.concatenate([start[off], time[on]]), *span)
    end = np.clip(np.concatenate([time[off], following[on]]), *span)
    counts = np.concatenate([end[: len(off)] // period_ns - begin[: len(off)] // period_ns, tick[on].astype(np.int64)])
    keep = np.flatnonzero(end > begin)
    keep = keep[np.lexsort((begin[keep], row[keep]))]
    row, begin, end, counts, was_off = row[keep], begin[keep], end[keep], counts[keep], keep < len(off)
    pid, tid = looks["tgid"][row].astype(np.int32), looks["tid"][row].astype(np.int32)
    gil = (looks["flags"][row] & HOLDS_GIL) != 0
    return KernelRows(Timed(pid, tid, begin, end, seen.stack[row], counts), gil, was_off)


def gil_rows(seen: KernelRows, period_ns: int) -> list[dict[str, Any]]:
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

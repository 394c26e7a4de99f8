"""From slices and counts to rows of the `samples` table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfscope.collectors.pyspy.slices import I64, Slices
from perfscope.model.session_writer import SessionWriter


def share_out(total: int, thread: npt.NDArray[np.int32], durations: I64) -> I64:
    """Splits `total` looks over slices, summing to it exactly (but never less than one look a slice).

    py-spy writes changes only, so how often it looked within a slice is known in sum, not one by one. It looks at all
    threads in turn, so a thread's part is that of its time; within a thread each slice had the look that began it,
    and those that saw no change fell at random, so by duration.
    """
    counts = np.ones(len(durations), np.int64)
    threads, index = np.unique(thread, return_inverse=True)
    times = np.bincount(index, durations, len(threads))
    parts = _round_to(total, times)
    for number in range(len(threads)):
        mine = index == number
        rest = int(parts[number]) - int(mine.sum())
        if rest > 0:
            counts[mine] += _round_to(rest, durations[mine])
    return counts


def _round_to(total: int, weights: npt.NDArray[np.float64] | I64) -> I64:
    """Whole numbers in proportion to the weights, with that sum (all 0 if the weights are)."""
    reached = np.cumsum(weights, dtype=np.float64)
    if not len(reached) or reached[-1] <= 0:
        return np.zeros(len(weights), np.int64)
    whole: I64 = np.zeros(len(weights) + 1, np.int64)
    whole[1:] = np.floor(reached * (total / reached[-1]) + 0.5)
    whole[-1] = total
    return whole[1:] - whole[:-1]


@dataclass
class Timed:
    """Slices on the host's clock, with host ids, of the order of `Slices`. looks: how many saw each, if known."""

    pid: npt.NDArray[np.int32]
    tid: npt.NDArray[np.int32]
    start_ns: I64
    end_ns: I64
    stack: npt.NDArray[np.int32]
    looks: I64 | None = None

    def select(self, keep: npt.NDArray[np.bool_]) -> Timed:
        looks = None if self.looks is None else self.looks[keep]
        return Timed(self.pid[keep], self.tid[keep], self.start_ns[keep], self.end_ns[keep], self.stack[keep], looks)


def place(slices: Slices, tids: dict[int, int], start_ns: I64, end_ns: I64) -> Timed:
    """Gives each slice its pid and its host tid; -1 where py-spy knew no kernel thread id."""
    pids = np.array([pid for pid, _ in slices.threads] or [0], np.int32)
    hosts = np.array([tids.get(tid, tid) if tid >= 0 else -1 for _, tid in slices.threads] or [0], np.int32)
    return Timed(pids[slices.thread], hosts[slices.thread], start_ns, end_ns, slices.stack, slices.looks)


def write_timed(writer: SessionWriter, source: str, rows: Timed, counts: I64, torn: npt.NDArray[np.bool_]) -> None:
    """Appends timed slices to `samples`."""
    if not len(rows.pid):
        return
    import pyarrow as pa

    writer.append(
        "samples",
        {
            "source": pa.DictionaryArray.from_arrays(np.zeros(len(rows.pid), np.int32), pa.array([source])),
            "pid": rows.pid,
            "tid": pa.array(rows.tid, mask=rows.tid < 0),
            "time_ns": rows.start_ns,
            "duration_ns": rows.end_ns - rows.start_ns,
            "stack_id": rows.stack,
            "count": counts,
            "torn": torn,
        },
    )

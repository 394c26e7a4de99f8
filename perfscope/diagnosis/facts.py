"""What rules look at: a session's tables, and each thread's time cut into slices of known state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from perfscope.diagnosis.intervals import BLOCK, Intervals, joined, overlap_ns, shared_ns, union, union_ns
from perfscope.diagnosis.kernels import Kernel, measured
from perfscope.diagnosis.thresholds import Thresholds, defaults
from perfscope.merge.slices import (
    DISK,
    GC,
    GIL,
    GPU_SYNC,
    LOCK,
    RUNNABLE,
    RUNNING,
    SLEEP,
    STATES,
    UNKNOWN,
    ThreadSlices,
)
from perfscope.merge.waits import futex_state
from perfscope.model.session import Session
from perfscope.model.stacks import ROOT, Frame, StackTable

ACTIVE = (RUNNING, RUNNABLE, DISK, LOCK, GIL, GC, GPU_SYNC)
"""States in which a thread works or waits for a resource; in the others it waits for work, or nothing is known."""


_MANY_ROWS = 5


class Facts:
    """Everything a rule may ask. `threads` is the merge's result; times in ns on CLOCK_MONOTONIC.

    thresholds: those of all rules, for rules that give way to others.
    """

    def __init__(self, session: Session, threads: Sequence[ThreadSlices], thresholds: Thresholds | None = None) -> None:
        self.session = session
        self.thresholds = thresholds or defaults()
        self.threads = threads
        self.info = session.info
        self.elapsed_ns = self.info.stop_ns - self.info.start_ns

    @cached_property
    def runtimes(self) -> dict[int, str]:
        """pid -> python, java or native."""
        table = self.session.table("processes")
        return dict(zip(table["pid"].to_pylist(), table["runtime"].to_pylist(), strict=True))

    @cached_property
    def cores(self) -> int | None:
        """CPUs of the host; None if the session doesn't say. The target may be allowed fewer: a bound stays a bound."""
        found = self.info.host.get("cpus_online")
        return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None

    @property
    def cores_allowed(self) -> int | None:
        """CPUs that perfscope, and so a command it started, was allowed to use; None if the session doesn't say."""
        found = self.info.host.get("cpus_allowed", self.cores)
        return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None

    @cached_property
    def index(self) -> dict[tuple[int, int], int]:
        """(pid, tid) -> index into `threads`; the last one where a tid was used twice."""
        return {(t.pid, t.tid): i for i, t in enumerate(self.threads)}

    def pids(self, runtime: str) -> list[int]:
        """Processes of a runtime that have at least one thread here."""
        present = {t.pid for t in self.threads}
        return sorted(pid for pid, kind in self.runtimes.items() if kind == runtime and pid in present)

    def spent(self, states: Iterable[int], pids: Iterable[int] | None = None) -> Intervals:
        """All slices in these states, of these processes (of all, if None)."""
        return self.slices(states, pids)[0]

    def slices(
        self, states: Iterable[int], pids: Iterable[int] | None = None
    ) -> tuple[Intervals, npt.NDArray[np.int32]]:
        """As `spent`, with the stack_id of each slice."""
        masks = list(self._in(states, pids))
        ends = np.cumsum([np.count_nonzero(mask) for _, mask in masks], dtype=np.int64)
        size = int(ends[-1]) if len(ends) else 0
        start, end, thread = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int32)
        stack = np.empty(size, np.int32)
        for (i, mask), last in zip(masks, ends.tolist(), strict=True):
            t, rows = self.threads[i], slice(last - int(np.count_nonzero(mask)), last)
            start[rows], end[rows], stack[rows], thread[rows] = t.start_ns[mask], t.end_ns[mask], t.stack_id[mask], i
        return Intervals(start, end, thread), stack

    def any_ns(self, states: Iterable[int]) -> int:
        """How long at least one thread was in one of these states."""
        states = list(states)
        times = [
            union(self.threads[i].start_ns[mask], self.threads[i].end_ns[mask]) for i, mask in self._in(states, None)
        ]
        start, end = (np.concatenate([t[column] for t in times] or [np.empty(0, np.int64)]) for column in range(2))
        start, end = union(start, end)
        return int((end - start).sum())

    def _in(self, states: Iterable[int], pids: Iterable[int] | None) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
        """Each thread of these processes (of all, if None), and which of its slices are in these states."""
        wanted = np.zeros(len(STATES), bool)
        wanted[list(states)] = True
        processes = None if pids is None else set(pids)
        for i, t in enumerate(self.threads):
            if processes is None or t.pid in processes:
                yield i, wanted[t.state]

    @cached_property
    def unknown_pct(self) -> float | None:
        """Share of all thread time whose state no source knows; None without any thread time."""
        total = sum(int(t.end_ns[-1] - t.start_ns[0]) for t in self.threads if len(t.start_ns))
        return 100 * self.spent([UNKNOWN]).total_ns / total if total else None

    def ceiling_pct(self, lost: Intervals, *, work_stays: bool) -> float:
        """Upper bound on the share of elapsed time (0..100) that is saved if `lost` time took none.

        The critical path is unknown, so it is taken at its worst of two readings: it is spread evenly over all threads
        active at each moment (integral of lost / active threads), or it is the single thread that lost most. It can
        save no more than the time in which any thread lost some (the union). Where the work itself stays
        (`work_stays`: a wait goes away, not what the others did meanwhile), all of it must still fit on the cores:
        elapsed - CPU time / cores is a bound too.
        """
        if self.elapsed_ns <= 0 or not len(lost):
            return 0.0
        mine = lost.by_thread()
        others = joined([active for _, active in self._active_outside(lost)])
        saved = max(shared_ns(lost, others), float(next(iter(mine.values()))))
        saved = min(saved, float(union_ns(lost)))
        if work_stays and self.cores:
            running = self.spent([RUNNING]).total_ns
            saved = min(saved, max(0.0, self.elapsed_ns - running / self.cores))
        return min(100.0, 100 * saved / self.elapsed_ns)

    def _active_outside(self, lost: Intervals) -> Iterator[tuple[int, Intervals]]:
        """Each thread and its active time, part by part, less what is `lost` (which may cut slices anywhere)."""
        lost_by = lost.split()
        for i, mask in self._in(ACTIVE, None):
            t, cut = self.threads[i], lost_by.get(i)
            if cut is not None and len(mask):
                # Whole slices, as most losses are, only need leaving out.
                row = np.minimum(np.searchsorted(t.start_ns, cut.start_ns), len(mask) - 1)
                if ((t.start_ns[row] == cut.start_ns) & (t.end_ns[row] == cut.end_ns)).all():
                    mask[row] = False
                    cut = None
            for at in range(0, len(mask), BLOCK):
                rows = at + np.flatnonzero(mask[at : at + BLOCK])
                active = Intervals(t.start_ns[rows], t.end_ns[rows], np.full(len(rows), i, np.int32))
                yield i, active if cut is None else subtract(active, cut)

    def ceiling_of_parts_pct(self, running: Intervals, part: Mapping[int, float]) -> float:
        """As ceiling_pct for work that goes away, where of each thread's `running` time a share (0..1) is lost."""
        if self.elapsed_ns <= 0 or not part:
            return 0.0
        totals = running.by_thread()
        lost = {thread: share * totals.get(thread, 0) for thread, share in part.items()}
        # The integral is over all of the process's running time; of it the same share is lost as of its total.
        others = joined([active for _, active in self._active_outside(running)])
        spread = shared_ns(running, others) * sum(lost.values()) / max(running.total_ns, 1)
        return min(100.0, 100 * max(spread, *lost.values()) / self.elapsed_ns)

    def lost_pct(self, lost: Intervals) -> float:
        """Share of the working time of the threads in `lost` that is lost: lost / (lost + their other active time)."""
        if not len(lost):
            return 0.0
        losers = set(lost.by_thread())
        others = sum(active.total_ns for i, active in self._active_outside(lost) if i in losers)
        return 100 * lost.total_ns / (lost.total_ns + others)

    # Stacks

    @property
    def stacks(self) -> StackTable:
        return self.session.stacks

    def at(self, thread: int, time_ns: int) -> tuple[int, int]:
        """(state, stack_id) of a thread at a time; (UNKNOWN, ROOT) before and after it was observed."""
        t = self.threads[thread]
        i = int(np.searchsorted(t.start_ns, time_ns, side="right")) - 1
        return (UNKNOWN, ROOT) if i < 0 or time_ns >= t.end_ns[i] else (int(t.state[i]), int(t.stack_id[i]))

    @cached_property
    def innermost(self) -> dict[str, npt.NDArray[np.int32]]:
        """Layer -> int32[stacks + 1]: the innermost stack at or above each whose frame is of it; ROOT if none."""
        stacks = self.stacks
        result = {}
        for layer in ("python", "java"):
            found = np.full(len(stacks.parents) + 1, ROOT, np.int32)  # the last stands for ROOT itself
            for stack, (parent, frame) in enumerate(zip(stacks.parents, stacks.stack_frames, strict=True)):
                found[stack] = stack if stacks.frames[frame].layer == layer else found[parent]
            result[layer] = found
        return result

    @cached_property
    def _wakes(self) -> dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """tid -> when it was woken, ascending, and by which tid."""
        parts = [(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int32))]
        for piece in self.session.batches("sched", ["tid", "wake_ns", "waker_tid"]):
            parts.append(tuple(column.to_numpy() for column in piece.drop_null().columns))
        tid, wake, waker = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((wake, tid))
        tid, wake, waker = tid[order], wake[order], waker[order]
        distinct, first = np.unique(tid, return_index=True)
        ends = np.append(first[1:], len(tid))
        spans = zip(distinct.tolist(), first.tolist(), ends.tolist(), strict=False)  # without rows there is one end
        return {t: (wake[a:b], waker[a:b]) for t, a, b in spans}

    def woken_by(self, thread: int, start_ns: int, end_ns: int) -> int | None:
        """tid of who woke the thread last in (start_ns, end_ns]; None if unknown."""
        times, wakers = self._wakes.get(self.threads[thread].tid, (np.empty(0), np.empty(0)))
        last = int(np.searchsorted(times, end_ns, side="right")) - 1
        return int(wakers[last]) if last >= 0 and times[last] > start_ns else None

    @cached_property
    def _looks(self) -> dict[tuple[int, int], tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]]:
        """(pid, tid) of a Python thread -> times of the first looks of its samples, ascending, and their stacks."""
        rows = self.rows("samples", source=["pyspy", "austin"], torn=False)
        pid, tid, time, stack = (c.to_numpy() for c in rows.select(["pid", "tid", "time_ns", "stack_id"]).drop_null())
        order = np.lexsort((time, tid, pid))
        keys = np.column_stack((pid, tid))[order]
        new = np.flatnonzero(np.any(keys[1:] != keys[:-1], axis=1)) + 1
        pieces = zip(np.split(keys, new), np.split(time[order], new), np.split(stack[order], new), strict=True)
        return {(int(k[0, 0]), int(k[0, 1])): (times, stacks) for k, times, stacks in pieces if len(k)}

    def look_within(self, thread: int, start_ns: int, end_ns: int) -> int | None:
        """stack_id of the first look at a Python thread in [start_ns, end_ns); None if there was none."""
        t = self.threads[thread]
        times, stacks = self._looks.get((t.pid, t.tid), (np.empty(0), np.empty(0)))
        first = int(np.searchsorted(times, start_ns))
        return int(stacks[first]) if first < len(times) and times[first] < end_ns else None

    def looks_on_cpu(self, pid: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """(thread, stack_id, looks) of a Python process: how often a sampler saw each stack while it was on a CPU.

        A row of samples says when its first look was; the others lie somewhere in its duration. A stack of many rows
        was on the CPU in the share of its first looks that fall on running slices; one of few rows (a hot loop, seen
        unchanged for long) in the share of its duration that was running. Code of the standard library that only waits
        is never on the CPU for as long as a look's error. Torn samples are left out.
        """
        rows = self.rows("samples", source=["pyspy", "austin"], pid=pid, torn=False)
        rows = rows.select(["tid", "time_ns", "duration_ns", "stack_id", "count"]).drop_null()
        tids, times, lengths, stacks, counts = (c.to_numpy() for c in rows.columns)
        parts = []
        for tid in np.unique(tids).tolist():
            thread = self.index.get((pid, tid))
            if thread is None:
                continue
            mine, slices = tids == tid, self.threads[thread]
            on = slices.state == RUNNING
            running = union(slices.start_ns[on], slices.end_ns[on])
            first, length = times[mine], np.maximum(lengths[mine], 1)
            distinct, which = np.unique(stacks[mine], return_inverse=True)
            number = np.bincount(which)
            by_looks = np.bincount(which, overlap_ns(first, first + 1, running)) / number
            by_time = np.bincount(which, overlap_ns(first, first + length, running)) / np.bincount(which, length)
            looks = np.bincount(which, counts[mine]) * np.where(number >= _MANY_ROWS, by_looks, by_time)
            looks[[futex_state(self.stacks, s) == SLEEP for s in distinct.tolist()]] = 0
            parts.append((np.full(len(distinct), thread, np.int64), distinct.astype(np.int32), looks))
        if not parts:
            return np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.float64)
        thread_ids, stack_ids, all_looks = zip(*parts, strict=True)
        return np.concatenate(thread_ids), np.concatenate(stack_ids), np.concatenate(all_looks)

    @cached_property
    def own_code(self) -> dict[str, npt.NDArray[np.int32]]:
        """Layer -> int32[stacks + 1]: as `innermost`, but frames of the language's standard library stand back for
        the code that called them; they count only where a stack has no other frame of the layer."""
        stacks = self.stacks
        result = {}
        for layer, innermost in self.innermost.items():
            found = innermost.copy()
            own = np.zeros(len(found), bool)
            for stack, (parent, frame_id) in enumerate(zip(stacks.parents, stacks.stack_frames, strict=True)):
                frame = stacks.frames[frame_id]
                if frame.layer == layer and not _standard_library(frame):
                    found[stack], own[stack] = stack, True
                elif own[parent]:
                    found[stack], own[stack] = found[parent], True
            result[layer] = found
        return result

    def code_frame(self, stack_id: int, layer: str) -> Frame | None:
        """Innermost frame of a layer on a stack, outside the standard library if there is one."""
        found = int(self.own_code[layer][stack_id])
        return None if found == ROOT else self.stacks.frames[self.stacks.stack_frames[found]]

    @cached_property
    def kernels(self) -> list[Kernel]:
        """The kernels that Nsight Compute measured, what carried most GPU time first."""
        return measured(self.session, self.elapsed_ns)

    def collector_gap(self, name: str) -> tuple[str, str] | None:
        """Why a collector has no (or not all) data here, and what mends it; None if it worked."""
        report = self.info.collectors.get(name)
        if report is None:
            return (
                f"{name} was not recorded",
                f"perfscope record without --collect; perfscope doctor says whether {name} can run here",
            )
        if report.status in ("failed", "unavailable"):
            return f"{name} {report.status}: {report.why or 'no reason given'}", report.hint or "perfscope doctor"
        return None

    def rows(self, table: str, **equal: object) -> pa.Table:
        """Rows of a table whose columns have these values (a list: one of them)."""
        data = self.session.table(table)
        for column, value in equal.items():
            values = data[column]
            if pa.types.is_dictionary(values.type):
                values = values.cast(pa.string())
            mask = (
                pc.is_in(values, pa.array(value, values.type)) if isinstance(value, list) else pc.equal(values, value)
            )
            data = data.filter(mask)
        return data


def _standard_library(frame: Frame) -> bool:
    if frame.layer == "java":
        return (frame.module or frame.function).startswith(("java.", "javax.", "jdk.", "sun."))
    file = frame.file or ""
    return file.startswith("<frozen") or (
        "/lib/python3" in file and "site-packages" not in file and "dist-packages" not in file
    )


def subtract(whole: Intervals, cut: Intervals) -> Intervals:
    """What of one thread's intervals lies outside `cut` (of the same thread)."""
    if not len(whole):
        return whole
    near = (cut.end_ns > whole.start_ns.min()) & (cut.start_ns < whole.end_ns.max())
    start, end = union(cut.start_ns[near], cut.end_ns[near])
    return whole.within(np.concatenate(([_LONG_AGO], end)), np.concatenate((start, [-_LONG_AGO])))


_LONG_AGO = -(1 << 62)

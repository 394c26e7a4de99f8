"""What rules look at: a session's tables, and each thread's time cut into slices of known state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from perfscope.diagnosis.intervals import Growth, Int64, Intervals, depth, groups, joined, overlap_ns, union, without
from perfscope.diagnosis.kernels import Kernel, measured
from perfscope.diagnosis.thresholds import Thresholds, defaults
from perfscope.merge.gpu_sync import Calls, calls_that_block
from perfscope.merge.intervals import FAR
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
from perfscope.merge.tables import thread_keys
from perfscope.merge.waits import futex_state
from perfscope.model.session import Session
from perfscope.model.stacks import ROOT, Frame, StackTable

ACTIVE = (RUNNING, RUNNABLE, DISK, LOCK, GIL, GC, GPU_SYNC)
"""States in which a thread works or waits for a resource; in the others it waits for work, or nothing is known."""

_IS_ACTIVE = np.isin(np.arange(len(STATES)), ACTIVE).astype(np.int8)

StackIds = npt.NDArray[np.int32]

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

    def numbers(self, pid: int, tids: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int32]:
        """Index into `threads` of each tid of a process; -1 if it isn't there."""
        distinct, which = np.unique(tids, return_inverse=True)
        return np.asarray([self.index.get((pid, tid), -1) for tid in distinct.tolist()], np.int32)[which]

    def pids(self, runtime: str) -> list[int]:
        """Processes of a runtime that have at least one thread here."""
        present = {t.pid for t in self.threads}
        return sorted(pid for pid, kind in self.runtimes.items() if kind == runtime and pid in present)

    def spent(self, states: Iterable[int], threads: Iterable[int] | None = None) -> Intervals:
        """All slices in these states, of these threads (of all, if None)."""
        return self.slices(states, threads)[0]

    def slices(self, states: Iterable[int], threads: Iterable[int] | None = None) -> tuple[Intervals, StackIds]:
        """As `spent`, with the stack_id of each slice."""
        wanted = np.isin(np.arange(len(STATES)), list(states))
        numbers = range(len(self.threads)) if threads is None else threads
        masks = [(i, wanted[self.threads[i].state]) for i in numbers]
        ends = np.cumsum([np.count_nonzero(mask) for _, mask in masks], dtype=np.int64)
        size = int(ends[-1]) if len(ends) else 0
        start, end, thread = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int32)
        stack = np.empty(size, np.int32)
        for (i, mask), last in zip(masks, ends.tolist(), strict=True):
            t, rows = self.threads[i], slice(last - int(np.count_nonzero(mask)), last)
            start[rows], end[rows], stack[rows], thread[rows] = t.start_ns[mask], t.end_ns[mask], t.stack_id[mask], i
        return Intervals(start, end, thread), stack

    def threads_of(self, pid: int) -> list[int]:
        """Indices of a process's threads."""
        return [i for i, t in enumerate(self.threads) if t.pid == pid]

    @cached_property
    def _state_ns(self) -> npt.NDArray[np.int64]:
        """int64[threads, STATES]: how long each thread was in each state."""
        totals = [np.bincount(t.state, t.end_ns - t.start_ns, len(STATES)) for t in self.threads]
        return np.asarray(totals, np.int64).reshape(-1, len(STATES))

    def total_ns(self, states: Iterable[int], threads: Iterable[int] | None = None) -> int:
        """How long these threads (all, if None) were in these states, all together."""
        totals = self._state_ns if threads is None else self._state_ns[list(threads)]
        return int(totals[:, list(states)].sum())

    @cached_property
    def unknown_pct(self) -> float | None:
        """Share of all thread time whose state no source knows; None without any thread time."""
        total = self.total_ns(range(len(STATES)))
        return 100 * self.total_ns([UNKNOWN]) / total if total else None

    # What time costs

    def ceiling_pct(self, lost: Intervals, *, work_stays: bool) -> float:
        """Upper bound on the share of elapsed time (0..100) that is saved if `lost` time took none.

        The critical path is unknown, so it is taken at its worst of two readings: it is spread evenly over all threads
        active at each moment (integral of lost / active threads), or it is the single thread that lost most. Where the
        work itself stays (`work_stays`: a wait goes away, not what the others did meanwhile), all of it must still fit
        on the cores: elapsed - CPU time / cores is a bound too.
        """
        return self._ceiling_pct(self._shared_ns(lost), max(lost.by_thread().values(), default=0), work_stays)

    def ceiling_of_state_pct(self, state: int, threads: Sequence[int], *, work_stays: bool) -> float:
        """As ceiling_pct, where all that these threads spent in an active state is lost."""
        shared, most = self._state_shared_ns[threads, state].sum(), self._state_ns[threads, state].max(initial=0)
        return self._ceiling_pct(float(shared), float(most), work_stays)

    def ceiling_of_parts_pct(self, state: int, part: Mapping[int, float], threads: Sequence[int]) -> float:
        """As ceiling_of_state_pct for work that goes away, where of the threads in `part` a share (0..1) is lost."""
        lost = {thread: share * int(self._state_ns[thread, state]) for thread, share in part.items()}
        # The integral is over the time of all `threads`; of it the same share is lost as of its total.
        shared = self._state_shared_ns[threads, state].sum()
        spread = float(shared) * sum(lost.values()) / max(self.total_ns([state], threads), 1)
        return self._ceiling_pct(spread, max(lost.values(), default=0.0), work_stays=False)

    def _ceiling_pct(self, shared_ns: float, most_ns: float, work_stays: bool) -> float:
        if self.elapsed_ns <= 0:
            return 0.0
        saved = max(shared_ns, most_ns)
        if work_stays and self.cores:
            saved = min(saved, max(0.0, self.elapsed_ns - self.total_ns([RUNNING]) / self.cores))
        return min(100.0, 100 * saved / self.elapsed_ns)

    def lost_pct(self, lost: Intervals) -> float:
        """Share of the working time of the threads in `lost` that is lost: lost / (lost + their other active time)."""
        if not len(lost):
            return 0.0
        active = int(self._state_ns[np.ix_(list(lost.by_thread()), ACTIVE)].sum())
        return 100 * lost.total_ns / (active + self._not_active(lost).total_ns)

    @cached_property
    def busy_ns(self) -> int:
        """How long at least one thread was active."""
        return self._activity[0]

    @cached_property
    def _activity(self) -> tuple[int, Growth]:
        """How long at least one thread was active, and how the share that each active thread has of it grows."""
        return self._activity_with(Intervals.of([]))

    def _activity_with(self, more: Intervals) -> tuple[int, Growth]:
        """As _activity, if threads were active in these intervals, too, which lie outside of their active time."""
        starts, ends = zip(*self._active, (more.start_ns, more.end_ns), strict=True)
        times, count = depth(np.concatenate(starts), np.concatenate(ends))
        rates = np.divide(1, count, out=np.zeros(len(count)), where=count > 0)
        return int(np.diff(times)[count[:-1] > 0].sum()), Growth(times, rates)

    @cached_property
    def _state_shared_ns(self) -> npt.NDArray[np.float64]:
        """float64[threads, STATES]: integral of 1 / active threads over each thread's time in each active state."""
        _, share = self._activity
        totals = []
        for t in self.threads:
            grown = np.diff(share.until(np.append(t.start_ns, t.end_ns[-1:])))
            totals.append(np.bincount(t.state, grown, len(STATES)))
        return np.asarray(totals, np.float64).reshape(-1, len(STATES))

    def _shared_ns(self, lost: Intervals) -> float:
        """Integral over time of (threads that lose it / threads active): each instant shared by all in it."""
        beside = self._not_active(lost)
        _, share = self._activity_with(beside) if len(beside) else self._activity
        return float(share.within(lost.start_ns, lost.end_ns).sum())

    def _not_active(self, lost: Intervals) -> Intervals:
        """What of `lost` lies outside of its threads' active time."""
        parts = []
        for thread, intervals in lost.split().items():
            start, end = self._active[thread]
            parts.append(intervals.within(np.append(-FAR, end), np.append(start, FAR)))
        return joined(parts)

    @cached_property
    def _active(self) -> list[tuple[Int64, Int64]]:
        """When each thread was active: disjoint intervals, in order."""
        found = []
        for t in self.threads:
            edges = np.diff(_IS_ACTIVE[t.state], prepend=0, append=0)
            found.append((t.start_ns[edges[:-1] > 0], t.end_ns[edges[1:] < 0]))
        return found

    # Stacks

    @property
    def stacks(self) -> StackTable:
        return self.session.stacks

    def at(self, thread: npt.NDArray[np.integer[Any]], time_ns: Int64) -> tuple[npt.NDArray[np.uint8], StackIds]:
        """(state, stack_id) of threads, each at a time; (UNKNOWN, ROOT) before and after it was observed."""
        state, stack = np.full(len(thread), UNKNOWN, np.uint8), np.full(len(thread), ROOT, np.int32)
        for number, rows in groups(thread):
            t, times = self.threads[number], time_ns[rows]
            if not len(t.start_ns):
                continue
            i = np.searchsorted(t.start_ns, times, side="right") - 1
            seen = (i >= 0) & (times < t.end_ns[i])
            state[rows], stack[rows] = np.where(seen, t.state[i], UNKNOWN), np.where(seen, t.stack_id[i], ROOT)
        return state, stack

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

    def woken_by(self, thread: npt.NDArray[np.integer[Any]], start_ns: Int64, end_ns: Int64) -> npt.NDArray[np.int32]:
        """tid of who woke each thread last in (start_ns, end_ns]; -1 if unknown."""
        tids = np.asarray([t.tid for t in self.threads], np.int32)[thread]
        parts = [(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int32))]
        for piece in self.session.batches("sched", ["tid", "wake_ns", "waker_tid"]) if len(tids) else ():
            tid, wake, waker = (column.to_numpy() for column in piece.drop_null().columns)
            mine = np.isin(tid, tids)
            parts.append((tid[mine], wake[mine], waker[mine]))
        tid, wake, waker = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((wake, tid))
        wakes = {t: (wake[order[rows]], waker[order[rows]]) for t, rows in groups(tid[order])}
        found = np.full(len(tids), -1, np.int32)
        for t, rows in groups(tids):
            if t in wakes:
                times, wakers = wakes[t]
                last = np.searchsorted(times, end_ns[rows], side="right") - 1
                known = (last >= 0) & (times[last] > start_ns[rows])
                found[rows] = np.where(known, wakers[last], -1)
        return found

    @cached_property
    def _looks(self) -> dict[int, tuple[Int64, StackIds]]:
        """Python thread -> times of the first looks of its samples, ascending, and their stacks.

        A row that no look fell into tells of a stack while its thread is off the CPU; on one it is the stack of before.
        """
        rows = self.rows("samples", source=["pyspy", "austin"], torn=False)
        rows = rows.select(["pid", "tid", "time_ns", "stack_id", "count"]).drop_null()
        pid, tid, time, stack, count = (c.to_numpy() for c in rows.columns)
        order = np.lexsort((time, tid, pid))
        found = {}
        for key, mine in groups(thread_keys(pid, tid)[order]):
            thread = self.index.get((key >> 32, key & 0xFFFFFFFF))
            if thread is not None:
                mine = order[mine]
                state, _ = self.at(np.full(len(mine), thread), time[mine])
                mine = mine[(count[mine] > 0) | ~np.isin(state, (RUNNING, UNKNOWN))]
                found[thread] = time[mine], stack[mine]
        return found

    def look_within(self, thread: npt.NDArray[np.integer[Any]], start_ns: Int64, end_ns: Int64) -> StackIds:
        """stack_id of the first look at each Python thread in [start_ns, end_ns); ROOT if there was none."""
        found = np.full(len(thread), ROOT, np.int32)
        for number, rows in groups(thread):
            times, stacks = self._looks.get(number, ((), ()))
            if len(times):
                first = np.searchsorted(times, start_ns[rows])
                last = np.minimum(first, len(times) - 1)
                seen = (first < len(times)) & (times[last] < end_ns[rows])
                found[rows] = np.where(seen, stacks[last], ROOT)
        return found

    @cached_property
    def gpu_waits(self) -> Calls:
        """Every call in which the host waited for a GPU."""
        return calls_that_block(self.session)

    def _waiting_for_gpu(self, thread: int) -> tuple[Int64, Int64]:
        """When a thread was in such a call, as disjoint intervals in order."""
        slices, calls = self.threads[thread], self.gpu_waits
        mine = (calls.pid == slices.pid) & (calls.tid == slices.tid)
        return union(calls.start[mine], calls.end[mine])

    def working(self, thread: int) -> tuple[Int64, Int64]:
        """When a thread was on a CPU, but for the calls in which it spun until a GPU was done."""
        slices, calls = self.threads[thread], self._waiting_for_gpu(thread)
        on = slices.state == RUNNING
        running = union(slices.start_ns[on], slices.end_ns[on])
        return without(running, calls) if len(calls[0]) else running

    def working_ns(self, thread: int) -> int:
        """How long `working` is."""
        slices, calls = self.threads[thread], self._waiting_for_gpu(thread)
        on = slices.state == RUNNING
        spun = overlap_ns(slices.start_ns[on], slices.end_ns[on], calls).sum() if len(calls[0]) else 0
        return self.total_ns([RUNNING], [thread]) - int(spun)

    def looks_on_cpu(self, pid: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """(thread, stack_id, looks) of a Python process: how often a sampler saw each stack while it worked on a CPU.

        A row of samples says when its first look was; the others lie somewhere in its duration. So a row of one look
        tells. Of the rows of several, a stack of many was on the CPU in the share of its first looks that fall on
        running slices; one of few (a hot loop, seen unchanged for long) in the share of its duration that was running.
        Code of the standard library that only waits is never on the CPU for as long as a look's error. Torn samples are
        left out.
        """
        rows = self.rows("samples", source=["pyspy", "austin"], pid=pid, torn=False)
        rows = rows.select(["tid", "time_ns", "duration_ns", "stack_id", "count"]).drop_null()
        tids, times, lengths, stacks, counts = (c.to_numpy() for c in rows.columns)
        parts = []
        for tid in np.unique(tids).tolist():
            thread = self.index.get((pid, tid))
            if thread is None:
                continue
            mine, running = (tids == tid) & (counts > 0), self.working(thread)
            first, length, count = times[mine], np.maximum(lengths[mine], 1), counts[mine]
            distinct, which = np.unique(stacks[mine], return_inverse=True)
            on, several = overlap_ns(first, first + 1, running), count > 1
            number = np.maximum(np.bincount(which, several), 1)
            by_looks = np.bincount(which, on * several) / number
            running_ns = overlap_ns(first, first + length, running)
            by_time = np.bincount(which, running_ns * several) / np.maximum(np.bincount(which, length * several), 1)
            share = np.where(number >= _MANY_ROWS, by_looks, by_time)
            looks = np.bincount(which, on * ~several) + np.bincount(which, count * several) * share
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
        if report is None and any(other.startswith("import") for other in self.info.collectors):
            return f"imported files lack what perfscope's own {name} records", "perfscope record"
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

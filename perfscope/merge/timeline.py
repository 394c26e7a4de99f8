"""Tables -> ThreadSlices, one thread at a time: what it did and where, at every nanosecond it was observed.

Scheduler records cut a thread's time into stretches on and off the CPU. A stack can't change while its thread is off
the CPU, so such a stretch has one stack, and a blocked one has one cause: those in force at its middle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfscope.merge import waits
from perfscope.merge.gpu_sync import Syncs
from perfscope.merge.intervals import (
    Intervals,
    Ints,
    bounded,
    clip,
    earliest_wins,
    index_at_bounds,
    latest_wins,
    nonempty,
    row_at,
)
from perfscope.merge.slices import DISK, GC, GIL, GPU_SYNC, LOCK, RUNNABLE, RUNNING, SLEEP, TORN, UNKNOWN, ThreadSlices
from perfscope.merge.sources import Sources, disjoint
from perfscope.merge.tables import NEVER, Columns, ThreadInfo, matches, thread_keys, threads
from perfscope.model.session import Session
from perfscope.model.stacks import ROOT, Frame, StackTable

REACH_PERIODS = 5
"""A sample without a duration speaks for the time up to this many periods around it. One period would do for a
steady sampler; JFR looks at some of the runnable threads only, in turn, so a thread's own looks lie further apart."""

RUNNING_REACH_PERIODS = 100
"""Between two looks a thread can wake, run and sleep again unseen. What it ran then is told by the nearest look that
found it running, at most this many periods away. A look that found it asleep by its own will (for work, a lock, a disk)
says nothing about what it runs; one that found it kept from running (no CPU, no GIL) does."""

_MOST_LOOKS = 1 << 22
"""Single looks that the rows of one thread are taken apart into."""

PAUSE_LEAD_NS = 1_000_000
"""A thread that blocks up to this long before a collector's pause is on its way into it (the time to the safepoint)."""


def slices_of(session: Session, *, thread: str | None = None) -> Iterator[ThreadSlices]:
    """Slices of every thread, or of those whose name or tid the shell-style pattern `thread` meets, by pid and tid.

    Loads each table once, without what the merge doesn't need, and holds the slices of one thread at a time.
    Adds the frame "[torn stack]" to `session.stacks`. Raises SessionError for a damaged table.
    """
    chosen = [info for info in threads(session) if matches(thread, info.name, info.tid)]
    yield from Merge(session, chosen).slices()


def torn_stack(stacks: StackTable) -> int:
    """stack_id that stands for every torn sample."""
    return stacks.stack([Frame("state", TORN)])


@dataclass(frozen=True)
class _Looks:
    """Samples of one thread. spans: when each is in force; its rows index stack, at (when it was seen), count (looks of
    a row; one at that moment for those without a duration) and period (of its sampler). time: of the samples not torn,
    ascending."""

    spans: Intervals
    stack: npt.NDArray[np.int32]
    at: Ints
    count: Ints
    period: Ints
    time: Ints
    time_stack: npt.NDArray[np.int32]


class Merge:
    """The merge of some threads. unlisted_sched_rows: scheduler records of none of them, so in no slice."""

    def __init__(self, session: Session, infos: Sequence[ThreadInfo]) -> None:
        self.infos = infos
        self.stacks = session.stacks
        self.torn = torn_stack(session.stacks)
        self.sources = Sources(session, infos)
        self.syncs = Syncs(session, infos)
        self.unlisted_sched_rows = self.sources.sched.unlisted
        self._futex_states: dict[int, int] = {}

    def slices(self) -> Iterator[ThreadSlices]:
        """Slices of each thread, in their order."""
        for number, info in enumerate(self.infos):
            yield self.syncs.cut(number, self._thread(number, info), self.stacks)

    def _thread(self, number: int, info: ThreadInfo) -> ThreadSlices:
        jvm = self.sources.jvm.rows(number)
        futexes = self.sources.waits.rows(number)
        off = self.sources.sched.rows(number)
        if not off:
            off = _off_cpu_by_events(*(({}, {}) if info.sched_complete else (jvm, futexes)))
        looks = self._looks(number)

        spans = clip(earliest_wins(*_off_cpu(off, info.start_ns)), info.start_ns, info.end_ns)
        wake = np.clip(bounded(off["wake"][spans.row]), spans.start, spans.end)
        blocked_middle = spans.start + (wake - spans.start) // 2
        stack = self._off_stacks(spans, looks)
        if jvm:
            events = disjoint(jvm, (jvm["state"] >= 0) & (jvm["stack"] != ROOT))
            event = row_at(events, blocked_middle)
            stack = np.where(event >= 0, jvm["stack"][event], stack)
        cause = off["wait"][spans.row]
        asleep = np.flatnonzero((cause == SLEEP) & (wake > spans.start))
        cause[asleep] = self._causes(
            number, info, jvm, futexes, spans.start[asleep], blocked_middle[asleep], stack[asleep],
            off["waker"][spans.row[asleep]],
        )  # fmt: skip
        seen = looks.spans
        if info.sched_complete:
            willing = np.isin(cause, (SLEEP, LOCK, DISK))
            seen = _running_looks(looks, Intervals(*(column[willing] for column in spans)))
        return _cut(info, spans, wake, cause, stack, seen, looks)

    def _looks(self, number: int) -> _Looks:
        rows = self.sources.samples.rows(number)
        if rows:
            keep = np.flatnonzero((rows["time"] != NEVER) & (rows["period"] > 0))
            keep = keep[np.argsort(rows["time"][keep], kind="stable")]
            rows = {name: values[keep] for name, values in rows.items()}
        else:
            rows = {n: np.empty(0, np.int64) for n in ("time", "duration", "period", "stack", "torn", "count")}
        time, torn = bounded(rows["time"]), rows["torn"].astype(bool)
        stack = np.where(torn, self.torn, rows["stack"]).astype(np.int32)
        start, end = time.copy(), time + bounded(np.maximum(rows["duration"], 0))
        instants = np.flatnonzero(rows["duration"] == NEVER)
        if len(instants):
            start[instants], end[instants] = _nearest(time[instants], REACH_PERIODS * rows["period"][instants])
        count = np.where(rows["duration"] == NEVER, 1, rows["count"])
        return _Looks(
            latest_wins(start, end), stack, time, count, rows["period"], time[~torn], stack[~torn]
        )  # fmt: skip

    def _off_stacks(self, spans: Intervals, looks: _Looks) -> npt.NDArray[np.int32]:
        """The stack of each stretch off the CPU: in force at its middle, else the look in it nearest to that."""
        middle = spans.start + (spans.end - spans.start) // 2
        row = row_at(looks.spans, middle)
        stack = np.where(row >= 0, looks.stack[row], ROOT) if len(looks.stack) else np.full(len(row), ROOT)
        poor = np.flatnonzero((stack == ROOT) | (stack == self.torn))
        if len(poor) and len(looks.time):
            at = middle[poor]
            first, last = (np.searchsorted(looks.time, edge[poor]) for edge in (spans.start, spans.end))
            after = np.searchsorted(looks.time, at)
            before, after = (np.clip(look, first, np.maximum(last - 1, 0)) for look in (after - 1, after))
            nearest = np.where(np.abs(looks.time[after] - at) <= np.abs(looks.time[before] - at), after, before)
            stack[poor] = np.where(last > first, looks.time_stack[nearest], stack[poor])
        return stack.astype(np.int32)

    def _causes(
        self,
        number: int,
        info: ThreadInfo,
        jvm: Columns,
        futexes: Columns,
        start: Ints,
        middle: Ints,
        stack: npt.NDArray[np.int32],
        waker: npt.NDArray[np.int32],
    ) -> npt.NDArray[np.uint8]:
        """State of stretches asleep that start at `start`; the strongest evidence in force at their middle decides."""
        cause = np.full(len(start), SLEEP, np.uint8)
        requests = self.sources.block_io.rows(number)
        if requests:
            cause[row_at(disjoint(requests, requests["waited"]), middle) >= 0] = DISK
        if futexes:
            in_futex = np.flatnonzero(row_at(disjoint(futexes, futexes["lock"]), middle) >= 0)
            cause[in_futex] = self._futex_causes(info.pid, stack[in_futex], waker[in_futex])
        pause = row_at(pauses := self.sources.pauses.get(info.pid, disjoint({})), middle)
        # A thread that was blocked well before the pause waits for something else.
        late = np.searchsorted(pauses.start, middle, "right") - 1
        paused = np.flatnonzero(pause >= 0)
        cause[paused[start[paused] >= pauses.start[late[paused]] - PAUSE_LEAD_NS]] = GC
        if jvm:
            event = row_at(disjoint(jvm, jvm["state"] >= 0), middle)
            cause = np.where(event >= 0, jvm["state"][event], cause).astype(np.uint8)
        if calls := self.syncs.of(number):
            cause[row_at(calls[0], middle) >= 0] = GPU_SYNC
        if futexes:
            cause[row_at(disjoint(futexes, futexes["gil"]), middle) >= 0] = GIL
        return cause

    def _futex_causes(
        self, pid: int, stack: npt.NDArray[np.int32], waker: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.uint8]:
        distinct, inverse = np.unique(stack, return_inverse=True)
        for stack_id in distinct.tolist():
            if stack_id not in self._futex_states:
                self._futex_states[stack_id] = waits.futex_state(self.stacks, stack_id)
        by_stack = np.array([self._futex_states[s] for s in distinct.tolist()], np.uint8)
        cause = by_stack[inverse] if len(distinct) else np.empty(0, np.uint8)
        # A lock of Python or Java code is released by such code: a thread that never ran any hands over native work.
        foreign = np.isin(thread_keys(pid, waker), self.sources.native)
        cause[(cause == LOCK) & foreign] = SLEEP
        return cause


def _running_looks(looks: _Looks, asleep: Intervals) -> Intervals:
    """When each look that didn't find its thread asleep is the nearest such; rows index the looks.

    A row of several looks is taken apart, evenly over its time.
    """
    row, length = looks.spans.row, looks.spans.end - looks.spans.start
    most = np.minimum(length // np.maximum(looks.period[row] // 100, 1) + 1, max(_MOST_LOOKS // max(len(row), 1), 1))
    count = np.clip(looks.count[row], 1, most)
    index = np.repeat(np.arange(len(row)), count)
    nth = np.arange(len(index)) - np.repeat(np.cumsum(count) - count, count)
    time = looks.at[row[index]] + length[index] // count[index] * nth
    running = np.flatnonzero(row_at(asleep, time) < 0)
    owner = row[index[running]]
    return nonempty(*_nearest(time[running], RUNNING_REACH_PERIODS * looks.period[owner]), owner)


def _joined(parts: Intervals) -> Intervals:
    """Disjoint intervals with those joined that touch."""
    first = np.ones(len(parts.start), bool)
    first[1:] = parts.start[1:] > parts.end[:-1]
    last = np.roll(first, -1)
    return Intervals(parts.start[first], parts.end[last], parts.row[first])


def _nearest(time: Ints, reach: Ints) -> tuple[Ints, Ints]:
    """When each of the ascending instants is the nearest one and at most `reach` away; ties go to the later."""
    middle = time[:-1] + (np.diff(time) + 1) // 2
    start = time - reach
    end = time + reach
    start[1:] = np.maximum(start[1:], middle)
    end[:-1] = np.minimum(end[:-1], middle)
    return start, end


def _off_cpu(rows: Columns, thread_start: int) -> tuple[Ints, Ints]:
    """Starts and ends of scheduler records.

    One without an end lasts to the thread's next record: a thread id used again, or an event that was lost. A newborn
    has not run before its first record, however long its parent took to let it go.
    """
    start, end = bounded(rows["off"]), bounded(rows["on"])
    order = np.argsort(start, kind="stable")
    if len(order):
        followed = order[:-1][rows["on"][order[:-1]] == NEVER]
        end[followed] = start[order[1:]][rows["on"][order[:-1]] == NEVER]
        if rows["newborn"][order[0]]:
            start[order[0]] = min(thread_start, int(start[order[0]]))
    return start, end


def _off_cpu_by_events(jvm: Columns, futexes: Columns) -> Columns:
    """Waits that a JVM or futex(2) tells of, in the shape of scheduler records: for a thread that has none."""
    starts, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    if jvm:
        waiting = jvm["state"] >= 0
        starts.append(jvm["start"][waiting])
        ends.append(jvm["end"][waiting])
    if futexes:
        starts.append(futexes["start"])
        ends.append(futexes["end"])
    end = np.concatenate(ends)
    count = len(end)
    return {
        "off": np.concatenate(starts),
        "wake": end,
        "on": end,
        "wait": np.full(count, SLEEP, np.uint8),
        "waker": np.full(count, -1, np.int32),
        "newborn": np.zeros(count, bool),
    }


def _cut(
    info: ThreadInfo,
    spans: Intervals,
    wake: Ints,
    cause: npt.NDArray[np.uint8],
    stack: npt.NDArray[np.int32],
    seen: Intervals,
    looks: _Looks,
) -> ThreadSlices:
    """Slices of one thread from its stretches off the CPU (spans) and the looks in force otherwise (seen).

    Where no look at all is in force, nobody was watching, and nothing is claimed.
    """
    low, high = info.start_ns, info.end_ns
    seen = clip(seen, low, high)
    watched = _joined(clip(looks.spans, low, high))
    samples = np.concatenate([seen.start, seen.end, watched.start, watched.end])
    bounds = np.concatenate([[low], np.column_stack([spans.start, wake, spans.end]).ravel(), samples])
    bounds.sort(kind="stable")  # few ascending runs: close to linear
    keep = bounds < high
    keep[1:] &= bounds[1:] != bounds[:-1]
    bounds = bounds[keep]

    state = np.full(len(bounds), RUNNING if info.sched_complete else UNKNOWN, np.uint8)
    at = np.full(len(bounds), ROOT, np.int32)
    if len(seen.start):
        index = index_at_bounds(seen.start, bounds)
        in_force = (index >= 0) & (bounds < seen.end[index]) & (row_at(watched, bounds) >= 0)
        at[in_force] = looks.stack[seen.row[index[in_force]]]
    if len(spans.start):
        index = index_at_bounds(spans.start, bounds)
        inside = np.flatnonzero((index >= 0) & (bounds < spans.end[index]))
        index = index[inside]
        at[inside] = stack[index]
        state[inside] = np.where(bounds[inside] < wake[index], cause[index], RUNNABLE)

    new = np.ones(len(bounds), bool)
    new[1:] = (state[1:] != state[:-1]) | (at[1:] != at[:-1])
    start = bounds[new]
    end = np.append(start[1:], high)[: len(start)]
    return ThreadSlices(info.pid, info.tid, info.name, info.process, start, end, at[new], state[new])

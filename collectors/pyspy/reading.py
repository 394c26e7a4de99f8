"""Turns what the samplers of a recording wrote into rows, and sums up what must be said about it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from perfscope.clock import ClockMap
from perfscope.collectors.pyspy import kernelrows
from perfscope.collectors.pyspy.kernel import CLOCK, Kernel
from perfscope.collectors.pyspy.lane import Lane, Target
from perfscope.collectors.pyspy.rawfile import read_raw
from perfscope.collectors.pyspy.rows import Timed, place, share_out, write_timed
from perfscope.collectors.pyspy.sampler import Sampler
from perfscope.collectors.pyspy.slices import I64
from perfscope.collectors.pyspy.torn import TornJudge
from perfscope.model.session_writer import SessionWriter

MISSING_SHARE = 0.5
"""Share of the looks that the rate promises which may be missing before what was seen counts as partial: below half of
them the rate that the session names is not the one it was recorded at."""
STARVED_SHARE = 0.05
"""Share of its life that py-spy may want a CPU in vain before that is said: 5 % of the looks are then misplaced."""


class Reading:
    """All files of a recording's py-spys, read one after the other.

    looks, errors: as py-spy counted them. unsound: events and lines that fit into no stack. late: looks that the rate
    promises and that never came. problems: what is missing from the session. brief: for want
    of time alone.
    """

    def __init__(self, writer: SessionWriter, start_ns: int, stop_ns: int) -> None:
        self.writer = writer
        self.start_ns = start_ns
        self.stop_ns = stop_ns
        self.looks = self.errors = self.unsound = self.late = 0
        self.problems: list[str] = []
        self.hint: str | None = None
        self.brief = True
        self._covered: list[tuple[int, int]] = []
        self._clocks: list[ClockMap] = []
        self._time_ns = self._torn_ns = self._judged_ns = 0
        self._expected = 0.0
        self._starved_ns = self._life_ns = 0
        self._dead = self._gil_looks = self._behind = self._restarts = 0
        self._instead: Counter[str] = Counter()
        self._pids: dict[str, dict[int, int]] = {}
        self.by_kernel = False
        self._unread = self._kernel_period_ns = 0
        self._kernel_clock: ClockMap | None = None

    def target(self, target: Target) -> None:
        """Reads all files of one process."""
        stacks, gil = target.lanes
        if target.instead is not None and stacks.done:
            self._instead[f"not by the kernel: {target.instead}"] += 1
        if target.by_kernel:
            self._names(target)
            return
        if _too_brief(stacks) and _too_brief(gil):
            whose = "process" if target.ended_ns is not None else "the recording of process"
            self.problems.append(f"{whose} {target.process.pid} ended before py-spy had looked at it")
        else:
            self._failures(target, stacks, "stacks")
            self._failures(target, gil, "GIL holders")
        if stacks.instead is not None:
            self._instead[f"by py-spy, not by austin: {stacks.instead}"] += 1
        self._restarts += stacks.restarts
        judge = TornJudge(self.writer.stacks, target.source)
        until = self.stop_ns if target.ended_ns is None else min(self.stop_ns, target.ended_ns)
        # Backwards: where one py-spy took over from another both may have looked, and the later one's looks count.
        for instance in sorted(stacks.done, key=lambda i: i.began_ns, reverse=True):
            if instance.whole:
                until = min(until, self._segment(target, instance, judge, until))
        self._names(target)
        for instance in gil.done:
            if instance.whole:
                self._gil(target, instance, judge)

    def _names(self, target: Target) -> None:
        for tid, seen in target.threads.items():
            if (name := target.naming.names.get(seen.inner)) is not None:
                self.writer.note_thread(target.process.pid, tid, name=name, named_by="python")

    def kernel(self, kernel: Kernel, ended_ns: Mapping[int, int | None]) -> None:
        """Reads what the kernel saw, of all processes. ended_ns: when each was seen to be gone."""
        ends = {pid: end for pid, end in ended_ns.items() if end is not None}
        span = self.start_ns, self.stop_ns
        reader = kernelrows.KernelReader(kernel.directory, self.writer.stacks)
        for part in reader.parts(kernel.followed, kernel.period_ns, span):
            looks = part.rows.looks
            assert looks is not None
            write_timed(self.writer, "pyspy", part.rows, looks, np.zeros(len(looks), bool))
            self.writer.append("samples", gil := kernelrows.gil_rows(part, kernel.period_ns))
            self._gil_looks += sum(row["count"] for row in gil)
        self.by_kernel = True
        self.looks += reader.looks
        self.errors += reader.failed
        self.unsound += reader.unsound + sum(kernel.lost) + kernel.skipped
        self._unread, self._kernel_period_ns = reader.unread, kernel.period_ns
        lost_looks, lost_words = kernel.lost
        if lost_looks or lost_words:
            self.problems.append(f"{lost_looks} looks and {lost_words} stacks' descriptions lost (buffers full)")
        if kernel.skipped:
            self.problems.append(f"{kernel.skipped} times the kernel skipped a program that reads stacks")
        if reader.untold:
            self.problems.append(f"of {reader.untold} stacks not all code could be read")
        for pid, programs in kernel.followed.items():
            self._covered += [
                (max(program.since_ns, self.start_ns), min(self.stop_ns, ends.get(pid, self.stop_ns)))
                for program in programs
            ]
            self._pids.setdefault("bpf", {})[pid] = CLOCK.error_ns
        self._kernel_clock = dataclasses.replace(CLOCK, resolution_ns=kernel.period_ns)

    def _failures(self, target: Target, lane: Lane, what: str) -> None:
        pid, before = target.process.pid, len(self.problems)
        for start, end, failure in lane.lost:
            self.problems.append(
                f"{what} of process {pid} missing for {(end - start) / 1e9:.1f} s, "
                f"from {(start - self.start_ns) / 1e9:.1f} s on: {failure.why}"
            )
        if lane.failure is not None and not any(i.whole for i in lane.done) and not lane.lost:
            self.problems.append(f"{what} of process {pid} not recorded: {lane.failure.why}")
        if lane.failure is not None:
            self.hint = self.hint or lane.failure.hint
        self.brief &= len(self.problems) == before

    def _segment(self, target: Target, instance: Sampler, judge: TornJudge, until: int) -> int:
        """Reads one file of timed stacks; returns when its first look was."""
        slices, clock = instance.read(self.writer.stacks)
        self.unsound += slices.lost_events
        if slices.errors is not None:
            instance.errors = slices.errors
        if (slices.cut_at is not None and instance.killed is None) or slices.lost_events:
            where = f"from byte {slices.cut_at} on: {slices.cut_why}" if slices.cut_at is not None else "in part"
            self.problems.append(f"{instance.output.name} can't be read {where}")
        if not slices.events or clock is None:
            return until
        clock = _with_looks(clock, instance.looking_share)
        self._clocks.append(clock)
        errors = self._pids.setdefault(instance.name, {})
        errors[target.process.pid] = max(errors.get(target.process.pid, 0), clock.error_ns)
        first = clock.to_mono(slices.first_ts)
        if instance.until_ns is not None:
            until = min(until, instance.until_ns)
        last = min(until, clock.to_mono(slices.last_ts))
        if instance.killed is not None:
            self.problems.append(
                f"stacks of process {target.process.pid} missing from {(last - self.start_ns) / 1e9:.1f} s on "
                f"until another one looked: {instance.failure().why}"
            )
        tids = {seen.inner: tid for tid, seen in target.threads.items()}
        rows = place(slices, tids, clock.to_mono(slices.start), clock.to_mono(slices.end))
        rows = dataclasses.replace(rows, pid=np.full(len(rows.pid), target.process.pid, np.int32))
        rows = self._cut(target if instance.cut_deaths else None, rows, max(first, self.start_ns), last, clock)
        for (_, inner), name in slices.names.items():
            if inner >= 0:
                self.writer.note_thread(target.process.pid, tids.get(inner, inner), name=name, named_by="python")
        self._write(instance, rows, judge, last - first)
        if last > first:
            self._covered.append((max(first, self.start_ns), last))
        return first

    def _cut(self, target: Target | None, rows: Timed, first: int, last: int, clock: ClockMap) -> Timed:
        """Cuts rows at the segment's ends and at each death of a target's threads, up to which alone py-spy's stack
        meant something.

        A death is known to lie after the last sight of the thread in /proc, or after a later change of its stack.
        """
        start, end = np.maximum(rows.start_ns, first), np.minimum(rows.end_ns, last)
        for tid, seen in target.threads.items() if target else ():
            if seen.dead:
                mine = rows.tid == tid
                if mine.any():
                    self._dead += 1
                end[mine] = np.minimum(end[mine], np.maximum(seen.last_ns, start[mine] + clock.resolution_ns))
        cut = dataclasses.replace(rows, start_ns=start, end_ns=end)
        return cut.select(end > start)

    def _write(self, instance: Sampler, rows: Timed, judge: TornJudge, span_ns: int) -> None:
        durations: I64 = rows.end_ns - rows.start_ns
        counts = share_out(instance.samples or 0, rows.tid, durations) if rows.looks is None else rows.looks
        if instance.pauses:
            torn = judged = np.zeros(len(rows.pid), bool)  # stopped for each look: nothing tears
        else:
            torn, judged = judge.judge(rows.stack)
            self._judged_ns += int(durations[judged | torn].sum())
            self._torn_ns += int(durations[torn].sum())
        write_timed(self.writer, "pyspy", rows, counts, torn)
        total = int(durations.sum())
        expected = total / 1e9 * instance.rate_hz
        self._time_ns += total
        self._expected += expected
        self._behind += instance.behind
        self._starved_ns += instance.starved_ns
        self._life_ns += (instance.ended_ns or instance.began_ns) - instance.began_ns
        self.looks += int(counts.sum())
        self.errors += instance.errors or 0
        # A failed look was in time, but would have shown each of the threads there were.
        failed = (instance.errors or 0) * total / span_ns if span_ns > 0 else 0.0
        self.late += max(0, round(expected - failed) - int(counts.sum()))

    def _gil(self, target: Target, instance: Sampler, judge: TornJudge) -> None:
        counts = read_raw(instance.output, self.writer.stacks)
        self.unsound += counts.lost_lines
        tids = {seen.inner: tid for tid, seen in target.threads.items()}
        self._gil_looks += sum(counts.count)
        torn, _ = judge.judge(np.array(counts.stack, np.int32))
        self.writer.append(
            "samples",
            [
                {"source": "pyspy-gil", "pid": target.process.pid, "tid": None if tid is None else tids.get(tid, tid)}
                | {"stack_id": stack, "count": count, "torn": bool(was_torn)}
                | {"duration_ns": count * 10**9 // instance.rate_hz}
                for tid, stack, count, was_torn in zip(counts.tid, counts.stack, counts.count, torn, strict=True)
            ],
        )

    @property
    def by_others(self) -> bool:
        """Whether a sampler read stacks, too."""
        return bool(self._pids.keys() - {"bpf"})

    @property
    def missing_share(self) -> float:
        """Share of the looks promised that never came, 0..1."""
        return self.late / self._expected if self._expected else 0.0

    def lateness(self) -> str:
        """How many looks are missing, for people."""
        return (
            f"the sampler came late: {self.missing_share * 100:.0f} % of the looks that its rate promises are missing"
        )

    def covered_ns(self) -> list[tuple[int, int]]:
        """Intervals in which at least one process was watched, in order and without overlap."""
        found: list[tuple[int, int]] = []
        for start, end in sorted(self._covered):
            if found and start <= found[-1][1]:
                found[-1] = found[-1][0], max(found[-1][1], end)
            else:
                found.append((start, end))
        return found

    def clock_map(self) -> ClockMap | None:
        """The first py-spy's clock with the worst error of all: each has its own zero, its file is mapped with that."""
        if not self._clocks:
            return self._kernel_clock
        worst = max(self._clocks, key=lambda c: c.error_ns)
        slowest = max(c.resolution_ns for c in self._clocks)
        return dataclasses.replace(self._clocks[0], error_ns=worst.error_ns, method=worst.method, resolution_ns=slowest)

    def details(self) -> dict[str, Any]:
        """Figures for other programs. Shares are of the time of all threads sampled, 0..1; null where none was.

        sampler: which one read the stacks, "austin+py-spy" if both did; clock_error_ns: of each, by process.
        """
        time_ns = self._time_ns
        return {
            "sampler": "+".join(sorted(self._pids)) or None,
            "clock_error_ns": {name: {str(p): e for p, e in errors.items()} for name, errors in self._pids.items()},
            "torn_share": self._torn_ns / time_ns if time_ns else None,
            "torn_judged_share": self._judged_ns / time_ns if time_ns else None,
            "gil_looks": self._gil_looks,
            "bpf_period_ns": self._kernel_period_ns or None,
            "read_errors": self.errors,
            "starved_share": self._starved_ns / self._life_ns if self._life_ns else None,
        }

    def notes(self) -> list[str]:
        """Plain sentences that a reader of the session must know."""
        notes = [
            f"the stacks of {count} process{'es' if count > 1 else ''} were read {why}"
            for why, count in self._instead.items()
        ]
        if self._restarts:
            often = "once" if self._restarts == 1 else f"{self._restarts} times"
            notes.append(f"austin ended by itself {often} while its process ran on, and was started again")
        if self._torn_ns:
            torn, judged = self._torn_ns / self._time_ns, self._judged_ns / self._time_ns
            scatter = 2 * (torn * (1 - torn) / max(self.looks, 1)) ** 0.5  # of a share of that many looks, two sigma
            notes.append(
                f"torn stacks: at least {torn * 100:.1f} +- {scatter * 100:.1f} % of the time sampled, marked and kept "
                "out of hot paths "
                f"({judged * 100:.0f} % of it could be checked against the sources; the rest may hold more)"
            )
        # Looks come at random (exponential) intervals, so their number itself scatters by its square root.
        if self.late > 3 * self._expected**0.5 and 0.02 < self.missing_share <= MISSING_SHARE:
            notes.append(self.lateness())
        starved = self._starved_ns / self._life_ns if self._life_ns else 0.0
        if starved > STARVED_SHARE:
            notes.append(
                f"the sampler waited {starved * 100:.0f} % of the time for a CPU: what happened then is blurred"
            )
        if self._behind:
            often = "once" if self._behind == 1 else f"{self._behind} times"
            notes.append(f"py-spy said {often} that it is over a second late")
        if self.errors:
            notes.append(f"{self.errors} looks failed to read a stack")
        if self._unread:
            notes.append(f"{self._unread} looks left out, as reading stacks would have taken over 2 % of a CPU")
        if self._dead:
            notes.append(f"threads that died: {self._dead}; their last stacks are cut where /proc last showed them")
        return notes


def _too_brief(lane: Lane) -> bool:
    """True if its py-spys had no time to look."""
    looked = any(instance.whole and instance.samples != 0 for instance in lane.done)
    return bool(lane.done) and not lane.lost and not looked and (lane.failure is None or lane.failure.brief)


def _with_looks(clock: ClockMap, share: float | None) -> ClockMap:
    """py-spy stamps a look when it is over, austin when it begins: what it saw lies up to its duration off that.

    Looks differ; twice their mean, by the sampler's CPU time, bounds those that aren't interrupted.
    """
    if share is None:
        return clock
    look_ns = round(2 * share * clock.resolution_ns)
    return dataclasses.replace(
        clock,
        error_ns=clock.error_ns + look_ns,
        method=f"{clock.method}; bound: that, and the {look_ns / 1e3:.0f} us of a look that nothing interrupts",
    )

"""From looks to slices: known timelines, the looks that the BPF program would take, and what they come to."""

from __future__ import annotations

import dataclasses
import itertools
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.collectors.pycode import Code
from perfscope.collectors.pyspy import kernelrows
from perfscope.collectors.pyspy.interpreter import Interpreter, Layout
from perfscope.collectors.pyspy.kernel import Followed
from perfscope.collectors.pyspy.kernelfile import AT_TICK, ENDED, HOLDS_GIL, LOOK, UNREAD
from perfscope.collectors.pyspy.kernelrows import KernelReader, KernelRows
from perfscope.collectors.pyspy.remote import Asleep
from perfscope.model.stacks import StackTable

PERIOD, PHASE = 10_101_010, 3_333
MS = 1_000_000
PID = 500
SINCE, STOP = 1_000 * MS, 3_000 * MS
"""When the process began to be followed, and the recording's end. The recording began 100 ms before the one."""
SPAN = SINCE - 100 * MS, STOP
LEAD = 5_000
"""What of a stretch off the CPU may still count to the stack before it."""
LAYOUT = Layout(
    threads_head=0, state_next=0, state_tid=0, state_frame=0, frame_code=0, frame_instruction=0, frame_previous=0,
    frame_owner=0, code_first_line=64, code_file=64, code_name=64, code_lines=64, code_bytes=0, text_ascii=0,
    text_compact=0,
)  # fmt: skip


@dataclass(frozen=True)
class Look:
    time: int
    tid: int
    stack: int
    flags: int = 0
    since: int = 0
    pid: int = PID


@dataclass(frozen=True)
class Row:
    tid: int
    start: int
    end: int
    stack: str
    count: int
    gil: bool
    off: bool


@dataclass
class Read:
    rows: list[Row]
    parts: list[KernelRows]
    seen: KernelReader
    stacks: StackTable

    def of(self, tid: int) -> list[Row]:
        return [row for row in self.rows if row.tid == tid]

    def within(self, tid: int, start: int, end: int) -> list[Row]:
        """What is shown of [start, end)."""
        clipped = (dataclasses.replace(r, start=max(r.start, start), end=min(r.end, end)) for r in self.of(tid))
        return [row for row in clipped if row.start < row.end]

    def gil(self) -> dict[tuple[int, str], tuple[int, int]]:
        """(looks, ns) by thread and stack."""
        found: dict[tuple[int, str], tuple[int, int]] = {}
        for row in (row for part in self.parts for row in kernelrows.gil_rows(part, PERIOD)):
            place = row["tid"], self.stacks.path(row["stack_id"])[-1].function
            count, time_ns = found.get(place, (0, 0))
            found[place] = count + row["count"], time_ns + row["duration_ns"]
        return found


def name_of(stack: int) -> str:
    return f"f{stack}"


def words(stacks: Sequence[int]) -> bytes:
    """One frame for each stack, whose function is called after it."""
    told = b""
    for stack in stacks:
        name = name_of(stack).encode()
        told += struct.pack("<IIQ8I", 2, PID, stack, 1, 5, 0, len(name), 0, 0, 1, 0)
        told += b"/a.py".ljust(1024, b"\0") + name.ljust(1024, b"\0")
        told += struct.pack("<IIQII", 1, PID, stack, 1, 0) + struct.pack("<QQII", 1, stack, 0, 0)
    return told


def program(since: int = SINCE, asleep: Sequence[Asleep] = ()) -> Followed:
    return Followed(Interpreter(PID, 1, 1, LAYOUT), since, asleep=list(asleep))


def read(
    looks: Sequence[Look],
    followed: Mapping[int, Sequence[Followed]],
    span: tuple[int, int] = SPAN,
    part_looks: int = kernelrows.PART_LOOKS,
) -> Read:
    with tempfile.TemporaryDirectory() as folder:
        raw = np.array([(k.time, k.since, k.stack, k.pid, k.tid, k.flags, 0) for k in looks], LOOK)
        raw.tofile(Path(folder) / "looks.bin")
        (Path(folder) / "words.bin").write_bytes(words(sorted({k.stack for k in looks} - {0})))
        stacks = StackTable()
        reader = KernelReader(Path(folder), stacks)
        parts = list(reader.parts(followed, PERIOD, span, part_looks))
    rows = []
    for part in parts:
        t = part.rows
        assert t.looks is not None
        columns = (t.tid, t.start_ns, t.end_ns, t.stack, t.looks, part.gil, part.off)
        rows += [
            Row(tid, start, end, stacks.path(stack)[-1].function, count, gil, off)
            for tid, start, end, stack, count, gil, off in zip(*(column.tolist() for column in columns), strict=True)
        ]
    return Read(rows, parts, reader, stacks)


# What a thread did, and what the program sees of it -------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A stretch on a CPU, then one off it, and the stack of each, 0 for none of Python; gil: held in each."""

    on_ns: int
    on_stack: int
    on_gil: bool
    off_ns: int
    off_stack: int
    off_gil: bool
    too_dear: bool
    """The look where it is back would cost more than may be spent."""


@dataclass
class Stretch:
    """Off the CPU. due: there was a look where it was back."""

    start: int
    end: int
    stack: int
    gil: bool
    due: bool
    read: bool


@dataclass
class Simulated:
    """One thread of python.bpf.c, written down again from what it says it does."""

    tid: int
    random: Random
    looks: list[Look] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    shown: int = 0
    due: int = 0
    ended: int | None = None

    def look(self, now: int, stack: int, flags: int, since: int, *, dear: bool = False) -> bool:
        """Whether it was due."""
        tick = flags & AT_TICK
        if not tick and now < self.due:
            return False
        if dear and not tick:
            stack, flags = 0, flags | UNREAD
        self.due = now + PERIOD // 2 + self.random.randrange(PERIOD) // 2
        self.looks.append(Look(now, self.tid, stack, flags, since))
        self.shown = stack
        return True

    def run(self, begin: int, parts: Sequence[Part], dies: bool, asleep_first: int | None) -> None:
        """From begin on; asleep_first: for that long it was off the CPU before."""
        now = begin
        if asleep_first is not None:
            self.back(now, now + asleep_first, parts[0].off_stack, parts[0].off_gil, parts[0].too_dear)
            now += asleep_first
        for part in parts:
            end = min(now + part.on_ns, STOP)
            for tick in range(-(-(now - PHASE) // PERIOD) * PERIOD + PHASE, end, PERIOD):
                self.look(tick, part.on_stack, AT_TICK | HOLDS_GIL * part.on_gil, 0)
            now, back = end, end + part.off_ns
            if now >= STOP:
                return
            if back >= STOP:
                return
            self.back(now, back, part.off_stack, part.off_gil, part.too_dear)
            now = back
        if dies:
            self.ended = now
            if self.shown:
                self.looks.append(Look(now + 1, self.tid, 0, ENDED))

    def back(self, left: int, now: int, stack: int, gil: bool, dear: bool) -> None:
        due = self.look(now, stack, HOLDS_GIL * gil, left, dear=dear)
        self.stretches.append(Stretch(left, now, stack, gil, due, due and not dear))


def lengths(longest_ms: int) -> st.SearchStrategy[int]:
    return st.one_of(st.integers(20_000, 2 * MS), st.integers(2 * MS, longest_ms * MS))


PARTS = st.lists(
    st.builds(
        Part, lengths(80), st.integers(0, 4), st.booleans(), lengths(300), st.integers(0, 4), st.booleans(),
        st.sampled_from([False, False, False, True]),
    ),
    min_size=1, max_size=25,
)  # fmt: skip


@st.composite
def simulations(draw: st.DrawFn) -> list[Simulated]:
    """Threads known from the start on, asleep or running then, and younger ones; some die."""
    threads = []
    for tid in range(600, 600 + draw(st.integers(1, 3))):
        thread = Simulated(tid, Random(draw(st.integers(0, 1000))))
        parts, dies = draw(PARTS), draw(st.booleans())
        asleep = draw(st.one_of(st.none(), lengths(900)))
        young = draw(st.booleans())
        if young:
            thread.run(SINCE + draw(lengths(500)), parts, dies, None)
        else:
            thread.run(SINCE, parts, dies, asleep)
        threads.append(thread)
    return threads


def told_by(thread: Simulated) -> Iterator[tuple[Look, int]]:
    """Each look, and from when on something else may be shown: the next look, or the time off that it speaks for."""
    for look, after in itertools.zip_longest(thread.looks, thread.looks[1:]):
        yield look, STOP if after is None else after.since or after.time


SIMULATED = given(simulations())
MANY = settings(max_examples=200, deadline=None)


@MANY
@SIMULATED
def test_rows_of_a_thread_follow_each_other_within_the_recording(threads: list[Simulated]) -> None:
    found = read(shuffled(threads), {PID: [program()]})
    assert found.seen.untold == found.seen.unsound == 0
    assert found.seen.unread == sum(k.flags & UNREAD != 0 for t in threads for k in t.looks)
    for thread in threads:
        rows = found.of(thread.tid)
        assert all(SPAN[0] <= row.start < row.end <= SPAN[1] for row in rows)
        assert all(row.end <= after.start for row, after in itertools.pairwise(rows))
    assert {row.tid for row in found.rows} <= {thread.tid for thread in threads}


def shuffled(threads: Sequence[Simulated]) -> list[Look]:
    """Of one thread they stand in the order of time, of several in any."""
    looks = [list(thread.looks) for thread in threads]
    turns = [number for number, of_thread in enumerate(looks) for _ in of_thread]
    Random(len(turns)).shuffle(turns)
    return [looks[number].pop(0) for number in turns]


@MANY
@given(simulations(), st.integers(1, 40))
def test_read_in_parts_it_is_the_same(threads: list[Simulated], part_looks: int) -> None:
    looks = shuffled(threads)
    whole, parts = read(looks, {PID: [program()]}), read(looks, {PID: [program()]}, part_looks=part_looks)

    def order(row: Row) -> tuple[int, int]:
        return row.tid, row.start

    assert sorted(parts.rows, key=order) == sorted(whole.rows, key=order)
    assert parts.gil() == whole.gil()
    assert (parts.seen.looks, parts.seen.unread, parts.seen.untold) == (len(looks), whole.seen.unread, 0)


@MANY
@SIMULATED
def test_a_stretch_off_the_cpu_has_the_stack_it_had(threads: list[Simulated]) -> None:
    found = read(shuffled(threads), {PID: [program()]})
    for thread in threads:
        for stretch in thread.stretches:
            if not stretch.due:
                continue
            shown = found.within(thread.tid, stretch.start + LEAD, stretch.end)
            if not stretch.read or not stretch.stack:
                assert not shown
                continue
            assert {row.stack for row in shown} == {name_of(stretch.stack)}
            assert sum(row.end - row.start for row in shown) == stretch.end - stretch.start - LEAD
            (row,) = shown  # it is a slice of its own, with what a sampler would have seen of it
            assert row.off
            assert row.gil == stretch.gil
            whole = next(r for r in found.of(thread.tid) if r.end == stretch.end)
            assert abs(whole.count - (stretch.end - stretch.start) / PERIOD) < 1 + LEAD / PERIOD


@MANY
@SIMULATED
def test_nothing_is_shown_of_the_time_before_the_first_look(threads: list[Simulated]) -> None:
    found = read(shuffled(threads), {PID: [program()]})
    for thread in threads:
        if not thread.looks:
            assert not found.of(thread.tid)
            continue
        first = thread.looks[0]
        assert not found.within(thread.tid, SPAN[0], first.since or first.time)


@MANY
@SIMULATED
def test_a_tick_counts_once_and_speaks_until_the_next_look(threads: list[Simulated]) -> None:
    found = read(shuffled(threads), {PID: [program()]})
    for thread in threads:
        at_tick = {row.start: row for row in found.of(thread.tid) if not row.off and row.count}
        ticks = {look.time: (look, until) for look, until in told_by(thread) if look.flags & AT_TICK and look.stack}
        assert set(at_tick) == set(ticks)
        for start, (look, until) in ticks.items():
            row = at_tick[start]
            assert (row.count, row.stack, row.gil) == (1, name_of(look.stack), look.flags & HOLDS_GIL != 0)
            assert until <= row.end <= until + LEAD


@MANY
@SIMULATED
def test_after_an_end_or_what_was_not_read_there_is_nothing(threads: list[Simulated]) -> None:
    found = read(shuffled(threads), {PID: [program()]})
    for thread in threads:
        for look, until in told_by(thread):
            if look.flags & (ENDED | UNREAD) or not look.stack:
                since = look.since + LEAD if look.since else look.time
                assert not found.within(thread.tid, min(since, look.time), until)
        if thread.ended is not None:
            assert not found.within(thread.tid, thread.ended + 1, STOP)


@MANY
@SIMULATED
def test_the_gils_holders_have_a_period_a_tick_and_their_time_off(threads: list[Simulated]) -> None:
    found = read(shuffled(threads), {PID: [program()]})
    expected: dict[tuple[int, str], tuple[int, int]] = {}
    for thread in threads:
        for look in thread.looks:
            if not look.flags & HOLDS_GIL or look.flags & UNREAD or not look.stack:
                continue
            if look.flags & AT_TICK:
                count, time_ns = 1, PERIOD
            else:
                start = look.since + min(LEAD, (look.time - look.since) // 2)
                if start == look.time:
                    continue
                count, time_ns = look.time // PERIOD - start // PERIOD, look.time - start
            place = thread.tid, name_of(look.stack)
            counted, total = expected.get(place, (0, 0))
            expected[place] = counted + count, total + time_ns
    assert found.gil() == expected


# Single cases --------------------------------------------------------------------------------------------------------


def asleep(tid: int, since: int, at: int = STOP - 1) -> Asleep:
    codes = Code("/a.py", "leaf", 3, b""), Code("/a.py", "main", 1, b"")
    return Asleep(tid, since, at, [(code, 0) for code in codes])


def times(found: Read, tid: int) -> list[tuple[int, int, str]]:
    return [(row.start, row.end, row.stack) for row in found.of(tid)]


def test_one_that_sleeps_from_before_until_after_has_its_whole_time() -> None:
    found = read([], {PID: [program(asleep=[asleep(600, SINCE)])]})
    assert times(found, 600) == [(SINCE + LEAD, STOP - 1, "leaf"), (STOP - 1, STOP, "leaf")]
    assert [frame.function for frame in found.stacks.path(int(found.parts[-1].rows.stack[0]))] == ["main", "leaf"]
    assert sum(row.count for row in found.rows) == (STOP - 1) // PERIOD - (SINCE + LEAD) // PERIOD


def test_one_that_sleeps_until_the_end_has_that_stack_since_it_left_the_cpu() -> None:
    left = SINCE + 300 * MS
    looks = [Look(SINCE + 290 * MS, 600, 1, AT_TICK)]
    found = read(looks, {PID: [program(asleep=[asleep(600, left)])]})
    assert times(found, 600) == [
        (SINCE + 290 * MS, left + LEAD, "f1"),
        (left + LEAD, STOP - 1, "leaf"),
        (STOP - 1, STOP, "leaf"),
    ]


def test_a_program_that_sleeps_from_exec_until_the_end_has_its_time() -> None:
    ended, again = SINCE + 100 * MS, SINCE + 150 * MS
    looks = [Look(SINCE + 50 * MS, PID, 1, AT_TICK), Look(ended, PID, 0, ENDED)]
    found = read(looks, {PID: [program(), program(again, [asleep(PID, again)])]})
    start = again + LEAD
    assert times(found, PID) == [(SINCE + 50 * MS, ended, "f1"), (start, STOP - 1, "leaf"), (STOP - 1, STOP, "leaf")]


def test_since_when_a_thread_was_off_is_unknown_where_it_is_the_time_of_the_look() -> None:
    looks = [Look(SINCE + 50 * MS, 600, 1, AT_TICK), Look(SINCE + 90 * MS, 600, 2, since=SINCE + 90 * MS)]
    found = read(looks, {PID: [program()]})
    assert times(found, 600) == [(SINCE + 50 * MS, SINCE + 90 * MS, "f1"), (SINCE + 90 * MS, STOP, "f2")]


def test_a_stretch_that_reaches_beyond_the_recording_counts_what_is_within() -> None:
    span = SINCE, SINCE + 10 * PERIOD
    looks = [
        Look(SINCE - 30 * PERIOD, 600, 1, AT_TICK),
        Look(SINCE + 5 * PERIOD, 600, 2, since=SINCE - 20 * PERIOD),
        Look(SINCE + 40 * PERIOD, 600, 3, since=SINCE + 5 * PERIOD + MS),
    ]
    found = read(looks, {PID: [program(SINCE - 90 * PERIOD)]}, span)
    assert [(row.start, row.end, row.stack) for row in found.rows if row.off] == [
        (SINCE, SINCE + 5 * PERIOD, "f2"),
        (SINCE + 5 * PERIOD + MS + LEAD, SINCE + 10 * PERIOD, "f3"),
    ]
    assert [row.count for row in found.rows if row.off] == [5, 5]


def test_a_stack_that_nothing_was_told_of_is_a_gap_and_is_counted() -> None:
    with tempfile.TemporaryDirectory() as folder:
        looks = [(SINCE, 0, 9, PID, 600, AT_TICK, 0), (SINCE + MS, 0, 1, PID, 600, AT_TICK, 0)]
        np.array(looks, LOOK).tofile(Path(folder) / "looks.bin")
        (Path(folder) / "words.bin").write_bytes(words([1]) + b"\7\0\0\0")
        seen = KernelReader(Path(folder), StackTable())
        *_, part = seen.parts({PID: [program()]}, PERIOD, SPAN)
    assert (seen.untold, seen.unsound, seen.looks) == (1, 1, 2)
    assert part.rows.start_ns.tolist() == [SINCE + MS]
    assert part.rows.end_ns.tolist() == [STOP]


def test_the_same_thread_id_in_two_processes_is_two_threads() -> None:
    at = [SINCE, SINCE + MS, SINCE + 2 * MS]
    looks = [
        Look(at[0], 600, 1, AT_TICK),
        Look(at[1], 600, 2, AT_TICK, pid=PID + 1),
        Look(at[2], 600, 3, AT_TICK),
    ]
    found = read(looks, {PID: [program()], PID + 1: [program()]})
    assert sorted(times(found, 600)) == [(at[0], at[2], "f1"), (at[1], STOP, "f2"), (at[2], STOP, "f3")]
    assert sorted(pid for part in found.parts for pid in part.rows.pid.tolist()) == [PID, PID, PID + 1]


def test_a_time_off_that_began_before_the_look_before_it_begins_there() -> None:
    """Slices never overlap, whatever the times that were told."""
    looks = [Look(SINCE + 9 * MS, 600, 1, AT_TICK), Look(SINCE + 50 * MS, 600, 2, since=SINCE + 8 * MS)]
    found = read(looks, {PID: [program()]})
    assert times(found, 600) == [
        (SINCE + 9 * MS, SINCE + 50 * MS, "f2"),
        (SINCE + 50 * MS, STOP, "f2"),
    ]


def test_nothing_seen_is_no_rows() -> None:
    found = read([], {PID: [program()]})
    assert not found.rows
    assert found.gil() == {}

"""slices_of: every nanosecond of every thread, once, with the right state and stack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from merge_helpers import Row, Sessions, by_ns, frames_of, reference, tree_lines

from perfscope.errors import SessionError
from perfscope.merge import CallTree, build_tree, slices_of, stretches
from perfscope.merge.slices import (
    DISK,
    GC,
    GIL,
    LOCK,
    RUNNABLE,
    RUNNING,
    SLEEP,
    STOPPED,
    UNKNOWN,
)
from perfscope.model.session import Session
from perfscope.model.stacks import ROOT

SPAN = 48
times = st.integers(-6, SPAN + 6)
later = st.one_of(st.none(), times)
REACH = 5 * 2  # REACH_PERIODS x the resolution_ns given to the sources below


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    with Sessions() as made:
        yield made


@contextmanager
def parts_of(rows: int) -> Iterator[None]:
    """Merges with so many scheduler records at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stretches, "PART_ROWS", rows)
        yield


def table(columns: dict[str, st.SearchStrategy[object]], size: int) -> st.SearchStrategy[list[Row]]:
    return st.lists(st.fixed_dictionaries(columns), max_size=size)


SCHED = table({"off_ns": times, "wake_ns": later, "on_ns": later, "state": st.sampled_from("RSSSDTNX?")}, 6)
WAITS = table({"start_ns": times, "end_ns": later, "kind": st.sampled_from(["gil", "futex"])}, 4)
REQUESTS = table({"start_ns": times, "complete_ns": later}, 3)
PAUSES = table({"time_ns": times, "duration_ns": st.integers(-2, 9), "type": st.just("GCPhasePause")}, 2)
SAMPLES = st.lists(
    st.fixed_dictionaries(
        {
            "time_ns": st.one_of(times, st.none()),
            "duration_ns": st.one_of(st.none(), st.integers(-2, 14)),
            "stack_id": st.integers(0, 4),
            "torn": st.booleans(),
            "source": st.sampled_from(["jfr", "pyspy"]),
            "count": st.integers(0, 5),
        }
    ),
    max_size=7,
    unique_by=lambda row: object() if row["time_ns"] is None else row["time_ns"],
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    sched=SCHED,
    waits=WAITS,
    block_io=REQUESTS,
    jvm_events=PAUSES,
    samples=SAMPLES,
    complete=st.booleans(),
    part_rows=st.sampled_from([1, 2, 3, stretches.PART_ROWS]),
)
def test_equals_the_merge_by_its_definition(
    sessions: Sessions,
    part_rows: int,
    sched: list[Row],
    waits: list[Row],
    block_io: list[Row],
    jvm_events: list[Row],
    samples: list[Row],
    complete: bool,
) -> None:
    if not complete and not sched:
        waits = []  # then waits stand in for scheduler records: a test of its own
    thread = {"tid": 7, "start_ns": 0, "end_ns": SPAN, "sched_complete": complete}
    tables = {"sched": sched, "waits": waits, "block_io": block_io, "jvm_events": jvm_events, "samples": samples}
    own = {n: [r if n == "jvm_events" else {"tid": 7, **r} for r in rows] for n, rows in tables.items()}
    session = sessions.make(own, [thread], clocks={"jfr": 2, "pyspy": 2})
    with parts_of(part_rows):
        (slices,) = slices_of(session)
    assert by_ns(session, slices) == reference(thread, tables, REACH)


wild = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-50, 10**7))
wild_null = st.one_of(st.none(), wild)
TIDS = st.sampled_from([1, 2, 3, 99])


def tables_of(
    time: st.SearchStrategy[int], time_or_null: st.SearchStrategy[int | None], state: st.SearchStrategy[str]
) -> dict[str, st.SearchStrategy[list[Row]]]:
    return {
        "sched": table(
            {"tid": TIDS, "off_ns": time, "wake_ns": time_or_null, "on_ns": time_or_null, "state": state}, 9
        ),
        "waits": table(
            {"tid": TIDS, "start_ns": time, "end_ns": time_or_null, "kind": st.sampled_from(["gil", "futex"])}, 9
        ),
        "block_io": table(
            {"tid": TIDS, "start_ns": time, "complete_ns": time_or_null, "flags": st.text(max_size=3)}, 5
        ),
        "jvm_events": table(
            {
                "tid": st.one_of(st.none(), TIDS),
                "time_ns": time,
                "duration_ns": time,
                "type": st.sampled_from(["GCPhasePause", "ThreadPark", "JavaMonitorEnter", "Other"]),
                "stack_id": st.one_of(st.none(), st.integers(0, 4)),
                "subject": st.one_of(st.none(), st.text(max_size=5)),
            },
            6,
        ),
        "samples": table(
            {
                "tid": st.one_of(st.none(), TIDS),
                "time_ns": time_or_null,
                "duration_ns": time_or_null,
                "stack_id": st.integers(0, 4),
                "torn": st.booleans(),
                "count": time,
                "source": st.sampled_from(["jfr", "pyspy", "pyspy-gil", "import"]),
            },
            9,
        ),
        "spans": st.lists(st.tuples(time, time, st.booleans()), min_size=3, max_size=3),
    }


def threads_of(spans: list[tuple[int, int, bool]]) -> list[Row]:
    return [
        {"tid": tid, "start_ns": start, "end_ns": end, "sched_complete": complete}
        for tid, (start, end, complete) in zip((1, 2, 3), spans, strict=True)
    ]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(part_rows=st.sampled_from([1, 3, stretches.PART_ROWS]), **tables_of(wild, wild_null, st.text(max_size=2)))
def test_conserved_whatever_the_tables_hold(
    sessions: Sessions, part_rows: int, spans: list[tuple[int, int, bool]], **tables: list[Row]
) -> None:
    threads = threads_of(spans)
    session = sessions.make(tables, threads)
    listed = {t["tid"]: t for t in threads}
    with parts_of(part_rows):
        found = list(slices_of(session))
    for slices in found:
        if slices.tid in listed:
            start, end = (max(-(2**61), min(2**61, listed[slices.tid][k])) for k in ("start_ns", "end_ns"))
            assert int((slices.end_ns - slices.start_ns).sum()) == max(0, end - start)
            if end > start:
                assert (slices.start_ns[0], slices.end_ns[-1]) == (start, end)
        assert (slices.end_ns > slices.start_ns).all()
        assert (slices.start_ns[1:] == slices.end_ns[:-1]).all()
        assert ((slices.stack_id >= ROOT) & (slices.stack_id < len(session.stacks.parents))).all()
        if slices.tid in listed and listed[slices.tid]["sched_complete"]:
            assert not (slices.state == UNKNOWN).any()


crowded = st.integers(0, 60)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    part_rows=st.integers(1, 4),
    **tables_of(crowded, st.one_of(st.none(), crowded), st.sampled_from("RSSSDTN")),
)
def test_how_many_records_are_merged_at_a_time_changes_nothing(
    sessions: Sessions, part_rows: int, spans: list[tuple[int, int, bool]], **tables: list[Row]
) -> None:
    session = sessions.make(tables, threads_of(spans), clocks={"jfr": 1, "pyspy": 1})
    whole = list(slices_of(session))
    with parts_of(part_rows):
        parts = list(slices_of(session))
    assert len(parts) == len(whole)
    for one, other in zip(parts, whole, strict=True):
        for column in ("pid", "tid", "start_ns", "end_ns", "stack_id", "state"):
            assert np.array_equal(getattr(one, column), getattr(other, column)), column


@pytest.mark.parametrize("part_rows", [1, 7, 1000])
def test_nor_does_it_change_the_tree_of_a_real_gpu_recording(part_rows: int) -> None:
    def lines(tree: CallTree) -> dict[str, dict[str, int]]:
        return {weight: tree_lines(tree, weight) for weight in tree.weights}

    path = Path(__file__).parents[2] / "examples" / "gpu" / "llm.perfscope"
    whole = lines(build_tree(Session.open(path)))
    with parts_of(part_rows):
        parts = lines(build_tree(Session.open(path)))
    assert set(whole) == {"wall", "cpu", "off-cpu", "gpu", "samples"}
    assert parts == whole


MS = 1_000_000


def states(session_tables: dict[str, list[Row]], sessions: Sessions, **thread: object) -> dict[int, int]:
    """State -> ns of a thread observed for 100 ms."""
    thread = {"tid": 7, "start_ns": 0, "end_ns": 100 * MS, "sched_complete": True, **thread}
    session = sessions.make({n: [{"tid": 7, **r} for r in rows] for n, rows in session_tables.items()}, [thread])
    (slices,) = slices_of(session)
    return {int(s): int((slices.end_ns - slices.start_ns)[slices.state == s].sum()) for s in np.unique(slices.state)}


def asleep(state: str = "S", **row: object) -> Row:
    return {"off_ns": 10 * MS, "wake_ns": 50 * MS, "on_ns": 53 * MS, "state": state, **row}


@pytest.mark.parametrize(
    ("letter", "state"), [("S", SLEEP), ("D", DISK), ("T", STOPPED), ("t", STOPPED), ("R", RUNNABLE)]
)
def test_off_the_cpu_is_blocked_until_woken_then_runnable(sessions: Sessions, letter: str, state: int) -> None:
    expected = {RUNNING: 57 * MS, RUNNABLE: 3 * MS}
    expected[state] = expected.get(state, 0) + 40 * MS
    assert states({"sched": [asleep(letter)]}, sessions) == expected


def test_never_woken_lasts_to_the_end(sessions: Sessions) -> None:
    assert states({"sched": [asleep(wake_ns=None, on_ns=None)]}, sessions) == {RUNNING: 10 * MS, SLEEP: 90 * MS}


def test_a_newborn_has_not_run_before_its_first_record(sessions: Sessions) -> None:
    assert states({"sched": [asleep("N")]}, sessions) == {SLEEP: 50 * MS, RUNNABLE: 3 * MS, RUNNING: 47 * MS}


def test_dead_until_its_id_is_used_again(sessions: Sessions) -> None:
    dead = asleep("X", wake_ns=None, on_ns=None)
    born = {"off_ns": 60 * MS, "wake_ns": 60 * MS, "on_ns": 61 * MS, "state": "N"}
    assert states({"sched": [dead, born]}, sessions) == {RUNNING: 49 * MS, SLEEP: 50 * MS, RUNNABLE: MS}


def test_no_scheduler_records_claim_nothing(sessions: Sessions) -> None:
    assert states({}, sessions, sched_complete=False) == {UNKNOWN: 100 * MS}


def test_a_wait_for_the_gil_is_blocked_time_only(sessions: Sessions) -> None:
    """The futex call encloses the stretch off the CPU: its own CPU time, and waiting for a CPU, are not the GIL's."""
    wait = {"start_ns": 9 * MS, "end_ns": 54 * MS, "kind": "gil"}
    assert states({"sched": [asleep()], "waits": [wait]}, sessions) == {
        RUNNING: 57 * MS,
        RUNNABLE: 3 * MS,
        GIL: 40 * MS,
    }


@pytest.mark.parametrize(("stack", "state"), [(0, LOCK), (1, LOCK), (2, SLEEP), (3, LOCK), (4, SLEEP)])
def test_futex_waits_by_the_python_code_that_waits(sessions: Sessions, stack: int, state: int) -> None:
    sample = {"time_ns": 30 * MS, "duration_ns": 5 * MS, "stack_id": stack}
    tables = {"sched": [asleep()], "waits": [{"start_ns": 9 * MS, "end_ns": 54 * MS}], "samples": [sample]}
    assert states(tables, sessions)[state] == 40 * MS


def test_a_lock_is_not_released_by_a_thread_that_runs_no_python(sessions: Sessions) -> None:
    threads = [
        {"tid": 7, "start_ns": 0, "end_ns": 100 * MS, "sched_complete": True},
        {"tid": 8, "name": "OMP worker", "start_ns": 0, "end_ns": 100 * MS, "sched_complete": True},
        {"tid": 9, "name": "python", "start_ns": 0, "end_ns": 100 * MS, "sched_complete": True},
    ]
    found = []
    for waker in (8, 9):
        tables = {
            "sched": [asleep(tid=7, waker_tid=waker)],
            "waits": [{"tid": 7, "start_ns": 9 * MS, "end_ns": 54 * MS}],
            "samples": [
                {"tid": 7, "time_ns": 30 * MS, "duration_ns": 5 * MS, "stack_id": 0},
                {"tid": 9, "time_ns": 30 * MS, "duration_ns": 5 * MS, "stack_id": 0},
            ],
        }
        slices = next(slices_of(sessions.make(tables, threads)))
        found.append(slices.state[slices.start_ns == 10 * MS].tolist())
    assert found == [[SLEEP], [LOCK]]


@pytest.mark.parametrize(
    ("flags", "operation", "state"),
    [("R", "read", DISK), ("RA", "read", SLEEP), ("W", "write", SLEEP), ("WS", "write", DISK), ("FF", "flush", DISK)],
)
def test_asleep_on_own_request_unless_it_finishes_behind_its_back(
    sessions: Sessions, flags: str, operation: str, state: int
) -> None:
    request = {"start_ns": 9 * MS, "complete_ns": 50 * MS, "flags": flags, "operation": operation}
    assert states({"sched": [asleep()], "block_io": [request]}, sessions)[state] == 40 * MS


@pytest.mark.parametrize(
    ("event", "subject", "state"),
    [
        ("JavaMonitorEnter", "App", LOCK),
        ("JavaMonitorWait", "App", SLEEP),
        ("ThreadSleep", None, SLEEP),
        ("ThreadPark", None, SLEEP),
        ("ThreadPark", "java/util/concurrent/locks/ReentrantLock$NonfairSync", LOCK),
        ("ThreadPark", "java.util.concurrent.locks.ReentrantReadWriteLock$FairSync", LOCK),
        ("ThreadPark", "java.util.concurrent.locks.StampedLock", LOCK),
        ("ThreadPark", "java.util.concurrent.locks.AbstractQueuedSynchronizer$ConditionObject", SLEEP),
        ("ThreadPark", "java.util.concurrent.SynchronousQueue$TransferStack", SLEEP),
        ("ThreadPark", "java.util.concurrent.CountDownLatch$Sync", SLEEP),
        ("ThreadPark", "java.util.concurrent.Semaphore$NonfairSync", LOCK),
        ("ThreadPark", "java.util.concurrent.CompletableFuture$Signaller", SLEEP),
    ],
)
@pytest.mark.parametrize("with_sched", [True, False])
def test_java_waits_with_and_without_scheduler_records(
    sessions: Sessions, event: str, subject: str | None, state: int, with_sched: bool
) -> None:
    row = {"time_ns": 10 * MS - 4000, "duration_ns": 40 * MS, "type": event, "subject": subject, "stack_id": 4}
    tables: dict[str, list[Row]] = {"jvm_events": [row]}
    if with_sched:
        tables["sched"] = [asleep(wake_ns=50 * MS, on_ns=50 * MS)]
    found = states(tables, sessions, sched_complete=with_sched)
    assert found == {RUNNING if with_sched else UNKNOWN: 60 * MS, state: 40 * MS}


def test_stopped_for_the_collector_only_if_it_blocked_for_it(sessions: Sessions) -> None:
    pause = {"tid": None, "time_ns": 9 * MS, "duration_ns": 42 * MS, "type": "GCPhasePause"}
    assert states({"sched": [asleep()], "jvm_events": [pause]}, sessions)[GC] == 40 * MS
    pause = {"tid": None, "time_ns": 20 * MS, "duration_ns": 31 * MS, "type": "GCPhasePause"}
    assert states({"sched": [asleep()], "jvm_events": [pause]}, sessions)[SLEEP] == 40 * MS
    cycle = {"tid": None, "time_ns": 9 * MS, "duration_ns": 42 * MS, "type": "GarbageCollection", "subject": "G1Old"}
    assert states({"sched": [asleep()], "jvm_events": [cycle]}, sessions)[SLEEP] == 40 * MS


def test_a_pause_lasts_from_the_call_to_the_safepoint_to_its_end(sessions: Sessions) -> None:
    """A slow safepoint: told to stop at 9 ms, collected from 40 to 45 ms, let go at 51 ms."""
    events = [
        {"tid": None, "type": "SafepointBegin", "time_ns": 9 * MS, "duration_ns": 30 * MS},
        {"tid": None, "type": "GCPhasePause", "time_ns": 40 * MS, "duration_ns": 5 * MS},
        {"tid": None, "type": "SafepointEnd", "time_ns": 46 * MS, "duration_ns": 5 * MS},
    ]
    assert states({"sched": [asleep()], "jvm_events": events}, sessions)[GC] == 40 * MS
    # An earlier safepoint that has ended is not part of it, nor is a later one.
    events[0] |= {"duration_ns": MS}
    events.append({"tid": None, "type": "SafepointEnd", "time_ns": 11 * MS, "duration_ns": MS})
    assert states({"sched": [asleep()], "jvm_events": events}, sessions)[SLEEP] == 40 * MS


def test_a_look_while_blocked_speaks_for_the_whole_stretch(sessions: Sessions) -> None:
    thread = {"tid": 7, "start_ns": 0, "end_ns": 100 * MS, "sched_complete": True}
    sample = {"tid": 7, "time_ns": 11 * MS, "stack_id": 1, "source": "jfr"}
    session = sessions.make({"sched": [asleep(tid=7)], "samples": [sample]}, [thread], clocks={"jfr": MS})
    (slices,) = slices_of(session)
    sampled = slices.stack_id != ROOT
    assert (slices.start_ns[sampled][0], slices.end_ns[sampled][-1]) == (10 * MS, 53 * MS)


def test_only_looks_that_found_a_thread_running_tell_what_it_ran(sessions: Sessions) -> None:
    """It waits in stack 2 but for short bursts; of those one look in four meets one, in stack 1."""
    thread = {"tid": 7, "start_ns": 0, "end_ns": 40 * MS, "sched_complete": True}
    waits = [asleep(tid=7, off_ns=i * 10 * MS, wake_ns=(i * 10 + 8) * MS, on_ns=(i * 10 + 8) * MS) for i in range(4)]
    looks = [{"tid": 7, "time_ns": 5 * MS, "duration_ns": 14 * MS, "count": 2, "stack_id": 2}]
    looks += [{"tid": 7, "time_ns": 19 * MS, "duration_ns": 10 * MS, "stack_id": 1}]
    looks += [{"tid": 7, "time_ns": 29 * MS - MS * 4, "duration_ns": 15 * MS, "stack_id": 2}]
    session = sessions.make({"sched": waits, "samples": looks}, [thread], clocks={"pyspy": 10 * MS})
    (slices,) = slices_of(session)
    running = slices.state == RUNNING
    assert {frames_of(session, stack) for stack in slices.stack_id[running].tolist()} == {"main;guarded"}
    assert int((slices.end_ns - slices.start_ns)[running].sum()) == 8 * MS


def test_a_thread_known_from_samples_only(sessions: Sessions) -> None:
    session = sessions.make({"samples": [{"tid": 5, "time_ns": 10, "duration_ns": 20, "stack_id": 0}]}, [])
    (slices,) = slices_of(session)
    assert (slices.tid, slices.start_ns.tolist(), slices.end_ns.tolist()) == (5, [10], [30])
    assert frames_of(session, int(slices.stack_id[0])) == "main;work"


def test_thread_pattern(sessions: Sessions) -> None:
    threads = [
        {"tid": t, "name": n, "start_ns": 0, "end_ns": 9} for t, n in ((1, "Main"), (2, "worker-0"), (3, "Worker-1"))
    ]
    session = sessions.make({}, threads)
    for pattern, tids in (("worker-*", [2, 3]), ("MAIN", [1]), ("3", [3]), ("nobody", []), (None, [1, 2, 3])):
        assert [s.tid for s in slices_of(session, thread=pattern)] == tids


def test_samples_of_stacks_that_do_not_exist_are_an_error(sessions: Sessions) -> None:
    session = sessions.make({"samples": [{"tid": 5, "time_ns": 10, "stack_id": 0}]}, [])
    samples = session.table("samples")
    broken = samples.set_column(
        samples.schema.get_field_index("stack_id"), samples.schema.field("stack_id"), pa.array([10**6], pa.int32())
    )
    pq.write_table(broken, session.path / "tables" / "samples.parquet")
    with pytest.raises(SessionError, match=r"samples\.parquet: damaged"):
        list(slices_of(session))

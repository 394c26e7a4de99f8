"""The tables of a merge as numpy columns by thread. What each column means is model.schema's to say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from perfscope.merge import waits
from perfscope.merge.intervals import FAR, Intervals, Ints, bounded, earliest_wins
from perfscope.merge.slices import DISK, RUNNABLE, SLEEP, STOPPED
from perfscope.merge.tables import NEVER, Columns, Grouped, ThreadInfo, codes, filled, stack_ids, thread_keys
from perfscope.model.session import Session

PERIOD_NS = 10_000_000
"""Sampling period where the session doesn't say it: 100 Hz, the default of every sampler used."""

_WAIT_OF_STATE = {"R": RUNNABLE, "D": DISK, "T": STOPPED, "t": STOPPED}


class Sources:
    """Grouped tables of some threads (`infos`, ordered by pid and tid), and what holds for whole processes.

    Times are bounded but where NEVER stands for null.

    sched: off, wake, on (NEVER for null), wait (the state while blocked; SLEEP if only the cause can tell), waker,
        newborn.
    samples: time, duration (both NEVER for null), stack, torn, count, period (0: the GIL sampler's, which saw only
        holders).
    waits: start, end, gil. block_io: start, end, waited (whether a sleeping thread may wait for it).
    jvm: start, end, stack, state (-1: its thread doesn't wait).
    pauses: pid -> the JVM's stop-the-world pauses. native: keys of the session's threads that no sampler ever saw.
    """

    def __init__(self, session: Session, infos: Sequence[ThreadInfo]) -> None:
        keys = thread_keys([i.pid for i in infos], [i.tid for i in infos])

        def grouped(table: str, columns: list[str], convert: Callable[[pa.Table], Columns]) -> Grouped:
            return Grouped(session, table, columns, convert, keys)

        periods = {name: clock.resolution_ns or PERIOD_NS for name, clock in session.info.clocks.items()}

        def samples(piece: pa.Table) -> Columns:
            return {
                "time": filled(piece["time_ns"], NEVER),
                "duration": filled(piece["duration_ns"], NEVER),
                "stack": stack_ids(session, "samples", piece["stack_id"]),
                "torn": piece["torn"].to_numpy(),
                "count": piece["count"].to_numpy(),
                "period": codes(piece["source"], lambda s: 0 if s == "pyspy-gil" else periods.get(s, PERIOD_NS)),
            }

        def jvm(piece: pa.Table) -> Columns:
            start = bounded(piece["time_ns"].to_numpy())
            parked = codes(piece["type"], lambda s: s == "ThreadPark") == 1
            event = codes(piece["type"], lambda s: waits.JAVA_STATES.get(s, -1))
            return {
                "start": start,
                "end": start + bounded(piece["duration_ns"].to_numpy()),
                "state": np.where(parked, codes(piece["subject"], waits.park_state, SLEEP), event),
                "stack": stack_ids(session, "jvm_events", piece["stack_id"]),
            }

        self.sched = grouped("sched", ["off_ns", "wake_ns", "on_ns", "state", "waker_tid"], _sched)
        self.samples = grouped("samples", ["time_ns", "duration_ns", "stack_id", "torn", "count", "source"], samples)
        self.waits = grouped("waits", ["start_ns", "end_ns", "kind"], _waits)
        self.block_io = grouped("block_io", ["start_ns", "complete_ns", "operation", "flags"], _block_io)
        self.jvm = grouped("jvm_events", ["time_ns", "duration_ns", "type", "subject", "stack_id"], jvm)
        self.pauses = gc_pauses(session)
        self.native = np.setdiff1d(_keys_of(session, "threads"), _keys_of(session, "samples"))


def _keys_of(session: Session, table: str) -> npt.NDArray[np.int64]:
    rows = session.table(table).select(["pid", "tid"]).drop_null()
    return np.unique(thread_keys(rows["pid"].to_numpy(), rows["tid"].to_numpy()))


def _sched(piece: pa.Table) -> Columns:
    return {
        "off": bounded(piece["off_ns"].to_numpy()),
        "wake": bounded(filled(piece["wake_ns"], NEVER)),
        "on": filled(piece["on_ns"], NEVER),
        "wait": codes(piece["state"], lambda s: _WAIT_OF_STATE.get(s[:1], SLEEP), SLEEP).astype(np.uint8),
        "waker": filled(piece["waker_tid"], -1),
        "newborn": codes(piece["state"], lambda s: s == "N") == 1,
    }


def _waits(piece: pa.Table) -> Columns:
    return {
        "start": bounded(piece["start_ns"].to_numpy()),
        "end": bounded(filled(piece["end_ns"], NEVER)),
        "gil": codes(piece["kind"], lambda s: s == "gil") == 1,
        "lock": codes(piece["kind"], lambda s: s == "futex") == 1,
    }


def _block_io(piece: pa.Table) -> Columns:
    read = codes(piece["operation"], lambda s: s == "read") == 1
    flush = codes(piece["operation"], lambda s: waits.may_sleep_for(s, "")) == 1
    return {
        "start": bounded(piece["start_ns"].to_numpy()),
        "end": bounded(filled(piece["complete_ns"], NEVER)),
        "waited": np.where(
            read,
            codes(piece["flags"], lambda s: waits.may_sleep_for("read", s)) == 1,
            flush | (codes(piece["flags"], lambda s: waits.may_sleep_for("write", s)) == 1),
        ),
    }


def gc_pauses(session: Session) -> dict[int, Intervals]:
    """pid -> the time in which the JVM's threads stood still for its collector.

    Each GCPhasePause with the safepoint around it: from SafepointBegin, when threads are told to stop, to the
    end of SafepointEnd. Where a JVM's recording has no such phase: the GarbageCollection events of collectors that
    stop the world throughout.
    """
    table = session.table("jvm_events").select(["time_ns", "duration_ns", "pid", "type", "subject"])
    kinds = ("GCPhasePause", "GarbageCollection", "SafepointBegin", "SafepointEnd")
    kind = codes(table["type"], lambda s: kinds.index(s) if s in kinds else -1)
    kind[(kind == 1) & (codes(table["subject"], waits.stops_the_world, 1) == 0)] = -1
    pids = table["pid"].to_numpy()
    start = bounded(table["time_ns"].to_numpy())
    end = start + bounded(table["duration_ns"].to_numpy())
    found: dict[int, Intervals] = {}
    for pid in np.unique(pids[(kind == 0) | (kind == 1)]).tolist():
        phases, whole, begins, ends = ((pids == pid) & (kind == k) for k in range(len(kinds)))
        if not phases.any():
            phases = whole
        stopped = _around(start[phases], end[phases], np.sort(start[begins]), np.sort(end[ends]))
        found[pid] = earliest_wins(*stopped)
    return found


def _around(start: Ints, end: Ints, begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Intervals widened to the safepoint around them; begins and ends of safepoints ascend and may be incomplete."""
    edges = np.array([-FAR, FAR])
    begins, ends = np.concatenate([edges[:1], begins, edges[1:]]), np.concatenate([edges[:1], ends, edges[1:]])
    index = np.searchsorted(begins, start, "right")
    begin, next_begin = begins[index - 1], begins[np.minimum(index, len(begins) - 1)]
    index = np.searchsorted(ends, end)
    until, last_until = ends[np.minimum(index, len(ends) - 1)], ends[np.maximum(index - 1, 0)]
    return (
        np.where((begin > -FAR) & (last_until <= begin), begin, start),
        np.where((until < FAR) & (until <= next_begin), until, end),
    )


def disjoint(columns: Columns, keep: npt.NDArray[np.bool_] | None = None) -> Intervals:
    """start and end columns as disjoint intervals, whose rows index the columns; only those of `keep`."""
    if not columns:
        none: Ints = np.empty(0, np.int64)
        return Intervals(none, none, np.empty(0, np.intp))
    rows = np.arange(len(columns["start"])) if keep is None else np.flatnonzero(keep)
    found = earliest_wins(columns["start"][rows], columns["end"][rows])
    return found._replace(row=rows[found.row])

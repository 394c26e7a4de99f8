"""Unpaired records -> the paired ones the CO-RE programs write: off, runnable, on again; sleeps in futex(2).

Works on pieces of the file, each sorted by thread and time. What a piece leaves open is carried into the next one
as rows, so memory stays bounded and no state is kept beside them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from perfscope.collectors.ebpf.backend import Thread
from perfscope.collectors.ebpf.records import (
    ALIVE,
    BLOCK,
    DEATH,
    EVENT,
    EXEC,
    FORK,
    FUTEX_IN,
    FUTEX_OUT,
    NEWBORN,
    NO_RESULT,
    SCHED,
    SWITCH,
    WAIT,
    WAKE,
    WAKING,
    Records,
    chunks,
)

SETTLE_NS = 1_000_000_000
"""Records of different CPUs may be this much out of order in the file (they were drained one CPU after another)."""

OFF, ON, START, LIVE = 20, 21, 22, 23
"""Rows made here. START: began to be followed; LIVE: followed already when this piece begins."""

Index = npt.NDArray[np.intp]


def starting_rows(followed: Iterable[tuple[int, Thread]]) -> Records:
    """Rows for the threads followed by hand: (time, thread)."""
    rows = []
    for time_ns, thread in followed:
        rows.append((time_ns, 0, 0, thread.tgid, thread.tid, 0, thread.state, 0, 0, START, 0))
        if thread.wait is not None:
            op, address = thread.wait
            rows.append((time_ns, op, address, thread.tgid, thread.tid, 0, 0, 0, 0, FUTEX_IN, 0))
    return np.array(rows, EVENT)


def pair(source: Path, target: Path, followed: Iterable[tuple[int, Thread]]) -> set[int]:
    """Reads unpaired events from `source` and writes paired ones to `target`.

    Returns the ids of threads that got a CPU without having left one, or left one twice: a switch was missed.
    """
    broken: set[int] = set()
    carry = np.empty(0, EVENT)
    pending = starting_rows(followed)
    with target.open("wb") as file:
        for piece in chunks(source, EVENT):
            rows = np.concatenate([pending, piece])
            settled = rows["time"].astype(np.int64) <= int(rows["time"].max()) - SETTLE_NS
            pending = rows[~settled]
            paired, carry = _pair_piece(carry, rows[settled], broken)
            file.write(paired.tobytes())
        paired, carry = _pair_piece(carry, pending, broken)
        file.write(paired.tobytes())
        file.write(_still_open(carry).tobytes())
    return broken


def _streams(events: Records) -> Records:
    """Each switch becomes a row of the thread that leaves and a row of the thread that comes."""
    switch = events[events["kind"] == SWITCH]
    leaves, comes = switch.copy(), switch.copy()
    state = leaves["value"]
    leaves["value"] = np.where(state & 0x100, 0, np.where(state & 0x80, 0x402, state & 0xFF))
    leaves["kind"] = np.where(state & 0x30, DEATH, OFF)  # EXIT_DEAD, EXIT_ZOMBIE
    leaves["other"] = 0
    comes["kind"] = ON
    comes["tid"], comes["extra"] = switch["other"], switch["tid"]
    comes["other"] = comes["value"] = 0
    return np.concatenate([events[events["kind"] != SWITCH], leaves, comes])


def _last(hit: npt.NDArray[np.bool_], first: Index) -> Index:
    """For each row the index of the latest hit at or before it in its thread's rows; -1 if there is none."""
    index = np.arange(len(hit))
    found = np.maximum.accumulate(np.where(hit, index, -1)) if len(hit) else index
    return np.where(found >= first, found, -1)


def _before(index: Index, first: Index) -> Index:
    """The same, strictly before each row."""
    if not len(index):
        return index
    shifted = np.concatenate([[-1], index[:-1]])
    return np.where(shifted >= first, shifted, -1)


def _next(hit: npt.NDArray[np.bool_]) -> Index:
    """For each row the index of the first hit at or after it, of whichever thread; the number of rows if none is."""
    return np.minimum.accumulate(np.where(hit, np.arange(len(hit)), len(hit))[::-1])[::-1]


def _pair_piece(carry: Records, events: Records, broken: set[int]) -> tuple[Records, Records]:
    rows = np.concatenate([carry, _streams(events)])
    order = np.lexsort((rows["time"], rows["tid"]))
    rows = rows[order]
    if not len(rows):
        return np.empty(0, EVENT), carry
    kind = rows["kind"]
    begins = np.concatenate([[True], rows["tid"][1:] != rows["tid"][:-1]])
    first = np.maximum.accumulate(np.where(begins, np.arange(len(rows)), 0))

    marker = _last(np.isin(kind, (START, LIVE, FORK, DEATH)), first)
    mine = marker >= 0
    mine &= (kind[marker] != DEATH) | (kind == DEATH) & _alive_before(marker, kind, first)
    rows["tgid"] = np.where(mine, rows["tgid"][marker], rows["tgid"])

    off = _last(mine & np.isin(kind, (OFF, START, FORK)), first)
    on = _last(mine & (kind == ON), first)
    waking = _last(mine & (kind == WAKING), first)
    next_wake = _next(mine & (kind == WAKE))
    before_on = _before(on, first)

    at = np.flatnonzero(mine & (kind == ON))
    from_ = off[at]
    broken.update(np.unique(rows["tid"][at[from_ <= before_on[at]]]).tolist())
    at, from_ = at[from_ > before_on[at]], from_[from_ > before_on[at]]
    previous = _before(off, first)
    again = np.isin(kind, (OFF, DEATH)) & mine & (previous > on) & np.isin(kind[previous], (OFF, FORK))
    broken.update(np.unique(rows["tid"][again]).tolist())
    sched = np.zeros(len(at), EVENT)
    for name in ("time", "tgid", "tid", "extra", "cpu"):
        sched[name] = rows[name][at]
    sched["kind"] = SCHED
    _fill_off(sched, rows, from_, next_wake[from_], at)
    waker = waking[at]
    woken = (waker > before_on[at]) & (sched["value"] != 0)
    sched["other"] = np.where(woken, rows["other"][waker], 0)

    entry = _last(mine & (kind == FUTEX_IN), first)
    returned = _last(mine & (kind == FUTEX_OUT), first)
    in_call = (sched["value"] != 0) & (entry[at] > returned[at])
    earlier = np.flatnonzero(mine & (kind == WAIT))
    back = np.concatenate([at[in_call], earlier])
    waits = np.concatenate([sched[in_call], rows[earlier]])
    waits["kind"], waits["b"], waits["extra"] = WAIT, rows["b"][entry[back]], rows["a"][entry[back]]
    # Who woke it did so by futex(2) if that is what the call returns; it hasn't yet if it sleeps again.
    again = (kind == OFF) & (rows["value"] != 0)
    after = _next(mine & (again | np.isin(kind, (FUTEX_IN, FUTEX_OUT, DEATH))))[back]
    decided = after < len(rows)
    decided[decided] = rows["tid"][after[decided]] == waits["tid"][decided]
    woken = decided.copy()
    woken[decided] = (kind[after[decided]] == FUTEX_OUT) & (rows["value"][after[decided]] == 0)
    woken &= waits["other"] != 0  # a timer's wake-up may overtake
    undecided = waits[~decided]
    waits["other"], waits["value"] = np.where(woken, waits["other"], 0), np.where(woken, 0, NO_RESULT)

    tasks = rows[mine & np.isin(kind, (FORK, EXEC, DEATH))].copy()
    tasks["value"] = np.where(tasks["kind"] == DEATH, 0, tasks["value"])
    carried = _carry(rows, mine, marker, off, on, entry, returned)
    return np.concatenate([sched, waits[decided], tasks]), np.concatenate([carried, undecided])


def _alive_before(marker: Index, kind: npt.NDArray[np.uint8], first: Index) -> npt.NDArray[np.bool_]:
    previous = _before(marker, first)
    alive: npt.NDArray[np.bool_] = (previous >= 0) & (kind[previous] != DEATH)
    return alive


def _fill_off(target: Records, rows: Records, from_: Index, wake: Index, until: Index) -> None:
    kind, value = rows["kind"][from_], rows["value"][from_]
    target["value"] = np.where(kind == FORK, NEWBORN, value)
    target["a"] = np.where(kind == START, 0, rows["time"][from_])
    woken = wake < until
    wake_time = np.where(woken, rows["time"][np.minimum(wake, len(rows) - 1)], 0)
    target["b"] = np.where((target["value"] == 0), np.maximum(rows["time"][from_], target["a"]), wake_time)


def _carry(
    rows: Records, mine: npt.NDArray[np.bool_], marker: Index, off: Index, on: Index, entry: Index, returned: Index
) -> Records:
    """What the next piece needs: for each thread whether it lives, its open interval and its open futex call."""
    count = len(rows)
    ends = np.flatnonzero(np.concatenate([rows["tid"][1:] != rows["tid"][:-1], [True]]))
    known = ends[marker[ends] >= 0]
    markers = rows[marker[known]].copy()
    live = markers["kind"] != DEATH
    markers["kind"] = np.where(live, LIVE, DEATH)
    markers = markers[live]
    last = np.zeros(count, np.intp)
    sizes = np.diff(np.concatenate([[-1], ends]))
    last[:] = np.repeat(ends, sizes)
    index = np.arange(count)
    lives = mine & (marker[last] >= 0) & (rows["kind"][marker[last]] != DEATH)
    open_off = lives & (off[last] > on[last]) & (index >= off[last])
    keep = open_off & np.isin(rows["kind"], (OFF, START, FORK, WAKE, WAKING))
    keep |= lives & (rows["kind"] == FUTEX_IN) & (index == entry[last]) & (entry[last] > returned[last])
    kept = rows[keep].copy()
    # A newborn's row would be written as a second birth: it goes on as an ordinary interval off the CPU.
    born = kept["kind"] == FORK
    kept["value"] = np.where(born, NEWBORN, kept["value"])
    kept["kind"] = np.where(born, OFF, kept["kind"])
    return np.concatenate([markers, kept])


def _still_open(carry: Records) -> Records:
    """ALIVE records and those of waits not over, or not known how they ended, for the end of the recording."""
    result = []
    for tid in np.unique(carry["tid"]).tolist():
        mine = carry[carry["tid"] == tid]
        marker = mine[mine["kind"] == LIVE]
        if not len(marker):
            continue
        tgid = int(marker["tgid"][0])
        since = mine[np.isin(mine["kind"], (OFF, START))]
        wakes, wakings = mine[mine["kind"] == WAKE], mine[mine["kind"] == WAKING]
        off = wake = state = waker = 0
        seen = 1
        if len(since):
            last = since[-1]
            state, seen = int(last["value"]), int(last["kind"] != START)
            off = int(last["time"]) if seen else 0
            wake = off if state == 0 else int(wakes["time"][0]) if len(wakes) else 0
            waker = int(wakings["other"][-1]) if len(wakings) and state else 0
        result.append((0, off, wake, tgid, tid, waker, state, 0, seen, ALIVE, 0))
        if len(since) and state:
            for call in mine[mine["kind"] == FUTEX_IN]:
                result.append((0, off, call["b"], tgid, tid, 0, 0, int(call["a"]), 0, WAIT, 0))
    waits = carry[carry["kind"] == WAIT].copy()
    waits["other"], waits["value"] = 0, NO_RESULT
    return np.concatenate([np.array(result, EVENT), waits])


def pair_blocks(source: Path, target: Path) -> None:
    """Joins what the start, issue and completion tracepoints knew of each request, by device and sector."""
    parts = list(chunks(source, BLOCK))
    rows = np.concatenate(parts) if parts else np.empty(0, BLOCK)
    when = np.maximum(np.maximum(rows["start"], rows["issue"]), rows["complete"])
    rows = rows[np.lexsort((when, rows["sector"], rows["dev"]))]
    if len(rows):
        same = (rows["sector"][1:] == rows["sector"][:-1]) & (rows["dev"][1:] == rows["dev"][:-1])
        first = np.maximum.accumulate(np.where(np.concatenate([[True], ~same]), np.arange(len(rows)), 0))
    else:
        first = np.empty(0, np.intp)
    start, issue, done = (_last(rows[name] != 0, first) for name in ("start", "issue", "complete"))
    ended = np.flatnonzero(rows["complete"] != 0)
    ended = ended[issue[ended] > _before(done, first)[ended]]
    # An issue that no completion follows is still with the device, or its completion went unseen: then the next request
    # for the place begins after it. Of repeated ones the last counts.
    ends = np.flatnonzero(np.concatenate([first[1:] != first[:-1], [True]])) if len(rows) else ended
    begins = np.flatnonzero(rows["start"] != 0)
    earlier = _before(issue, first)[begins]
    unseen = earlier[earlier > _before(done, first)[begins]]
    waiting = np.union1d(np.setdiff1d(unseen, issue[ended]), issue[ends[(issue[ends] > done[ends])]])
    with target.open("wb") as file:
        for at, complete in ((ended, True), (waiting, False)):
            request = rows[issue[at]].copy()
            begun = start[at]
            known = begun > _before(done, first)[at]
            request["start"] = np.where(known, rows["start"][begun], request["issue"])
            for name in ("tgid", "tid", "comm"):
                request[name] = np.where(known, rows[name][begun], request[name])
            if complete:
                request["complete"], request["error"] = rows["complete"][at], rows["error"][at]
            file.write(request.tobytes())

"""Sessions made by hand, and an obviously right merge to hold the vectorised one against."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from perfscope.clock import ClockMap
from perfscope.merge import CallTree, ThreadSlices
from perfscope.merge.slices import DISK, GC, GIL, LOCK, RUNNABLE, RUNNING, SLEEP, STOPPED, UNKNOWN
from perfscope.merge.timeline import REACH_PERIODS, RUNNING_REACH_PERIODS
from perfscope.model.info import SessionInfo
from perfscope.model.session import Session
from perfscope.model.session_writer import SessionWriter
from perfscope.model.stacks import ROOT, Frame

Row = dict[str, Any]
PID = 100

_WAIT = Frame("python", "wait", "threading.py", 7)

STACKS: list[list[Frame]] = [
    [Frame("python", "main", "app.py", 1), Frame("python", "work", "app.py", 5)],
    [Frame("python", "main", "app.py", 2), Frame("python", "guarded", "app.py", 9)],
    [Frame("python", "run", "threading.py", 3), Frame("python", "get", "queue.py", 4), _WAIT],
    [Frame("python", "main", "app.py", 1), Frame("python", "acquire", "threading.py", 8), _WAIT],
    [Frame("java", "run", "App.java", 3, "App"), Frame("java", "work", "App.java", 5, "App")],
]
"""Futex waits in them are for: a lock, a lock, work, a lock, unknown."""


class Sessions:
    """Makes sessions in a directory of its own, deleted with it."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self._made = 0

    def __enter__(self) -> Sessions:
        return self

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()

    def make(
        self,
        tables: Mapping[str, Sequence[Row]],
        threads: Sequence[Row],
        *,
        clocks: Mapping[str, int] | None = None,
        stacks: Sequence[Sequence[Frame]] = STACKS,
        start_ns: int = 0,
    ) -> Session:
        """clocks: source -> resolution_ns. Rows' stack_id is an index into `stacks`, or None."""
        self._made += 1
        writer = SessionWriter(Path(self._directory.name) / f"{self._made}.perfscope")
        ids = [writer.stacks.stack(stack) for stack in stacks]
        writer.note_process(PID, name="python", command="/usr/bin/python /srv/serve.py --port 1", runtime="python")
        for thread in threads:
            writer.note_thread(**{"pid": PID, **thread})
        for table, rows in tables.items():
            filled = []
            for row in rows:
                row = {"pid": PID, **DEFAULTS.get(table, {}), **row}
                if row.get("stack_id") is not None:
                    row["stack_id"] = ids[row["stack_id"]]
                filled.append(row)
            writer.append(table, filled)
        info = SessionInfo(start_ns=start_ns, stop_ns=max([start_ns, *(t.get("end_ns", 0) for t in threads)]))
        for source, resolution in (clocks or {}).items():
            info.clocks[source] = ClockMap("test", 0, 0, resolution_ns=resolution)
        return Session.open(writer.finish(info))


DEFAULTS: dict[str, Row] = {
    "samples": {"source": "pyspy", "count": 1, "torn": False},
    "waits": {"kind": "futex", "address": 1},
    "block_io": {
        "comm": "x",
        "device": "vda",
        "sector": 0,
        "bytes": 512,
        "operation": "read",
        "flags": "R",
        "error": 0,
        "in_target": True,
    },
}


def frames_of(session: Session, stack_id: int) -> str:
    return ";".join(f.function for f in session.stacks.path(stack_id)) if stack_id != ROOT else ""


def by_ns(session: Session, slices: ThreadSlices) -> list[tuple[int, str]]:
    """(state, stack as text) of each nanosecond."""
    found: list[tuple[int, str]] = []
    for start, end, state, stack in zip(
        slices.start_ns.tolist(), slices.end_ns.tolist(), slices.state.tolist(), slices.stack_id.tolist(), strict=True
    ):
        found += [(state, frames_of(session, stack))] * (end - start)
    return found


def tree_lines(tree: CallTree, weight: str) -> dict[str, int]:
    """Path of labels joined by ";" -> self weight, where it has any."""
    paths: list[str] = []
    for parent, frame in zip(tree.parent.tolist(), tree.frame.tolist(), strict=True):
        label = "" if frame < 0 else tree.frames[frame].label
        paths.append(label if parent <= 0 else f"{paths[parent]};{label}")
    found: dict[str, int] = {}
    values = tree.weights[weight].tolist() if weight in tree.weights else [0] * len(paths)
    for path, value in zip(paths, values, strict=True):
        if value:
            found[path] = found.get(path, 0) + value
    return found


# The merge by its definition (docs/merging.md), one nanosecond at a time.

_INF = 1 << 40


def _text(stack: int | None) -> str:
    return "" if stack is None else ";".join(f.function for f in STACKS[stack])


def _in_force_first(rows: list[tuple[int, int]], time: int) -> int | None:
    """The row that covers a time and started first."""
    covering = [(start, i) for i, (start, end) in enumerate(rows) if start <= time < end]
    return min(covering)[1] if covering else None


def _sample_rows(samples: list[Row], reach: int) -> list[tuple[int, int, Row]]:
    timed = sorted((s for s in samples if s.get("time_ns") is not None), key=lambda s: s["time_ns"])
    instants = [s for s in timed if s.get("duration_ns") is None]
    rows = []
    for sample in timed:
        time = sample["time_ns"]
        if sample.get("duration_ns") is not None:
            rows.append((time, time + max(0, sample["duration_ns"]), sample))
            continue
        i = next(k for k, s in enumerate(instants) if s is sample)
        # ceil of the middle: a tie belongs to the later look
        before = (instants[i - 1]["time_ns"] + time + 1) // 2 if i else -_INF
        after = (time + instants[i + 1]["time_ns"] + 1) // 2 if i + 1 < len(instants) else _INF
        rows.append((max(before, time - reach), min(after, time + reach), sample))
    return rows


def _sample_at(rows: list[tuple[int, int, Row]], time: int) -> Row | None:
    """The sample that started last, if it hasn't ended."""
    started = [(start, i) for i, (start, _, _) in enumerate(rows) if start <= time]
    if not started:
        return None
    _, end, sample = rows[max(started)[1]]
    return sample if time < end else None


def _look_at(rows: list[tuple[int, int, Row]], time: int) -> str:
    sample = _sample_at(rows, time)
    if sample is None:
        return ""
    return "[torn stack]" if sample["torn"] else _text(sample["stack_id"])


def _running_looks(rows: list[tuple[int, int, Row]], owner: dict[int, bool]) -> list[tuple[int, Row]]:
    """(time, row) of each look that found the thread running; a row of several looks is taken apart evenly.

    `owner` says of a time whether the thread was off the CPU.
    """
    ordered = sorted(enumerate(rows), key=lambda r: (r[1][0], r[0]))
    found = []
    for place, (_, (start, end, row)) in enumerate(ordered):
        if place + 1 < len(ordered):
            end = min(end, ordered[place + 1][1][0])
        if end <= start:
            continue
        instant = row.get("duration_ns") is None
        count = 1 if instant else max(1, min(row.get("count", 1), end - start + 1))
        for nth in range(count):
            time = row["time_ns"] + (end - start) // count * nth
            if not owner.get(time, False):
                found.append((time, row))
    return found


def _nearest_look(looks: list[tuple[int, Row]], time: int, reach: int) -> str:
    """Ties belong to the later look, and among looks of one moment to the last."""
    best = min(((abs(t - time), -t, -i) for i, (t, _) in enumerate(looks)), default=None)
    if best is None or not (-best[1] - reach <= time < -best[1] + reach):
        return ""
    row = looks[-best[2]][1]
    return "[torn stack]" if row["torn"] else _text(row["stack_id"])


_FUTEX = {0: LOCK, 1: LOCK, 2: SLEEP, 3: LOCK, 4: SLEEP}


def reference(thread: Row, tables: Mapping[str, list[Row]], reach: int) -> list[tuple[int, str]]:
    """(state, stack as text) of each nanosecond of a thread: what slices_of must say, done the slow way."""
    low, high = thread["start_ns"], thread["end_ns"]
    sched = tables["sched"]
    looks = _sample_rows(tables["samples"], reach)
    offs = [(r["off_ns"], _INF if r["on_ns"] is None else r["on_ns"]) for r in sched]
    ordered = sorted(range(len(sched)), key=lambda i: (sched[i]["off_ns"], i))
    for i, following in pairwise(ordered):
        if sched[i]["on_ns"] is None:
            offs[i] = (offs[i][0], sched[following]["off_ns"])
    if ordered and sched[ordered[0]]["state"] == "N":
        offs[ordered[0]] = (min(low, offs[ordered[0]][0]), offs[ordered[0]][1])
    owner = [_in_force_first(offs, t) for t in range(low, high)]

    def covered(rows: list[tuple[int, int | None]], time: int) -> bool:
        return any(start <= time < (_INF if end is None else end) for start, end in rows)

    told: dict[int, tuple[int, int, str]] = {}
    for row, record in enumerate(sched):
        mine = [low + k for k, o in enumerate(owner) if o == row]
        if not mine:
            continue
        start, end = mine[0], mine[-1] + 1
        wake = end if record["wake_ns"] is None else min(max(record["wake_ns"], start), end)
        middle = start + (end - start) // 2
        stack = _look_at(looks, middle)
        if stack in ("", "[torn stack]"):
            inside = [
                (abs(s["time_ns"] - middle), -s["time_ns"], s["stack_id"])
                for s in tables["samples"]
                if s["time_ns"] is not None and not s["torn"] and start <= s["time_ns"] < end
            ]
            if inside:
                stack = _text(min(inside)[2])
        middle = start + (wake - start) // 2
        cause = {"R": RUNNABLE, "D": DISK, "T": STOPPED}.get(record["state"], SLEEP)
        if cause == SLEEP:
            if covered([(b["start_ns"], b["complete_ns"]) for b in tables["block_io"]], middle):
                cause = DISK
            if covered([(w["start_ns"], w["end_ns"]) for w in tables["waits"] if w["kind"] == "futex"], middle):
                index = next((i for i in range(len(STACKS)) if _text(i) == stack), None)
                cause = SLEEP if index is None else _FUTEX[index]
            if covered([(g["time_ns"], g["time_ns"] + g["duration_ns"]) for g in tables["jvm_events"]], middle):
                cause = GC
            if covered([(w["start_ns"], w["end_ns"]) for w in tables["waits"] if w["kind"] == "gil"], middle):
                cause = GIL
        told[row] = (cause, wake, stack)
    base = (RUNNING if thread["sched_complete"] else UNKNOWN, "")
    if thread["sched_complete"]:
        off = {
            t: o is not None and told[o][0] in (SLEEP, LOCK, DISK) for t, o in zip(range(low, high), owner, strict=True)
        }
        running, running_reach = _running_looks(looks, off), reach // REACH_PERIODS * RUNNING_REACH_PERIODS
        watched = [_sample_at(looks, t) is not None for t in range(low, high)]
        found = [
            (base[0], _nearest_look(running, t, running_reach) if watched[t - low] else "") for t in range(low, high)
        ]
    else:
        found = [(base[0], _look_at(looks, t)) for t in range(low, high)]
    for time, row in enumerate(owner, low):
        if row is not None:
            cause, wake, stack = told[row]
            found[time - low] = (cause if time < wake else RUNNABLE, stack)
    return found

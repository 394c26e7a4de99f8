"""EVENT and BLOCK records -> the session's tables, in bounded pieces."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from perfscope.collectors.ebpf.gil import KINDS, WaitKinds
from perfscope.collectors.ebpf.records import ALIVE, LETTERS, NO_RESULT, SCHED, WAIT, Records, state_codes
from perfscope.collectors.ebpf.threads import Life, Lives
from perfscope.model.session_writer import SessionWriter

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Window:
    """The recorded interval: nothing outside it goes into a table."""

    start_ns: int
    stop_ns: int


def _masked(values: npt.NDArray[Any], null: Bools, type_: pa.DataType) -> pa.Array:
    return pa.array(values, type_, mask=null)


def _category(codes: npt.NDArray[np.int32], names: Iterable[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(list(names), pa.string()))


class Beginnings:
    """Since when threads are known that were followed by hand: one that was off the CPU then has been so since then."""

    def __init__(self, lives: Lives, window: Window) -> None:
        starts = {life.tid: life.start_ns for life in lives.lives if not life.born}
        self._tids = np.array(sorted(starts), np.int64)
        self._starts = np.array([starts[tid] for tid in sorted(starts)], np.int64)
        self._window = window

    def bound(self, tid: npt.NDArray[Any], time_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The times, none earlier than what is known of its thread."""
        times = np.maximum(time_ns, self._window.start_ns)
        if len(self._tids):
            early = np.flatnonzero(times < max(self._window.start_ns + 1, int(self._starts.max()) + 1))
            at = np.minimum(np.searchsorted(self._tids, tid[early]), len(self._tids) - 1)
            hit = self._tids[at] == tid[early]
            times[early] = np.where(hit, np.maximum(times[early], self._starts[at]), times[early])
        return times


class SchedTable:
    """Writes `sched`."""

    def __init__(self, writer: SessionWriter, lives: Lives, window: Window, beginnings: Beginnings) -> None:
        self._writer, self._lives, self._window, self._beginnings = writer, lives, window, beginnings

    def add(self, events: Records) -> None:
        """SCHED records, and ALIVE ones of threads that are off the CPU at the end."""
        chosen = events[(events["kind"] == SCHED) | ((events["kind"] == ALIVE) & (events["a"] != 0))]
        open_ = chosen["kind"] == ALIVE
        self._append(
            chosen["tgid"],
            chosen["tid"],
            chosen["a"].astype(np.int64),
            chosen["b"].astype(np.int64),
            np.where(open_, 0, chosen["time"]).astype(np.int64),
            state_codes(chosen["value"]),
            chosen["other"],
            chosen["cpu"],
            chosen["extra"],
        )

    def add_untold(self) -> None:
        """Rows for what no event tells: threads that never switched, and the time between two lives of one id."""
        rows: list[tuple[int, int, int, int, int, int]] = []
        for (tgid, tid), lives in self._lives.of().items():
            for before, after in pairwise(lives):
                if before.end_ns is not None:
                    rows.append((tgid, tid, before.end_ns, 0, after.start_ns, LETTERS.index("X")))
            last = lives[-1]
            if last.never and last.complete and last.cpu_ns == 0 and last.end_ns is None:
                state = int(state_codes(np.array([last.state]))[0])
                rows.append((tgid, tid, last.start_ns, last.start_ns if state == 0 else 0, 0, state))
        if rows:
            columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)]
            none = np.zeros(len(rows), np.int64)
            pid, tids, off, wake, on, code = columns
            self._append(pid, tids, off, wake, on, code.astype(np.int32), none, none - 1, none - 1)

    def _append(
        self,
        tgid: npt.NDArray[Any],
        tid: npt.NDArray[Any],
        off: npt.NDArray[np.int64],
        wake: npt.NDArray[np.int64],
        on: npt.NDArray[np.int64],
        code: npt.NDArray[np.int32],
        waker: npt.NDArray[Any],
        cpu: npt.NDArray[Any],
        previous: npt.NDArray[Any],
    ) -> None:
        stop = self._window.stop_ns
        off = self._beginnings.bound(tid, off)
        on = np.where(on > stop, 0, on)
        keep = (off < stop) & ((on == 0) | (on > off))
        off, on, wake = off[keep], on[keep], wake[keep]
        wake = np.where((wake > stop) | (wake == 0), 0, np.maximum(wake, off))
        ended, came_from = on != 0, previous[keep].astype(np.int32)
        woken, code, waker = wake != 0, code[keep], waker[keep]
        self._writer.append(
            "sched",
            {
                "pid": tgid[keep].astype(np.int32),
                "tid": tid[keep].astype(np.int32),
                "off_ns": off,
                "wake_ns": _masked(wake, ~woken, pa.int64()),
                "on_ns": _masked(on, ~ended, pa.int64()),
                "state": _category(code, LETTERS),
                "waker_tid": _masked(waker.astype(np.int32), (waker == 0) | ~woken | (code == 0), pa.int32()),
                "cpu": _masked(cpu[keep].astype(np.int32), ~ended | (cpu[keep] == -1), pa.int32()),
                "prev_tid": _masked(came_from, ~ended | (came_from == -1), pa.int32()),
            },
        )


def append_waits(
    writer: SessionWriter, events: Records, window: Window, beginnings: Beginnings, kinds: WaitKinds
) -> None:
    """Writes the WAIT records among `events` to `waits`."""
    chosen = events[events["kind"] == WAIT]
    start = beginnings.bound(chosen["tid"], chosen["a"].astype(np.int64))
    end = np.where(chosen["time"] > window.stop_ns, 0, chosen["time"]).astype(np.int64)
    keep = (start < window.stop_ns) & ((end == 0) | (end >= start))
    chosen, start, end = chosen[keep], start[keep], end[keep]
    open_ = end == 0
    writer.append(
        "waits",
        {
            "pid": chosen["tgid"].astype(np.int32),
            "tid": chosen["tid"].astype(np.int32),
            "start_ns": start,
            "end_ns": _masked(end, open_, pa.int64()),
            "kind": _category(kinds.of(chosen), KINDS),
            "address": chosen["b"],
            "waker_tid": _masked(chosen["other"].astype(np.int32), open_ | (chosen["other"] == 0), pa.int32()),
            "result": _masked(chosen["value"], open_ | (chosen["value"] == NO_RESULT), pa.int32()),
        },
    )


# blk_status_t (include/linux/blk_types.h, block/blk-core.c), which the tracepoint carries since 5.16; errno before.
_STATUS = [0, errno.EOPNOTSUPP, errno.ETIMEDOUT, errno.ENOSPC, errno.ENOLINK, errno.EREMOTEIO, errno.EBADE,
           errno.ENODATA, errno.EILSEQ, errno.ENOMEM, errno.EIO, errno.EREMCHG, errno.EAGAIN, errno.EBUSY]  # fmt: skip


def block_errors(value: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """0 or negative errno for what the completion carried."""
    table = np.array(_STATUS, np.int32)
    known = np.where((value > 0) & (value < len(table)), -table[np.clip(value, 0, len(table) - 1)], value)
    return np.where(known > 0, -errno.EIO, known).astype(np.int32)


def operation(rwbs: str) -> str:
    """What a request does, by the letters the kernel gives it."""
    letters = rwbs[1:] if rwbs[:1] == "F" and len(rwbs) > 1 and rwbs[1] in "RWD" else rwbs
    return {"R": "read", "W": "write", "D": "discard", "F": "flush"}.get(letters[:1], "other")


def device_name(device: int) -> str:
    """Kernel's name of a block device, else major:minor."""
    number = f"{device >> 20}:{device & 0xFFFFF}"
    try:
        return Path(f"/sys/dev/block/{number}").resolve(strict=True).name
    except OSError:
        return number


LONG_OPEN_NS = 1_000_000_000
"""A request that was made so long before the end should have been completed by then."""


def append_blocks(
    writer: SessionWriter, blocks: Records, window: Window, lives: Iterable[Life]
) -> npt.NDArray[np.int64]:
    """Writes whole block requests to `block_io`; returns how many old ones were never seen to complete: [of others, of
    the target]."""
    start = blocks["start"].astype(np.int64)
    complete = blocks["complete"].astype(np.int64)
    keep = (start < window.stop_ns) & ((complete == 0) | (complete > window.start_ns))
    rows = blocks[keep]
    if not len(rows):
        return np.zeros(2, np.int64)
    targets = np.array(sorted({life.tid for life in lives}), np.int64)
    flags, flag_codes = np.unique(rows["rwbs"], return_inverse=True)
    names = [flag.decode(errors="replace") for flag in flags]
    devices, device_codes = np.unique(rows["dev"], return_inverse=True)
    operations = ("read", "write", "discard", "flush", "other")
    does = np.array([operations.index(operation(name)) for name in names], np.int32)[flag_codes]
    empty_flush = (rows["bytes"] == 0) & np.array([name.startswith("F") for name in names])[flag_codes]
    does = np.where(empty_flush, operations.index("flush"), does).astype(np.int32)
    mine = np.isin(rows["tid"], targets)
    issue = np.where(rows["issue"] > window.stop_ns, 0, rows["issue"]).astype(np.int64)
    done = np.where(rows["complete"] > window.stop_ns, 0, rows["complete"]).astype(np.int64)
    writer.append(
        "block_io",
        {
            "start_ns": rows["start"].astype(np.int64),
            "issue_ns": _masked(issue, issue == 0, pa.int64()),
            "complete_ns": _masked(done, done == 0, pa.int64()),
            "pid": rows["tgid"].astype(np.int32),
            "tid": rows["tid"].astype(np.int32),
            "comm": [name.decode(errors="replace") for name in rows["comm"].tolist()],
            "device": _category(device_codes.astype(np.int32), [device_name(int(d)) for d in devices]),
            "sector": rows["sector"].astype(np.int64),
            "bytes": rows["bytes"].astype(np.int64),
            "operation": _category(does, operations),
            "flags": _category(flag_codes.astype(np.int32), names),
            "error": _masked(block_errors(rows["error"]), done == 0, pa.int32()),
            "in_target": mine,
        },
    )
    unseen = (done == 0) & (rows["start"].astype(np.int64) < window.stop_ns - LONG_OPEN_NS)
    return np.bincount(mine[unseen], minlength=2)


def note_lives(writer: SessionWriter, lives: Lives, window: Window) -> None:
    """Tells the session of every thread and process: names, births, deaths, CPU times, completeness."""
    ends: dict[int, list[int | None]] = {}
    names: dict[int, str] = {}
    for life in lives.lives:
        ends.setdefault(life.tgid, []).append(life.end_ns)
        if life.tid == life.tgid and life.name:
            names[life.tgid] = life.name
    for (tgid, tid), lifes in lives.of().items():
        first, last = lifes[0], lifes[-1]
        if first.start_ns >= window.stop_ns or (last.end_ns is not None and last.end_ns <= window.start_ns):
            continue
        whole = len(lifes) == 1 and first.start_ns >= window.start_ns
        writer.note_thread(
            tgid,
            tid,
            name=last.name,
            start_ns=max(first.start_ns, window.start_ns),
            end_ns=window.stop_ns if last.end_ns is None else None,
            died_ns=None if last.end_ns is None else min(last.end_ns, window.stop_ns),
            cpu_ns=first.cpu_ns if whole else None,
            runnable_ns=first.runnable_ns if whole else None,
            sched_complete=all(life.complete for life in lifes),
        )
    for tgid, all_ends in ends.items():
        known = [end for end in all_ends if end is not None]
        dead = len(known) == len(all_ends)
        starts = [life.start_ns for life in lives.lives if life.tgid == tgid]
        writer.note_process(
            tgid,
            ppid=lives.parents.get(tgid),
            name=names.get(tgid),
            start_ns=max(min(starts), window.start_ns),
            died_ns=min(max(known), window.stop_ns) if dead else None,
        )

"""A session's tables, in the shape the merge needs: rows grouped by thread, only the columns it reads."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from perfscope.errors import SessionError
from perfscope.merge.intervals import FAR
from perfscope.model.session import Session
from perfscope.model.stacks import ROOT

Columns = dict[str, npt.NDArray[Any]]

NEVER = np.iinfo(np.int64).max
"""Stands for a null time that means "not before the end"."""

_COMMAND_CHARS = 60


@dataclass(frozen=True)
class ThreadInfo:
    """A thread and the time it was observed. process: a short form of its command line."""

    pid: int
    tid: int
    name: str
    process: str
    start_ns: int
    end_ns: int
    sched_complete: bool


def thread_keys(pid: npt.ArrayLike, tid: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """One int64 for each (pid, tid)."""
    return (np.asarray(pid, np.int64) << 32) | (np.asarray(tid, np.int64) & 0xFFFFFFFF)


def process_labels(session: Session) -> dict[int, str]:
    """pid -> short form of the command line ("python serve.py"), or the kernel's name for the process."""
    table = session.table("processes")
    labels = {}
    for pid, name, command in zip(*(table.column(c).to_pylist() for c in ("pid", "name", "command")), strict=True):
        program, _, rest = (command or name).partition(" ")
        label = f"{program.rsplit('/', 1)[-1]} {rest}".strip() or name
        labels[pid] = label if len(label) <= _COMMAND_CHARS else label[: _COMMAND_CHARS - 1] + "…"
    return labels


def threads(session: Session) -> list[ThreadInfo]:
    """Every thread of the session, ordered by pid and tid, each once.

    A thread that only samples know of is observed from its first sample to the end of its last.
    """
    labels = process_labels(session)
    found: dict[tuple[int, int], ThreadInfo] = {}
    table = session.table("threads")
    columns = ("pid", "tid", "name", "start_ns", "end_ns", "sched_complete")
    for pid, tid, name, start, end, complete in zip(*(table.column(c).to_pylist() for c in columns), strict=True):
        start = min(max(start, -FAR), FAR)
        end = max(min(end, FAR), start)
        info = ThreadInfo(pid, tid, name or "thread", labels.get(pid, "process"), start, end, complete)
        found.setdefault((pid, tid), info)
    samples = session.table("samples").select(["pid", "tid", "time_ns", "duration_ns"])
    timed = samples.filter(pc.and_(pc.is_valid(samples["tid"]), pc.is_valid(samples["time_ns"])))
    timed = timed.filter(pc.is_valid(timed["pid"]))
    if timed.num_rows:
        time = np.clip(timed["time_ns"].to_numpy(), -FAR, FAR)
        until = time + np.clip(pc.fill_null(timed["duration_ns"], 0).to_numpy(), 0, FAR)
        keys, inverse = np.unique(thread_keys(timed["pid"].to_numpy(), timed["tid"].to_numpy()), return_inverse=True)
        first, last = np.full(len(keys), FAR), np.full(len(keys), -FAR)
        np.minimum.at(first, inverse, time)
        np.maximum.at(last, inverse, until)
        for key, start, end in zip(keys.tolist(), first.tolist(), last.tolist(), strict=True):
            pid, tid = key >> 32, key & 0xFFFFFFFF
            info = ThreadInfo(pid, tid, "thread", labels.get(pid, "process"), start, end, False)
            found.setdefault((pid, tid), info)
    return [found[key] for key in sorted(found)]


def matches(pattern: str | None, name: str | None, tid: int | None) -> bool:
    """Whether a thread is meant by a shell-style pattern: on its name in any case, or its tid."""
    if pattern is None:
        return True
    return (name is not None and fnmatch.fnmatchcase(name.lower(), pattern.lower())) or pattern == str(tid)


class Grouped:
    """Rows of one table by thread and time. Holds those of the given threads only; `rows(i)` are of thread i."""

    def __init__(
        self,
        session: Session,
        table: str,
        columns: Sequence[str],
        convert: Callable[[pa.Table], Columns],
        keys: npt.NDArray[np.int64],
    ) -> None:
        """`convert` turns a piece of the table into arrays of equal length, the first of which is the time.

        keys: ascending, see thread_keys. Rows of a null pid or tid are left out. `unlisted` counts those of other
        threads.
        """
        self._columns: Columns = {}
        self.unlisted = 0
        most = session.rows(table)
        # 16-bit keys sort in linear time
        indices = np.empty(most, np.uint16 if len(keys) < 1 << 16 else np.int64)
        count = 0
        for piece in session.batches(table, ["pid", "tid", *columns]):
            known = pc.and_(pc.is_valid(piece["pid"]), pc.is_valid(piece["tid"]))
            if not pc.all(known).as_py() and piece.num_rows:
                piece = piece.filter(known)
            key = thread_keys(piece["pid"].to_numpy(), piece["tid"].to_numpy())
            index = np.searchsorted(keys, key)
            listed = np.zeros(len(key), bool) if not len(keys) else keys[np.minimum(index, len(keys) - 1)] == key
            self.unlisted += int(len(key) - np.count_nonzero(listed))
            found = slice(count, count + int(np.count_nonzero(listed)))
            count = found.stop
            indices[found] = index[listed]
            for name, values in convert(piece).items():
                if name not in self._columns:
                    self._columns[name] = np.empty(most, values.dtype)
                self._columns[name][found] = values[listed]
        self._first = np.concatenate([[0], np.cumsum(np.bincount(indices[:count], minlength=len(keys)))])
        order = np.argsort(indices[:count], kind="stable")
        for name, values in self._columns.items():
            self._columns[name] = values[order]
        del indices, order
        for thread in range(len(keys)):
            rows = self.rows(thread)
            order = np.argsort(next(iter(rows.values()), self._first[:0]), kind="stable")
            for values in rows.values():
                values[:] = values[order]

    def rows(self, thread: int) -> Columns:
        """Columns of one thread's rows, by time, then in the table's order; an empty dict if it has none."""
        rows = slice(self._first[thread], self._first[thread + 1])
        return {} if rows.start == rows.stop else {name: values[rows] for name, values in self._columns.items()}


def filled(column: pa.ChunkedArray, value: int) -> npt.NDArray[Any]:
    """An integer column as numpy, nulls replaced."""
    values: npt.NDArray[Any] = (pc.fill_null(column, value) if column.null_count else column).to_numpy()
    return values


def codes(column: pa.ChunkedArray, meaning: Callable[[str], int], null: int = 0) -> npt.NDArray[np.int64]:
    """A text or dictionary column as numbers: `meaning` of each distinct text, `null` for null."""
    parts = [np.empty(0, np.int64)]
    for chunk in column.chunks:
        encoded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        texts = encoded.dictionary.to_pylist()
        table = np.array([null if text is None else meaning(text) for text in texts] + [null], np.int64)
        parts.append(table[pc.fill_null(encoded.indices, len(texts)).to_numpy(zero_copy_only=False)])
    return np.concatenate(parts)


def stack_ids(session: Session, table: str, column: pa.ChunkedArray) -> npt.NDArray[np.int32]:
    """A stack_id column of a table, ROOT for null. Raises SessionError if it names stacks that don't exist."""
    ids = filled(column, ROOT)
    if len(ids) and (ids.min() < ROOT or ids.max() >= len(session.stacks.parents)):
        raise SessionError(f"{session.path}/tables/{table}.parquet: damaged: it names stacks that don't exist")
    return ids.astype(np.int32, copy=False)

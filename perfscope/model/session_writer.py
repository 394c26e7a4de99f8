"""Writing a session directory.

A session is written to `NAME.partial/` and renamed to `NAME/` when it is whole: a killed run leaves a directory
that says it is unfinished, never one that looks complete.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from perfscope.errors import RecordingError, UsageError
from perfscope.model.info import SessionInfo
from perfscope.model.partial import PARTIAL, in_use
from perfscope.model.schema import TABLES, schema
from perfscope.model.stacks import StackTable

_REPLACED = "replaced"
_ENTRIES = {"session.json", "session.json.new", "tables", "raw", _REPLACED}
"""All that can stand in an unfinished session's directory."""
_THREAD_NAME_RANK = {"comm": 0, "python": 1, "java": 1}


@dataclass
class _Process:
    ppid: int | None = None
    name: str | None = None
    command: str | None = None
    runtime: str = "native"
    start_ns: int | None = None
    end_ns: int | None = None
    died_ns: int | None = None


@dataclass
class _Thread:
    name: str | None = None
    rank: int = -1
    start_ns: int | None = None
    end_ns: int | None = None
    died_ns: int | None = None
    cpu_ns: int | None = None
    runnable_ns: int | None = None
    sched_complete: bool = False


class SessionWriter:
    """Collects rows from all collectors and makes the session directory.

    `append` streams: rows go to Parquet as they come and memory stays bounded by the largest single append.
    Threads and stacks are kept in memory (one entry per distinct one) and written by `finish`.
    """

    def __init__(self, path: Path, *, force: bool = False) -> None:
        """Makes `path`.partial. Raises RecordingError if `path` exists and `force` is false, or can't be made.

        Raises UsageError if `path` ends in no name.
        """
        if path.name in ("", ".."):
            raise UsageError(f"{path} can't be a session's name", hint="give the directory to make: -o DIR")
        self.path = path
        self.partial = path.with_name(path.name + PARTIAL)
        self.force = force
        self.stacks = StackTable()
        self.rows: dict[str, int] = {}
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._files = contextlib.ExitStack()  # Arrow takes names in UTF-8 only; Python opens any
        self._threads: dict[tuple[int, int], _Thread] = {}
        self._processes: dict[int, _Process] = {}
        self._lock = -1
        try:
            self._refuse_existing()
            if os.path.lexists(self.partial):
                _refuse_unless_left_over(self.partial)
                shutil.rmtree(self.partial)
            (self.partial / "tables").mkdir(parents=True)
            self.raw.mkdir()
            self._lock = os.open(self.partial, os.O_RDONLY)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RecordingError(f"can't make {self.partial}: {error.strerror}", hint=_mend(error, path)) from None

    def _refuse_existing(self) -> None:
        if not os.path.lexists(self.path):
            return
        if not self.force:
            raise RecordingError(
                f"{self.path} exists already", hint="choose another name with -o, or replace it with --force"
            )
        if self.path.is_symlink() or not (self.path / "session.json").exists():
            raise RecordingError(
                f"{self.path} exists and is no perfscope session: --force won't replace it",
                hint="choose another name with -o",
            )

    @property
    def raw(self) -> Path:
        """Directory for what the tools themselves write."""
        return self.partial / "raw"

    def append(self, table: str, columns: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Adds rows to a table: column name -> array-like (numpy, Arrow, list), or a sequence of row mappings.

        Columns left out become null, which only nullable ones may; raises ValueError otherwise. Raises RecordingError
        when the disk is full: the session can't become whole then.
        """
        target = schema(table)
        if not isinstance(columns, Mapping):
            rows = columns
            columns = {name: [row.get(name) for row in rows] for name in target.names}
        unknown = set(columns) - set(target.names)
        if unknown:
            raise ValueError(f"{table} has no column {', '.join(sorted(unknown))}")
        count = len(next(iter(columns.values()))) if columns else 0
        if count == 0:
            return
        arrays = []
        for column in target:
            values = columns.get(column.name)
            array = _array(values, column.type, count)
            if array.null_count and not column.nullable:
                raise ValueError(f"{table}.{column.name} must not be null")
            arrays.append(array)
        data = pa.table(arrays, schema=target)
        try:
            writer = self._writers.get(table)
            if writer is None:
                file = self._files.enter_context(self._table_file(table).open("wb"))
                writer = self._writers[table] = pq.ParquetWriter(file, target, compression="zstd")
            writer.write_table(data)
        except OSError as error:
            raise self._unwritable(error) from None
        self.rows[table] = self.rows.get(table, 0) + count

    def note_process(
        self,
        pid: int,
        *,
        ppid: int | None = None,
        name: str | None = None,
        command: str | None = None,
        runtime: str | None = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
        died_ns: int | None = None,
    ) -> None:
        """Says something about a process; several sources may. What is said later wins; native never beats a runtime.

        The earliest start and the latest end count, unless the kernel said when it died.
        """
        process = self._processes.setdefault(pid, _Process())
        process.ppid = process.ppid if ppid is None else ppid
        process.name = name or process.name
        process.command = command or process.command
        if runtime is not None and runtime != "native":
            process.runtime = runtime
        process.start_ns = _least(process.start_ns, start_ns)
        process.end_ns = _greatest(process.end_ns, end_ns)
        process.died_ns = died_ns or process.died_ns

    def note_thread(
        self,
        pid: int,
        tid: int,
        *,
        name: str | None = None,
        named_by: str = "comm",
        start_ns: int | None = None,
        end_ns: int | None = None,
        died_ns: int | None = None,
        cpu_ns: int | None = None,
        runnable_ns: int | None = None,
        sched_complete: bool | None = None,
    ) -> None:
        """Says something about a thread; several collectors may. A runtime's name (python, java) beats the kernel's.

        The earliest start and the latest end count, unless the kernel said when it died: /proc shows zombies as well.
        """
        thread = self._threads.setdefault((pid, tid), _Thread())
        rank = _THREAD_NAME_RANK[named_by]
        if name and rank >= thread.rank:
            thread.name, thread.rank = name, rank
        thread.start_ns = _least(thread.start_ns, start_ns)
        thread.end_ns = _greatest(thread.end_ns, end_ns)
        thread.died_ns = died_ns or thread.died_ns
        if cpu_ns is not None:
            thread.cpu_ns = cpu_ns
        if runnable_ns is not None:
            thread.runnable_ns = runnable_ns
        if sched_complete is not None:
            thread.sched_complete = sched_complete

    def write_info(self, info: SessionInfo) -> None:
        """Writes session.json into the unfinished directory (also early, with state "recording")."""
        text = json.dumps(info.to_json(), indent=1, ensure_ascii=False)
        text = text.encode(errors="surrogateescape").decode(errors="replace")  # a command line may be any bytes
        temporary = self.partial / "session.json.new"
        try:
            temporary.write_text(text + "\n", encoding="utf-8")
            temporary.replace(self.partial / "session.json")
        except OSError as error:
            raise self._unwritable(error) from None

    def finish(self, info: SessionInfo, *, keep_raw: bool = True) -> Path:
        """Writes threads, stacks and session.json, and gives the directory its name. Returns that path.

        Raises RecordingError when the disk is full or the directory can't be renamed; the partial one stays.
        """
        try:
            frames, stacks = self.stacks.to_arrow()
            for name, table in (("frames", frames), ("stacks", stacks)):
                self._write_whole(name, table)
                self.rows[name] = table.num_rows
            self.append(
                "threads",
                [
                    {
                        "pid": pid,
                        "tid": tid,
                        "name": t.name,
                        "start_ns": info.start_ns if t.start_ns is None else t.start_ns,
                        "end_ns": t.died_ns or (info.stop_ns if t.end_ns is None else t.end_ns),
                        "cpu_ns": t.cpu_ns,
                        "runnable_ns": t.runnable_ns,
                        "sched_complete": t.sched_complete,
                    }
                    for (pid, tid), t in sorted(self._threads.items())
                ],
            )
            self.append(
                "processes",
                [
                    {
                        "pid": pid,
                        "ppid": p.ppid,
                        "name": p.name or "?",
                        "command": p.command,
                        "runtime": p.runtime,
                        "start_ns": p.start_ns,
                        "end_ns": p.died_ns or p.end_ns,
                    }
                    for pid, p in sorted(self._processes.items())
                ],
            )
            self._close()
            for name in TABLES:
                if not self._table_file(name).exists():
                    self._write_whole(name, schema(name).empty_table())
            info.tables = {name: self.rows.get(name, 0) for name in TABLES}
            info.state = "complete"
            if not keep_raw:
                shutil.rmtree(self.raw)
            self.write_info(info)
            self._rename()
        except OSError as error:
            raise self._unwritable(error) from None
        os.close(self._lock)
        return self.path

    def discard(self) -> None:
        """Removes the unfinished directory."""
        self._drop()
        shutil.rmtree(self.partial, ignore_errors=True)

    def _table_file(self, name: str) -> Path:
        return self.partial / "tables" / f"{name}.parquet"

    def _write_whole(self, name: str, table: pa.Table) -> None:
        with self._table_file(name).open("wb") as file:
            pq.write_table(table, file, compression="zstd")

    def _close(self) -> None:
        while self._writers:
            name, writer = self._writers.popitem()
            try:
                writer.close()
            except OSError:
                self._writers[name] = writer
                raise
        self._files.close()

    def _drop(self) -> None:
        """Lets go of all files without completing them; for a session that will never be whole."""
        for writer in self._writers.values():
            with contextlib.suppress(OSError):
                writer.close()
            writer.is_open = False  # or the garbage collector would try again, and complain
        self._writers.clear()
        with contextlib.suppress(OSError):
            self._files.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _unwritable(self, error: OSError) -> RecordingError:
        self._drop()
        (self.partial / "session.json.new").unlink(missing_ok=True)
        shutil.rmtree(self.partial / "tables", ignore_errors=True)  # unreadable without their ends; gives space back
        what = os.strerror(errno.ENOSPC) if "No space left" in str(error) else error.strerror or str(error)
        return RecordingError(
            f"{self.path} can't be written: {what}; the tools' own files that are whole are in {self.raw}",
            hint=_mend(error, self.partial),
        )

    def _rename(self) -> None:
        # The old session goes only once the new one is whole, so a failed run never costs it.
        if self.force and self.path.exists():
            self.path.rename(self.partial / _REPLACED)
            self.partial.rename(self.path)
            shutil.rmtree(self.path / _REPLACED)
        else:
            self.partial.rename(self.path)


_ELSEWHERE = "choose a writable place with -o DIR"
_MENDS = {
    errno.ENOSPC: "free some space (df -h {}), or record to another disk with -o DIR",
    errno.EDQUOT: "free some of your quota, or record to another disk with -o DIR",
    errno.EFBIG: "lift the limit on file sizes: ulimit -f unlimited",
    errno.EMFILE: "lift the limit on open files: ulimit -n $(ulimit -Hn)",
    errno.ENAMETOOLONG: "choose a shorter name with -o DIR",
}


def _mend(error: OSError, path: Path) -> str:
    number = errno.ENOSPC if "No space left" in str(error) else error.errno  # Arrow's own errors carry no number
    return _MENDS.get(number or 0, _ELSEWHERE).format(shlex.quote(str(path.parent)))


def _refuse_unless_left_over(partial: Path) -> None:
    """Raises RecordingError if it is no unfinished session, or a living recording holds its lock."""
    if partial.is_symlink() or not partial.is_dir() or {entry.name for entry in partial.iterdir()} - _ENTRIES:
        raise RecordingError(
            f"{partial} is in the way and no unfinished session", hint=f"move it away, or {_ELSEWHERE}"
        )
    if in_use(partial):
        raise RecordingError(f"another recording is being written to {partial}", hint="choose another name with -o")


def _least(known: int | None, new: int | None) -> int | None:
    return known if new is None else new if known is None else min(known, new)


def _greatest(known: int | None, new: int | None) -> int | None:
    return known if new is None else new if known is None else max(known, new)


def _array(values: Any, type_: pa.DataType, count: int) -> pa.Array:
    if values is None:
        return pa.nulls(count, type_)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        array = values
    elif pa.types.is_dictionary(type_):
        array = pa.array(values, type=None if hasattr(values, "dtype") and values.dtype != object else pa.string())
    else:
        array = pa.array(values, type=type_)
    if pa.types.is_dictionary(type_) and not pa.types.is_dictionary(array.type):
        array = pc.dictionary_encode(array.cast(pa.string()))
    return array if array.type == type_ else array.cast(type_)

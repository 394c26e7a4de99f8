"""Reading a session directory."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from perfscope.errors import SessionError
from perfscope.model.info import SessionInfo
from perfscope.model.partial import PARTIAL, in_use
from perfscope.model.schema import TABLES, schema
from perfscope.model.stacks import StackTable

_MOST_INFO_BYTES = 1 << 26


def _unreadable(file: Path, error: Exception) -> SessionError:
    if isinstance(error, OSError) and error.strerror:
        reason = error.strerror
    else:
        reason = str(error.args[0] if error.args else error).partition("\n")[0] or type(error).__name__
    return SessionError(
        f"{file}: can't be read: {reason}", hint="record again, or restore the file from where the session came from"
    )


def _open(file: Path) -> BinaryIO:
    """Opens a regular file; raises OSError for all else: a pipe in its place must not make us wait."""
    stream = open(file, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115 (to return)
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise OSError(errno.EINVAL, "not a regular file")
    return stream


@contextlib.contextmanager
def _open_table(file: Path) -> Iterator[pa.NativeFile]:
    """Opens a regular file for Arrow. Given a Python file, its threads can need an interpreter that ends: an abort."""
    with _open(file) as stream, pa.OSFile(f"/proc/self/fd/{stream.fileno()}") as table:
        yield table


def _unfinished(path: Path) -> SessionError:
    if in_use(path):
        return SessionError(f"{path}: still being recorded", hint="wait until it is whole, or end its recording")
    raw = shlex.quote(str(path / "raw"))
    return SessionError(
        f"{path}: its recording was cut off before it was whole, so nothing is shown from it",
        hint=f"record again, or read those of the tools' own files that are whole: perfscope import {raw}/*/*",
    )


class Session:
    """A finished session, read lazily: each table is loaded when first asked for."""

    def __init__(self, path: Path, info: SessionInfo) -> None:
        self.path = path
        self.info = info
        self._tables: dict[str, pa.Table] = {}
        self._stacks: StackTable | None = None

    @classmethod
    def open(cls, path: Path) -> Session:
        """Opens a session directory. Raises SessionError that says what is there instead."""
        partial = Path(f"{path}{PARTIAL}")
        if not path.exists() and partial.is_dir():
            path = partial
        if not path.exists():
            raise SessionError(f"{path}: no such session", hint="perfscope record -o DIR -- CMD makes one")
        if not path.is_dir():
            raise SessionError(
                f"{path}: not a perfscope session (no directory)",
                hint=f"if another profiler wrote it: perfscope import {shlex.quote(str(path))}",
            )
        file = path / "session.json"
        if not file.exists():
            if path.name.endswith(PARTIAL):
                raise _unfinished(path)
            raise SessionError(
                f"{path}: not a perfscope session (no session.json in it)",
                hint="perfscope record -o DIR -- CMD makes one",
            )
        try:
            with _open(file) as stream:
                text = stream.read(_MOST_INFO_BYTES + 1)
            if len(text) > _MOST_INFO_BYTES:
                raise ValueError(f"larger than {_MOST_INFO_BYTES} bytes")
            data = json.loads(text.decode())
        except (OSError, ValueError, RecursionError) as error:
            raise _unreadable(file, error) from None
        info = SessionInfo.from_json(data, str(file))
        if info.state != "complete":
            raise _unfinished(path)
        return cls(path, info)

    def table(self, name: str) -> pa.Table:
        """One table with exactly the declared schema. Raises SessionError naming a missing or damaged file."""
        if name not in self._tables:
            file = self.path / "tables" / f"{name}.parquet"
            target = schema(name)
            try:
                with _open_table(file) as stream:
                    table = pq.read_table(stream)
                self._check_rows(name, table.num_rows)
                self._tables[name] = table.select(target.names).cast(target).unify_dictionaries()
            except (OSError, pa.ArrowException, KeyError, ValueError) as error:
                raise _unreadable(file, error) from None
        return self._tables[name]

    def batches(self, name: str, columns: Sequence[str], rows: int = 1 << 18) -> Iterator[pa.Table]:
        """Some columns of one table, in pieces of at most `rows` rows in the declared types; nothing is kept.

        For tables too large to hold. Raises SessionError as `table` does.
        """
        file = self.path / "tables" / f"{name}.parquet"
        declared = schema(name)
        target = pa.schema([declared.field(column) for column in columns])
        try:
            with _open_table(file) as stream, pq.ParquetFile(stream) as parquet:
                self._check_rows(name, parquet.metadata.num_rows)
                for batch in parquet.iter_batches(rows, columns=list(columns)):
                    yield pa.Table.from_batches([batch]).select(target.names).cast(target)
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            raise _unreadable(file, error) from None

    def rows(self, name: str) -> int:
        """Number of rows of one table. Raises SessionError as `table` does."""
        file = self.path / "tables" / f"{name}.parquet"
        try:
            with _open_table(file) as stream, pq.ParquetFile(stream) as parquet:
                rows = int(parquet.metadata.num_rows)
                self._check_rows(name, rows)
                return rows
        except (OSError, pa.ArrowException, ValueError) as error:
            raise _unreadable(file, error) from None

    def check(self) -> None:
        """Raises SessionError naming the first table that is missing, damaged or not of this session.

        Looks at the files' ends only, so it is quick; damage within is found when a table is read.
        """
        for name in TABLES:
            file = self.path / "tables" / f"{name}.parquet"
            try:
                with _open_table(file) as stream, pq.ParquetFile(stream) as parquet:
                    self._check_rows(name, parquet.metadata.num_rows)
                    parquet.schema_arrow.empty_table().select(schema(name).names).cast(schema(name))
            except (OSError, pa.ArrowException, KeyError, ValueError) as error:
                raise _unreadable(file, error) from None

    def _check_rows(self, name: str, rows: int) -> None:
        said = self.info.tables.get(name, rows)
        if rows != said:
            raise ValueError(f"{rows} rows, where session.json says {said}")

    @property
    def stacks(self) -> StackTable:
        """All frames and stacks of the session."""
        if self._stacks is None:
            try:
                self._stacks = StackTable.from_arrow(self.table("frames"), self.table("stacks"))
            except ValueError as error:
                raise SessionError(f"{self.path}/tables/stacks.parquet: damaged: {error}") from None
        return self._stacks

"""A session on disk: what is written is read back, a killed run never looks whole, damage is named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscope.clock import ClockMap
from perfscope.errors import PerfscopeError, RecordingError, SessionError
from perfscope.model.info import CollectorReport, SessionInfo
from perfscope.model.schema import SCHEMA_VERSION, TABLES, schema
from perfscope.model.session import Session
from perfscope.model.session_writer import SessionWriter
from perfscope.model.stacks import Frame

INFO = SessionInfo(
    command=["python", "serve.py", "--name", "é \x01"],
    pids=[7],
    start_ns=1_000,
    stop_ns=9_000,
    exit_status=3,
    clocks={"pyspy": ClockMap("pyspy-instant", 5, 640_000, 1000.0, 10_000_000, "log line")},
    collectors={"ebpf": CollectorReport("partial", why="late", lost_events=0, covered_ns=[(1_000, 9_000)])},
)


def written(path: Path, **options: Any) -> Path:
    """A small whole session."""
    writer = SessionWriter(path, **options)
    stack = writer.stacks.stack([Frame("python", "main", "a.py", 3), Frame("native", "read", None, None, "libc")])
    writer.append("samples", [{"source": "pyspy", "pid": 7, "tid": 8, "time_ns": 2_000, "stack_id": stack, "count": 1,
                               "torn": False}])  # fmt: skip
    writer.append("counters", {"time_ns": np.arange(3), "error_ns": np.zeros(3, np.int64), "source": ["nvml"] * 3,
                               "name": ["gpu_power_w"] * 3, "value": np.array([1.5, 2.5, 3.5])})  # fmt: skip
    writer.note_thread(7, 8, name="worker", named_by="python")
    writer.note_process(7, name="python", runtime="python")
    (writer.raw / "tool.txt").write_text("raw")
    return writer.finish(INFO)


@pytest.fixture
def session(tmp_path: Path) -> Path:
    return written(tmp_path / "a.perfscope")


def test_everything_comes_back(session: Path) -> None:
    read = Session.open(session)
    assert dict(read.info.to_json(), tables={}) == dict(INFO.to_json(), tables={})
    assert read.info.collectors["ebpf"].covered_ns == [(1_000, 9_000)]
    assert set(read.info.tables) == set(TABLES)
    for name in TABLES:
        assert read.table(name).schema.equals(schema(name)), name
        assert read.table(name).num_rows == read.info.tables[name]
    (sample,) = read.table("samples").to_pylist()
    assert [frame.function for frame in read.stacks.path(sample["stack_id"])] == ["main", "read"]
    assert sample["duration_ns"] is None
    assert read.table("counters")["value"].to_pylist() == [1.5, 2.5, 3.5]
    assert read.table("threads").to_pylist() == [
        {"pid": 7, "tid": 8, "name": "worker", "start_ns": 1_000, "end_ns": 9_000, "cpu_ns": None, "runnable_ns": None,
         "sched_complete": False}]  # fmt: skip
    assert (session / "raw" / "tool.txt").read_text() == "raw"


def test_other_tools_read_the_tables_without_perfscope(session: Path) -> None:
    file = session / "tables" / "counters.parquet"
    assert duckdb.sql(f"select sum(value) from '{file}'").fetchall() == [(7.5,)]
    assert pd.read_parquet(file)["name"].tolist() == ["gpu_power_w"] * 3


def test_no_raw_leaves_no_raw(tmp_path: Path) -> None:
    writer = SessionWriter(tmp_path / "b.perfscope")
    (writer.raw / "tool.txt").write_text("raw")
    assert not (writer.finish(SessionInfo(), keep_raw=False) / "raw").exists()


def test_an_unfinished_session_never_looks_whole(tmp_path: Path) -> None:
    writer = SessionWriter(tmp_path / "c.perfscope")
    with pytest.raises(SessionError, match="still being recorded"):
        Session.open(writer.path)
    os.close(writer._lock)  # as the end of the process does
    with pytest.raises(SessionError, match="cut off"):
        Session.open(writer.path)
    writer.write_info(SessionInfo(state="recording"))
    with pytest.raises(SessionError, match="cut off") as caught:
        Session.open(writer.path)
    assert str(writer.partial) in (caught.value.hint or "")
    with pytest.raises(SessionError, match="cut off"):
        Session.open(writer.partial)


def test_an_existing_session_is_kept_unless_forced(session: Path) -> None:
    before = (session / "session.json").read_bytes()
    with pytest.raises(RecordingError, match="exists already"):
        SessionWriter(session)
    writer = SessionWriter(session, force=True)
    assert (session / "session.json").read_bytes() == before  # the old one stands until the new one is whole
    writer.finish(SessionInfo(command=["new"]))
    assert Session.open(session).info.command == ["new"]
    assert [path.name for path in session.parent.iterdir()] == [session.name]


def test_force_never_replaces_what_is_no_session(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(RecordingError, match="no perfscope session"):
        SessionWriter(tmp_path, force=True)
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_discard_leaves_nothing(tmp_path: Path) -> None:
    writer = SessionWriter(tmp_path / "d.perfscope")
    writer.append("block_io", [])
    writer.discard()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("columns", "message"),
    [({"nope": [1]}, "no column nope"), ({"value": [1.0]}, "must not be null"), ({"time_ns": [None]}, "not be null")],
)
def test_rows_that_break_the_schema_are_refused(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    writer = SessionWriter(tmp_path / "e.perfscope")
    with pytest.raises(ValueError, match=message):
        writer.append("counters", columns)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": SCHEMA_VERSION + 1}, f"newer perfscope .schema {SCHEMA_VERSION + 1}"),
        ({"schema": 0}, "never released"),
        ({"schema": "1"}, "no schema version"),
        ({"schema": True}, "no schema version"),
        ({"clocks": [1]}, "damaged"),
        ({"clocks": {"a": {"domain": "x"}}}, "damaged"),
        ({"collectors": {"a": {"covered_ns": ["x"]}}}, "damaged"),
        ({"start_ns": "soon"}, "damaged"),
        ({"state": "recording"}, "cut off"),
    ],
)
def test_a_session_json_of_another_kind_is_named(session: Path, change: dict[str, Any], message: str) -> None:
    file = session / "session.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(SessionError, match=message) as caught:
        Session.open(session)
    assert str(session) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_a_session_json_that_is_none_is_named(session: Path, content: bytes) -> None:
    (session / "session.json").write_bytes(content)
    with pytest.raises(SessionError, match=r"session\.json"):
        Session.open(session)


def test_a_missing_session_or_session_json_is_named(session: Path, tmp_path: Path) -> None:
    (session / "session.json").unlink()
    with pytest.raises(SessionError, match=r"no session\.json"):
        Session.open(session)
    with pytest.raises(SessionError, match="no such session"):
        Session.open(tmp_path / "nowhere")


def test_a_missing_or_truncated_table_is_named(session: Path) -> None:
    file = session / "tables" / "samples.parquet"
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"PAR1" * 8):
        file.write_bytes(content)
        with pytest.raises(SessionError, match=r"samples\.parquet"):
            Session.open(session).table("samples")
    file.unlink()
    with pytest.raises(SessionError, match=r"samples\.parquet"):
        Session.open(session).table("samples")


def test_a_table_of_other_columns_is_named(session: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), session / "tables" / "samples.parquet")
    with pytest.raises(SessionError, match=r"samples\.parquet"):
        Session.open(session).table("samples")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(data=st.data())
def test_a_mutated_file_gives_an_error_or_a_table_never_a_traceback(session: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["samples", "frames", "stacks", "threads"]))
    file = session / "tables" / f"{name}.parquet"
    whole = bytearray(file.read_bytes())
    try:
        damaged = bytearray(whole)
        for _ in range(data.draw(st.integers(1, 4))):
            damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
        file.write_bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
        read = Session.open(session)
        try:
            table = read.table(name)
            assert table.schema.equals(schema(name))
            for stack in range(len(read.stacks.parents)):
                read.stacks.path(stack)
        except PerfscopeError as error:
            assert str(session) in str(error)
    finally:
        file.write_bytes(whole)


@given(
    notes=st.lists(
        st.tuples(
            st.sampled_from(["comm", "python", "java"]),
            st.none() | st.integers(0, 100),
            st.none() | st.integers(0, 100),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_a_thread_noted_by_many_has_its_widest_span_and_the_runtimes_name(
    notes: list[tuple[str, int | None, int | None]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("threads") / "f.perfscope"
    writer = SessionWriter(path)
    for by, start, end in notes:
        writer.note_thread(1, 2, name=f"by {by}", named_by=by, start_ns=start, end_ns=end)
    (thread,) = Session.open(writer.finish(SessionInfo(start_ns=1, stop_ns=99))).table("threads").to_pylist()
    shutil.rmtree(path)
    starts = [start for _, start, _ in notes if start is not None]
    ends = [end for _, _, end in notes if end is not None]
    assert (thread["start_ns"], thread["end_ns"]) == (min(starts, default=1), max(ends, default=99))
    runtimes = [by for by, _, _ in notes if by != "comm"]
    assert thread["name"] == f"by {(runtimes or ['comm'])[-1]}"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_a_full_disk_is_said_and_what_was_written_stays(tiny_disk: Path) -> None:
    writer = SessionWriter(tiny_disk / "g.perfscope")
    (writer.raw / "tool.bin").write_bytes(b"x" * 60_000)
    with pytest.raises(RecordingError, match="No space left on device") as caught:
        writer.append("counters", {"time_ns": np.arange(10), "error_ns": np.arange(10), "source": ["nvml"] * 10,
                                   "name": ["x"] * 10, "value": np.ones(10)})  # fmt: skip
        (writer.raw / "more.bin").write_bytes(b"x" * 40_000)
        writer.finish(SessionInfo())
    assert str(writer.partial) in str(caught.value)
    assert not writer.path.exists()
    assert (writer.raw / "tool.bin").stat().st_size == 60_000
    writer.discard()

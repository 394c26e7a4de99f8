"""A session directory that can't be written, or isn't ours to write."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from perfscope.errors import RecordingError, SessionError
from perfscope.model.info import SessionInfo
from perfscope.model.session import Session
from perfscope.model.session_writer import SessionWriter


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True)


def _noise(rows: int) -> dict[str, object]:
    rng = np.random.default_rng(1)
    return {
        "time_ns": rng.integers(0, 2**62, rows),
        "error_ns": rng.integers(0, 2**62, rows),
        "source": ["x"] * rows,
        "name": ["y"] * rows,
        "value": rng.random(rows),
    }


def test_a_full_disk_while_rows_are_written(small_disk: Path) -> None:
    writer = SessionWriter(small_disk / "s")
    writer.write_info(SessionInfo(state="recording"))
    with pytest.raises(RecordingError, match="No space left on device") as caught:
        for _ in range(100):
            writer.append("counters", _noise(10_000))
    assert caught.value.exit_code == 3
    assert caught.value.hint is not None and f"df -h {small_disk}" in caught.value.hint
    with pytest.raises(SessionError, match="cut off"):
        Session.open(small_disk / "s")
    with pytest.raises(SessionError, match="cut off"):
        Session.open(small_disk / "s.partial")


def test_a_full_disk_at_the_end(small_disk: Path) -> None:
    writer = SessionWriter(small_disk / "s")
    writer.append("counters", _noise(10))
    with pytest.raises(OSError, match="No space left"):
        (writer.raw / "tool").write_bytes(bytes(300_000))
    with pytest.raises(RecordingError, match="No space left on device"):
        writer.finish(SessionInfo())
    assert not (small_disk / "s").exists()


def test_a_full_disk_at_the_start(small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "full").write_bytes(bytes(300_000))
    writer = SessionWriter(small_disk / "s")
    with pytest.raises(RecordingError, match="No space left on device"):
        writer.write_info(SessionInfo())
    writer.discard()
    assert [p.name for p in small_disk.iterdir()] == ["full"]


def test_two_recordings_never_share_a_directory(tmp_path: Path) -> None:
    first = SessionWriter(tmp_path / "s")
    with pytest.raises(RecordingError, match="another recording is being written"):
        SessionWriter(tmp_path / "s", force=True)
    first.finish(SessionInfo(start_ns=1, stop_ns=1))
    SessionWriter(tmp_path / "s", force=True).finish(SessionInfo(start_ns=2, stop_ns=2))
    assert Session.open(tmp_path / "s").info.start_ns == 2


def test_what_a_killed_recording_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "s.partial" / "raw").mkdir(parents=True)
    SessionWriter(tmp_path / "s").finish(SessionInfo())
    assert json.loads((tmp_path / "s" / "session.json").read_text())["state"] == "complete"


def test_force_replaces_sessions_only(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    with pytest.raises(RecordingError, match="no perfscope session"):
        SessionWriter(tmp_path / "precious", force=True)
    with pytest.raises(RecordingError, match="exists already"):
        SessionWriter(tmp_path / "precious")


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordingError, match="can't make"):
        SessionWriter(tmp_path / "file" / "s")


def test_show_finds_a_table_that_is_cut_missing_or_of_another_session(tmp_path: Path) -> None:
    def make(name: str, rows: int) -> Session:
        writer = SessionWriter(tmp_path / name)
        row = {"time_ns": 1, "error_ns": 0, "source": "x", "name": "x", "value": 1.0}
        writer.append("counters", [row] * rows)
        return Session.open(writer.finish(SessionInfo()))

    session, other = make("s", 3), make("other", 4)
    session.check()
    table = session.path / "tables" / "counters.parquet"
    whole = table.read_bytes()
    for content, message in (
        (whole[: len(whole) // 2], "counters.parquet: can't be read"),
        ((other.path / "tables" / "counters.parquet").read_bytes(), "4 rows, where session.json says 3"),
        ((session.path / "tables" / "sched.parquet").read_bytes(), "counters.parquet: can't be read"),
    ):
        table.write_bytes(content)
        with pytest.raises(SessionError, match=message):
            session.check()
    table.unlink()
    with pytest.raises(SessionError, match="be read: No such file"):
        session.check()
    os.mkfifo(table)  # nobody writes into it: reading would wait for ever
    with pytest.raises(SessionError, match="not a regular file"):
        session.check()
    with pytest.raises(SessionError, match="not a regular file"):
        session.table("counters")


def test_a_pipe_in_place_of_the_session_is_not_waited_for(tmp_path: Path) -> None:
    path = SessionWriter(tmp_path / "s").finish(SessionInfo())
    (path / "session.json").unlink()
    os.mkfifo(path / "session.json")
    with pytest.raises(SessionError, match="not a regular file"):
        Session.open(path)


def test_a_command_line_of_any_bytes_makes_a_readable_session(tmp_path: Path) -> None:
    path = SessionWriter(tmp_path / "s").finish(SessionInfo(command=["echo", os.fsdecode(b"\xff\x00x")]))
    assert Session.open(path).info.command == ["echo", "\ufffd\x00x"]


def test_force_replaces_a_session_of_a_long_name(tmp_path: Path) -> None:
    path = tmp_path / ("s" * 246)
    SessionWriter(path).finish(SessionInfo(command=["old"]))
    SessionWriter(path, force=True).finish(SessionInfo(command=["new"]))
    assert Session.open(path).info.command == ["new"]
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert not (path / "replaced").exists()

"""A session directory that can't be written, or isn't ours to write."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from perfscope.errors import RecordingError, SessionError
from perfscope.model.info import SessionInfo
from perfscope.model.session import Session, SessionWriter


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
    first.finish(SessionInfo(start_ns=1))
    SessionWriter(tmp_path / "s", force=True).finish(SessionInfo(start_ns=2))
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

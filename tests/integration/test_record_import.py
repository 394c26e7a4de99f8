"""Files of other profilers become one session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from recording_helpers import PERFSCOPE

from perfscope.model.session import Session

PROGRAM = "import time\ndef busy():\n    end = time.time() + 20\n    while time.time() < end: pass\nbusy()\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One file of each format that py-spy writes, of a program in `busy`."""
    place = tmp_path_factory.mktemp("pyspy")
    (place / "busy.py").write_text(PROGRAM)
    target = subprocess.Popen([sys.executable, place / "busy.py"])
    made = {}
    for kind in ("chrometrace", "raw", "speedscope"):
        made[kind] = place / f"{kind}.out"
        command = ["py-spy", "record", "-p", str(target.pid), "-d", "1", "-f", kind, "-o", str(made[kind])]
        subprocess.run([str(Path(sys.executable).parent / command[0]), *command[1:]], check=True, capture_output=True)
    target.kill()
    target.wait()
    return made


def _import(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PERFSCOPE, "import", *map(str, arguments)], capture_output=True, text=True)


def test_several_files_become_one_session_told_apart_by_content(files: dict[str, Path], tmp_path: Path) -> None:
    done = _import(*files.values(), "-o", tmp_path / "s")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 's'}\n"), done.stderr
    session = Session.open(tmp_path / "s")
    assert len(session.info.collectors) == 3
    assert {report.status for report in session.info.collectors.values()} <= {"ok", "partial"}
    assert "busy" in {frame.function for frame in session.stacks.frames}
    assert session.info.stop_ns >= session.info.start_ns


def test_what_cannot_be_read_is_said_beside_what_can(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    done = _import(files["raw"], tmp_path / "empty", "-o", tmp_path / "s")
    assert done.returncode == 0
    failed = [r for r in Session.open(tmp_path / "s").info.collectors.values() if r.status == "failed"]
    assert [report.why for report in failed] == [f"{tmp_path / 'empty'}: empty"]


@pytest.mark.parametrize("content", [None, b"", b"\x00" * 10_000, b"PK\x03\x04 something else", b"{}", b"[1, 2]"])
def test_nothing_readable_is_an_error_and_no_session(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    done = _import(file, "-o", tmp_path / "s")
    assert done.returncode == 2, done.stderr
    assert str(file) in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.glob("s*"))


def test_an_unknown_file_is_told_what_is_read(tmp_path: Path) -> None:
    """The same formats as the command's help names."""
    (tmp_path / "file").write_bytes(b"PK\x03\x04 something else")
    hint = " ".join(_import(tmp_path / "file", "-o", tmp_path / "s").stderr.split())
    help_text = " ".join(_import("--help").stdout.split())
    for text in (hint, help_text):
        assert "py-spy's chrometrace, raw and speedscope files, austin's text, JFR recordings, and Nsight" in text


def test_austins_binary_output_is_named_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "a b.mojo"
    austin = str(Path(sys.executable).parent / "austin")
    program = [sys.executable, "-c", "sum(range(10**7))"]
    for _ in range(10):  # where the machine is busy it may not get hold of a program that it starts
        subprocess.run([austin, "-b", "-t", "3000", "-o", file, *program], capture_output=True)
        if file.exists() and file.read_bytes().startswith(b"MOJ"):
            break
    assert file.read_bytes().startswith(b"MOJ")
    done = _import(file, "-o", tmp_path / "s")
    assert done.returncode == 2 and f"{file}: austin's binary format" in done.stderr
    assert "run austin without -b" in done.stderr
    assert f"mojo2austin '{file}' '{tmp_path / 'a b.austin'}'" in done.stderr
    assert not list(tmp_path.glob("s*"))


def test_a_file_that_fails_first_hides_no_report_of_one_that_is_read(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "import").touch()
    assert _import(tmp_path / "import", files["raw"], "-o", tmp_path / "s").returncode == 0
    reports = Session.open(tmp_path / "s").info.collectors
    assert sorted(report.status for report in reports.values()) == ["failed", "ok"]


def test_what_would_give_wrong_figures_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    twice = _import(files["raw"], files["raw"].parent / "." / files["raw"].name, "-o", tmp_path / "s")
    assert twice.returncode == 2 and "given twice" in twice.stderr
    recording = Path(__file__).parents[1] / "data" / "jfr" / "phases.jfr"
    unaligned = _import(files["chrometrace"], recording, "-o", tmp_path / "s")
    assert unaligned.returncode == 2 and "nothing ties the clocks" in unaligned.stderr
    assert not list(tmp_path.iterdir())


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "session").mkdir()
    (tmp_path / "session" / "session.json").touch()
    for path, message in (
        (tmp_path / "pipe", "no regular file"),
        (Path("/dev/zero"), "no regular file"),
        (tmp_path, "a directory"),
        (tmp_path / "session", "a session already"),
        (tmp_path / "missing", "No such file"),
    ):
        done = _import(path, "-o", tmp_path / "s")
        assert done.returncode == 2 and message in done.stderr and "try: " in done.stderr
    assert not list(tmp_path.glob("s.*"))

"""Closed, full, broken and oddly encoded standard streams, and odd names: no traceback, and no harm to the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from recording_helpers import MADE, PERFSCOPE

from perfscope.model.session import Session

RECORD = [*MADE, "record", "--collect", "notes"]
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def _shell(script: str, *arguments: str | Path, cwd: Path, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Status and output of a shell script in which "$@" are the arguments. Fails on a traceback."""
    done = subprocess.run(
        ["bash", "-c", script, "bash", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        env={**os.environ, **(env or {})},
    )
    output = done.stdout.decode(errors="backslashreplace")
    assert "Traceback" not in output
    return done.returncode, output


@pytest.fixture
def session(tmp_path: Path) -> Path:
    # What ends before the first look at it leaves nothing to draw.
    subprocess.run([*RECORD, "-o", tmp_path / "s", "--", "sleep", "0.3"], check=True, stderr=subprocess.DEVNULL)
    return tmp_path / "s"


@pytest.mark.parametrize("closed", ["2>&-", "2>/dev/full", "<&- >&- 2>&-", "2> >(exit)"])
def test_a_stderr_that_cant_be_written_to_costs_neither_command_nor_session(tmp_path: Path, closed: str) -> None:
    count = 'ls /proc/self/fd | grep -c "^[012]$" > seen; exit 7'
    status, _ = _shell(f'"$@" {closed}', *RECORD, "-o", "s", "--", "bash", "-c", count, cwd=tmp_path)
    assert status == 7
    assert Session.open(tmp_path / "s").info.stopped_by == "target exited"
    with_perfscope = (tmp_path / "seen").read_text()
    _shell(f'"$@" {closed}', "bash", "-c", count, cwd=tmp_path)
    assert with_perfscope == (tmp_path / "seen").read_text()  # its own streams are closed where they were


@pytest.mark.parametrize("command", [["show", "s"], ["diagnose", "s", "--format", "json"], ["doctor", "--json"]])
def test_a_stdout_that_is_full_or_closed(session: Path, command: list[str]) -> None:
    status, output = _shell('"$@" >/dev/full', *PERFSCOPE, *command, cwd=session.parent)
    assert status == 2
    assert "the output can't be written: No space left on device" in output
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*PERFSCOPE, *command], cwd=session.parent, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    # As of any tool that a closed pipe ends; 1 would mean findings.
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("environment", [C_LOCALE, {"PYTHONIOENCODING": "ascii"}])
def test_names_that_the_locale_cant_say(tmp_path: Path, environment: dict[str, str]) -> None:
    command = [*RECORD, "-o", "größe", "--", "echo", "grüße"]
    status, output = _shell('"$@"', *command, cwd=tmp_path, env=environment)
    assert status == 0 and "grüße" in output
    assert Session.open(tmp_path / "größe").info.command[0] == "echo"
    for arguments in (["show"], ["diagnose", "--format", "json"]):
        status, output = _shell('"$@"', *PERFSCOPE, *arguments, "größe", cwd=tmp_path, env=environment)
        assert status == 0
    assert json.loads(output)["schema"] == 1


def test_names_of_any_bytes(tmp_path: Path) -> None:
    output, argument = os.fsencode(tmp_path) + b"/\xff\n\x1b[31m", b"\xff\x1b]0;title\x07\n"
    done = subprocess.run(
        [*RECORD, "-o", output, "--", sys.executable, "-c", "import sys; print(ascii(sys.argv[1]))", argument],
        capture_output=True,
    )
    assert done.returncode == 0 and done.stdout == b"'\\udcff\\x1b]0;title\\x07\\n'\n"
    shown = subprocess.run([*PERFSCOPE, "show", output], capture_output=True)
    assert shown.returncode == 0, shown.stderr
    missing = subprocess.run([*RECORD, "-o", tmp_path / "s", "--", b"\x1b[31mno-such"], capture_output=True)
    assert missing.returncode == 127
    unknown = subprocess.run([*PERFSCOPE, "record", b"--\x1b[31m"], capture_output=True)
    assert unknown.returncode == 2
    for text in (done.stderr, shown.stdout, missing.stderr, unknown.stderr):
        assert b"\x1b" not in text and b"\xff" not in text


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e300", "-1", "0", "x"])
def test_durations_that_are_none(tmp_path: Path, seconds: str) -> None:
    status, output = _shell('"$@"', *RECORD, "-d", seconds, "--", "touch", "ran", cwd=tmp_path)
    assert status == 2 and "'--duration'" in output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (".", "can't be a session's name"),
        ("", "can't be a session's name"),
        ("/", "can't be a session's name"),
        ("..", "can't be a session's name"),
        ("a" * 250, "File name too long"),
        ("/proc/s", "can't make /proc/s.partial"),
        ("file/s", "Not a directory"),
        ("link", "link exists already"),
        ("mine", "mine.partial is in the way"),
    ],
)
def test_outputs_that_cant_be_made_are_refused_before_the_command_starts(
    tmp_path: Path, output: str, message: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "mine.partial").mkdir()
    (tmp_path / "mine.partial" / "precious").touch()
    before = sorted(tmp_path.rglob("*"))
    status, text = _shell('"$@"', *RECORD, "-o", output, "--", "touch", "ran", cwd=tmp_path)
    assert status in (2, 3) and message in text and "try: " in text
    assert sorted(tmp_path.rglob("*")) == before


def test_nothing_heavy_is_loaded_before_the_command_is_forked() -> None:
    script = (
        "import sys, perfscope.cli, perfscope.cli.record_command, threading\n"
        "print(sorted({'numpy', 'pyarrow', 'pandas', 'rich', 'plotly'} & set(sys.modules)), threading.active_count())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[] 1\n"


def test_an_interrupt_while_it_is_still_loading(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run([*PERFSCOPE, "--help"], capture_output=True, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stderr) == (130, b"")


def test_a_directory_that_was_deleted(session: Path) -> None:
    gone = session.parent / "gone"
    gone.mkdir()
    status, output = _shell('rmdir "$PWD" && "$@"', *PERFSCOPE, "diagnose", session, cwd=gone)
    assert status == 0, output
    gone.mkdir()
    status, output = _shell('rmdir "$PWD" && "$@"', *PERFSCOPE, "flame", session, cwd=gone)
    assert status == 2 and "try: " in output


def test_a_flame_graph_that_cant_be_written_costs_no_earlier_one(session: Path) -> None:
    page = session.parent / "s.html"
    page.write_text("earlier")
    status, output = _shell('ulimit -f 1; "$@"', *PERFSCOPE, "flame", "s", "--force", cwd=session.parent)
    assert (status, page.read_text()) == (2, "earlier"), output
    assert {p.name for p in session.parent.iterdir()} == {"s", "s.html"}
    status, output = _shell('"$@"', *PERFSCOPE, "flame", "s", "-o", "/dev/stdout", cwd=session.parent)
    assert status == 0 and "</html>" in output, output[:1000]

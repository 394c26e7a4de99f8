"""`perfscope show` and `perfscope flame` on sessions made here, run as the user runs them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.clock import MONOTONIC, ClockMap
from perfscope.model.info import CollectorReport, SessionInfo
from perfscope.model.session_writer import SessionWriter
from perfscope.model.stacks import Frame
from perfscope.reports import folded

START = 10**9


def perfscope(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "perfscope", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def serve(tmp_path: Path) -> Path:
    """Two threads of one second each, ten looks a thread, no sched events."""
    writer = SessionWriter(tmp_path / "serve.perfscope")
    writer.note_process(7, name="python", command="python serve.py", runtime="python")
    for tid, name in ((7, "main"), (8, "worker-0")):
        writer.note_thread(7, tid, name=name, start_ns=START, end_ns=2 * START)
        stack = writer.stacks.stack(
            [Frame("python", "run", "serve.py", 3), Frame("python", f"work {tid}", "serve.py", tid)]
        )
        writer.append(
            "samples",
            [
                {
                    "source": "pyspy", "pid": 7, "tid": tid, "time_ns": START + i * 10**8, "duration_ns": 10**8,
                    "stack_id": stack, "count": 1, "torn": False,
                }
                for i in range(10)
            ],
        )  # fmt: skip
    info = SessionInfo(
        command=["python", "serve.py"], pids=[7], start_ns=START, stop_ns=2 * START, stopped_by="--duration"
    )
    info.clocks = {"pyspy": ClockMap("pyspy-instant", 0, 500_000, resolution_ns=10**8), "ebpf": MONOTONIC}
    info.collectors = {
        "pyspy": CollectorReport(lost_events=0, events=20),
        "ebpf": CollectorReport("unavailable", "not root", "sudo perfscope record --user me -- python serve.py"),
    }
    return writer.finish(info)


def test_flame_writes_the_page_beside_you_and_says_where(serve: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    done = perfscope("flame", str(serve), cwd=here)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "wrote serve.html\n")
    assert (here / "serve.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_flame_never_overwrites_without_force(serve: Path, tmp_path: Path) -> None:
    (tmp_path / "serve.html").write_text("mine")
    refused = perfscope("flame", str(serve), cwd=tmp_path)
    assert refused.returncode == 2
    assert "serve.html exists already" in refused.stderr
    assert "--force" in refused.stderr
    assert (tmp_path / "serve.html").read_text() == "mine"
    assert perfscope("flame", str(serve), "--force", cwd=tmp_path).returncode == 0
    assert (tmp_path / "serve.html").read_text() != "mine"


def test_folded_to_stdout_is_the_result_alone(serve: Path, tmp_path: Path) -> None:
    done = perfscope("flame", str(serve), "-o", "-", "--format", "folded", "--weight", "samples", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    counts = {path[-1][1]: count for path, count in folded.read(done.stdout.splitlines()).items()}
    assert counts == {"work 7": 10, "work 8": 10}


def test_a_thread_pattern_and_a_part_of_the_time(serve: Path, tmp_path: Path) -> None:
    part = ("--thread", "worker-*", "--from", "0.25", "--to", "0.75", "--format", "speedscope", "-o", "-")
    document = json.loads(perfscope("flame", str(serve), *part, cwd=tmp_path).stdout)
    assert [(p["unit"], p["endValue"]) for p in document["profiles"]] == [("nanoseconds", 5 * 10**8)]
    assert "work 8" in {f["name"] for f in document["shared"]["frames"]}


def test_a_weight_that_was_not_recorded_is_explained(serve: Path, tmp_path: Path) -> None:
    done = perfscope("flame", str(serve), "--weight", "off-cpu", cwd=tmp_path)
    assert done.returncode == 2
    assert "--weight off-cpu needs eBPF sched events" in done.stderr
    assert "ebpf was unavailable, not root" in done.stderr
    assert "sudo perfscope record" in done.stderr
    assert not list(tmp_path.glob("*.html"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--from", "0.5", "--to", "0.25"), "--from 0.5 is not before --to 0.25"),
        (("--from", "nan"), "--from nan is no moment of the recording"),
        (("--to", "-1"), "--to -1 is no moment of the recording"),
        (("--from", "1"), "--from 1 is no moment of the recording, which lasts 1.000 s"),
        (("-o", "missing/dir/x.html"), "missing/dir/x.html: can't be written"),
        (("--thread", "nobody*"), "no thread matches 'nobody*'"),
    ],
)
def test_wrong_options_are_named(serve: Path, tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    done = perfscope("flame", str(serve), *options, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_show_explains_a_session(serve: Path, tmp_path: Path) -> None:
    done = perfscope("show", str(serve), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "serve.perfscope   1.00 s   python serve.py (pid 7, 2 threads)"
    for words in ("pyspy ±500 us", "not root", "sudo perfscope record --user me", "20 samples", "--duration"):
        assert words in " ".join(done.stdout.split()) or words in done.stdout


def test_show_explains_a_recording_that_was_killed(tmp_path: Path) -> None:
    writer = SessionWriter(tmp_path / "cut.perfscope")
    writer.write_info(SessionInfo(state="recording"))
    for name in ("cut.perfscope", "cut.perfscope.partial"):
        done = perfscope("show", name, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stdout == ""
        assert "cut.perfscope.partial" in done.stderr


@pytest.mark.parametrize("damage", ["missing", "truncated", "not json", "no tables"])
def test_a_damaged_session_is_named_without_a_traceback(serve: Path, tmp_path: Path, damage: str) -> None:
    threads, info = serve / "tables" / "threads.parquet", serve / "session.json"
    if damage == "missing":
        threads.unlink()
    elif damage == "truncated":
        threads.write_bytes(threads.read_bytes()[:-9])
    elif damage == "not json":
        info.write_text("{")
    else:
        info.write_text("{}")
    for command in ("show", "flame"):
        done = perfscope(command, str(serve), cwd=tmp_path)
        assert done.returncode == 2
        assert "serve.perfscope" in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""

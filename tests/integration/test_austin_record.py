"""Where austin reads the stacks and where py-spy has to: interpreters, names, storms of threads, refusals."""

from __future__ import annotations

import itertools
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyspy_helpers
import pytest
from pyspy_helpers import MARKS, Recording, line, looks, samplers_on
from recording_helpers import PERFSCOPE, wait_for

from perfscope.collectors.pyspy import austin, checks, lane
from perfscope.collectors.pyspy import sampler as sampling
from perfscope.errors import CollectorError
from perfscope.model.session import Session
from perfscope.options import Options

program = pyspy_helpers.program
no_kernel = pyspy_helpers.no_kernel
pytestmark = pytest.mark.usefixtures("no_kernel")
Start = Callable[..., "subprocess.Popen[str]"]


def test_it_is_taken_by_default_and_not_where_the_process_is_to_be_paused(tmp_path: Path) -> None:
    assert austin.wanted(Options()) == austin.wanted(Options(python_sampler="austin")) is not None
    for options in (Options(native=True), Options(blocking=True), Options(python_sampler="pyspy")):
        assert austin.wanted(options) is None


def test_without_it_py_spy_does_and_its_absence_is_an_error_only_where_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "find", lambda name: None)
    monkeypatch.setattr(austin, "find", lambda name: None)
    assert austin.wanted(Options()) is None
    with pytest.raises(CollectorError) as caught:
        austin.wanted(Options(python_sampler="austin"))
    assert "pip install 'austin-dist" in str(caught.value.hint)
    (row,) = [row for row in checks.check(Options()) if "austin" in row.what]
    assert row.state == "degraded" and "austin-dist" in row.fix


@pytest.mark.parametrize("says", ["austin 3.4.1", "austin 4.0.0", "austin 2", "no"])
def test_a_version_that_writes_otherwise_is_none(tmp_path: Path, says: str) -> None:
    other = tmp_path / "austin"
    other.write_text(f"#!/bin/sh\necho {says}\n")
    other.chmod(0o755)
    with pytest.raises(CollectorError):
        austin.version(str(other))


def test_both_samplers_show_the_same_functions_files_and_lines(tmp_path: Path, program: Start) -> None:
    target = program(
        "import threading, time\n"
        "class Model:\n"
        "    def step(self):\n        return (lambda: time.sleep(600))()\n"
        "def outer():\n"
        "    def inner(): Model().step()\n"
        "    inner()\n"
        "threading.Thread(target=outer).start()\n"
        "print(flush=True)\ntime.sleep(600)\n"
    )
    line(target)
    found = []
    for sampler in ("pyspy", "austin"):
        (folder := tmp_path / sampler).mkdir()
        recording = Recording(folder, Options(python_sampler=sampler))
        recording.start(target.pid)
        recording.until(recording.sampled(target.pid, 0.3))
        found.append({(row["tid"], *row["frames"]) for row in looks(recording.finish())})
    assert found[0] == found[1] and len(found[0]) == 2


@pytest.mark.parametrize("name", ["größe", "λ"])  # one it writes no name of, one that it fails to read
def test_a_program_whose_names_it_cannot_read_goes_to_py_spy(tmp_path: Path, program: Start, name: str) -> None:
    target = program(f"import time\ndef {name}(): time.sleep(0.001)\nprint(flush=True)\nwhile True: {name}()\n")
    line(target)
    recording = Recording(tmp_path)
    recording.start(target.pid)
    stacks = recording.collector._lanes()[0]
    recording.until(lambda: stacks.austin is None)
    recording.until(lambda: all(i.name == "py-spy" for i in recording.running(target.pid)))
    recording.until(recording.sampled(target.pid, 0.5))
    session = recording.finish()
    assert any(name in row["names"] for row in looks(session))
    assert any("by py-spy, not by austin" in note and "could not read" in note for note in recording.report.notes)
    assert recording.report.details["sampler"].endswith("py-spy")


def test_an_interpreter_that_it_does_not_know_goes_to_py_spy_at_once(
    tmp_path: Path, program: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(austin, "READS", ((3, 3), (3, 4)))
    target = program(MARKS)
    line(target)
    recording = Recording(tmp_path)
    recording.start(target.pid)
    recording.until(recording.sampled(target.pid, 0.3))
    assert looks(recording.finish())
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert any(f"austin doesn't read Python {version}" in note for note in recording.report.notes)
    assert recording.report.details["sampler"] == "py-spy" and recording.report.status == "ok"


def test_where_it_fails_py_spy_takes_over(tmp_path: Path, program: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "austin"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && echo austin 3.7.0 && exit\nexit 9\n')
    broken.chmod(0o755)
    monkeypatch.setattr(austin, "find", lambda name: str(broken))
    target = program(MARKS)
    line(target)
    recording = Recording(tmp_path)
    recording.start(target.pid)
    recording.until(recording.sampled(target.pid, 0.3))
    assert looks(recording.finish())
    assert recording.report.status == "ok", recording.report
    assert any("austin ended with status 9" in note for note in recording.report.notes)


def test_a_recording_killed_at_any_moment_of_its_start_leaves_no_sampler_and_no_other_one_touched(
    tmp_path: Path, program: Start
) -> None:
    target, other = program(MARKS), program(MARKS)
    line(target)
    line(other)
    (tmp_path / "elsewhere").mkdir()

    def start(pid: int, folder: Path) -> subprocess.Popen[bytes]:
        argv = [*PERFSCOPE, "record", "--collect", "pyspy", "--python-sampler", "austin", "-p", str(pid)]
        argv += ["-o", "same-name"]
        return subprocess.Popen(argv, stderr=subprocess.DEVNULL, cwd=folder)

    bystander = start(other.pid, tmp_path / "elsewhere")
    try:
        wait_for(lambda: samplers_on(other.pid) and samplers_on(other.pid, b"austin"))
        for first_seen in (b"austin", b"austin", b"austin", b"py-spy", b"py-spy"):  # the kill comes right then
            with start(target.pid, tmp_path) as perfscope:
                wait_for(lambda tool=first_seen: samplers_on(target.pid, tool))
                perfscope.kill()
            wait_for(lambda: not samplers_on(target.pid) and not samplers_on(target.pid, b"austin"))
            shutil.rmtree(tmp_path / "same-name.partial")
    finally:
        bystander.send_signal(signal.SIGINT)
        assert bystander.wait(60) == 0
    report = Session.open(tmp_path / "elsewhere" / "same-name").info.collectors["pyspy"]
    assert report.status == "ok" and not any("ended by itself" in note for note in report.notes), report
    assert target.poll() is None


def test_the_session_says_which_sampler_it_was_and_its_flame_graph_shows_the_program(
    tmp_path: Path, program: Start
) -> None:
    target = program(MARKS)
    line(target)
    argv = [*PERFSCOPE, "record", "--collect", "pyspy", "--python-sampler", "austin", "-d", "1"]
    argv += ["-p", str(target.pid), "-o", str(tmp_path / "s")]
    subprocess.run(argv, check=True, capture_output=True)
    session = Session.open(tmp_path / "s")
    report = session.info.collectors["pyspy"]
    assert report.status == "ok" and report.details["sampler"] == "austin" and report.details["austin_version"]
    assert session.info.clocks["pyspy"].domain == "austin-start" and session.info.clocks["pyspy"].error_ns < 1_000_000
    flame = [*PERFSCOPE, "flame", str(tmp_path / "s"), "--weight", "samples", "--format", "folded", "-o", "-"]
    shown = subprocess.run(flame, check=True, capture_output=True, text=True).stdout
    assert "spin_a" in shown and "spin_b" in shown
    (raw,) = (tmp_path / "s" / "raw" / "pyspy").glob("*.austin.txt*")
    again = subprocess.run(
        [*PERFSCOPE, "import", str(raw), "-o", str(tmp_path / "again")], capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    frames = [f.function for f in Session.open(tmp_path / "again").stacks.frames]
    assert {"spin_a", "spin_b"} <= set(frames)


def test_native_frames_are_not_asked_of_it(tmp_path: Path) -> None:
    argv = [*PERFSCOPE, "record", "--python-sampler", "austin", "--native", "-o", str(tmp_path / "s"), "--", "true"]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 2 and "--native" in done.stderr


def test_a_large_file_is_followed_by_another_one(
    tmp_path: Path, program: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "SEGMENT_BYTES", 20_000)
    target = program(MARKS)
    line(target)
    recording = Recording(tmp_path, Options(python_sampler="austin", rate_hz=400))
    recording.start(target.pid)
    (stacks, _) = recording.collector._lanes()
    recording.until(lambda: len(stacks.done) > 1)
    session = recording.finish()
    rows = sorted((r["time_ns"], r["time_ns"] + r["duration_ns"]) for r in looks(session))
    assert all(b[0] >= a[1] for a, b in itertools.pairwise(rows))  # the next one took over: nothing twice
    assert len(recording.report.covered_ns) == 1 and recording.report.status == "ok", recording.report


STORM = """
import threading, time, random
def nap(): time.sleep(0.002)
def worker(end):
    while time.monotonic() < end: nap()
print(flush=True)
while True:
    threads = [threading.Thread(target=worker, args=(time.monotonic() + random.random() * 0.01,)) for _ in range(6)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""


def test_a_storm_of_threads_ends_it_again_and_again_until_py_spy_takes_over(tmp_path: Path, program: Start) -> None:
    target = program(STORM)
    line(target)
    recording = Recording(tmp_path)
    recording.start(target.pid)
    stacks = recording.collector._lanes()[0]
    recording.until(lambda: stacks.restarts > 0)
    recording.until(recording.sampled(target.pid, 0.5))
    session = recording.finish()
    assert any("austin ended by itself" in note for note in recording.report.notes), recording.report
    rows = looks(session)
    main = sorted((r["time_ns"], r["time_ns"] + r["duration_ns"]) for r in rows if r["tid"] == target.pid)
    assert all(b[0] >= a[1] for a, b in itertools.pairwise(main))
    # Where threads come and go under it, the time of its looks stays right: next to nothing is without a time.
    time_ns = sum(end - start for start, end in main)
    covered_ns = sum(end - start for start, end in recording.report.covered_ns)
    assert time_ns > 0.8 * covered_ns, recording.report

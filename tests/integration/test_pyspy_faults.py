"""Samplers of Python stacks that are killed, refused, missing or too costly, and targets that are gone."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pyspy_helpers
import pytest
from pyspy_helpers import MARKS, TIMEOUT_S, Recording, line, looks

from perfscope import procfs
from perfscope.collectors.pyspy import budget, instance
from perfscope.collectors.pyspy import sampler as sampling
from perfscope.errors import CollectorError
from perfscope.options import Options

program = pyspy_helpers.program
sampler = pyspy_helpers.sampler
tool = pyspy_helpers.tool


def test_the_guards_command_makes_a_sampler_write_and_end(
    tmp_path: Path, program: Callable[..., subprocess.Popen[str]], tool: str
) -> None:
    target = program(MARKS)
    line(target)
    recording = Recording(tmp_path, Options(python_sampler=tool))
    recording.start(target.pid)
    recording.until(recording.sampled(target.pid, 0.3))
    (running,) = recording.running(target.pid)
    assert os.getsid(running.own_pid) == running.own_pid  # the terminal's Ctrl-C doesn't reach it
    subprocess.run(recording.guarded["samplers"], check=True)
    assert running.wait(time.monotonic_ns() + TIMEOUT_S * 10**9)
    assert running.whole and running.output.stat().st_size > 100
    recording.finish()


def test_a_stopped_process_is_sampled_once_it_goes_on(
    tmp_path: Path, program: Callable[..., subprocess.Popen[str]]
) -> None:
    target = program(MARKS)
    line(target)
    os.kill(target.pid, signal.SIGSTOP)
    recording = Recording(tmp_path, Options(blocking=True))
    recording.start(target.pid)
    (stacks, _) = recording.collector._lanes()
    recording.until(lambda: stacks.failure is not None)
    assert stacks.failure is not None and "stopped" in stacks.failure.why
    os.kill(target.pid, signal.SIGCONT)
    recording.until(recording.sampled(target.pid, 0.3))  # it is taken up as soon as it goes on
    assert looks(recording.finish())
    assert recording.report.status == "ok" and any("--blocking" in note for note in recording.report.notes)


def test_a_killed_sampler_costs_a_stated_interval_only(
    tmp_path: Path, program: Callable[..., subprocess.Popen[str]], tool: str
) -> None:
    target = program(MARKS)
    line(target)
    recording = Recording(tmp_path, Options(python_sampler=tool))
    recording.start(target.pid)
    recording.until(recording.sampled(target.pid, 0.5))
    (first,) = recording.running(target.pid)
    os.kill(first.own_pid, signal.SIGKILL)
    recording.until(lambda: bool(recording.running(target.pid)) and recording.running(target.pid)[0] is not first)
    recording.until(recording.sampled(target.pid, 0.5))
    session = recording.finish()
    assert looks(session)
    assert recording.report.status == "partial"
    assert "missing f" in recording.report.why and "SIGKILL" in recording.report.why
    covered = recording.report.covered_ns
    if tool == "pyspy":  # writes its file at its end
        assert covered[0][0] > first.ended_ns
    else:
        assert len(covered) == 2 and covered[0][1] <= first.ended_ns <= covered[1][0]
        assert covered[0][1] - covered[0][0] > 200_000_000
    assert target.poll() is None


def test_each_failure_has_its_reason(tmp_path: Path, program: Callable[..., subprocess.Popen[str]]) -> None:
    def failure(pid: int, output: Path, **how: bool) -> instance.Failure:
        made = instance.Instance(pid, 100, output, **{"gil": False, "native": False, "blocking": False, **how})
        if not how:
            assert made.wait(time.monotonic_ns() + 30 * 10**9)
        else:
            end = time.monotonic_ns() + 30 * 10**9
            while made.running() and made.sampling_ns is None and time.monotonic_ns() < end:
                time.sleep(0.01)
            made.interrupt()
            made.wait(end)
        assert not made.whole
        return made.failure()

    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        assert "no Python" in failure(sleeper.pid, tmp_path / "a").why
    finally:
        sleeper.kill()
        sleeper.wait()
    assert "gone" in failure(sleeper.pid, tmp_path / "b").why
    target = program(MARKS)
    line(target)
    (tmp_path / "folder").mkdir()
    assert "written" in failure(target.pid, tmp_path / "folder", blocking=False).why
    with pytest.raises(CollectorError, match="No such file"):
        failure(target.pid, tmp_path / "no" / "such")
    without = ["setpriv", "--reuid", "65534", "--clear-groups", instance.binary(), "record", "-p", str(target.pid)]
    done = subprocess.run([*without, "-o", "/dev/null"], capture_output=True, text=True, timeout=60)
    explained = instance.explain(done.stdout + done.stderr)
    assert explained is not None and "permission" in explained.why and explained.final and explained.hint


def test_a_target_that_exits_at_once_is_said_not_raised(
    tmp_path: Path, program: Callable[..., subprocess.Popen[str]], sampler: str
) -> None:
    target = program("pass")
    process = procfs.process(target.pid)
    target.wait()
    assert process is not None
    recording = Recording(tmp_path, Options(python_sampler=sampler))
    recording.root = target.pid
    recording.collector.start([target.pid])
    recording.collector.process_started(procfs.Process(target.pid, process.start_ticks, target.pid, "python"))
    recording.until(lambda: all(lane.current is None for lane in recording.collector._lanes()))
    recording.finish()
    assert recording.report.status == "unavailable"
    assert recording.report.why == (
        "1 of 1 Python processes came and went too quickly to be sampled"
        if sampler == "bpf"
        else f"process {target.pid} ended before py-spy had looked at it"
    )


def test_nothing_python_is_unavailable(tmp_path: Path) -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        recording = Recording(tmp_path)
        recording.start(sleeper.pid)
        recording.finish()
    finally:
        sleeper.kill()
        sleeper.wait()
    assert recording.report.status == "unavailable" and "no Python process" in recording.report.why


def test_its_own_cost_is_kept_in_bounds(
    tmp_path: Path, program: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch, sampler: str
) -> None:
    # A bound that is exceeded however little CPU a loaded machine leaves to py-spy.
    for name, share in (("SHARE", 0.03), ("_AIM", 0.02), ("_URGENT", 0.04)):
        monkeypatch.setattr(budget, name, share)
    target = program(
        "import threading, time\n"
        "def deep(n):\n    return deep(n - 1) if n else time.sleep(600)\n"
        "for _ in range(40): threading.Thread(target=deep, args=(40,), daemon=True).start()\n"
        "print(flush=True)\ntime.sleep(600)\n"
    )
    line(target)
    recording = Recording(tmp_path, Options(rate_hz=400, python_sampler=sampler))
    recording.start(target.pid)
    recording.until(lambda: bool(recording.collector._lowered))
    rate = recording.collector._budget.rate_hz
    assert rate < 400
    recording.until(recording.sampled(target.pid, 0.5))
    session = recording.finish()
    assert any("lowered from 400" in note for note in recording.report.notes)
    assert len({r["tid"] for r in looks(session)}) == 41
    for tid in {r["tid"] for r in looks(session)}:  # the new py-spy took over from the old one: nothing twice
        mine = sorted((r["time_ns"], r["time_ns"] + r["duration_ns"]) for r in looks(session) if r["tid"] == tid)
        assert all(b[0] >= a[1] for a, b in itertools.pairwise(mine))


def test_missing_py_spy_names_the_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sampling.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(sampling.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(CollectorError) as caught:
        Recording(tmp_path).start(os.getpid())
    assert "pip install" in str(caught.value.hint)

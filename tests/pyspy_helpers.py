"""The collector of Python stacks on real programs, driven as the recording drives it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from perfscope import procfs
from perfscope.collectors.base import Context
from perfscope.collectors.pyspy import PySpyCollector
from perfscope.collectors.pyspy.sampler import Sampler
from perfscope.model.info import SessionInfo
from perfscope.model.session import Session
from perfscope.model.session_writer import SessionWriter
from perfscope.options import Options

TIMEOUT_S = 60


def samplers_on(pid: int, tool: bytes = b"py-spy") -> set[int]:
    """Running processes of that tool that sample `pid`."""
    found = set()
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().split(b"\0") if process.name.isdigit() else []
        except OSError:
            continue
        if words and words[0].endswith(b"/" + tool) and str(pid).encode() in words:
            found.add(int(process.name))
    return found


@dataclass
class Recording:
    """A collector at work on a process, driven as the recording drives it."""

    folder: Path
    options: Options = field(default_factory=Options)
    guarded: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.writer = SessionWriter(self.folder / "s.perfscope")
        self.collector = PySpyCollector(
            Context(self.writer.raw / "pyspy", self.options, lambda key, argv: self.guarded.__setitem__(key, argv))
        )
        self.start_ns = time.monotonic_ns()
        self._known: dict[int, procfs.Runtime] = {}

    def start(self, pid: int) -> None:
        self.root = pid
        self.collector.start([pid])
        self.tick()

    def tick(self) -> None:
        pids = procfs.tree([self.root])
        for pid in pids:
            process = procfs.process(pid)
            if process is not None and self._known.get(pid) != process.runtime and process.alive():
                self._known[pid] = process.runtime
                self.collector.process_started(process)
        for pid in set(self._known) - set(pids):
            del self._known[pid]
            self.collector.process_ended(pid)
        self.collector.tick()

    def until(self, reached: Callable[[], bool]) -> None:
        """Ticks until something is so."""
        give_up = time.monotonic() + TIMEOUT_S
        while not reached():
            assert time.monotonic() < give_up, "waited too long"
            self.tick()
            time.sleep(0.05)

    def sampled(self, pid: int, looks_s: float) -> Callable[[], bool]:
        """True once that process, as it is now, has been sampled for so long."""

        def reached() -> bool:
            began = self.began_ns(pid)
            return began is not None and time.monotonic_ns() - began > looks_s * 1e9

        return reached

    def began_ns(self, pid: int) -> int | None:
        """When what reads its stacks now began to."""
        kernel = self.collector._kernel
        if kernel is not None and pid in kernel.followed and kernel.follows(pid):
            return kernel.followed[pid][-1].since_ns
        return max((i.sampling_ns for i in self.running(pid) if i.sampling_ns is not None), default=None)

    def running(self, pid: int) -> list[Sampler]:
        return [
            lane.current
            for lane in self.collector._lanes()
            if lane.pid == pid and not lane.gil and lane.current is not None
        ]

    def finish(self) -> Session:
        self.collector.stop()
        stop_ns = time.monotonic_ns()
        self.collector.read(self.writer, self.start_ns, stop_ns)
        info = SessionInfo(start_ns=self.start_ns, stop_ns=stop_ns, clocks=self.collector.clocks)
        assert not any(self.guarded.values()), "every guard is taken back"
        asked, used = self.options.python_sampler, self.report.details["sampler"]
        # Where austin reads too many stacks wrongly it leaves the process to py-spy.
        assert used is None or asked == "auto" or asked in used.replace("-", "").split("+"), self.report
        return Session.open(self.writer.finish(info))

    @property
    def report(self) -> Any:
        return self.collector.report


@pytest.fixture(params=["pyspy", "austin", "bpf"])
def sampler(request: pytest.FixtureRequest) -> str:
    """Each sampler of Python stacks, as `--python-sampler` calls it."""
    return str(request.param)


@pytest.fixture(params=["pyspy", "austin"])
def tool(request: pytest.FixtureRequest) -> str:
    """Each of them that is a program of its own."""
    return str(request.param)


@pytest.fixture
def no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reads no stacks, as where it is too old."""
    monkeypatch.setattr("perfscope.collectors.pyspy.kernel.unavailable", lambda: ("it is not to", ""))


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a Python program that prints a line once it is under way, and ends it after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(source: str, *arguments: str, command: tuple[str, ...] = (sys.executable,)) -> subprocess.Popen[str]:
        path = tmp_path / "program.py"
        path.write_text(source)
        os.utime(path, (1, 1))  # a file of before the process, whatever the granularity of its start time
        process = subprocess.Popen(
            [*command, str(path), *arguments], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def looks(session: Session, source: str = "pyspy") -> list[dict[str, Any]]:
    rows = [r for r in session.table("samples").to_pylist() if r["source"] == source]
    for row in rows:
        row["frames"] = session.stacks.path(row["stack_id"])
        row["names"] = [f.function for f in row["frames"]]
    return rows


MARKS = """
import sys, time
def spin_a(until):
    while time.monotonic_ns() < until: pass
def spin_b(until):
    while time.monotonic_ns() < until: pass
print(flush=True)
SLOT = 50_000_000
while True:
    slot = time.monotonic_ns() // SLOT
    (spin_b if slot % 2 else spin_a)((slot + 1) * SLOT)
"""

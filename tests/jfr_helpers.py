"""Runs the Java test program and records it, for the tests of the JFR collector."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from perfscope import procfs
from perfscope.collectors.base import Context
from perfscope.collectors.jfr.collector import JfrCollector
from perfscope.model.info import SessionInfo
from perfscope.model.session import Session
from perfscope.model.session_writer import SessionWriter
from perfscope.options import Options
from perfscope.procfs import Process

DATA = Path(__file__).parent / "data" / "jfr"


def compile_java(folder: Path) -> Path:
    subprocess.run(["javac", "-d", str(folder), str(DATA / "Phases.java")], check=True, timeout=120)
    return folder


@dataclass
class Program:
    """The running program: give it orders, read its marks (name -> [start, end] ns)."""

    popen: subprocess.Popen[str]
    marks: dict[str, tuple[int, int]] = field(default_factory=dict)
    port: int = 0
    lines: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.time)

    @property
    def pid(self) -> int:
        return self.popen.pid

    def process(self) -> Process:
        found = procfs.process(self.pid)
        assert found is not None
        return found

    def until(self, first_word: str) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.lines.append(line)
            words = line.split() or [""]
            if words[0] == "mark":
                self.marks[words[1]] = (int(words[2]), int(words[3]))
            elif words[0] == "port":
                self.port = int(words[1])
            if words[0] == first_word:
                assert not any("thread dump" in line for line in self.lines), self.lines  # SIGQUIT without its file
                return
        raise AssertionError(f"no line {first_word!r}: {self.lines}")

    def order(self, text: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(text + "\n")
        self.popen.stdin.flush()
        if text not in ("exit", "return", "throw", "halt"):
            self.until("done")


@contextmanager
def java(classes: Path, *options: str, wait: bool = True, prefix: tuple[str, ...] = ()) -> Iterator[Program]:
    popen = subprocess.Popen(
        [*prefix, "java", "-Xmx128m", "-XX:TieredStopAtLevel=1", *options, "-cp", str(classes), "Phases"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PERFSCOPE_TEST_SECRET": "hunter2-in-environment"},
    )
    program = Program(popen)
    try:
        if wait:
            program.until("ready")
        yield program
    finally:
        popen.kill()
        popen.wait()
        for pipe in (popen.stdin, popen.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


class Recorder:
    """What the recording does with a collector, without the rest of it. Guards that are set stay in `guards`."""

    def __init__(self, folder: Path, rate_hz: int = 100) -> None:
        self.writer = SessionWriter(folder / "t.perfscope")
        raw = self.writer.raw / "jfr"
        raw.mkdir()
        self.guards: dict[str, list[str]] = {}
        self.collector = JfrCollector(Context(raw, Options(rate_hz=rate_hz), self._guard))
        self.start_ns = time.monotonic_ns()

    def _guard(self, key: str, argv: list[str]) -> None:
        if argv:
            self.guards[key] = argv
        else:
            del self.guards[key]

    def finish(self) -> Session:
        self.collector.stop()
        stop_ns = time.monotonic_ns()
        self.collector.read(self.writer, self.start_ns, stop_ns)
        info = SessionInfo(start_ns=self.start_ns, stop_ns=stop_ns, clocks=self.collector.clocks)
        return Session.open(self.writer.finish(info))

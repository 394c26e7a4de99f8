"""One running sampler of Python stacks, attached to one process: started, watched, stopped. What each tool does its own
way is in `instance` (py-spy) and `austin`.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from perfscope import procfs
from perfscope.clock import ClockMap
from perfscope.collectors.pyspy.slices import Slices
from perfscope.errors import CollectorError
from perfscope.model.stacks import StackTable

STARVED_EVERY_NS = 1_000_000_000


def find(name: str) -> str | None:
    """Path of a program: that of our own environment, else that of PATH."""
    for folder in (sysconfig.get_path("scripts"), os.path.dirname(sys.executable)):  # noqa: PTH120 (no resolving)
        if os.access(path := f"{folder}/{name}", os.X_OK):
            return path
    return shutil.which(name)


@dataclass(frozen=True)
class Failure:
    """Why a sampler ended early. final: trying again can't help. brief: there was no time to look, nothing is wrong."""

    why: str
    hint: str | None = None
    final: bool = False
    brief: bool = False


NO_TIME = Failure("it was ended before it had looked", brief=True)


def explain_output(output: str) -> Failure | None:
    """What words about the sampler's own files mean; None if they hold no known failure."""
    if "No space left on device" in output:
        return Failure("no space left for its output", "free some space, or choose another place with -o", final=True)
    if "Too many open files" in output:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return Failure(f"it may open no more than {limit} files", "ulimit -n $(ulimit -Hn)", final=True)
    if re.search(r"Error: .*(Read-only file system|Is a directory|No such file or directory)", output):
        return Failure("its output can't be written", "choose a writable place with -o", final=True)
    return None


class Sampler(ABC):
    """A sampler at work. What it says goes to a file beside its output: a pipe whose reader is killed would end it
    before it has written what it saw.

    began_ns, ended_ns: around its life, on CLOCK_MONOTONIC. samples, errors: by its own count, None until it is done.
    until_ns: where its process became another program, whose stacks it can't read. sampling_cpu_ns: CPU time without
    that of attaching. starved_ns: how long it wanted a CPU in vain; it catches up with looks in quick succession, so
    that their number doesn't show it. pauses: whether it stops the process for each look. behind: how often it said
    that it is over a second late.
    """

    name: ClassVar[str]
    cut_deaths: ClassVar[bool]
    """Whether a dead thread's last stack runs on in its file, and has to be cut."""

    def __init__(
        self, argv: list[str], pid: int, rate_hz: int, output: Path, environment: dict[str, str], *, pauses: bool
    ) -> None:
        """Raises CollectorError if it can't be started."""
        self.pid = pid
        self.rate_hz = rate_hz
        self.output = output
        self.pauses = pauses
        self.sampling_ns: int | None = None
        self.ended_ns: int | None = None
        self.until_ns: int | None = None
        self.interrupted_ns: int | None = None
        self.samples: int | None = None
        self.errors: int | None = None
        self.behind = 0
        self.cpu_ns = 0
        self.starved_ns = 0
        self._attach_cpu_ns: int | None = None
        self._looking: list[tuple[int, int]] = []
        self._words: deque[str] = deque(maxlen=60)
        self.began_ns = self._starved_at_ns = time.monotonic_ns()
        log = output.with_suffix(".log")
        try:
            with log.open("wb") as stream:
                self._popen = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment},
                    start_new_session=True,  # a Ctrl-C of the terminal is for the target alone
                )
            self._log = log.open("rb")
        except OSError as error:
            known = explain_output(error.strerror or "")
            hint = known.hint if known is not None and known.final else None
            raise CollectorError(
                f"{self.name} can't be started: {error.filename}: {error.strerror}", hint=hint
            ) from None
        self._rest = b""

    @property
    def own_pid(self) -> int:
        return self._popen.pid

    @property
    def interrupted(self) -> bool:
        return self.interrupted_ns is not None

    @abstractmethod
    def _take(self, line: str, now: int) -> None:
        """Takes in one line of what it says, seen at `now`."""

    @property
    @abstractmethod
    def whole(self) -> bool:
        """True if it has ended and its file can be read."""

    @abstractmethod
    def failure(self) -> Failure:
        """Why it ended without a file, or before its time."""

    @abstractmethod
    def read(self, stacks: StackTable) -> tuple[Slices, ClockMap | None]:
        """What it saw, and the clock of that; None where there was no time to tell."""

    def _read_log(self) -> None:
        """Takes in what it has said since the last time."""
        now = time.monotonic_ns()
        *lines, self._rest = (self._rest + self._log.read()).split(b"\n")
        for raw in lines:
            line = raw[:2000].decode("utf-8", "replace")
            self._take(line, now)
            if line.strip() and not line.startswith(" "):
                self._words.append(line)

    @property
    def sampling_cpu_ns(self) -> int:
        return 0 if self._attach_cpu_ns is None else self.cpu_ns - self._attach_cpu_ns

    @property
    def looking_share(self) -> float | None:
        """Share of one core that its looks take; None if it wasn't watched for long enough."""
        if len(self._looking) < 2:
            return None
        (began, before), (ended, after) = self._looking[0], self._looking[-1]
        return (after - before) / (ended - began)

    def watch(self) -> None:
        """Reads its own CPU time so far, and now and then how long it waited for a CPU."""
        now, cpu_ns = time.monotonic_ns(), procfs.cpu_ns(self.own_pid)
        if self._popen.returncode is not None or cpu_ns is None:
            return
        self.cpu_ns = max(self.cpu_ns, cpu_ns)
        if self.sampling_ns is not None:
            if self._attach_cpu_ns is None:
                self._attach_cpu_ns = self.cpu_ns
            self._looking[1:] = [(now, self.cpu_ns)]
        if now - self._starved_at_ns >= STARVED_EVERY_NS:
            self._look_at_waits(now)

    def _look_at_waits(self, now: int) -> None:
        self._starved_at_ns = now
        times = [procfs.schedstat(self.own_pid, tid) for tid in procfs.threads(self.own_pid)]
        self.starved_ns = max(self.starved_ns, sum(t.runnable_ns for t in times if t is not None))

    def running(self) -> bool:
        """False once it has ended."""
        if self.ended_ns is not None:
            return False
        # wait4 instead of poll: it gives the CPU time of the whole life, to the microsecond.
        try:
            done, status, usage = os.wait4(self.own_pid, os.WNOHANG)
        except ChildProcessError:
            done, status, usage = self.own_pid, 0, None
        self._read_log()
        if done == 0:
            return True
        self._popen.returncode = os.waitstatus_to_exitcode(status)
        if usage is not None:
            self.cpu_ns = round((usage.ru_utime + usage.ru_stime) * 1e9)
        self._has_ended()
        return False

    def interrupt(self) -> None:
        """Asks it to write its file and end. Only SIGINT does that with both tools."""
        if not self.interrupted and self.running():
            self.interrupted_ns = time.monotonic_ns()
            self._look_at_waits(self.interrupted_ns)
            self._send(signal.SIGINT)

    def wait(self, deadline_ns: int) -> bool:
        """Waits for its end until then, and kills it after. True if it ended by itself."""
        while self.running():
            if time.monotonic_ns() >= deadline_ns:
                self._send(signal.SIGKILL)
                self._popen.wait()
                self._has_ended()
                return False
            time.sleep(0.002)
        return True

    def _has_ended(self) -> None:
        self.ended_ns = time.monotonic_ns()
        self._log.close()

    def _send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    @property
    def killed(self) -> signal.Signals | None:
        """The signal that it died of, other than ours to end."""
        code = self._popen.returncode
        return signal.Signals(-code) if code is not None and code < 0 else None

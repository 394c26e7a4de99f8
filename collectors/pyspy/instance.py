"""One running py-spy, attached to one Python process: started, anchored to the clock, watched, stopped."""

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
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from perfscope import procfs
from perfscope.clock import ClockMap, realtime_offset
from perfscope.collectors.pyspy.anchor import log_stamp, measure
from perfscope.errors import CollectorError

_WROTE = re.compile(r"Samples: (\d+) Errors: (\d+)")


def binary() -> str:
    """Path of py-spy: that of our own environment, else that of PATH. Raises CollectorError if there is none."""
    for folder in (sysconfig.get_path("scripts"), os.path.dirname(sys.executable)):  # noqa: PTH120 (no resolving)
        if os.access(path := f"{folder}/py-spy", os.X_OK):
            return path
    found = shutil.which("py-spy")
    if found is None:
        raise CollectorError("py-spy is not installed", hint="pip install 'py-spy>=0.4.2'")
    return found


@dataclass(frozen=True)
class Failure:
    """Why a py-spy ended early. final: trying again can't help. brief: there was no time to look, nothing is wrong."""

    why: str
    hint: str | None = None
    final: bool = False
    brief: bool = False


def explain(output: str) -> Failure | None:
    """What py-spy's own words mean; None if they hold no known failure."""
    if "Failed to suspend process" in output:
        return Failure("the process is stopped, or another debugger or tracer holds it", "end the other tracer")
    if "Permission Denied" in output or "Permission denied" in output or "Operation not permitted" in output:
        return Failure(
            "no permission to read the process's memory",
            "run perfscope as root or as the process's user with CAP_SYS_PTRACE (sudo perfscope ...); "
            "in a container: docker run --cap-add SYS_PTRACE",
            final=True,
        )
    if "Failed to find python version" in output:
        return Failure("no Python interpreter found in the process")
    if "Failed to get process executable name" in output or "No such process" in output:
        return Failure("the process was gone before py-spy had attached", final=True, brief=True)
    if "No space left on device" in output:
        return Failure("no space left for its output", "free some space, or choose another place with -o", final=True)
    if "Too many open files" in output:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return Failure(f"it may open no more than {limit} files", "ulimit -n $(ulimit -Hn)", final=True)
    if re.search(r"Error: .*(Read-only file system|Is a directory|No such file or directory)", output):
        return Failure("its output can't be written", "choose a writable place with -o", final=True)
    return None


class Instance:
    """A py-spy at work. What it says goes to a file beside its output: a pipe whose reader is killed would end it
    before it has written what it saw.

    began_ns, ended_ns: around its life, on CLOCK_MONOTONIC. samples, errors: by its own count, None until it is done.
    until_ns: where its process became another program, whose stacks it can't read. sampling_cpu_ns: CPU time without
    that of attaching. starved_ns: how long it wanted a CPU in vain; it catches up with looks in quick succession, so
    that their number doesn't show it.
    """

    def __init__(self, pid: int, rate_hz: int, output: Path, *, gil: bool, native: bool, blocking: bool) -> None:
        self.pid = pid
        self.rate_hz = rate_hz
        self.output = output
        self.gil = gil
        self.pauses = not gil and (native or blocking)
        self.clock: ClockMap | None = None
        self._config_wall_ns: int | None = None
        self.sampling_ns: int | None = None
        self.ended_ns: int | None = None
        self.until_ns: int | None = None
        self.interrupted = False
        self.samples: int | None = None
        self.errors: int | None = None
        self.cpu_ns = 0
        self.starved_ns = 0
        self._attach_cpu_ns: int | None = None
        self._looking: list[tuple[int, int]] = []
        self._behind = 0
        self._words: deque[str] = deque(maxlen=60)
        argv = [binary(), "record", "--pid", str(pid), "--rate", str(rate_hz), "--threads", "--output", str(output)]
        argv += ["--gil", "--format", "raw", "--full-filenames"] if gil else ["--idle", "--format", "chrometrace"]
        if native and not gil:
            argv.append("--native")
        elif gil or not blocking:
            argv.append("--nonblocking")
        self._offset = realtime_offset()
        self.began_ns = time.monotonic_ns()
        log = output.with_suffix(".log")
        try:
            with log.open("wb") as stream:
                self._popen = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "RUST_LOG": "py_spy=info", "RUST_BACKTRACE": "0"},
                    start_new_session=True,  # a Ctrl-C of the terminal is for the target alone
                )
            self._log = log.open("rb")
        except OSError as error:
            known = explain(error.strerror or "")
            hint = known.hint if known is not None and known.final else None
            raise CollectorError(f"py-spy can't be started: {error.filename}: {error.strerror}", hint=hint) from None
        self._rest = b""

    @property
    def own_pid(self) -> int:
        return self._popen.pid

    def _read_log(self) -> None:
        """Takes in what py-spy has said since the last time."""
        now = time.monotonic_ns()
        *lines, self._rest = (self._rest + self._log.read()).split(b"\n")
        for raw in lines:
            line = raw[:2000].decode("utf-8", "replace")
            if self.clock is None and line.startswith("["):
                self._anchor(line, now)
            elif self.sampling_ns is None and "Sampling process" in line:
                self.sampling_ns = now
            elif match := _WROTE.search(line):
                self.samples, self.errors = int(match[1]), int(match[2])
            elif "behind in sampling" in line:
                self._behind += 1
            if line.strip() and not line.startswith(" "):
                self._words.append(line)

    def _anchor(self, line: str, now: int) -> None:
        """Takes the two log lines between which py-spy begins to count time."""
        stamp = log_stamp(line)
        if stamp is None or self.gil:
            return
        if self._config_wall_ns is None:
            if "config Config" in line:
                self._config_wall_ns = stamp[0]
            return
        self.clock = measure(
            self.own_pid,
            (self._config_wall_ns, stamp[0]),
            (self._offset, realtime_offset()),
            (self.began_ns, now),
            10**9 // self.rate_hz,
        )

    @property
    def behind(self) -> int:
        """How often py-spy itself said that it is over a second late."""
        return self._behind

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
        """Reads py-spy's own CPU time so far."""
        if self._popen.returncode is None and (stat := procfs.read_stat(self.own_pid)) is not None:
            ticks = stat.user_ticks + stat.system_ticks
            self.cpu_ns = max(self.cpu_ns, ticks * 10**9 // os.sysconf("SC_CLK_TCK"))
            times = [procfs.schedstat(self.own_pid, tid) for tid in procfs.threads(self.own_pid)]
            self.starved_ns = max(self.starved_ns, sum(t.runnable_ns for t in times if t is not None))
            if self.sampling_ns is not None:
                self._looking[1:] = [(time.monotonic_ns(), sum(t.cpu_ns for t in times if t is not None))]
        if self._attach_cpu_ns is None and self.sampling_ns is not None:
            self._attach_cpu_ns = self.cpu_ns

    def running(self) -> bool:
        """False once py-spy has ended."""
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
        self.ended_ns = time.monotonic_ns()
        self._log.close()
        return False

    def interrupt(self) -> None:
        """Asks it to write its file and end. Only SIGINT does that."""
        if not self.interrupted and self.running():
            self.interrupted = True
            self._send(signal.SIGINT)

    def wait(self, deadline_ns: int) -> bool:
        """Waits for its end until then, and kills it after. True if it ended by itself."""
        while self.running():
            if time.monotonic_ns() >= deadline_ns:
                self._send(signal.SIGKILL)
                self._popen.wait()
                self.ended_ns = time.monotonic_ns()
                self._log.close()
                return False
            time.sleep(0.002)
        return True

    def _send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    @property
    def whole(self) -> bool:
        """True if it ended well and wrote its file."""
        return self._popen.returncode == 0 and self.output.is_file()

    def failure(self) -> Failure:
        """Why it ended without its file."""
        output = "\n".join(self._words)
        code = self._popen.returncode
        if code == -signal.SIGINT and self.interrupted:
            return Failure("it was ended before it had looked", brief=True)
        if code is not None and code < 0:
            return Failure(f"py-spy was killed by {signal.Signals(-code).name}")
        last = next((w.strip() for w in reversed(self._words) if w.startswith("Error:")), "it said nothing")
        return explain(output) or Failure(f"py-spy ended with status {code}: {last}")

"""One running py-spy: how it is asked, what it says, and how its time is tied to ours."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from perfscope.clock import ClockMap, realtime_offset
from perfscope.collectors.pyspy.anchor import log_stamp, measure
from perfscope.collectors.pyspy.chrometrace import read_chrometrace
from perfscope.collectors.pyspy.sampler import NO_TIME, Failure, Sampler, explain_output, find
from perfscope.collectors.pyspy.slices import Slices
from perfscope.errors import CollectorError
from perfscope.model.stacks import StackTable

_WROTE = re.compile(r"Samples: (\d+) Errors: (\d+)")


def binary() -> str:
    """Path of py-spy: that of our own environment, else that of PATH. Raises CollectorError if there is none."""
    found = find("py-spy")
    if found is None:
        raise CollectorError("py-spy is not installed", hint="pip install 'py-spy>=0.4.2'")
    return found


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
    return explain_output(output)


class Instance(Sampler):
    """A py-spy at work: for stacks over time, or (gil) for counts of who held the GIL."""

    name = "py-spy"
    cut_deaths = True

    def __init__(self, pid: int, rate_hz: int, output: Path, *, gil: bool, native: bool, blocking: bool) -> None:
        self.gil = gil
        self.clock: ClockMap | None = None
        self._config_wall_ns: int | None = None
        argv = [binary(), "record", "--pid", str(pid), "--rate", str(rate_hz), "--threads", "--output", str(output)]
        argv += ["--gil", "--format", "raw", "--full-filenames"] if gil else ["--idle", "--format", "chrometrace"]
        if native and not gil:
            argv.append("--native")
        elif gil or not blocking:
            argv.append("--nonblocking")
        self._offset = realtime_offset()
        environment = {"RUST_LOG": "py_spy=info", "RUST_BACKTRACE": "0"}
        super().__init__(argv, pid, rate_hz, output, environment, pauses=not gil and (native or blocking))

    def _take(self, line: str, now: int) -> None:
        if self.clock is None and line.startswith("["):
            self._anchor(line, now)
        elif self.sampling_ns is None and "Sampling process" in line:
            self.sampling_ns = now
        elif match := _WROTE.search(line):
            self.samples, self.errors = int(match[1]), int(match[2])
        elif "behind in sampling" in line:
            self.behind += 1

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
    def whole(self) -> bool:
        """True if it ended well and wrote its file."""
        return self._popen.returncode == 0 and self.output.is_file()

    def failure(self) -> Failure:
        """Why it ended without its file."""
        if self.killed is not None:
            return (
                NO_TIME
                if self.killed == signal.SIGINT and self.interrupted
                else Failure(f"py-spy was killed by {self.killed.name}")
            )
        last = next((w.strip() for w in reversed(self._words) if w.startswith("Error:")), "it said nothing")
        return explain("\n".join(self._words)) or Failure(f"py-spy ended with status {self._popen.returncode}: {last}")

    def read(self, stacks: StackTable) -> tuple[Slices, ClockMap | None]:
        """Its chrometrace."""
        return read_chrometrace(self.output, stacks), self.clock

"""One running austin: where it is found, which interpreters it reads, what its end means, what it saw and when."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import signal
import subprocess
import time
from functools import cache
from pathlib import Path

import numpy as np

from perfscope import procfs
from perfscope.clock import ClockMap
from perfscope.collectors.pyspy.austinclock import STAMP_US, Stamps, align, boot_offset, clock_map
from perfscope.collectors.pyspy.austinfile import UNNAMED, AustinFile, Piece, read_austin, slices
from perfscope.collectors.pyspy.sampler import NO_TIME, Failure, Sampler, explain_output, find
from perfscope.collectors.pyspy.slices import I64, Slices
from perfscope.errors import CollectorError
from perfscope.model.stacks import StackTable
from perfscope.options import Options

OLDEST, TOO_NEW = (3, 5), (4, 0)
"""Versions known to write what is read here."""
INSTALL = "pip install 'austin-dist>=3.7,<4'"
READS = ((3, 8), (3, 13))
"""Oldest and newest CPython that austin 3.7 reads (tried: 3.7 gives no stack, 3.6 hangs it, 2.7 makes it crash)."""
UNREAD_SHARE = 0.05
"""Share of the looks that may fail before py-spy takes over: austin reads no name that isn't ASCII. It writes none, or
fails to read the stack."""
_TAIL = 64 << 10
_FEWEST = 100
_CHECK_NS = 1_000_000_000
_INTERPRETER = re.compile(r"/(?:lib)?python(\d)\.(\d+)(t?)(?:\.so|d|m|$)")
_SLACK_US = 1000
_HEAP_MB = "1"
"""Copies the frames of a thread in one read where they lie together: a stack of one moment, a third less CPU time."""
_START_MS = "300"
"""How long it waits for an interpreter that only just starts."""


@cache
def version(path: str) -> str:
    """Version of an austin. Raises CollectorError if it can't be run, or isn't one that is understood."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CollectorError(f"{path} can't be run: {error}", hint=INSTALL) from None
    match = re.search(r"austin (\d+)\.(\d+)\.(\d+)", done.stdout)
    if done.returncode != 0 or match is None:
        words = (done.stderr or done.stdout).strip()[:200] or f"status {done.returncode}"
        raise CollectorError(f"{path} --version failed: {words}", hint=INSTALL)
    found = match[0].partition(" ")[2]
    if not OLDEST <= (int(match[1]), int(match[2])) < TOO_NEW:
        raise CollectorError(f"austin {found} is none that perfscope reads (3.5 up to 4)", hint=INSTALL)
    return found


def binary() -> str:
    """Path of an austin that runs. Raises CollectorError if there is none."""
    found = find("austin")
    if found is None:
        raise CollectorError("austin is not installed", hint=INSTALL)
    version(found)
    return found


def wanted(options: Options) -> str | None:
    """Path of the austin to use for Python stacks; None where py-spy is. Raises CollectorError if it was asked for."""
    if options.python_sampler == "pyspy" or options.native or options.blocking:
        return None
    try:
        return binary()
    except CollectorError:
        if options.python_sampler == "austin":
            raise
        return None


def unreadable(pid: int) -> str | None:
    """Why austin can't read that process's interpreter, as far as the names of its files say."""
    try:
        program = os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 (a link of /proc)
    except OSError:
        return None
    for name in [*procfs.mapped_files(pid), program]:
        if (match := _INTERPRETER.search(name)) is not None:
            found = int(match[1]), int(match[2])
            if match[3] or not READS[0] <= found <= READS[1]:
                return f"austin doesn't read Python {found[0]}.{found[1]}{match[3]}"
    return None


def _compress(path: Path) -> None:
    """Leaves the file as it is where there is no space for another one."""
    packed = path.with_name(path.name + ".gz")
    try:
        with path.open("rb") as plain, gzip.open(packed, "wb", compresslevel=1) as stream:
            shutil.copyfileobj(plain, stream, 1 << 20)
        path.unlink()
    except OSError:
        packed.unlink(missing_ok=True)


class Austin(Sampler):
    """An austin at work.

    unread_share: of the stacks that it wrote lately, those that it could not read, 0..1. written_bytes: of its file.
    """

    name = "austin"
    cut_deaths = False

    def __init__(self, path: str, pid: int, rate_hz: int, output: Path) -> None:
        self._offset = boot_offset()
        self._checked_ns = 0
        self.unread_share = 0.0
        self.written_bytes = 0
        argv = [path, "--interval", str(10**6 // rate_hz), "--heap", _HEAP_MB, "--timeout", _START_MS]
        argv += ["--pid", str(pid), "--output", str(output)]
        super().__init__(argv, pid, rate_hz, output, {"AUSTIN_NO_LOGGING": "1"}, pauses=False)
        self._stamps = Stamps(self.own_pid, (self.began_ns + self._offset) // 1000)

    def _take(self, line: str, now: int) -> None:
        if self.sampling_ns is None and "Python" in line and "version" in line:
            self.sampling_ns = now

    def watch(self) -> None:
        """Reads its CPU time and the stamp of its latest look, and how many looks fail."""
        super().watch()
        now = time.monotonic_ns()
        if self.sampling_ns is not None and self.ended_ns is None:
            self._stamps.read()
            if now - self._checked_ns > _CHECK_NS:
                self._checked_ns = now
                self.unread_share = self._look_at_output()

    def interrupt(self) -> None:
        if not self.interrupted and self.sampling_ns is not None and self.ended_ns is None:
            self._stamps.read()
        super().interrupt()

    def _look_at_output(self) -> float:
        """Share of the stacks written lately that it could not read."""
        try:
            with self.output.open("rb") as file:
                self.written_bytes = os.fstat(file.fileno()).st_size
                file.seek(max(0, self.written_bytes - _TAIL))
                lines = file.read(_TAIL).split(b"\n")[1:-1]
        except OSError:
            return 0.0
        failed = sum(b":INVALID:" in line or UNNAMED in line for line in lines)
        return failed / len(lines) if len(lines) >= _FEWEST else 0.0

    @property
    def whole(self) -> bool:
        """True if its file holds a look: killed, too, it leaves all but its last moment."""
        if self.ended_ns is None:
            return False
        try:
            with self.output.open("rb") as file:
                return b"\nP" in file.read(_TAIL)
        except OSError:
            return False

    def failure(self) -> Failure:
        """Why it ended. It says of a process that it may not read that it is no Python: py-spy then knows better."""
        if self.interrupted and (self.killed in (None, signal.SIGINT)):
            return NO_TIME
        if self.killed is not None:
            return Failure(f"austin was killed by {self.killed.name}")
        words = "\n".join(self._words)
        if "Unable to create the given output file" in words:
            return Failure("its output can't be written", "choose a writable place with -o", final=True)
        if "Cannot attach to the given process" in words:
            return Failure("the process was gone before austin had attached", brief=True)
        if "not a Python" in words:
            return Failure("austin finds no Python interpreter in the process")
        known = explain_output(words)
        return known or Failure(f"austin ended with status {self._popen.returncode}")

    def read(self, stacks: StackTable) -> tuple[Slices, ClockMap | None]:
        """Its file, and where its looks lie in time. The file is compressed then: it shrinks to a fiftieth or so."""
        file = read_austin(self.output, stacks)
        _compress(self.output)
        looks = next(iter(file.looks.items()), None)
        if looks is None:
            return Slices(errors=file.invalid, lost_events=file.lost_lines), None
        pieces, clock = self._place(file, np.frombuffer(looks[1].elapsed, np.int64))
        return slices(file, looks[0], pieces, pieces[0].zero_us), clock

    def _place(self, file: AustinFile, elapsed: I64) -> tuple[list[Piece], ClockMap]:
        """Pieces of the file whose time is known, and the clock of the first."""
        stamps, offsets = self._stamps, (self._offset, boot_offset())
        earliest, latest = stamps.began_us, (self.sampling_ns or self.ended_ns or self.began_ns) // 1000
        latest = stamps.first_us or latest + self._offset // 1000
        if file.duration_us is not None and self.ended_ns is not None:
            ended = (self.ended_ns + self._offset) // 1000 - file.duration_us
            latest = min(latest, ended + _SLACK_US)
            if self.interrupted_ns is not None:
                begun = (self.interrupted_ns + self._offset) // 1000 - file.duration_us - _SLACK_US
                earliest = max(earliest, min(begun, latest))
        if (start := stamps.sampling_us) is not None and earliest < start <= latest:
            earliest, latest = max(earliest, start - _SLACK_US), start
        resolution = 10**9 // self.rate_hz
        ways = [align(elapsed, readings, earliest - STAMP_US, latest + STAMP_US) for readings in stamps.readings()]
        best = max(ways, key=lambda pieces: (sum(p.end - p.first for p in pieces), -len(pieces)), default=[])
        if best:
            method = "the stamp of austin's latest look, read in its memory again and again, and found in its file"
            return best, clock_map(best[0].zero_us, STAMP_US + 1, offsets, resolution, method)
        zero = (earliest + latest) // 2
        method = "middle of the time between austin's start, or our signal to end, and what followed; bound: half of it"
        error = (latest - earliest) // 2 + 1
        return [Piece(0, len(elapsed), zero)], clock_map(zero, error, offsets, resolution, method)

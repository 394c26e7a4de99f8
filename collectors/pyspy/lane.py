"""One process and the samplers that follow each other on it, and what was seen of its threads meanwhile."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

from perfscope import procfs
from perfscope.collectors.base import Context
from perfscope.collectors.pyspy.austin import UNREAD_SHARE, Austin, unreadable
from perfscope.collectors.pyspy.instance import Instance
from perfscope.collectors.pyspy.naming import Naming
from perfscope.collectors.pyspy.sampler import Failure, Sampler
from perfscope.procfs import Process

GIL_EVERY = 4
"""The GIL's holder is looked for at every fourth look: shares need fewer looks than stacks."""
RETRY_NS = 300_000_000
MAX_FAILURES = 5
"""Attempts in a row before a process is given up: an interpreter that only just starts needs the second or third."""
AUSTIN_TRIES = 2
"""Attempts of austin in a row before py-spy takes a process over."""
AUSTIN_ENDS = 4
"""How often austin may end by itself before py-spy takes its process over. It ends when the list of threads changes
under it in some ways: on a program that starts some hundred threads a second every few seconds."""
MAX_SOURCE = 4 << 20
"""Largest source file looked at, in bytes."""
SEGMENT_NS = 600 * 10**9
"""py-spy keeps a chrometrace in memory and writes it at its end: a new one every ten minutes bounds both its memory
and what a killed one takes along. austin writes as it goes; its files are bounded so."""
SEGMENT_BYTES = 256 << 20
"""austin writes 0.7 MB/s for twelve threads at 100 Hz: this bounds the lines of one file, and so the memory to read it,
whatever the number of threads."""


class Lane:
    """The samplers of one kind (stacks, or GIL holders) on one process, one after the other.

    austin: path of the austin that reads its stacks; None: py-spy does, because of `instead` where austin was to.
    """

    def __init__(self, context: Context, pid: int, austin: str | None = None, *, gil: bool) -> None:
        self.context = context
        self.pid = pid
        self.gil = gil
        self.current: Sampler | None = None
        self.done: list[Sampler] = []
        self.lost: list[tuple[int, int, Failure]] = []
        self.failure: Failure | None = None
        self.instead: str | None = None
        self.restarts = self._ends = 0
        self._again = False
        self._wanted = austin
        self.austin = austin
        self._choose()
        self._retiring: list[Sampler] = []
        self._failures = 0
        self._retry_ns = 0
        self._count = 0

    def instances(self) -> list[Sampler]:
        """All that were started, in that order."""
        return [*self.done, *self._retiring, *([self.current] if self.current else [])]

    @property
    def _pauses(self) -> bool:
        return not self.gil and (self.context.options.native or self.context.options.blocking)

    def start(self, rate_hz: int) -> None:
        kind = "gil.txt" if self.gil else "austin.txt" if self.austin else "chrometrace.json"
        self._count += 1
        while (output := self.context.raw / f"{self.pid}-{self._count}.{kind}").with_suffix(".log").exists():
            self._count += 1  # an earlier process had that pid
        options = self.context.options
        instance: Sampler
        if self.gil:
            rate_hz = max(1, rate_hz // GIL_EVERY)
        if self.austin:
            self.restarts += self._again
            self._again = False
            instance = Austin(self.austin, self.pid, rate_hz, output)
        else:
            instance = Instance(self.pid, rate_hz, output, gil=self.gil, native=options.native, blocking=self._pauses)
        self.context.own_pids.add(instance.own_pid)
        self.current = instance

    def replace(self, rate_hz: int) -> None:
        """Has a new sampler take over; the old one goes on until the new one samples, where both may read at once."""
        old = self.current
        if old is None:
            return
        self._retiring.append(old)
        if self._pauses:
            old.interrupt()
            old.wait(time.monotonic_ns() + 5 * 10**9)
        self.start(rate_hz)

    def program_changed(self, cut_ns: int) -> None:
        """The process has called exec: its sampler reads no stacks from the new program, which needs another."""
        if self.current is not None:
            self.current.until_ns = cut_ns
            self.current.interrupt()
            self._retiring.append(self.current)
        self.current = None
        self._failures = self._retry_ns = 0
        self._choose()

    def _choose(self) -> None:
        """Takes austin for the program that the process is now, if it was asked for and reads that interpreter."""
        why = None if self._wanted is None else unreadable(self.pid)
        self.austin = self._wanted if why is None else None
        self.instead, self._ends = why, 0

    def _without_austin(self, why: str) -> None:
        """Leaves the process to py-spy from now on."""
        self.austin, self.instead = None, why
        self._failures = self._retry_ns = 0

    def tick(self, rate_hz: int, alive: bool, now: int) -> None:
        """Looks after them: ends those replaced, starts again what died while its process lives."""
        current = self.current
        if current is not None and not current.running():
            self.current = None
            self._ended(current)
            if isinstance(current, Austin):
                self._austin_ended(current, alive, now)
            elif not current.whole:
                self.failure = current.failure()
                self._failures = self._failures + 1 if current.sampling_ns is None else 1
                self._retry_ns = now + RETRY_NS * self._failures
                if self.failure.final and current.sampling_ns is None:
                    self._failures = MAX_FAILURES
            else:
                self._retry_ns = now + RETRY_NS
        elif isinstance(current, Austin) and current.unread_share > UNREAD_SHARE:
            self._without_austin(f"austin could not read {current.unread_share * 100:.0f} % of the stacks")
            self.replace(rate_hz)
            current = self.current
        for old in list(self._retiring):
            if current is None or current.sampling_ns is not None or not current.running():
                old.interrupt()
            if not old.running():
                self._retiring.remove(old)
                self._ended(old)
        if self.current is None and alive and self._failures < MAX_FAILURES and now >= self._retry_ns:
            self._retry_ns = now + RETRY_NS
            if self._ready():
                self.start(rate_hz)
        elif current is not None and current is self.current:
            large = isinstance(current, Austin) and current.written_bytes > SEGMENT_BYTES
            if large or now - current.began_ns > SEGMENT_NS:
                self.replace(rate_hz)

    def _austin_ended(self, ended: Austin, alive: bool, now: int) -> None:
        """austin has ended by itself: at the process's end, or because it can't read it, or lost its hold on it."""
        if not alive:
            return
        if not ended.whole:
            self.failure = ended.failure()
            self._failures += 1
            self._retry_ns = now + RETRY_NS
            if self._failures >= AUSTIN_TRIES:
                self._without_austin(self.failure.why)
        else:
            self._ends += 1
            self._again = True
            self._failures = self._retry_ns = 0
            if self._ends >= AUSTIN_ENDS:
                self._without_austin(f"austin ended by itself {self._ends} times")

    def _ready(self) -> bool:
        """Whether an attempt can succeed: on a Python process, and no stopped one that would have to be paused."""
        stat = procfs.read_stat(self.pid)
        stopped = stat is not None and stat.state in "Tt" and self._pauses
        return not stopped and procfs.runtime(self.pid) == "python"

    def interrupt(self) -> None:
        for instance in self.instances():
            instance.interrupt()

    def finish(self, deadline_ns: int) -> None:
        """Waits for all that still run, and kills those that don't end."""
        for instance in [*self._retiring, *([self.current] if self.current else [])]:
            instance.wait(deadline_ns)
            self._ended(instance)
            if not instance.whole:
                self.failure = instance.failure()
        self._retiring, self.current = [], None

    def _ended(self, instance: Sampler) -> None:
        self.done.append(instance)
        if not instance.whole and instance.sampling_ns is not None and instance.ended_ns is not None:
            failure = instance.failure()
            if not failure.brief:
                self.lost.append((instance.sampling_ns, instance.ended_ns, failure))


@dataclass
class Seen:
    """A thread of the target as /proc showed it: its id as the process sees it, and when it was there."""

    inner: int
    last_ns: int
    dead: bool = False


@dataclass
class Target:
    """One Python process being watched.

    by_kernel: whether the kernel reads its stacks, not the samplers of its lanes; instead: why it doesn't, where it was
    to. came_ns: when this, or the program that it is now, was first seen.
    """

    process: Process
    lanes: list[Lane]
    naming: Naming
    started_wall: float
    same_mounts: bool
    came_ns: int
    attached: bool = False
    by_kernel: bool = False
    instead: str | None = None
    threads: dict[int, Seen] = field(default_factory=dict)
    ended_ns: int | None = None
    _image: tuple[bytes, ...] | None = None
    _looked_ns: int = 0
    _born: int | None = None

    @classmethod
    def attach(cls, context: Context, process: Process, austin: str | None = None) -> Target:
        """Notes what is only known while the process lives. Starts nothing yet."""
        uptime = time.clock_gettime(time.CLOCK_BOOTTIME) - process.start_ticks / os.sysconf("SC_CLK_TCK")
        lanes = [Lane(context, process.pid, austin, gil=False), Lane(context, process.pid, gil=True)]
        naming = Naming(context, process.pid)
        return cls(process, lanes, naming, time.time() - uptime, _same_mounts(process.pid), came_ns=time.monotonic_ns())

    def look(self, now: int, stat: procfs.Stat | None, born: int | None) -> None:
        """Notes which threads are there, and that the process became another program.

        stat: of the process, just read. born: procfs.last_born(); where nothing was born on the whole host since the
        last look, and the threads are as many, they are the same. A process that is gone says nothing about threads.
        """
        if stat is None:
            return
        if stat.image is not None:
            if self._image is not None and stat.image != self._image:
                for lane in self.lanes if not self.by_kernel else ():
                    lane.program_changed(self._looked_ns)
            self._image, self._looked_ns = stat.image, now
        present = [tid for tid, seen in self.threads.items() if not seen.dead]
        if born is None or born != self._born or procfs.thread_count(self.process.pid) != len(present):
            present = procfs.threads(self.process.pid)
            self._born = born
        if not present:
            return
        for tid in present:
            seen = self.threads.get(tid)
            if seen is None:
                ids = procfs.namespace_ids(self.process.pid, tid)
                self.threads[tid] = Seen(ids[-1] if ids else tid, now)
            else:
                seen.last_ns, seen.dead = now, False
        there = set(present)
        for tid, seen in self.threads.items():
            seen.dead = tid not in there
        # The kernel and austin know no names; py-spy calls a thread by the name of a dead one whose handle it got.
        unnamed = len(self.threads) > len(present) or self.by_kernel or self.lanes[0].austin is not None
        self.naming.tick((self.threads[tid].inner for tid in present) if unnamed else (), now)

    def source(self, name: str) -> str | None:
        """Text of a source file as this process loaded it; None if that can't be known (gone, or written since)."""
        if not name.startswith("/"):
            return None
        if not self.same_mounts and not self.process.alive():
            return None
        path = Path(name if self.same_mounts else f"/proc/{self.process.pid}/root{name}")
        try:
            # The program says what the file is: it may be a pipe or a device, which must neither block nor fill memory.
            with open(path, "rb", opener=lambda file, flags: os.open(file, flags | os.O_NONBLOCK)) as source:
                found = os.fstat(source.fileno())
                usable = stat.S_ISREG(found.st_mode) and found.st_size <= MAX_SOURCE
                if not usable or found.st_mtime > self.started_wall:
                    return None
                return (source.read(MAX_SOURCE) or b"").decode("utf-8", "replace")
        except (OSError, ValueError):
            return None


def _same_mounts(pid: int) -> bool:
    try:
        same = os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")  # noqa: PTH115 (names, not paths)
        return same and os.readlink(f"/proc/{pid}/root") == "/"  # noqa: PTH115 (a link of /proc)
    except OSError:
        return False

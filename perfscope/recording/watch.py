"""Watches the target's processes and threads through /proc: who exists, from when to when, and its CPU time.

The watcher polls; short-lived processes and threads between two looks are seen only by the kernel probes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from perfscope import procfs
from perfscope.model.session_writer import SessionWriter
from perfscope.procfs import Process, SchedStat, Stat

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_THOROUGH_EVERY, _THOROUGH_EVERY_TOLD = 10, 24
"""Scans between two readings of what changes rarely: thread names, and the maps of a process that stays native. The
second where the kernel tells of births and deaths, and the last names of the dead."""
_FEW_BORN = 50
"""Processes and threads born on the host since the last look that are looked at one by one."""
_SCAN_S, _CALM_SCAN_S = 0.1, 0.25
"""Seconds from one scan to the next, stretched so that scanning costs at most 1 % of one core. The second where the
kernel tells of births and deaths and no process was born for a while: each waking up takes a CPU from the target."""
_SCANS_COST = 100
_YOUNG_NS = 5_000_000_000
"""A native process younger than this is looked into at every scan: it may be about to load libjvm.so. Others may be
about to have children."""


class Listener(Protocol):
    """Who is told about processes."""

    def process_started(self, process: Process) -> None: ...

    def process_ended(self, pid: int) -> None: ...

    def followed(self) -> Iterable[int]:
        """Processes known to be the target's by other means than /proc, where a daemon's parent is soon gone."""


@dataclass
class _Thread:
    start_ns: int
    end_ns: int
    first: SchedStat | None
    last: SchedStat | None
    name: str | None
    last_word: bool = False
    """It had ended at the last look, a zombie, with all its CPU time on it."""


@dataclass
class _Seen:
    process: Process
    exe: str | None
    ppid: int | None
    name: str
    command: str
    start_ns: int
    end_ns: int | None = None
    tids: list[int] = field(default_factory=list)
    """Its threads at the last look at each."""
    all_there_ns: int = 0
    """When all of these were last known to live."""


def _born_ns(start_ticks: int, now_ns: int) -> int:
    """Earliest moment on CLOCK_MONOTONIC that a start time in ticks since boot allows."""
    suspended = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return min(start_ticks * _TICK_NS - suspended, now_ns)


def _exe(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 (hot)
    except OSError:
        return None


class Watcher:
    """Follows the given processes and all their descendants, also those that outlive their parent."""

    def __init__(self, roots: Iterable[int], listener: Listener, own_pids: set[int]) -> None:
        self.roots = set(roots)
        self.listener = listener
        self.own_pids = own_pids
        self._scan_cost_ns = 0
        self._live: dict[int, _Seen] = {}
        self._gone: list[_Seen] = []
        self._threads: dict[tuple[int, int, int], _Thread] = {}
        self._scans = 0
        self._last_scan_ns = 0
        self._last_born: int | None = None
        self._told = False

    @property
    def live(self) -> list[int]:
        """Pids that existed at the last look."""
        return list(self._live)

    @property
    def live_roots(self) -> list[int]:
        return [pid for pid in self._live if pid in self.roots]

    @property
    def thread_count(self) -> int:
        """Threads seen so far."""
        return len(self._threads)

    @property
    def wait_s(self) -> float:
        """Seconds until the next scan."""
        calm = self._told and not any(self._last_scan_ns - s.start_ns < _YOUNG_NS for s in self._live.values())
        return max(_CALM_SCAN_S if calm else _SCAN_S, self._scan_cost_ns * _SCANS_COST / 1e9)

    def scan(self, *, last: bool = False) -> None:
        """One look at everything. `last`: also reads what is otherwise read now and then (names)."""
        began, spent = time.monotonic_ns(), time.thread_time_ns()
        every = _THOROUGH_EVERY_TOLD if self._told else _THOROUGH_EVERY
        thorough = last or self._scans % every == 0
        fresh = self._born_since(procfs.last_born())
        quiet = not thorough and fresh is not None and not fresh
        found = self._walk() if thorough or fresh is None else self._still_there(fresh)
        for pid in [p for p in self._live if p not in found]:
            self._end(pid, began)
        for pid, stat in found.items():
            self._look(pid, stat, thorough, quiet, last)
        self._scans += 1
        self._last_scan_ns = began
        self._scan_cost_ns = time.thread_time_ns() - spent

    def write(self, writer: SessionWriter) -> None:
        """Says to the session all that was seen."""
        for seen in [*self._gone, *self._live.values()]:
            writer.note_process(
                seen.process.pid,
                ppid=seen.ppid,
                name=seen.name,
                command=seen.command or None,
                runtime=seen.process.runtime,
                start_ns=seen.start_ns,
                end_ns=seen.end_ns,
            )
        for (pid, _, tid), thread in self._threads.items():
            # What a thread that is gone had used at the last look at it isn't what it used in the end.
            spent = _difference(thread) if thread.last_word or thread.end_ns >= self._last_scan_ns else None
            writer.note_thread(
                pid,
                tid,
                name=thread.name,
                start_ns=thread.start_ns,
                end_ns=thread.end_ns,
                cpu_ns=spent.cpu_ns if spent else None,
                runnable_ns=spent.runnable_ns if spent else None,
            )

    def _walk(self) -> dict[int, Stat]:
        # Known processes stay roots: a daemon's parent is gone.
        found: dict[int, Stat] = {}
        followed = list(self.listener.followed())
        self._told = bool(followed)
        queue = [*self.roots, *self._live, *followed]
        while queue:
            pid = queue.pop()
            if pid in found or pid in self.own_pids:
                continue
            if (stat := procfs.read_stat(pid)) is None:
                continue
            if stat.ended and pid not in self._live:
                continue
            found[pid] = stat
            queue += procfs.children(pid)
        return found

    def _born_since(self, born: int | None) -> range | None:
        """Ids given to processes and threads of the whole host since the last look; None if too many, or unknown."""
        before, self._last_born = self._last_born, born
        if born is None or before is None or not 0 <= born - before <= _FEW_BORN:
            return None
        return range(before + 1, born + 1)

    def _still_there(self, fresh: range) -> dict[int, Stat]:
        """What walking the trees would find, by the ids that are new: cheaper than asking all threads."""
        found = {pid: stat for pid in self._live if (stat := procfs.read_stat(pid)) is not None}
        followed = set(self.listener.followed()) if fresh else set()
        for pid in fresh:
            if pid in found or pid in self.own_pids or (stat := procfs.read_stat(pid)) is None:
                continue
            if (pid in followed or stat.ppid in found) and not stat.ended and procfs.is_leader(pid):
                found[pid] = stat
        return found

    def _look(self, pid: int, stat: Stat, thorough: bool, quiet: bool, last: bool) -> None:
        seen = self._live.get(pid)
        now = time.monotonic_ns()
        if seen and seen.process.start_ticks != stat.start_ticks:
            self._end(pid, now)
            seen = None
        if seen is None:
            process = procfs.process(pid)
            if process is None or stat.ended:
                return
            start = now if self._scans == 0 else max(_born_ns(stat.start_ticks, now), self._last_scan_ns)
            seen = self._live[pid] = _Seen(
                process,
                _exe(pid),
                stat.ppid,
                procfs.comm(pid) or "?",
                " ".join(procfs.command(pid)),
                start,
            )
            self.listener.process_started(process)
        elif not stat.ended:
            self._refresh(seen, thorough, now)
        ended = stat.ended  # it has exited, whether or not its parent cares; a zombie still had its CPU time
        if not quiet or ended or procfs.thread_count(pid) != len(seen.tids):
            self._look_at_threads(seen, thorough, last or ended)
        else:
            seen.all_there_ns = now
        if ended and (leader := self._threads.get((pid, seen.process.start_ticks, pid))):
            leader.last_word = True
        if ended:
            self._end(pid, now)

    def _refresh(self, seen: _Seen, thorough: bool, now: int) -> None:
        pid = seen.process.pid
        exe = _exe(pid)
        undecided = seen.process.runtime == "native" and (thorough or now - seen.start_ns < _YOUNG_NS)
        if exe == seen.exe and not undecided:
            return
        process = procfs.process(pid)
        if process is None or exe is None:
            return
        if exe != seen.exe:
            seen.exe = exe
            seen.name = procfs.comm(pid) or seen.name
            seen.command = " ".join(procfs.command(pid)) or seen.command
        if process.runtime != seen.process.runtime:
            seen.process = process
            self.listener.process_started(process)

    def _look_at_threads(self, seen: _Seen, thorough: bool, last: bool) -> None:
        """CPU times are read where they may count: at a thread's first look and at a last one."""
        pid = seen.process.pid
        tids = procfs.threads(pid)
        self._were_there(seen)
        seen.tids, seen.all_there_ns = tids, time.monotonic_ns()
        for tid in tids:
            key = (pid, seen.process.start_ticks, tid)
            thread = self._threads.get(key)
            now = time.monotonic_ns()
            stat = procfs.schedstat(pid, tid) if thread is None or last else None
            if thread is None:
                born, first = now, stat
                if self._scans and (own := procfs.read_stat(pid, tid)):
                    # Born since the last look: all its CPU time belongs to the recording.
                    born = max(_born_ns(own.start_ticks, now), self._last_scan_ns)
                    first = SchedStat(0, 0, 0)
                self._threads[key] = _Thread(born, now, first, stat, procfs.comm(pid, tid))
                continue
            if last and stat is None:
                continue  # gone just now
            thread.end_ns, thread.last = now, stat or thread.last
            if thorough:
                thread.name = procfs.comm(pid, tid) or thread.name

    def _were_there(self, seen: _Seen) -> None:
        """Its threads of the last look lived on as long as none was born and as many were there."""
        for tid in seen.tids:
            if thread := self._threads.get((seen.process.pid, seen.process.start_ticks, tid)):
                thread.end_ns = max(thread.end_ns, seen.all_there_ns)

    def _end(self, pid: int, now: int) -> None:
        seen = self._live.pop(pid)
        self._were_there(seen)
        self.roots.discard(pid)  # a later process with its pid is a stranger
        seen.end_ns = now
        self._gone.append(seen)
        self.listener.process_ended(pid)


def _difference(thread: _Thread) -> SchedStat | None:
    first, last = thread.first, thread.last
    if first is None or last is None:
        return None
    return SchedStat(last.cpu_ns - first.cpu_ns, last.runnable_ns - first.runnable_ns, last.slices - first.slices)

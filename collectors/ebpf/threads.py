"""Which threads were recorded, from when to when: /proc at the start and at the end, the kernel's events between."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from perfscope import procfs
from perfscope.collectors.ebpf import records
from perfscope.collectors.ebpf.backend import Thread
from perfscope.collectors.ebpf.records import ALIVE, DEATH, EXEC, FORK, Records

FUTEX_SYSCALLS = ("202", "98")


@dataclass
class Life:
    """One thread's observed time. Where a thread id is used again there are several.

    start_ns: when it was first followed, or born. end_ns: last time off the CPU; None while alive.
    known: born under observation, so that its first event isn't the first sign of it.
    cpu_ns, runnable_ns: by /proc/PID/task/TID/schedstat, over the observed time.
    never: it had no scheduler event at all. complete: every interval off the CPU was recorded.
    """

    tgid: int
    tid: int
    start_ns: int
    end_ns: int | None = None
    name: str | None = None
    born: bool = False
    state: int = records.UNKNOWN
    before: procfs.SchedStat | None = None
    cpu_ns: int | None = None
    runnable_ns: int | None = None
    never: bool = False
    complete: bool = True


@dataclass
class Lives:
    """All threads of the recording. parents: tgid -> tgid that forked it; images: (time, tgid, name) of each exec."""

    lives: list[Life] = field(default_factory=list)
    parents: dict[int, int] = field(default_factory=dict)
    images: list[tuple[int, int, str]] = field(default_factory=list)
    lost: bool = False

    def of(self) -> dict[tuple[int, int], list[Life]]:
        """(tgid, tid) -> its lives, in time order."""
        found: dict[tuple[int, int], list[Life]] = defaultdict(list)
        for life in self.lives:
            found[life.tgid, life.tid].append(life)
        return found


def snapshot(tgid: int, tid: int) -> Thread | None:
    """A thread as /proc shows it now; None if it is gone."""
    stat = procfs.read_stat(tgid, tid)
    if stat is None or stat.state in "ZX":
        return None
    return Thread(tgid, tid, records.STATE_OF_STAT.get(stat.state, records.UNKNOWN), _futex_of(tgid, tid))


def _futex_of(tgid: int, tid: int) -> tuple[int, int] | None:
    """(op, address) of the futex(2) wait the thread is in, if it is in one and /proc tells."""
    try:
        fields = Path(f"/proc/{tgid}/task/{tid}/syscall").read_text().split()
    except OSError:
        return None
    if len(fields) < 5 or fields[0] not in FUTEX_SYSCALLS:
        return None
    op, timeout = int(fields[2], 16), int(fields[4], 16)
    if op & 0x7F not in records.WAIT_COMMANDS:
        return None
    return (op & 0xFFFF) | (records.OP_TIMED if timeout else 0), int(fields[1], 16)


def build(initial: list[Life], tasks: Records, final: dict[int, procfs.SchedStat | None], stop_ns: int) -> Lives:
    """Lives from the threads followed by hand, the FORK, EXEC, DEATH and ALIVE records, and schedstat at the end.

    A thread that neither died nor was alive at the end lost its DEATH record: its life is not complete.
    """
    result = Lives(list(initial))
    current = {life.tid: life for life in initial}
    alive: set[int] = set()
    for record in tasks[np.argsort(tasks["time"], kind="stable")]:
        kind, tid, tgid, time_ns = (int(record[name]) for name in ("kind", "tid", "tgid", "time"))
        life = current.get(tid)
        if kind == FORK:
            life = current[tid] = Life(tgid, tid, time_ns, name=records.name_of(record), born=True)
            result.lives.append(life)
            if tgid == tid:
                result.parents[tgid] = int(record["other"])
        elif kind == EXEC:
            result.images.append((time_ns, tgid, records.name_of(record)))
            before = current.get(int(record["other"]))
            if before is not None and before.tid != tid:
                before.end_ns = time_ns
                life = current[tid] = Life(tgid, tid, time_ns, born=True)
                result.lives.append(life)
            if life is not None:
                life.name = records.name_of(record)
        elif kind == DEATH and life is not None:
            life.end_ns = time_ns
            life.name = records.name_of(record) or life.name
            life.complete = life.complete and record["value"] == 0
        elif kind == ALIVE:
            alive.add(tid)
            if life is not None and life.end_ns is None:
                life.complete = life.complete and record["extra"] == 0
                life.never = not record["cpu"]
    for tid, life in current.items():
        if life.end_ns is None:
            if tid not in alive:
                life.complete = False
            _account(life, final.get(tid), stop_ns)
    return result


def _account(life: Life, now: procfs.SchedStat | None, stop_ns: int) -> None:
    if now is None:
        return
    if life.before is not None:
        life.cpu_ns = now.cpu_ns - life.before.cpu_ns
        life.runnable_ns = now.runnable_ns - life.before.runnable_ns
    elif life.born:
        life.cpu_ns, life.runnable_ns = now.cpu_ns, now.runnable_ns
    # No event: it slept, or ran, all the time. Its CPU time tells which; a mixture means that something was missed.
    if life.never and (life.cpu_ns is None or 0 < life.cpu_ns < 0.9 * (stop_ns - life.start_ns)):
        life.complete = False

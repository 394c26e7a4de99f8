"""What /proc says about a process. Every reader returns None or nothing for a process that is gone: they do that."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Literal, NamedTuple

Runtime = Literal["python", "java", "native"]


@dataclass(frozen=True)
class Process:
    """A process, told apart from a later one with the same pid by its start time.

    pid: in our pid namespace. start_ticks: field 22 of /proc/PID/stat, clock ticks since boot.
    ns_pid: its pid as it sees itself (another number inside a container).
    """

    pid: int
    start_ticks: int
    ns_pid: int
    runtime: Runtime

    def alive(self) -> bool:
        """True if this very process (not a successor with its pid) exists and is no zombie."""
        return self.lives(read_stat(self.pid))

    def lives(self, stat: Stat | None) -> bool:
        """The same, by a reading of its stat."""
        return stat is not None and stat.start_ticks == self.start_ticks and not stat.ended


class Stat(NamedTuple):
    """Some fields of /proc/PID/stat. CPU times in clock ticks (os.sysconf("SC_CLK_TCK") a second).

    image: addresses of code, stack and arguments, random for each exec(2); None where they can't be read.
    """

    state: str
    ppid: int
    user_ticks: int
    system_ticks: int
    start_ticks: int
    threads: int
    image: tuple[bytes, ...] | None

    @property
    def ended(self) -> bool:
        """True for a zombie, but not for a process whose first thread has ended before others."""
        return self.state in "ZX" and self.threads < 2


class SchedStat(NamedTuple):
    """/proc/PID/task/TID/schedstat: ns on a CPU, ns runnable without one, number of times on a CPU."""

    cpu_ns: int
    runnable_ns: int
    slices: int


_PART = 16 << 10


def _read(path: str) -> bytes | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # four calls where Path takes nine, in what runs all the time
    except OSError:
        return None
    try:
        parts = []
        while part := os.read(file, _PART):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(file)


def read_stat(pid: int, tid: int | None = None) -> Stat | None:
    """Stat of a process, or of one of its threads."""
    data = _read(f"/proc/{pid}/stat" if tid is None else f"/proc/{pid}/task/{tid}/stat")
    if not data:
        return None
    fields = data[data.rindex(b")") + 2 :].split()  # the name before it may hold spaces and parentheses
    image = (fields[23], fields[25], fields[45])
    known = image if any(address not in (b"0", b"1") for address in image) else None
    state, ppid, user, system, threads, start = (fields[n] for n in (0, 1, 11, 12, 17, 19))
    return Stat(state.decode(), int(ppid), int(user), int(system), int(start), int(threads), known)


def schedstat(pid: int, tid: int | None = None) -> SchedStat | None:
    """Scheduler's own accounting of a thread (of the main thread alone when tid is None)."""
    data = _read(f"/proc/{pid}/task/{tid or pid}/schedstat")
    if not data:
        return None
    cpu, runnable, slices = data.split()[:3]
    return SchedStat(int(cpu), int(runnable), int(slices))


def cpu_ns(pid: int) -> int | None:
    """CPU time of a process and all its threads, in ns, by its clock: one call where /proc takes three a thread.

    The clock's number is made as clock_getcpuclockid(3) does.
    """
    try:
        return time.clock_gettime_ns(~pid << 3 | 2)
    except OSError:
        return None


def threads(pid: int) -> list[int]:
    """Kernel thread ids of a process, ascending; empty if it is gone."""
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208 (10x faster, hot)
    except OSError:
        return []


def thread_count(pid: int) -> int:
    """Threads of a process; 0 if it is gone. Cheaper than listing them."""
    try:
        return os.stat(f"/proc/{pid}/task").st_nlink - 2  # noqa: PTH116 (hot)
    except OSError:
        return 0


def last_born() -> int | None:
    """The id that the last process or thread born on this host (in our pid namespace) got; None if /proc hides it."""
    fields = (_read("/proc/loadavg") or b"").split()
    return int(fields[4]) if len(fields) == 5 else None


def is_leader(tid: int) -> bool:
    """True if that is a process, or its first thread: /proc/TID is there for every other thread, too, unlisted."""
    data = _read(f"/proc/{tid}/status") or b""
    return any(line == b"Tgid:\t%d" % tid for line in data.splitlines())


def children(pid: int) -> list[int]:
    """Direct children of all threads of a process."""
    found: list[int] = []
    for tid in threads(pid):
        data = _read(f"/proc/{pid}/task/{tid}/children")
        if data:
            found += map(int, data.split())
    return found


def tree(roots: list[int]) -> list[int]:
    """The given processes that exist, and all their descendants, parents first."""
    found: list[int] = []
    queue = [pid for pid in roots if os.path.isdir(f"/proc/{pid}")]  # noqa: PTH112 (hot)
    while queue:
        pid = queue.pop(0)
        if pid not in found:
            found.append(pid)
            queue += children(pid)
    return found


def comm(pid: int, tid: int | None = None) -> str | None:
    """Kernel's name of a process or thread, at most 15 bytes."""
    data = _read(f"/proc/{pid}/comm" if tid is None else f"/proc/{pid}/task/{tid}/comm")
    return None if data is None else data.rstrip(b"\n").decode(errors="replace")


def command(pid: int) -> list[str]:
    """Command line; empty for a kernel thread, a zombie or a process that is gone."""
    data = _read(f"/proc/{pid}/cmdline") or b""
    return [part.decode(errors="replace") for part in data.rstrip(b"\0").split(b"\0")] if data else []


def namespace_ids(pid: int, tid: int | None = None) -> list[int]:
    """The id in each pid namespace from ours inwards (NSpid); the last is what the process sees itself."""
    data = _read(f"/proc/{pid}/status" if tid is None else f"/proc/{pid}/task/{tid}/status") or b""
    for line in data.splitlines():
        if line.startswith(b"NSpid:"):
            return [int(part) for part in line.split()[1:]]
    return []


_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel (include/linux/proc_ns.h)."""


def in_first_pid_namespace() -> bool:
    """True if our process ids are those of the host's first pid namespace."""
    try:
        return os.readlink("/proc/self/ns/pid") == _FIRST_PID_NAMESPACE  # noqa: PTH115 (no path)
    except OSError:
        return False


def inner_to_host_tids(pid: int) -> dict[int, int]:
    """Thread ids as the process sees them -> as we see them; the identity outside containers."""
    return {ids[-1]: tid for tid in threads(pid) if (ids := namespace_ids(pid, tid))}


def mapped_files(pid: int) -> list[str]:
    """Paths of the files mapped into a process, each once, in address order."""
    data = _read(f"/proc/{pid}/maps") or b""
    seen: dict[str, None] = {}
    for line in data.splitlines():
        parts = line.split(None, 5)
        if len(parts) == 6 and parts[5].startswith(b"/"):
            seen.setdefault(parts[5].decode(errors="replace"))
    return list(seen)


def runtime(pid: int) -> Runtime:
    """java if libjvm.so is mapped; python if libpython or a python executable is; else native (or not yet known)."""
    names = [path.rsplit("/", 1)[-1] for path in mapped_files(pid)]
    if "libjvm.so" in names:
        return "java"
    if any(name.startswith(("libpython3", "python3", "pypy3")) or name == "python" for name in names):
        return "python"
    return "native"


def has_capability(number: int) -> bool:
    """True if this very process may use that capability (numbers: capabilities(7), linux/capability.h)."""
    for line in (_read("/proc/self/status") or b"").splitlines():
        if line.startswith(b"CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


def process(pid: int) -> Process | None:
    """The process with that pid, or None if there is none (any more)."""
    stat = read_stat(pid)
    if stat is None:
        return None
    ids = namespace_ids(pid)
    return Process(pid, stat.start_ticks, ids[-1] if ids else pid, runtime(pid))

"""Python stacks read by the kernel where they run: probes/bpf/python.bpf.c at work on the processes of a recording.

Nothing is woken for a look, so that it costs the target some microseconds: there is one at each tick of a timer on each
CPU, of the thread that runs there, and one where a thread is back on a CPU, of the stack it had while it was off.
"""

from __future__ import annotations

import ctypes as c
import mmap
import os
import platform
import re
import struct
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from perfscope import probes, procfs
from perfscope.clock import ClockMap
from perfscope.collectors.ebpf import libbpf, privilege
from perfscope.collectors.ebpf.backend_libbpf import kernel_has
from perfscope.collectors.ebpf.perfring import online_cpus, open_timer
from perfscope.collectors.ebpf.ring import drain_last, open_ring
from perfscope.collectors.pyspy import interpreter, remote
from perfscope.collectors.pyspy.interpreter import PROCESS_BYTES, Interpreter
from perfscope.collectors.pyspy.kernelfile import LOOK
from perfscope.collectors.pyspy.remote import Asleep
from perfscope.errors import CollectorError

_PROGRAMS = ("on_exit", "on_fork", "on_exec")
_RETURN = "sched_exit_tp"
"""The tracepoint in a thread that is back on a CPU. Since Linux 6.16; before that a function is probed there."""
_FUNCTION = re.compile(rb"[0-9a-f]+ [tT] (finish_task_switch(?:\.isra\.\d+|\.constprop\.\d+)*)$", re.M)
_PROBES = Path("/sys/bus/event_source/devices/kprobe/type")
RING_BYTES = 16 << 20
CLOCK = ClockMap(
    domain="monotonic",
    offset_ns=0,
    error_ns=100_000,
    method="stamped on CLOCK_MONOTONIC in the timer's interrupt, just after it has stopped the thread",
)
"""Until its handler reads the clock an interrupt takes 15 to 20 us on a virtual machine (`perfscope doctor --clock`). A
stamp can't be early, and that of a thread back on a CPU is exact. Since when it was off is no stamp: it seems earlier
by what interrupts and the hypervisor took of its run."""
PERHAPS = 4096
"""Size of `perhaps` in python.bpf.c, which is all of the object's .bss."""
_THREAD = struct.Struct("<5Q6I")  # struct thread of python.bpf.c


def unavailable() -> tuple[str, str] | None:
    """Why this can't run here and what mends it; None where it can, as far as can be told without trying."""
    try:
        privilege.require_bpf()
        libbpf.library()
        if not _scheduler_counts():
            return "the kernel doesn't count how often a thread runs", "a kernel with CONFIG_SCHED_INFO=y"
        if not kernel_has(_RETURN) and _return_function() is None:
            why = f"the kernel has no tracepoint {_RETURN}, nor can its functions be probed"
            return why, "Linux 6.16 or newer, or CONFIG_KPROBES"
    except CollectorError as error:
        return str(error), error.hint or ""
    if platform.machine() not in ("x86_64", "aarch64"):
        return f"not made for {platform.machine()}", ""
    if not procfs.in_first_pid_namespace():
        return "perfscope runs with process ids of its own (a container's)", "docker run --pid host"
    return None


def _scheduler_counts() -> bool:
    own = procfs.schedstat(os.getpid())
    return own is not None and own.slices > 0


def _return_function() -> str | None:
    """This kernel's name of what it calls in a thread that is back on a CPU; None if that can't be probed."""
    if not _PROBES.exists():
        return None
    found = _FUNCTION.search(Path("/proc/kallsyms").read_bytes())
    return found[1].decode() if found else None


class _Words:
    """What is told of code objects and stacks: records of all sizes, few of them, each through a call from libbpf."""

    _CALLBACK = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.c_size_t)

    def __init__(self, map_fd: int, path: Path) -> None:
        self._file = path.open("ab")
        self._error: OSError | None = None
        self._callback = self._CALLBACK(self._take)  # kept alive: the library calls it
        self._ring = libbpf.library().ring_buffer__new(map_fd, self._callback, None, None)
        if not self._ring:
            raise CollectorError(f"ring_buffer__new: {os.strerror(c.get_errno())}")

    def _take(self, _: int, data: int, size: int) -> int:
        try:
            self._file.write(c.string_at(data, size))
        except OSError as error:
            self._error = error
            return -1
        return 0

    def drain(self) -> bool:
        """Raises OSError if it can't be written (disk full)."""
        taken = libbpf.library().ring_buffer__consume(self._ring)
        if self._error is None and taken:
            self._file.flush()
        if self._error is not None:
            raise self._error
        return bool(taken == 0)

    def close(self) -> None:
        libbpf.library().ring_buffer__free(self._ring)
        try:
            self._file.close()
        except OSError:
            if self._error is None:
                raise


@dataclass
class Followed:
    """A process whose stacks the kernel reads, or read, from since_ns on. asleep: its threads that slept at the end."""

    interpreter: Interpreter
    since_ns: int
    asleep: list[Asleep] = field(default_factory=list)


class Kernel:
    """The programs, loaded and attached. followed: by pid, in the order of time where a pid had several programs.

    Once they are stopped, lost: looks, and words about code and stacks, that found no room; skipped: runs of a program
    that the kernel left out; looks: how many there were; spent_ns: CPU time that they took, in the threads they were
    of.
    """

    def __init__(self, directory: Path, rate_hz: int) -> None:
        """Raises CollectorError if they can't run here."""
        if (why := unavailable()) is not None:
            raise CollectorError(why[0], hint=why[1] or None)
        self.directory = directory
        # A little off the rate that was asked for: a program's own timers mostly have round periods.
        self.period_ns = 10**9 // rate_hz + 10**9 // rate_hz // 99
        self.followed: dict[int, list[Followed]] = {}
        self.lost, self.skipped, self.spent_ns, self.looks = (0, 0), 0, 0, 0
        function = None if kernel_has(_RETURN) else _return_function()
        back = "on_return" if function is None else "on_return_probe"
        self._object = libbpf.Object(probes.path("bpf", "python.bpf.o"), ("on_tick", back, *_PROGRAMS))
        try:
            self._processes = self._object.map("processes", 4, PROCESS_BYTES)
            self._perhaps = mmap.mmap(self._object.map(".bss").fd, PERHAPS)
            self._threads = self._object.map("threads", 4, _THREAD.size)
            self._looks = open_ring(self._object.map("looks").fd, RING_BYTES, LOOK.itemsize, directory / "looks.bin")
            self._words = _Words(self._object.map("words").fd, directory / "words.bin")
            for cpu in online_cpus():
                self._object.attach_event("on_tick", open_timer(cpu, self.period_ns))
            if function is not None:
                self._object.attach_function(back, function)
            for program in _PROGRAMS if function is not None else (back, *_PROGRAMS):
                self._object.attach(program)
        except CollectorError:
            self._object.close()
            raise

    def follow(self, pid: int) -> None:
        """Has its stacks read from now on. Raises Unreadable."""
        found = interpreter.find(pid)
        key = struct.pack("<I", pid)
        self._perhaps[pid % PERHAPS] = 1
        if not self._processes.add(key, found.packed(self.period_ns)) and pid in self.followed:
            return
        self.followed.setdefault(pid, []).append(Followed(found, time.monotonic_ns()))
        for inner, tid in procfs.inner_to_host_tids(pid).items():
            if (ran := procfs.schedstat(pid, tid)) is not None:
                seen = _THREAD.pack(time.monotonic_ns(), ran.cpu_ns, 0, 0, 0, ran.slices, 0, 0, inner, 0, 0)
                self._threads.add(struct.pack("<I", tid), seen)

    def follows(self, pid: int) -> bool:
        """False from the moment that it calls exec on: what it is then must be followed anew."""
        return self._processes.get(struct.pack("<I", pid)) is not None

    def drain(self) -> None:
        """Moves what was seen into files. Raises OSError (disk full)."""
        self._looks.drain()
        self._words.drain()

    def stop(self) -> None:
        """Looks at the threads that sleep on, then detaches. Raises OSError (disk full)."""
        for pid, programs in self.followed.items():
            if self.follows(pid):
                programs[-1].asleep = remote.asleep(
                    programs[-1].interpreter, procfs.inner_to_host_tids(pid), partial(self._off_since, pid)
                )
        self._object.detach()
        try:
            drain_last([self._looks, self._words])
        finally:
            self.lost, self.spent_ns, self.looks = self._counts()
            self.skipped = self._object.missed_runs()
            self._looks.close()
            self._words.close()
            self._perhaps.close()
            self._object.close()

    def _counts(self) -> tuple[tuple[int, int], int, int]:
        looks, words, spent_ns, count = (self._object.counter(index, "counters") for index in range(4))
        return (looks, words), spent_ns, count

    def _off_since(self, pid: int, tid: int) -> int | None:
        """When that thread left the CPU; None if that isn't known, or if it runs or is about to."""
        entry, stat = self._threads.get(struct.pack("<I", tid)), procfs.read_stat(pid, tid)
        ran = procfs.schedstat(pid, tid)
        if entry is None or stat is None or ran is None or stat.state == "R":
            return None
        on, before, _, _, _, runs, *_ = _THREAD.unpack(entry)
        if ran.slices != runs:
            return None
        waited = 0 if before else ran.runnable_ns  # born then, it had to wait first
        return int(on + ran.cpu_ns - before + waited)

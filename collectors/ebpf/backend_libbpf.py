"""Backend 1: the shipped CO-RE object, through libbpf. Needs the kernel's BTF; neither tracefs nor headers."""

from __future__ import annotations

import platform
import struct
import time
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np

from perfscope import probes
from perfscope.collectors.ebpf import libbpf, privilege
from perfscope.collectors.ebpf.backend import Backend, Losses, Thread
from perfscope.collectors.ebpf.records import ALIVE, BLOCK, EVENT, WAIT
from perfscope.collectors.ebpf.ring import drain_last, open_ring, write_all
from perfscope.errors import CollectorError

BTF = Path("/sys/kernel/btf/vmlinux")
THREAD = struct.Struct("<QQQQQIIIIIIII")  # struct thread of perfscope.bpf.c
FUTEX_NUMBER = {"x86_64": 202, "aarch64": 98}
WAITS = 0x40000000
COMMON = (
    "on_switch",
    "on_waking",
    "on_wakeup",
    "on_wakeup_new",
    "on_fork",
    "on_exec",
    "on_issue",
    "on_complete",
)


@cache
def kernel_has(tracepoint: str) -> bool:
    """True if the kernel's BTF describes that tracepoint. Raises CollectorError without BTF."""
    try:
        return b"\0btf_trace_" + tracepoint.encode() + b"\0" in BTF.read_bytes()
    except OSError as error:
        raise CollectorError(
            f"the kernel describes no types ({BTF}: {error.strerror})", hint="a kernel with CONFIG_DEBUG_INFO_BTF=y"
        ) from None


_MOST_LIVING = 50_000
CALM_DRAIN_S, QUICK_DRAIN_S = 0.5, 0.05
FILLED = 1 / 16
"""The share of a buffer that is to be filled from one drain to the next, within these times. Each waking up takes a CPU
from the target, and the caches. From calm it takes a million switches a second, or 300,000 block requests, to overrun
them."""


def until_next_drain_s(filled: float, seconds: float) -> float:
    """Time until a buffer of which `filled` (0 to 1) was filled within `seconds` is to be drained again."""
    return max(QUICK_DRAIN_S, min(CALM_DRAIN_S, FILLED * seconds / filled if filled else CALM_DRAIN_S))


class LibbpfBackend(Backend):
    name = "libbpf"
    paired = True
    drain_s = CALM_DRAIN_S

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        machine = platform.machine()
        if machine not in FUTEX_NUMBER:
            raise CollectorError(f"no system call numbers known for {machine}")
        privilege.require_bpf()
        first = "on_io_start" if kernel_has("block_io_start") else "on_getrq"
        programs = (*COMMON, first)
        self._object = self._load(programs, FUTEX_NUMBER[machine])
        try:
            self._threads = self._object.map("threads", 4, THREAD.size)
            self._requests = self._object.map("requests", 8, BLOCK.itemsize)
            self._rings = [
                open_ring(self._object.map("events").fd, 32 << 20, EVENT.itemsize, directory / "events.bin"),
                open_ring(self._object.map("blocks").fd, 16 << 20, BLOCK.itemsize, directory / "blocks.bin"),
            ]
            for program in programs:
                self._object.attach(program)
        except CollectorError:
            self._object.close()
            raise
        self._losses: Losses | None = None
        self._drained_s = time.monotonic()

    @staticmethod
    def _load(programs: tuple[str, ...], futex: int) -> libbpf.Object:
        path = probes.path("bpf", "perfscope.bpf.o")
        try:
            return libbpf.Object(path, programs, struct.pack("<II", futex, 1))
        except CollectorError:  # before 5.18, sched_switch has an argument less
            return libbpf.Object(path, programs, struct.pack("<II", futex, 0))

    @property
    def version(self) -> str:
        return f"libbpf {libbpf.version()}"

    def follow(self, thread: Thread) -> bool:
        op, address = (thread.wait[0] | WAITS, thread.wait[1]) if thread.wait else (0, 0)
        wake = time.monotonic_ns() if thread.state == 0 else 0
        entry = THREAD.pack(0, wake, 0, 0, address, thread.tgid, thread.state, 0, op, 0, 0, 0, 0)
        return self._threads.add(struct.pack("<I", thread.tid), entry)

    def forget(self, tid: int) -> None:
        self._threads.delete(struct.pack("<I", tid))

    def followed(self) -> list[tuple[int, int]]:
        return [(THREAD.unpack(value)[5], int.from_bytes(key, "little")) for key, value in self._threads.items()]

    def living(self) -> set[int]:
        # Bounded: a walk begins anew where the thread that it has come to ends meanwhile.
        return {THREAD.unpack(value)[5] for _, value in islice(self._threads.items(), _MOST_LIVING)}

    def drain(self) -> None:
        for ring in self._rings:
            ring.drain()
        before, self._drained_s = self._drained_s, time.monotonic()
        self.drain_s = until_next_drain_s(max(ring.filled for ring in self._rings), self._drained_s - before)

    def stop(self) -> None:
        if self._losses is not None:
            return
        self._object.detach()
        try:
            drain_last(self._rings)
            self._write_open()
        finally:
            o = self._object
            self._losses = self._count()
            for ring in self._rings:
                ring.close()
            o.close()

    def _write_open(self) -> None:
        events = []
        for key, value in self._threads.items():
            off, wake, _, _, address, tgid, state, waker, op, _, lost, seen, _ = THREAD.unpack(value)
            tid = int.from_bytes(key, "little")
            events.append((0, off, wake, tgid, tid, waker, state, lost, seen, ALIVE, 0))
            if op:
                events.append((0, off, address, tgid, tid, 0, 0, op & ~WAITS, 0, WAIT, 0))
        with (self.directory / "events.bin").open("ab", buffering=0) as file:
            write_all(file.fileno(), np.array(events, EVENT).view(np.uint8))
        requests = b"".join(value for _, value in self._requests.items())
        with (self.directory / "blocks.bin").open("ab", buffering=0) as file:
            write_all(file.fileno(), np.frombuffer(requests, np.uint8))

    def losses(self) -> Losses:
        return self._losses if self._losses is not None else self._count()

    def _count(self) -> Losses:
        o = self._object
        return Losses(o.counter(0), o.counter(1), o.counter(2), missed=o.missed_runs(), restored=o.counter(3))

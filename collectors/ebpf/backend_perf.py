"""Backend 3: tracepoints through perf_event_open(2), in Python alone. Needs tracefs and CAP_PERFMON; no BPF.

Each tracepoint has a buffer of its own on each CPU, so nearly all records of a buffer have one size and are read
with numpy. What isn't about a followed thread is dropped when drained.
"""

from __future__ import annotations

import ctypes as c
import errno
import mmap
import os
import platform
import struct
import time
from pathlib import Path

import numpy as np

from perfscope.collectors.ebpf import tracefs
from perfscope.collectors.ebpf.backend import Losses
from perfscope.collectors.ebpf.raw import Samples, UnpairedBackend, block_tracepoints
from perfscope.collectors.ebpf.tracefs import Tracepoint
from perfscope.errors import CollectorError

SYSCALL = {"x86_64": 298, "aarch64": 241}
PERF_TYPE_TRACEPOINT, ATTR_SIZE = 2, 112
SAMPLE_TYPE = 1 << 1 | 1 << 2 | 1 << 7 | 1 << 10  # TID, TIME, CPU, RAW
FLAGS = 1 | 1 << 18 | 1 << 25  # disabled, sample_id_all, use_clockid
ENABLE, PERF_RECORD_LOST, PERF_RECORD_SAMPLE = 0x2400, 2, 9
HEADER = 36  # header 8, tgid and tid 8, time 8, cpu 8, size of the raw record 4
FD_CLOEXEC = 8


class Buffer:
    """One tracepoint on one CPU."""

    def __init__(self, point: Tracepoint, cpu: int, pages: int) -> None:
        attr = bytearray(ATTR_SIZE)
        struct.pack_into("<IIQQQQQ", attr, 0, PERF_TYPE_TRACEPOINT, ATTR_SIZE, point.id, 1, SAMPLE_TYPE, 0, FLAGS)
        struct.pack_into("<i", attr, 92, time.CLOCK_MONOTONIC)
        libc = c.CDLL(None, use_errno=True)
        self.fd = libc.syscall(
            SYSCALL[platform.machine()], (c.c_char * ATTR_SIZE).from_buffer(attr), -1, cpu, -1, c.c_ulong(FD_CLOEXEC)
        )
        if self.fd < 0:
            error = c.get_errno()
            denied = error in (errno.EACCES, errno.EPERM)
            raise CollectorError(
                f"perf_event_open {point.category}:{point.name}: {os.strerror(error)}",
                hint="run as root, or: sysctl kernel.perf_event_paranoid=-1" if denied else None,
            )
        self.point = point
        self._size = pages * mmap.PAGESIZE
        try:
            self._map = mmap.mmap(self.fd, self._size + mmap.PAGESIZE)
        except OSError as error:
            os.close(self.fd)
            raise CollectorError(
                f"no memory for the buffers of perf events: {error.strerror}",
                hint="sysctl kernel.perf_event_mlock_kb=65536",
            ) from None
        self._data = np.frombuffer(self._map, np.uint8, self._size, mmap.PAGESIZE)
        self.lost = 0

    def enable(self) -> None:
        c.CDLL(None, use_errno=True).ioctl(self.fd, ENABLE, 0)

    def drain(self) -> Samples | None:
        """All samples since the last call."""
        head, tail = struct.unpack_from("<QQ", self._map, 1024)
        if head == tail:
            return None
        begin, end = tail & (self._size - 1), head & (self._size - 1)
        data = self._data[begin:end].copy() if begin < end else np.concatenate([self._data[begin:], self._data[:end]])
        struct.pack_into("<Q", self._map, 1032, head)
        return self._samples(data)

    def _samples(self, data: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> Samples | None:
        size = int(data[6]) | int(data[7]) << 8
        if size >= HEADER and len(data) % size == 0:
            table = data.reshape(-1, size)
            if (table[:, :8] == table[0, :8]).all() and table[0, 0] == PERF_RECORD_SAMPLE:
                return Samples(self.point, table)
        at, rows, raw = 0, [], data.tobytes()
        while at + 8 <= len(raw):
            kind, _, size = struct.unpack_from("<IHH", raw, at)
            if size < 8:
                break
            if kind == PERF_RECORD_SAMPLE:
                rows.append(raw[at : at + size])
            elif kind == PERF_RECORD_LOST:
                self.lost += struct.unpack_from("<Q", raw, at + 16)[0]
            at += size
        if not rows:
            return None
        width = max(map(len, rows))
        padded = b"".join(row.ljust(width, b"\0") for row in rows)
        return Samples(self.point, np.frombuffer(padded, np.uint8).reshape(-1, width))

    def close(self) -> None:
        del self._data
        self._map.close()
        os.close(self.fd)


class PerfBackend(UnpairedBackend):
    name = "perf"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        if platform.machine() not in SYSCALL:
            raise CollectorError(f"no system call numbers known for {platform.machine()}")
        start, *blocks = block_tracepoints()
        # Births last: then a batch holds the birth of every thread that any of its records is about.
        wanted = [
            ("sched", "sched_switch", 1024),
            ("sched", "sched_waking", 512),
            ("sched", "sched_wakeup", 512),
            ("sched", "sched_wakeup_new", 16),
            ("syscalls", "sys_enter_futex", 512),
            ("syscalls", "sys_exit_futex", 256),
            ("block", start, 128),
            *(("block", name, 128) for name in blocks),
            ("sched", "sched_process_exec", 64),
            ("task", "task_newtask", 64),
        ]
        self._buffers: list[Buffer] = []
        self._closed = False
        try:
            for category, name, pages in wanted:
                point = tracefs.tracepoint(category, name)
                self._buffers += [Buffer(point, cpu, pages) for cpu in _online()]
        except CollectorError:
            self._close()
            raise
        for buffer in self._buffers:
            buffer.enable()

    @property
    def version(self) -> str:
        return f"perf_event_open, Linux {platform.release()}"

    def take(self) -> None:
        self.write([samples for buffer in self._buffers if (samples := buffer.drain()) is not None])

    def stop(self) -> None:
        if self._closed:
            return
        try:
            self.drain()
        finally:
            self._close()

    def _close(self) -> None:
        self._closed = True
        self._lost = sum(buffer.lost for buffer in self._buffers if buffer.point.category != "block")
        self._lost_blocks = sum(buffer.lost for buffer in self._buffers if buffer.point.category == "block")
        while self._buffers:
            self._buffers.pop().close()

    def losses(self) -> Losses:
        if self._closed:
            return Losses(self._lost, self._lost_blocks)
        return Losses(sum(b.lost for b in self._buffers if b.point.category != "block"))


def _online() -> list[int]:
    text = Path("/sys/devices/system/cpu/online").read_text().strip()
    cpus: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        cpus += range(int(low), int(high or low) + 1)
    return cpus

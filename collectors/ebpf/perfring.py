"""Ring buffers of perf_event_open(2): one event on one CPU, read without a system call."""

from __future__ import annotations

import ctypes as c
import errno
import mmap
import os
import platform
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from perfscope.errors import CollectorError

SYSCALL = {"x86_64": 298, "aarch64": 241}
ATTR_SIZE = 112
ENABLE, FD_CLOEXEC = 0x2400, 8
SOFTWARE, CPU_CLOCK = 1, 0
RECORD_LOST, RECORD_SAMPLE, RECORD_MMAP2 = 2, 9, 10


def open_event(what: str, attr: bytearray, cpu: int) -> int:
    """Descriptor of an event on one CPU, of whatever runs there. Raises CollectorError if the kernel refuses it."""
    if platform.machine() not in SYSCALL:
        raise CollectorError(f"no system call numbers known for {platform.machine()}")
    libc = c.CDLL(None, use_errno=True)
    descriptor: int = libc.syscall(
        SYSCALL[platform.machine()], (c.c_char * ATTR_SIZE).from_buffer(attr), -1, cpu, -1, c.c_ulong(FD_CLOEXEC)
    )
    if descriptor < 0:
        error = c.get_errno()
        denied = error in (errno.EACCES, errno.EPERM)
        raise CollectorError(
            f"perf_event_open {what}: {os.strerror(error)}",
            hint="run as root, or: sysctl kernel.perf_event_paranoid=-1" if denied else None,
        )
    return descriptor


def open_timer(cpu: int, period_ns: int) -> int:
    """Descriptor of a timer on one CPU. Raises CollectorError if the kernel refuses it."""
    attr = bytearray(ATTR_SIZE)
    struct.pack_into("<IIQQ", attr, 0, SOFTWARE, ATTR_SIZE, CPU_CLOCK, period_ns)
    return open_event("of a timer", attr, cpu)


class PerfRing:
    """What an event writes on one CPU. attr: struct perf_event_attr, ATTR_SIZE bytes."""

    def __init__(self, what: str, attr: bytearray, cpu: int, pages: int) -> None:
        """`what` names the event in errors. Raises CollectorError if the kernel refuses it."""
        self.fd = open_event(what, attr, cpu)
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

    def enable(self) -> None:
        c.CDLL(None, use_errno=True).ioctl(self.fd, ENABLE, 0)

    def take(self) -> npt.NDArray[np.uint8] | None:
        """The records since the last call."""
        head, tail = struct.unpack_from("<QQ", self._map, 1024)
        if head == tail:
            return None
        begin, end = tail & (self._size - 1), head & (self._size - 1)
        data = self._data[begin:end].copy() if begin < end else np.concatenate([self._data[begin:], self._data[:end]])
        struct.pack_into("<Q", self._map, 1032, head)
        return data

    def close(self) -> None:
        del self._data
        self._map.close()
        os.close(self.fd)


def records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and bytes, header included, of each whole record."""
    at = 0
    while at + 8 <= len(data):
        kind, _, size = struct.unpack_from("<IHH", data, at)
        if size < 8 or at + size > len(data):
            return
        yield kind, data[at : at + size]
        at += size


def online_cpus() -> list[int]:
    """Numbers of the CPUs in use."""
    cpus: list[int] = []
    for part in Path("/sys/devices/system/cpu/online").read_text().strip().split(","):
        low, _, high = part.partition("-")
        cpus += range(int(low), int(high or low) + 1)
    return cpus

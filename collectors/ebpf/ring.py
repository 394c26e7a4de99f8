"""Draining a BPF ring buffer of fixed-size records into a file, without a Python call per record."""

from __future__ import annotations

import ctypes as c
import mmap
import os
import platform
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import numpy as np

from perfscope.collectors.ebpf import libbpf
from perfscope.errors import CollectorError

BUSY = 1 << 31
"""Bit of a record's length word while the kernel still writes it (BPF_RINGBUF_BUSY_BIT)."""
HEADER = 8
"""Bytes that the kernel puts before each record."""

LAST_TRIES = 200


class Drained(Protocol):
    """What is drained into a file."""

    def drain(self) -> bool:
        """Moves whole records into the file; False if some are still being written."""


class Ring(Drained, Protocol):
    """A ring buffer with its file. filled: the share of it that the last drain found full."""

    filled: float

    def close(self) -> None: ...


class MappedRing:
    """Reads the ring's memory, one copy a drain. Python has no memory barriers: x86-64 only (ordered loads)."""

    def __init__(self, map_fd: int, size: int, record: int, path: Path) -> None:
        page = mmap.PAGESIZE
        self._size, self._step = size, record + HEADER  # record is a multiple of 8
        self.filled = 0.0
        self._file = path.open("ab", buffering=0)
        self._consumer_map = mmap.mmap(map_fd, page, prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=0)
        self._data_map = mmap.mmap(map_fd, page + 2 * size, prot=mmap.PROT_READ, offset=page)  # data mapped twice
        self._consumer = np.frombuffer(self._consumer_map, np.uint64, 1)
        self._producer = np.frombuffer(self._data_map, np.uint64, 1)
        self._data = np.frombuffer(self._data_map, np.uint8, 2 * size, page)

    def drain(self) -> bool:
        at, end = int(self._consumer[0]), int(self._producer[0])
        count = (end - at) // self._step
        self.filled = (end - at) / self._size
        if not count:
            return True
        first = at & (self._size - 1)
        rows = self._data[first : first + count * self._step].reshape(count, self._step)
        busy = np.ascontiguousarray(rows[:, :4]).view(np.uint32)[:, 0] & BUSY
        whole = not busy.any()
        if not whole:
            count = int(busy.argmax())
        write_all(self._file.fileno(), np.ascontiguousarray(rows[:count, HEADER:]))
        self._consumer[0] = at + count * self._step
        return whole

    def close(self) -> None:
        self._file.close()
        del self._consumer, self._producer, self._data
        self._consumer_map.close()
        with suppress(BufferError):  # an error on its way holds on to the rows that it was about, and to the map
            self._data_map.close()


class SpooledRing:
    """libbpf calls write(2) for each record: its signature is that of a ring buffer callback."""

    def __init__(self, map_fd: int, size: int, record: int, path: Path) -> None:
        self._share, self.filled = (record + HEADER) / size, 0.0
        self._file = path.open("ab", buffering=0)
        write = c.cast(c.CDLL(None).write, c.c_void_p)
        self._ring = libbpf.library().ring_buffer__new(map_fd, write, c.c_void_p(self._file.fileno()), None)
        if not self._ring:
            raise CollectorError(f"ring_buffer__new: {os.strerror(c.get_errno())}")

    def drain(self) -> bool:
        count: int = libbpf.library().ring_buffer__consume(self._ring)
        self.filled = max(count, 0) * self._share
        return count == 0

    def close(self) -> None:
        libbpf.library().ring_buffer__free(self._ring)
        self._file.close()


def drain_last(rings: Iterable[Drained]) -> None:
    """After detaching: a program that was interrupted on another CPU may yet finish its record."""
    for ring in rings:
        tries = 0
        while not ring.drain() and tries < LAST_TRIES:
            tries += 1
            time.sleep(0.001)


def open_ring(map_fd: int, size: int, record: int, path: Path) -> Ring:
    """The fastest drain this machine allows."""
    kind = MappedRing if platform.machine() == "x86_64" else SpooledRing
    return kind(map_fd, size, record, path)


def write_all(fd: int, data: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> None:
    """Appends everything to a file, or nothing: records that don't fit are still in their ring, to be written whole
    once there is space again. Raises OSError (disk full)."""
    before = os.fstat(fd).st_size
    view = data.data.cast("B")
    try:
        while view.nbytes:
            view = view[os.write(fd, view) :]
    except OSError:
        os.ftruncate(fd, before)
        raise

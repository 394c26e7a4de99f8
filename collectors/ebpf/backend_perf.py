"""Backend 3: tracepoints through perf_event_open(2), in Python alone. Needs tracefs and CAP_PERFMON; no BPF.

Each tracepoint has a buffer of its own on each CPU, so nearly all records of a buffer have one size and are read
with numpy. What isn't about a followed thread is dropped when drained.
"""

from __future__ import annotations

import platform
import struct
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from perfscope.collectors.ebpf import tracefs
from perfscope.collectors.ebpf.backend import Losses
from perfscope.collectors.ebpf.perfring import ATTR_SIZE, RECORD_LOST, RECORD_SAMPLE, PerfRing, online_cpus, records
from perfscope.collectors.ebpf.raw import Samples, UnpairedBackend, block_tracepoints
from perfscope.collectors.ebpf.tracefs import Tracepoint
from perfscope.errors import CollectorError

PERF_TYPE_TRACEPOINT = 2
SAMPLE_TYPE = 1 << 1 | 1 << 2 | 1 << 7 | 1 << 10  # TID, TIME, CPU, RAW
FLAGS = 1 | 1 << 18 | 1 << 25  # disabled, sample_id_all, use_clockid
HEADER = 36  # header 8, tgid and tid 8, time 8, cpu 8, size of the raw record 4


class Buffer:
    """One tracepoint on one CPU."""

    def __init__(self, point: Tracepoint, cpu: int, pages: int) -> None:
        attr = bytearray(ATTR_SIZE)
        struct.pack_into("<IIQQQQQ", attr, 0, PERF_TYPE_TRACEPOINT, ATTR_SIZE, point.id, 1, SAMPLE_TYPE, 0, FLAGS)
        struct.pack_into("<i", attr, 92, time.CLOCK_MONOTONIC)
        self.point = point
        self.ring = PerfRing(f"{point.category}:{point.name}", attr, cpu, pages)
        self.lost = 0

    def drain(self) -> Samples | None:
        """All samples since the last call."""
        data = self.ring.take()
        return None if data is None else self._samples(data)

    def _samples(self, data: npt.NDArray[np.uint8]) -> Samples | None:
        size = int(data[6]) | int(data[7]) << 8
        if size >= HEADER and len(data) % size == 0:
            table = data.reshape(-1, size)
            if (table[:, :8] == table[0, :8]).all() and table[0, 0] == RECORD_SAMPLE:
                return Samples(self.point, table)
        rows = []
        for kind, record in records(data.tobytes()):
            if kind == RECORD_SAMPLE:
                rows.append(record)
            elif kind == RECORD_LOST:
                self.lost += struct.unpack_from("<Q", record, 16)[0]
        if not rows:
            return None
        width = max(map(len, rows))
        padded = b"".join(row.ljust(width, b"\0") for row in rows)
        return Samples(self.point, np.frombuffer(padded, np.uint8).reshape(-1, width))


class PerfBackend(UnpairedBackend):
    name = "perf"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
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
                self._buffers += [Buffer(point, cpu, pages) for cpu in online_cpus()]
        except CollectorError:
            self._close()
            raise
        for buffer in self._buffers:
            buffer.ring.enable()

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
            self._buffers.pop().ring.close()

    def losses(self) -> Losses:
        if self._closed:
            return Losses(self._lost, self._lost_blocks)
        return Losses(sum(b.lost for b in self._buffers if b.point.category != "block"))

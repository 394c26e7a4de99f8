"""Every mapping of a Python's code, as it happens: what a short-lived process had where, it can't be asked later."""

from __future__ import annotations

import struct

from perfscope.collectors.ebpf.gil import Runtimes
from perfscope.collectors.ebpf.perfring import ATTR_SIZE, RECORD_LOST, RECORD_MMAP2, PerfRing, online_cpus, records
from perfscope.errors import CollectorError

PERF_TYPE_SOFTWARE, DUMMY = 1, 9
FLAGS = 1 << 5 | 1 << 8 | 1 << 23  # exclude_kernel, mmap, mmap2
MMAP2 = struct.Struct("<8xIIQQQIIQQII")  # header; pid, tid, address, length, offset, device, inode, ..., the name
PAGES = 128


class Mappings:
    """Tells `runtimes` of each; of all processes, since a process is mapped before it is known to be the target's."""

    def __init__(self, runtimes: Runtimes) -> None:
        """Raises CollectorError where perf_event_open isn't allowed."""
        self._runtimes = runtimes
        self._rings: list[PerfRing] = []
        self.lost = 0
        attr = bytearray(ATTR_SIZE)
        struct.pack_into("<IIQQQQQ", attr, 0, PERF_TYPE_SOFTWARE, ATTR_SIZE, DUMMY, 0, 0, 0, FLAGS)
        try:
            for cpu in online_cpus():
                self._rings.append(PerfRing("mmap", attr, cpu, PAGES))
        except CollectorError:
            self.stop()
            raise

    def drain(self) -> None:
        for ring in self._rings:
            if (data := ring.take()) is None:
                continue
            for kind, record in records(data.tobytes()):
                if kind == RECORD_LOST:
                    self.lost += struct.unpack_from("<Q", record, 16)[0]
                elif kind == RECORD_MMAP2 and b"python" in record:
                    pid, _, address, length, offset, _, _, inode, *_ = MMAP2.unpack_from(record)
                    path = record[MMAP2.size :].split(b"\0", 1)[0].decode(errors="surrogateescape")
                    self._runtimes.mapped(pid, address, address + length, offset, path, inode)

    def stop(self) -> None:
        """Drains and closes. Idempotent."""
        self.drain()
        while self._rings:
            self._rings.pop().close()

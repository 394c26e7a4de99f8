"""Telling waits for CPython's GIL from all other futex waits, by their address alone."""

from __future__ import annotations

import platform
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from perfscope.collectors.ebpf import elf
from perfscope.collectors.ebpf.records import OP_TIMED, WAIT, Records

# struct _gil_runtime_state (CPython 3.7 to 3.14): ..., cond, mutex, switch_cond, switch_mutex. take_gil waits, with a
# timeout, on one of the two words __g_signals (at 40 and 44) of cond, a glibc pthread_cond_t of 48 bytes; nothing else
# in CPython's runtime state waits with one. From the start of cond to the end of the struct every word is the GIL's.
_SIGNALS_AT, _COND_BYTES = 40, 48
_MUTEX_BYTES = {"x86_64": 40, "aarch64": 48}
GIL_BYTES = 2 * (_COND_BYTES + _MUTEX_BYTES.get(platform.machine(), 40))


PYTHON = re.compile(r"(lib)?python\d*(\.\d+)*[a-z]*(\.so[.\d]*)?( \(deleted\))?")
"""Name of a file that may hold an interpreter, as /proc/PID/maps has it."""

FUTEX, GIL, UNKNOWN = range(3)
KINDS = ("futex", "gil", "unknown")
"""What a wait was for. unknown: in a Python process whose runtime state couldn't be found, so either."""


class Runtimes:
    """Where each process has its `_PyRuntime` objects: of mappings as they happen, or as /proc shows them.

    A process is known to run Python by a mapping's name. One that has more than one image has the ranges of all.
    """

    def __init__(self) -> None:
        self.ranges: dict[int, set[tuple[int, int]]] = defaultdict(set)
        self._without: set[int] = set()

    @property
    def unread(self) -> set[int]:
        """Python processes in which none was found."""
        return self._without - self.ranges.keys()

    def mapped(self, pid: int, address: int, end: int, offset: int, path: str, inode: int) -> None:
        """`path`'s code at `offset` is mapped there."""
        if not PYTHON.fullmatch(path.rsplit("/", 1)[-1]):
            return
        self._without.add(pid)
        # The process's own view of the file; once it is gone, the same name if it is still the same file.
        for place, number in (
            (f"/proc/{pid}/map_files/{address:x}-{end:x}", inode),
            (f"/proc/{pid}/root{path}", None),
            (path, inode),
        ):
            symbol = elf.find_symbol(Path(place), "_PyRuntime", number)
            if symbol is not None and (found := symbol.range_at(address, offset)) is not None:
                self.ranges[pid].add(found)
                return

    def look(self, pid: int) -> None:
        """Reads /proc/PID/maps, if the process still has one."""
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape")
        except OSError:
            return
        for line in maps.splitlines():
            parts = line.split(None, 5)
            if len(parts) == 6 and "x" in parts[1] and parts[5].startswith("/"):
                address, _, end = parts[0].partition("-")
                self.mapped(pid, int(address, 16), int(end, 16), int(parts[2], 16), parts[5], int(parts[4]))


class WaitKinds:
    """Learns the GIL's addresses from the timed waits (`learn` over all events), then judges (`of`)."""

    def __init__(
        self, ranges: Mapping[int, set[tuple[int, int]]], unread: set[int], parents: Mapping[int, int]
    ) -> None:
        """ranges: pid -> those of `_PyRuntime`; unread: Python processes where that isn't known. parents: of each
        process that never execs, and so has its parent's memory."""
        self._ranges, self._unread, self._parents = ranges, unread, parents
        self._gils: dict[int, set[int]] = defaultdict(set)
        self.unknown: dict[int, int] = defaultdict(int)
        """pid -> how many of its waits were judged unknown."""

    def _origin(self, pid: int) -> int:
        """Whose memory layout the process has."""
        seen: set[int] = set()
        while pid not in self._ranges and pid not in self._unread and pid in self._parents and pid not in seen:
            seen.add(pid)
            pid = self._parents[pid]
        return pid

    def learn(self, events: Records) -> None:
        """Takes the addresses of timed waits inside `_PyRuntime`."""
        timed = events[(events["kind"] == WAIT) & ((events["extra"] & OP_TIMED) != 0)]
        for pid in np.unique(timed["tgid"]).tolist():
            addresses = np.unique(timed["b"][timed["tgid"] == pid])
            for start, end in self._ranges.get(self._origin(pid), ()):
                inside = addresses[(addresses >= start) & (addresses < end)]
                self._gils[pid] |= {(address & ~7) - _SIGNALS_AT for address in inside.tolist()}

    def of(self, waits: Records) -> npt.NDArray[np.int32]:
        """Index into KINDS for each WAIT record."""
        kinds = np.full(len(waits), FUTEX, np.int32)
        for pid in np.unique(waits["tgid"]).tolist():
            mine = waits["tgid"] == pid
            for gil in self._gils.get(pid, ()):
                kinds[mine & (waits["b"] >= gil) & (waits["b"] < gil + GIL_BYTES)] = GIL
            if self._origin(pid) in self._unread:
                kinds[mine] = UNKNOWN
                self.unknown[pid] += int(mine.sum())
        return kinds

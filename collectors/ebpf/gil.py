"""Telling waits for CPython's GIL from all other futex waits, by their address alone."""

from __future__ import annotations

import platform
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


def runtime_ranges(pid: int) -> list[tuple[int, int]]:
    """[start, end) addresses of the `_PyRuntime` objects mapped into a process; empty if there is none."""
    found = []
    bases: dict[str, int] = {}
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape")
    except OSError:
        return []
    for line in maps.splitlines():
        parts = line.split(None, 5)
        if len(parts) == 6 and parts[5].startswith("/") and int(parts[2], 16) == 0:
            bases.setdefault(parts[5], int(parts[0].split("-")[0], 16))
    for path, base in bases.items():
        if "python" not in path.rsplit("/", 1)[-1]:
            continue
        symbol = elf.find_symbol(Path(f"/proc/{pid}/root{path}"), "_PyRuntime")
        if symbol is not None:
            start = symbol.value + (base - symbol.load_address if symbol.relocatable else 0)
            found.append((start, start + symbol.size))
    return found


class GilAddresses:
    """Learns the GIL's addresses from the timed waits (`learn` over all events), then judges (`is_gil`)."""

    def __init__(self, runtimes: Mapping[int, list[tuple[int, int]]], parents: Mapping[int, int]) -> None:
        """runtimes: pid -> ranges of `_PyRuntime`; a child that never execs has its parent's."""
        self._runtimes, self._parents = runtimes, parents
        self._gils: dict[int, set[int]] = defaultdict(set)

    def _ranges(self, pid: int) -> list[tuple[int, int]]:
        seen: set[int] = set()
        while pid not in self._runtimes and pid in self._parents and pid not in seen:
            seen.add(pid)
            pid = self._parents[pid]
        return self._runtimes.get(pid, [])

    def learn(self, events: Records) -> None:
        """Takes the addresses of timed waits inside `_PyRuntime`."""
        timed = events[(events["kind"] == WAIT) & ((events["extra"] & OP_TIMED) != 0)]
        for pid in np.unique(timed["tgid"]).tolist():
            addresses = np.unique(timed["b"][timed["tgid"] == pid])
            for start, end in self._ranges(pid):
                inside = addresses[(addresses >= start) & (addresses < end)]
                self._gils[pid] |= {(address & ~7) - _SIGNALS_AT for address in inside.tolist()}

    def is_gil(self, waits: Records) -> npt.NDArray[np.bool_]:
        """For each WAIT record, whether it waited for a GIL."""
        result = np.zeros(len(waits), bool)
        for pid, gils in self._gils.items():
            mine = waits["tgid"] == pid
            for gil in gils:
                result |= mine & (waits["b"] >= gil) & (waits["b"] < gil + GIL_BYTES)
        return result

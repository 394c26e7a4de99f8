"""Backend 2: bcc, where the host has it. It compiles probes/bpf/tracepoints.bcc.c here, so it needs kernel headers."""

from __future__ import annotations

import ctypes as c
import importlib
import platform
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from perfscope import probes
from perfscope.collectors.ebpf import libbpf, privilege, tracefs
from perfscope.collectors.ebpf.backend import Losses, Thread
from perfscope.collectors.ebpf.raw import UnpairedBackend, block_tracepoints
from perfscope.collectors.ebpf.records import BLOCK, EVENT, chunks
from perfscope.collectors.ebpf.ring import drain_last, open_ring
from perfscope.errors import CollectorError

SYSTEM_PACKAGES = Path("/usr/lib/python3/dist-packages")
COUNTS_MISSES = (6, 7)
"""Linux version from which the kernel counts the tracepoint programs it skips."""
HEADERS_HINT = "apt install linux-headers-$(uname -r)"


def find_bcc() -> Any:
    """The bcc module: this Python's own, or the distribution's for the same version of Python.

    Raises CollectorError if there is none. (PyPI's package of that name is something else.)
    """
    for extra in ("", str(SYSTEM_PACKAGES)):
        if extra and not Path(f"/usr/lib/python3.{sys.version_info.minor}").exists():
            break
        try:
            if extra:
                sys.path.append(extra)
            module = importlib.import_module("bcc")
            if hasattr(module, "BPF"):
                return module
        except (ImportError, OSError):
            sys.modules.pop("bcc", None)
        finally:
            if extra:
                sys.path.remove(extra)
    raise CollectorError("no bcc for this Python", hint="apt install python3-bpfcc")


class BccBackend(UnpairedBackend):
    name = "bcc"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._bcc = find_bcc()
        privilege.require_bpf()
        start, *_ = block_tracepoints()
        if tracefs.root() is None:
            raise tracefs.unreadable()
        source = probes.path("bpf", "event.h").read_text() + probes.path("bpf", "tracepoints.bcc.c").read_text()
        try:
            self._bpf = self._bcc.BPF(text=source.replace("BLOCK_START", start).encode())
        except Exception as error:  # noqa: BLE001 - bcc raises bare Exception for anything that fails
            raise CollectorError(f"bcc can't compile or attach here: {error}", hint=HEADERS_HINT) from None
        self._new_events, self._new_blocks = directory / "events.new", directory / "blocks.new"
        self._rings = [
            open_ring(self._bpf[b"events"].map_fd, 32 << 20, EVENT.itemsize, self._new_events),
            open_ring(self._bpf[b"blocks"].map_fd, 4 << 20, BLOCK.itemsize, self._new_blocks),
        ]
        self._losses: Losses | None = None
        if tuple(map(int, re.findall(r"\d+", platform.release())[:2])) < COUNTS_MISSES:
            self.notes.append(
                "bcc: while one BPF program runs on a CPU the kernel skips others there, and this one doesn't count "
                "them: single switches, waits and requests may be missing"
            )

    @property
    def version(self) -> str:
        return f"bcc {self._bcc.__version__}"

    def follow(self, thread: Thread) -> bool:
        if not super().follow(thread):
            return False
        self._bpf[b"followed"][c.c_uint(thread.tid)] = c.c_uint(1)
        return True

    def take(self) -> None:
        for ring in self._rings:
            ring.drain()
        for events in chunks(self._new_events, EVENT):
            self.write_events(np.array(events))
        for blocks in chunks(self._new_blocks, BLOCK):
            with (self.directory / "requests.bin").open("ab") as file:
                file.write(blocks.tobytes())
        for path in (self._new_events, self._new_blocks):
            with path.open("r+b") as file:
                file.truncate()

    def stop(self) -> None:
        if self._losses is not None:
            return
        try:
            self._detach()
            drain_last(self._rings)
            self.drain()
        finally:
            self._losses = self._count()
            for ring in self._rings:
                ring.close()
            self._bpf.cleanup()
            self._new_events.unlink(missing_ok=True)
            self._new_blocks.unlink(missing_ok=True)

    def _detach(self) -> None:
        for name in list(self._bpf.tracepoint_fds):
            self._bpf.detach_tracepoint(name)

    def _count(self) -> Losses:
        lost = self._bpf[b"lost"]
        missed = sum(libbpf.missed_runs(function.fd) for function in self._bpf.funcs.values())
        return Losses(lost[0].value, lost[1].value, missed=missed)

    def losses(self) -> Losses:
        return self._losses if self._losses is not None else self._count()

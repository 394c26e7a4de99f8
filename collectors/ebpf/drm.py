"""GPU scheduler jobs from the kernel's gpu_scheduler:* and dma_fence:* tracepoints, where there are any."""

from __future__ import annotations

from pathlib import Path

from perfscope.collectors.ebpf import tables
from perfscope.model.session import SessionWriter


class DrmEvents:
    def __init__(self) -> None:
        self.notes: list[str] = []

    @classmethod
    def open(cls, directory: Path, backend: str) -> DrmEvents:
        return cls()

    def drain(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def read(self, writer: SessionWriter, window: tables.Window) -> int:
        return 0

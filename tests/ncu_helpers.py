"""Recorded reports of Nsight Compute, unpacked, and sessions made of them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from perfscope.model.info import CollectorReport, SessionInfo
from perfscope.model.session import Session
from perfscope.model.session_writer import SessionWriter
from perfscope.recording.import_files import import_files

DATA = Path(__file__).parent / "data" / "ncu"


def unpacked(name: str, directory: Path) -> Path:
    """tests/data/ncu/NAME.gz as a file NAME in a directory."""
    file = directory / name
    file.write_bytes(gzip.decompress((DATA / f"{name}.gz").read_bytes()))
    return file


CRASHES = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
"""An ncu_report module that crashes."""


def stand_in_reader(monkeypatch: pytest.MonkeyPatch, directory: Path, code: str) -> None:
    """Puts a module before the real ncu_report."""
    directory.mkdir(exist_ok=True)
    (directory / "ncu_report.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(directory))


def session_of(file: Path, directory: Path) -> Session:
    """A session imported from a report."""
    path = directory / f"{file.name}.perfscope"
    import_files([file], path)
    return Session.open(path)


KERNELS = {
    "copy_coalesced(float4 const*, float4*, unsigned long)": ((262144, 1, 1), (256, 1, 1)),
    "copy_strided(float const*, float*, unsigned long, unsigned long)": ((1048576, 1, 1), (256, 1, 1)),
    "fma_bound(float*, int)": ((2112, 1, 1), (256, 1, 1)),
    "low_occupancy(float*, int)": ((528, 1, 1), (64, 1, 1)),
    "tiny_grid(float*, int)": ((1, 1, 1), (128, 1, 1)),
    "bank_conflict(float*, int)": ((1056, 1, 1), (256, 1, 1)),
    "divergent(float*, int)": ((1056, 1, 1), (256, 1, 1)),
}
"""The kernels of the recorded report as gpu_activity names them: (grid, block)."""


def launches(start_ns: int, runs: list[tuple[str, int]], **config: tuple[int, int, int]) -> list[dict[str, Any]]:
    """Rows of gpu_activity: kernels one after the other, given as (name, duration in ns)."""
    rows = []
    for number, (name, ns) in enumerate(runs):
        grid, block = KERNELS.get(name, (config.get("grid", (8, 1, 1)), config.get("block", (128, 1, 1))))
        rows.append(
            {
                "start_ns": start_ns, "end_ns": start_ns + ns, "kind": "kernel", "pid": 7, "device": 0, "context": 1,
                "stream": 7, "correlation": number, "name": name,
                **{f"{what}_{axis}": value for what, of in (("grid", grid), ("block", block))
                   for axis, value in zip("xyz", of, strict=True)},
            }
        )  # fmt: skip
        start_ns += ns
    return rows


def recorded(path: Path, rows: list[dict[str, Any]], elapsed_ns: int) -> Session:
    """A finished session whose GPU did this."""
    writer = SessionWriter(path)
    writer.append("gpu_activity", rows)
    info = SessionInfo(command=["./program"], pids=[7], start_ns=0, stop_ns=elapsed_ns)
    info.collectors = {"cuda": CollectorReport()}
    return Session.open(writer.finish(info))

"""Recorded reports of Nsight Compute, unpacked, and sessions made of them."""

from __future__ import annotations

import gzip
from pathlib import Path

from perfscope.model.session import Session
from perfscope.recording.import_files import import_files

DATA = Path(__file__).parent / "data" / "ncu"


def unpacked(name: str, directory: Path) -> Path:
    """tests/data/ncu/NAME.gz as a file NAME in a directory."""
    file = directory / name
    file.write_bytes(gzip.decompress((DATA / f"{name}.gz").read_bytes()))
    return file


def session_of(file: Path, directory: Path) -> Session:
    """A session imported from a report."""
    path = directory / f"{file.name}.perfscope"
    import_files([file], path)
    return Session.open(path)

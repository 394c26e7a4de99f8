"""What runs inside something else: BPF programs, JFR settings. Holds data files; `path` finds them."""

from __future__ import annotations

from pathlib import Path


def path(*parts: str) -> Path:
    """Path of a file shipped in this package, e.g. path("bpf", "perfscope.bpf.o")."""
    return Path(__file__).parent.joinpath(*parts)

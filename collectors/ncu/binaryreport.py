"""Reads .ncu-rep files through NVIDIA's own reader, the ncu-report package (or the one in Nsight Compute).

It is native code that trusts its input (2 of 414 randomly damaged reports aborted it), so it runs in a process of its
own with bounded memory and time: whatever a damaged file does to it costs that file only.
"""

from __future__ import annotations

import importlib.util
import json
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfscope.collectors.ncu import container, reader
from perfscope.collectors.ncu.launches import Launch, to_base
from perfscope.demangle import demangle
from perfscope.errors import InputError

_MEMORY_BYTES = 4 << 30
"""Writable memory for the reader, beside the file itself; 100 MB reports take well below 1 GB."""
TIME_S = 120.0
LARGEST_BYTES = 2 << 30
"""Largest report that is read; such come from profiling every launch with --set full."""


class ReaderError(InputError):
    """NVIDIA's reader isn't there, or failed on the file, which may be sound nevertheless: ncu itself may read it."""

    def __init__(self, path: Path, why: str, hint: str) -> None:
        super().__init__(f"{path}: {why}", hint=hint)
        self.why = why


def sniff(head: bytes) -> bool:
    """True for the first bytes of an .ncu-rep file."""
    return head.startswith(container.MAGIC)


def _places() -> list[str]:
    """Directories of the readers that installations of Nsight Compute bring, the newest first."""
    found = [
        *Path("/opt/nvidia/nsight-compute").glob("*/extras/python"),
        *Path("/usr/local/cuda").glob("nsight-compute-*/extras/python"),
    ]
    return [str(place) for place in sorted(found, reverse=True) if (place / "ncu_report.py").exists()]


def available() -> bool:
    """True if there is a reader for .ncu-rep files, without loading it."""
    return importlib.util.find_spec("ncu_report") is not None or bool(_places())


def check_size(path: Path) -> None:
    """Raises InputError for a file that is too large, or can't be looked at."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}") from None
    if size > LARGEST_BYTES:
        raise InputError(
            f"{path}: {size / 1e9:.1f} GB, more than perfscope reads",
            hint="measure fewer launches and no --set full: perfscope record --ncu -- CMD",
        )


def damage(path: Path) -> str:
    """Where the file isn't whole, to end a message with; empty if it is whole."""
    at = _examine(path).damaged_at
    return "" if at is None else f"; it is damaged or cut off at offset {at}"


def lacking(path: Path, launches: int) -> str | None:
    """What of a report isn't among the launches read from it; None if they are all."""
    found = _examine(path)
    if found.damaged_at is not None:
        return f"damaged or cut off at offset {found.damaged_at}: only {launches} launches before it"
    return f"{launches} of its {found.results} launches could be read" if launches != found.results else None


def _examine(path: Path) -> container.Container:
    try:
        return container.examine(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: can't be read: {error}") from None


def bounded(path: Path) -> Callable[[], None]:
    """For a child process that reads `path`: bounds its memory. Raises OSError if there is no such file.

    What it can write to is bounded, not its address space, of which allocators reserve 128 MB a thread for nothing.
    """
    memory = _MEMORY_BYTES + 2 * path.stat().st_size

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    return bound


def read(path: Path) -> list[Launch]:
    """All launches of a report that the reader gives. A metric without a value stays missing. Raises ReaderError."""
    otherwise = f"ncu --import {path} --csv --page raw > {path.stem}.csv; perfscope import {path.stem}.csv"
    with tempfile.NamedTemporaryFile(prefix="perfscope-ncu-", suffix=".json") as out:
        command = [sys.executable, "-P", reader.__file__, str(path.absolute()), out.name, *_places()]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIME_S, preexec_fn=bounded(path),
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ReaderError(path, f"NVIDIA's reader gave no answer within {TIME_S:.0f} s", otherwise) from None
        if done.returncode == 0:
            return [_launch(one) for one in json.loads(Path(out.name).read_bytes())]
    if done.returncode == reader.MISSING:
        hint = f'pip install "perfscope-cli[ncu]"   (or where ncu is: {otherwise})'
        raise ReaderError(path, "reading an .ncu-rep file needs NVIDIA's ncu-report", hint)
    if done.returncode == reader.REFUSED:
        said = done.stderr.decode(errors="replace").strip()[:300]
        raise ReaderError(path, f"NVIDIA's reader can't read it: {said}", otherwise)
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise ReaderError(path, f"NVIDIA's reader crashed on it ({name})", otherwise)
    raise ReaderError(path, f"NVIDIA's reader failed on it (exit status {done.returncode})", otherwise)


def _launch(data: dict[str, Any]) -> Launch:
    launch = Launch(demangle(data["name"]), device=data["device"])
    launch.metrics = {name: to_base(value, unit) for name, (value, unit) in data["metrics"].items()}
    launch.grid = _dims(launch, "launch__grid_dim_")
    launch.block = _dims(launch, "launch__block_dim_")
    return launch


def _dims(launch: Launch, prefix: str) -> tuple[int, int, int] | None:
    values = [launch.metrics.get(prefix + axis) for axis in "xyz"]
    x, y, z = (None if value is None else int(value[0]) for value in values)
    return None if x is None or y is None or z is None or not all(0 <= n < 1 << 31 for n in (x, y, z)) else (x, y, z)

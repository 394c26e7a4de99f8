"""The writable memory of another process, to find a value in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt


def writable(pid: int, memory: int, most_bytes: int) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """`(address, its aligned 64-bit words)` of each writable mapping that can be read, up to `most_bytes` together.

    memory: a descriptor of /proc/PID/mem. Raises OSError if the process is gone.
    """
    left = most_bytes
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, rights, *_ = line.split(None, 2)
        start, end = (int(bound, 16) for bound in span.split("-"))
        if not rights.startswith("rw") or end - start > left:
            continue
        left -= end - start
        try:
            data = os.pread(memory, end - start, start)
        except OSError:
            continue
        yield start, np.frombuffer(data, np.int64, len(data) // 8)

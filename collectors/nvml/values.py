"""The collector's own file: one JSON line for each answer of the driver, readable as far as it is whole.

[time_ns, error_ns, device, pid or null, {counter: value}]
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfscope.errors import CollectorError

BATCH = 50_000
"""Rows handed on at a time."""


class ValueFile:
    """Writes the file. Raises OSError when it can't be written."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", buffering=1 << 16)

    def write(
        self, before_ns: int, after_ns: int, device: str, values: Mapping[str, float], pid: int | None = None
    ) -> None:
        """Values that hold somewhere in [before_ns, after_ns]."""
        if values:
            middle, half = (before_ns + after_ns) // 2, (after_ns - before_ns + 1) // 2
            self._file.write(json.dumps([middle, half, device, pid, values], separators=(",", ":")) + "\n")

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Iterator[dict[str, list[Any]]]:
    """Columns of `counters`, without its source, a batch at a time.

    A cut last line is left out; any other damage is a CollectorError naming file and line.
    """
    columns: dict[str, list[Any]] = _empty()
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                break
            try:
                time_ns, error_ns, device, pid, values = json.loads(line)
                rows = [(str(name), float(value)) for name, value in values.items()]
                if not all(type(x) is int and 0 <= x < 1 << 63 for x in (time_ns, error_ns)):
                    raise TypeError("a time is no whole number of ns")
                if pid is not None and not (type(pid) is int and 0 <= pid < 1 << 31):
                    raise TypeError("the pid is none")
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                raise CollectorError(f"{path}: line {number}: damaged: {error}") from None
            for name, value in rows:
                if math.isfinite(value):
                    for column, cell in zip(
                        columns.values(), (time_ns, error_ns, name, str(device), pid, value), strict=True
                    ):
                        column.append(cell)
            if len(columns["value"]) >= BATCH:
                yield columns
                columns = _empty()
    if columns["value"]:
        yield columns


def _empty() -> dict[str, list[Any]]:
    return {name: [] for name in ("time_ns", "error_ns", "name", "device", "pid", "value")}

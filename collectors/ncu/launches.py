"""A kernel launch as Nsight Compute measured it, and units that mean one thing.

Nsight Compute prints one metric in ms here and in us there, with decimal prefixes. Everything is brought to base units:
ns, byte, hz, and the bare unit without its prefix for all else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

_TIME = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_TIME_NAMES = {
    "nsecond": "ns",
    "usecond": "us",
    "msecond": "ms",
    "second": "s",
    "nanosecond": "ns",
    "microsecond": "us",
}
_PREFIXES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_PREFIXED = re.compile(r"([KMGTP])(byte|hz|inst|cycle|sector|request|thread|block|warp)(?![a-z])(.*)", re.IGNORECASE)


@dataclass
class Launch:
    """One measured launch. metrics: Nsight Compute's name -> (value, base unit); what wasn't measured isn't in it."""

    name: str
    pid: int | None = None
    device: str | None = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    metrics: dict[str, tuple[float, str]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Launch:
        launch = cls(**data)
        for name in ("grid", "block"):
            value = getattr(launch, name)
            setattr(launch, name, None if value is None else (value[0], value[1], value[2]))
        launch.metrics = {name: (value, unit) for name, (value, unit) in launch.metrics.items()}
        return launch


def to_base(value: float, unit: str) -> tuple[float, str]:
    """A value in its base unit: (2.5, "Gbyte/second") -> (2.5e9, "byte/s"); (3, "ms") -> (3e6, "ns").

    Prefixes are decimal, as Nsight Compute's are. An unknown unit comes back as it is.
    """
    unit = unit.strip()
    time = _TIME_NAMES.get(unit, unit)
    if time in _TIME:
        return value * _TIME[time], "ns"
    factor = 1.0
    if unit.startswith("%/") and (match := _PREFIXED.fullmatch(unit[2:])):
        # ncu scales the number of "%/byte" as if bytes stood above the line: 2614 %/byte is printed as 2.614 %/Kbyte.
        return value * _PREFIXES[match[1].upper()], "%/" + match[2] + match[3]
    if match := _PREFIXED.fullmatch(unit):
        prefix, base, rest = match.groups()
        factor, unit = _PREFIXES[prefix.upper()], base + rest
    if unit.endswith(("/nsecond", "/ns")):
        factor, unit = factor * 1e9, unit.rpartition("/")[0] + "/s"
    return value * factor, unit.replace("/second", "/s").replace("Hz", "hz")


def dimensions(text: str) -> tuple[int, int, int] | None:
    """ "(256, 1, 1)" -> (256, 1, 1); None for anything else."""
    numbers = re.findall(r"\d+", text) if len(text) < 100 else []
    if len(numbers) != 3 or max(map(int, numbers)) >= 1 << 31:
        return None
    return int(numbers[0]), int(numbers[1]), int(numbers[2])


def columns(launches: list[Launch], first: int = 0) -> dict[str, list[Any]]:
    """Launches as columns of gpu_kernels, one row a metric, numbered from `first`."""
    counts = [len(launch.metrics) for launch in launches]

    def each(values: Iterable[Any]) -> list[Any]:
        return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]

    found: dict[str, list[Any]] = {
        "launch": each(range(first, first + len(launches))),
        "pid": each(launch.pid for launch in launches),
        "name": each(launch.name for launch in launches),
        "device": each(launch.device for launch in launches),
    }
    for i, axis in enumerate("xyz"):
        found[f"grid_{axis}"] = each(launch.grid and launch.grid[i] for launch in launches)
        found[f"block_{axis}"] = each(launch.block and launch.block[i] for launch in launches)
    found["metric"] = [metric for launch in launches for metric in launch.metrics]
    found["value"] = [value for launch in launches for value, _ in launch.metrics.values()]
    found["unit"] = [unit for launch in launches for _, unit in launch.metrics.values()]
    return found

"""What tracefs says of tracepoints: whether they exist, their ids, and the layout of their records."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from perfscope.collectors.ebpf import privilege
from perfscope.errors import CollectorError

MOUNT_HINT = "mount -t tracefs nodev /sys/kernel/tracing"
_FIELD = re.compile(
    r"field:(?P<type>.+?)\s+\*?(?P<name>\w+)(?P<array>\[[^\]]*\])?;\s*"
    r"offset:(?P<offset>\d+);\s*size:(?P<size>\d+);\s*signed:(?P<signed>\d)"
)


@dataclass(frozen=True)
class Field:
    """Where a field lies in the raw record. dynamic: a __data_loc word (offset | length << 16) stands there."""

    offset: int
    size: int
    signed: bool
    text: bool
    dynamic: bool


@dataclass(frozen=True)
class Tracepoint:
    """A tracepoint of this kernel. size: bytes of its fixed part."""

    category: str
    name: str
    id: int
    fields: dict[str, Field]

    @property
    def size(self) -> int:
        return max(field.offset + field.size for field in self.fields.values())

    def parse(self, data: bytes) -> dict[str, int | str]:
        """Field values of one raw record; fields beyond its end are left out."""
        values: dict[str, int | str] = {}
        for name, field in self.fields.items():
            raw = data[field.offset : field.offset + field.size]
            if len(raw) < field.size:
                continue
            number = int.from_bytes(raw, "little", signed=field.signed)
            if field.dynamic:
                raw = data[number & 0xFFFF : (number & 0xFFFF) + (number >> 16 & 0xFFFF)]
            values[name] = raw.split(b"\0", 1)[0].decode(errors="replace") if field.text or field.dynamic else number
        return values


def root() -> Path | None:
    """Where tracefs can be read, if anywhere."""
    for path in (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing")):
        try:
            if (path / "events").is_dir():
                return path
        except PermissionError:
            continue
    return None


def unreadable() -> CollectorError:
    """Why `root` found none, and what mends it."""
    try:
        mounted = any(line.split()[2:3] == ["tracefs"] for line in Path("/proc/mounts").read_text().splitlines())
    except OSError:
        mounted = False
    if mounted:
        return CollectorError("tracefs is not readable for this user", hint=privilege.HINT)
    return CollectorError("tracefs is not mounted", hint=MOUNT_HINT)


def events(category: str) -> list[str]:
    """Names of a category's tracepoints; empty if the kernel has none, or tracefs can't be read."""
    base = root()
    if base is None:
        return []
    try:
        return sorted(path.name for path in (base / "events" / category).iterdir() if path.is_dir())
    except OSError:
        return []


@cache
def tracepoint(category: str, name: str) -> Tracepoint:
    """Raises CollectorError if tracefs isn't mounted or readable, or the kernel has no such tracepoint."""
    base = root()
    if base is None:
        raise unreadable()
    directory = base / "events" / category / name
    try:
        number = int((directory / "id").read_text())
        text = (directory / "format").read_text()
    except OSError as error:
        raise CollectorError(f"tracepoint {category}:{name}: {error.strerror}") from None
    fields = {}
    for match in _FIELD.finditer(text):
        kind, array = match["type"], match["array"] or ""
        fields[match["name"]] = Field(
            int(match["offset"]),
            int(match["size"]),
            match["signed"] == "1",
            "char" in kind and (bool(array) or kind.endswith("]")) and "__data_loc" not in kind,
            "__data_loc" in kind,
        )
    return Tracepoint(category, name, number, fields)

"""Reads the record files that the CUDA probe leaves (layout: probes/cuda/spool.h, activity.h, pystack.h).

A file is a header page and 64 KiB chunks, each written by one thread. Whatever the process's end, a chunk holds
whole records up to its `used` mark; what doesn't fit that is refused and counted, never guessed.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from perfscope.collectors.pycode import Code
from perfscope.errors import InputError

HEADER = struct.Struct("<8sIIQQQQQIIII")
HEADER_BYTES, NOTES_AT, STOP_AT = 4096, 256, 68
CHUNK = struct.Struct("<4sIII")
RECORD = struct.Struct("<HHI")

CODE, STACK, NAME, API_NAME, KERNEL, COPY, SYNC, OVERHEAD, MEMORY, MARKER, CALL = 1, 2, *range(16, 25)
_head = [("type", "<u2"), ("reserved", "<u2"), ("size", "<u4")]
FIXED: dict[int, np.dtype[np.void]] = {
    KERNEL: np.dtype(
        [
            *_head,
            *((n, "<u8") for n in ("start", "end", "name", "graph_node")),
            *((n, "<u4") for n in ("correlation", "device", "context", "stream", "graph", "registers")),
            ("static_shared", "<u4"),
            ("dynamic_shared", "<u4"),
            ("grid", "<u4", (3,)),
            ("block", "<u4", (3,)),
        ]
    ),
    COPY: np.dtype(
        [
            *_head,
            *((n, "<u8") for n in ("start", "end", "bytes", "graph_node")),
            *((n, "<u4") for n in ("correlation", "device", "context", "stream")),
            *((n, "u1") for n in ("kind", "source", "target", "flags")),
            ("reserved2", "<u4"),
        ]
    ),
    SYNC: np.dtype(
        [
            *_head,
            ("start", "<u8"),
            ("end", "<u8"),
            *((n, "<u4") for n in ("kind", "correlation", "context", "stream", "event", "reserved2")),
        ]
    ),
    OVERHEAD: np.dtype([*_head, ("start", "<u8"), ("end", "<u8"), ("kind", "<u4"), ("reserved2", "<u4")]),
    MEMORY: np.dtype(
        [
            *_head,
            *((n, "<u8") for n in ("time", "address", "bytes")),
            *((n, "<u4") for n in ("operation", "kind", "device", "stream", "correlation", "reserved2")),
        ]
    ),
    MARKER: np.dtype(
        [
            *_head,
            ("time", "<u8"),
            ("name", "<u8"),
            *((n, "<u4") for n in ("id", "flags", "thread", "reserved2")),
        ]
    ),
    CALL: np.dtype(
        [
            *_head,
            ("start", "<u8"),
            ("end", "<u8"),
            *((n, "<u4") for n in ("correlation", "stack", "tid", "api")),
            ("result", "<i4"),
            ("reserved2", "<u4"),
        ]
    ),
}
"""Records of one size, as numpy sees them."""


@dataclass
class Spool:
    """One process's records.

    fixed: record type -> structured array (see FIXED). names, apis: id -> text. stacks: id -> [(code id, instruction)],
    innermost first. lost: records the probe had no room for; cupti_lost: records CUPTI dropped; damaged: chunks cut
    short by a bad record. complete: the process ended in an orderly way, so that all was flushed.
    """

    path: Path
    pid: int
    opened_ns: int
    cupti_version: int
    python_version: int
    lost: int
    cupti_lost: int
    complete: bool
    notes: list[str]
    damaged: int = 0
    fixed: dict[int, npt.NDArray[np.void]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    apis: dict[int, str] = field(default_factory=dict)
    codes: dict[int, Code] = field(default_factory=dict)
    stacks: dict[int, list[tuple[int, int]]] = field(default_factory=dict)


def read(path: Path) -> Spool:
    """Reads a spool. Raises InputError if the file is none; reads a damaged one as far as it is sound."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: can't be read: {error}") from None
    with data:
        if len(data) < HEADER_BYTES or data[:8] != b"PSCUDA1\0":
            raise InputError(f"{path}: no CUDA activity spool")
        (_, chunk_bytes, pid, opened, chunks, lost, dropped, closed, cupti, python, noted, _) = HEADER.unpack_from(data)
        if not 4096 <= chunk_bytes <= 1 << 24:
            raise InputError(f"{path}: damaged header at offset 8: chunks of {chunk_bytes} bytes")
        text = data[NOTES_AT : min(NOTES_AT + noted, HEADER_BYTES)].decode(errors="replace")
        spool = Spool(path, pid, opened, cupti, python, lost, dropped, closed != 0, text.splitlines())
        found: dict[int, list[int]] = {kind: [] for kind in FIXED}
        for start in range(HEADER_BYTES, len(data) - CHUNK.size + 1, chunk_bytes):
            if (start - HEADER_BYTES) // chunk_bytes >= chunks:
                break
            _read_chunk(spool, data, start, min(start + chunk_bytes, len(data)), found)
        whole = np.frombuffer(data, np.uint8)
        for kind, dtype in FIXED.items():
            spool.fixed[kind] = _gather(whole, found[kind], dtype)
        del whole
    return spool


def _read_chunk(spool: Spool, data: mmap.mmap, start: int, end: int, found: dict[int, list[int]]) -> None:
    magic, _, used, _ = CHUNK.unpack_from(data, start)
    if magic == b"\0\0\0\0" and not used:
        return  # handed out, nothing written yet
    at, stop = start + CHUNK.size, start + CHUNK.size + used
    if magic != b"CHNK" or stop > end:
        spool.damaged += 1
        return
    while at < stop:
        kind, _, size = RECORD.unpack_from(data, at)
        if size < RECORD.size or size % 8 or at + size > stop:
            spool.damaged += 1
            return
        if kind in FIXED:
            if size < FIXED[kind].itemsize:
                spool.damaged += 1
                return
            found[kind].append(at)
        elif not _read_text(spool, data[at : at + size], kind):
            spool.damaged += 1
            return
        at += size


def _read_text(spool: Spool, record: bytes, kind: int) -> bool:
    """Takes a record of varying size; False if its lengths don't fit it. Unknown kinds are passed over."""
    try:
        if kind in (NAME, API_NAME):
            ident, length = struct.unpack_from("<QI", record, 8)
            if length > len(record) - 24:
                return False
            (spool.names if kind == NAME else spool.apis)[ident] = record[24 : 24 + length].decode(errors="replace")
        elif kind == CODE:
            ident, first, files, names, lines = struct.unpack_from("<5I", record, 8)
            if files + names + lines > len(record) - 32:
                return False
            body = record[32 : 32 + files + names + lines]
            spool.codes[ident] = Code(
                body[:files].decode(errors="replace"),
                body[files : files + names].decode(errors="replace"),
                first,
                body[files + names :],
            )
        elif kind == STACK:
            ident, depth = struct.unpack_from("<2I", record, 8)
            if depth * 8 > len(record) - 16:
                return False
            flat = struct.unpack_from(f"<{depth * 2}I", record, 16)
            spool.stacks[ident] = list(zip(flat[::2], flat[1::2], strict=True))
    except struct.error:
        return False
    return True


def _gather(data: npt.NDArray[np.uint8], offsets: list[int], dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """The records at these offsets as one structured array, in blocks that bound the index's memory."""
    out = np.empty(len(offsets), dtype)
    raw = out.view(np.uint8).reshape(len(offsets), dtype.itemsize)
    span = np.arange(dtype.itemsize)
    for low in range(0, len(offsets), 65536):
        block = np.asarray(offsets[low : low + 65536], np.int64)
        raw[low : low + len(block)] = data[block[:, None] + span]
    return out


def closed(path: Path) -> bool:
    """True once the probe has handed over all it had."""
    with path.open("rb") as file:
        head = file.read(HEADER.size)
    return len(head) == HEADER.size and HEADER.unpack(head)[7] != 0


def ask_to_stop(path: Path) -> None:
    """Tells the probe that writes this file to record no longer."""
    with path.open("r+b") as file:
        file.seek(STOP_AT)
        file.write(struct.pack("<I", 1))

"""What the kernel's looks at Python stacks left: fixed records of looks, and words about the code and stacks in them.

Declares what probes/bpf/python.h does.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from perfscope.collectors.pycode import Code
from perfscope.collectors.pyspy.frames import make_frame
from perfscope.collectors.pyspy.remote import text
from perfscope.model.stacks import Frame, StackTable

LOOK = np.dtype(
    [(name, "<u8") for name in ("time", "since", "stack")] + [(name, "<u4") for name in ("tgid", "tid", "flags", "pad")]
)
AT_TICK, HOLDS_GIL, UNREAD, ENDED, FAILED = 1, 2, 4, 8, 16
STACK, CODE = 1, 2
_MOST_FRAMES, _TEXT, _MOST_LINES = 256, 1024, 8192
_STACK, _CODE = struct.Struct("<IIQII"), struct.Struct("<IIQ8I")
_FRAME = np.dtype([("code", "<u8"), ("key", "<u8"), ("instruction", "<u4"), ("pad", "<u4")])
CUT = Frame("state", "[deeper frames not read]")


@dataclass
class Words:
    """Code objects by key, stacks by id: their frames' (key, instruction), innermost first, and whether it was cut."""

    codes: dict[int, Code] = field(default_factory=dict)
    stacks: dict[int, tuple[list[tuple[int, int]], bool]] = field(default_factory=dict)
    unsound: int = 0


def read_words(path: Path) -> Words:
    """Reads as far as the file is sound."""
    words = Words()
    data = path.read_bytes() if path.exists() else b""
    at = 0
    while at + 4 <= len(data):
        kind = int.from_bytes(data[at : at + 4], "little")
        size = _stack(words, data, at) if kind == STACK else _code(words, data, at) if kind == CODE else 0
        if not size:
            words.unsound += 1
            break
        at += size
    return words


def _stack(words: Words, data: bytes, at: int) -> int:
    """Takes a stack; its size, 0 if it doesn't fit."""
    if at + _STACK.size > len(data):
        return 0
    _, _, number, depth, cut = _STACK.unpack_from(data, at)
    size = int(_STACK.size + depth * _FRAME.itemsize)
    if at + size > len(data) or depth > _MOST_FRAMES:
        return 0
    frames = np.frombuffer(data, _FRAME, depth, at + _STACK.size)
    words.stacks[number] = list(zip(frames["key"].tolist(), frames["instruction"].tolist(), strict=True)), cut != 0
    return size


def _code(words: Words, data: bytes, at: int) -> int:
    if at + _CODE.size + 2 * _TEXT > len(data):
        return 0
    _, _, key, first_line, files, file_kind, names, name_kind, lines, _, _ = _CODE.unpack_from(data, at)
    body = at + _CODE.size
    size = int(_CODE.size + 2 * _TEXT + lines)
    if at + size > len(data) or max(files, names) > _TEXT or lines > _MOST_LINES:
        return 0
    words.codes[key] = Code(
        text(data[body : body + files], file_kind),
        text(data[body + _TEXT : body + _TEXT + names], name_kind),
        first_line,
        data[body + 2 * _TEXT : at + size],
    )
    return size


def stack_ids(words: Words, wanted: npt.NDArray[np.uint64], stacks: StackTable) -> npt.NDArray[np.int32]:
    """stack_id of each of the distinct stacks, -1 where not all of it was told of."""
    found = np.full(len(wanted), -1, np.int32)
    for index, number in enumerate(wanted.tolist()):
        told, cut = words.stacks.get(number, ([], False))
        if told and all(key in words.codes for key, _ in told):
            path = [frame(words.codes[key], instruction) for key, instruction in reversed(told)]
            found[index] = stacks.stack([CUT, *path] if cut else path)
    return found


def frame(code: Code, instruction: int) -> Frame:
    """The session's frame for an instruction of a code object."""
    return make_frame(code.name, code.file, code.line(instruction))

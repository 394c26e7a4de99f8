"""Where a running CPython keeps what a look at its stacks reads: addresses, and offsets in bytes.

The offsets of 3.11 and 3.12 are those of CPython's headers, and fixed within a minor version. From 3.13 on the process
itself says them, in `_Py_DebugOffsets` at the start of `_PyRuntime`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from perfscope.collectors.ebpf import elf
from perfscope.collectors.ebpf.gil import PYTHON

READS = ((3, 11), (3, 14))
"""Oldest and newest CPython whose layout is known."""
WINDOW = 96
"""Bytes that are read of a frame, or of a code object, in one piece (probes/bpf/python.h)."""
_COOKIE = b"xdebugpy"
_TABLE_WORDS = 81


class Unreadable(Exception):
    """Why the stacks of a process can't be read here. again: they may be later, once its interpreter is ready."""

    def __init__(self, why: str, *, again: bool = False) -> None:
        super().__init__(why)
        self.again = again


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Offsets, with the names and in the order of `struct process` in probes/bpf/python.h.

    state: of PyThreadState; frame: _PyInterpreterFrame; code: PyCodeObject, of which a window is read; text: a str, its
    kind behind text_shift bits; holder, locked: of the GIL.
    """

    threads_head: int
    state_next: int
    state_tid: int
    state_frame: int
    through_cframe: int = 0
    cframe_frame: int = 0
    frame_code: int
    frame_instruction: int
    frame_previous: int
    frame_owner: int
    code_window: int = 64
    code_first_line: int
    code_file: int
    code_name: int
    code_lines: int
    code_bytes: int
    text_state: int = 32
    text_shift: int = 2
    text_length: int = 16
    text_ascii: int
    text_compact: int
    bytes_size: int = 16
    bytes_data: int = 32
    gil_holder: int = 8
    gil_locked: int = 16

    def sound(self) -> bool:
        """False where what is looked for lies outside what is read: such a layout isn't what it was taken for."""
        frame = self.frame_code, self.frame_instruction, self.frame_previous, self.frame_owner
        code = self.code_first_line, self.code_file, self.code_name, self.code_lines
        inside = all(0 <= at <= WINDOW - 8 for at in (*frame, *(at - self.code_window for at in code)))
        return inside and all(0 <= at < 1 << 20 for at in astuple(self))


_CODE = {"code_file": 112, "code_name": 128, "code_lines": 136}
_CFRAME = {"state_next": 8, "state_frame": 56, "through_cframe": 1}
_FIXED = {
    (3, 11): Layout(
        threads_head=16, state_tid=160, cframe_frame=8, frame_code=32, frame_instruction=56, frame_previous=48,
        frame_owner=69, code_first_line=72, code_bytes=184, text_ascii=48, text_compact=72, **_CODE, **_CFRAME,
    ),
    (3, 12): Layout(
        threads_head=72, state_tid=144, cframe_frame=0, frame_code=0, frame_instruction=56, frame_previous=8,
        frame_owner=70, code_first_line=68, code_bytes=192, text_ascii=40, text_compact=56, **_CODE, **_CFRAME,
    ),
}  # fmt: skip
_MAIN = 48
"""Offset of `interpreters.main` in `_PyRuntime` of 3.11 and 3.12."""
_GIL_311, _GIL_312 = 360, 384
"""Offset of `ceval.gil`: in `_PyRuntime`, and of the pointer to it in PyInterpreterState."""


@dataclass(frozen=True)
class Interpreter:
    """The main interpreter of a process. address: of its PyInterpreterState; gil: of its GIL's state."""

    pid: int
    address: int
    gil: int
    layout: Layout

    def packed(self, period_ns: int) -> bytes:
        """`struct process` of probes/bpf/python.h; period_ns: between two looks."""
        offsets = astuple(self.layout)
        return struct.pack(f"<3QI{len(offsets)}I", self.address, self.gil, period_ns, self.pid, *offsets)


PROCESS_BYTES = 3 * 8 + 4 * (1 + len(fields(Layout)))


class Memory:
    """Another process's memory. Its methods raise OSError where nothing is mapped, or the process is gone."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, address: int, size: int) -> bytes:
        try:
            data = os.pread(self._descriptor, size, address)
        except OverflowError:
            raise OSError(f"no address: {address}") from None
        if len(data) < size:
            raise OSError(f"nothing at {address:x}")
        return data

    def word(self, address: int, size: int = 8) -> int:
        return int.from_bytes(self.read(address, size), "little")


@contextmanager
def opened(pid: int) -> Iterator[Memory]:
    """That process's memory. Raises OSError without the right to read it."""
    descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        yield Memory(descriptor)
    finally:
        os.close(descriptor)


def find(pid: int) -> Interpreter:
    """The main interpreter of a process. Raises Unreadable."""
    try:
        at = _symbols(pid)
        with opened(pid) as memory:
            return _find(pid, memory, at["_PyRuntime"], at["Py_Version"])
    except OSError as error:
        raise Unreadable(f"its memory can't be read: {error.strerror or error}", again=True) from None
    except KeyError:
        oldest, newest = (".".join(map(str, version)) for version in READS)
        raise Unreadable(f"it shows no CPython from {oldest} to {newest}", again=True) from None


def _symbols(pid: int) -> dict[str, int]:
    """Addresses of the symbols that the interpreter's file exports; none from what is no CPython 3.11 or newer."""
    for line in Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape").splitlines():
        parts = line.split(None, 5)
        if len(parts) < 6 or "x" not in parts[1] or not PYTHON.fullmatch(parts[5].rsplit("/", 1)[-1]):
            continue
        found = {}
        start, end = (int(bound, 16) for bound in parts[0].split("-"))
        for name in ("_PyRuntime", "Py_Version"):
            symbol = elf.find_symbol(Path(f"/proc/{pid}/map_files/{start:x}-{end:x}"), name)
            span = symbol.range_at(start, int(parts[2], 16)) if symbol else None
            if span is not None:
                found[name] = span[0]
        if len(found) == 2:
            return found
    return {}


def _find(pid: int, memory: Memory, runtime: int, version_at: int) -> Interpreter:
    number = memory.word(version_at, 4)
    version = number >> 24, number >> 16 & 0xFF
    if not READS[0] <= version <= READS[1]:
        raise Unreadable(f"the layout of Python {version[0]}.{version[1]} isn't known")
    if version in _FIXED:
        layout, address = _FIXED[version], memory.word(runtime + _MAIN)
        gil = runtime + _GIL_311 if version == (3, 11) else memory.word(address + _GIL_312) if address else 0
    else:
        layout, address, gil = _by_table(memory, runtime, version[1])
    if not layout.sound():
        raise Unreadable(f"this build of Python {version[0]}.{version[1]} has a layout of its own")
    if not address or not gil or not memory.word(address + layout.threads_head):
        raise Unreadable("its interpreter isn't ready", again=True)
    return Interpreter(pid, address, gil, layout)


# Where groups of words begin in _Py_DebugOffsets (of their headers, Include/internal/pycore_debug_offsets.h): those of
# thread_state, interpreter_frame, code_object, bytes_object and unicode_object; and of ceval_gil in interpreter_state.
_INTERPRETERS_HEAD, _INTERPRETER = 5, 6
_GROUPS = {13: (19, 28, 34, 64, 67, 8), 14: (22, 31, 39, 74, 77, 9)}


def _by_table(memory: Memory, runtime: int, minor: int) -> tuple[Layout, int, int]:
    """Layout, interpreter, GIL by `_Py_DebugOffsets`: 64-bit words, in groups that begin with their struct's size."""
    words = struct.unpack(f"<{_TABLE_WORDS}Q", memory.read(runtime, 8 * _TABLE_WORDS))
    if memory.read(runtime, 8) != _COOKIE:
        raise Unreadable("its table of offsets isn't ready", again=True)
    if words[2]:
        raise Unreadable("free-threaded Python keeps bytecode for each thread, which isn't read")
    *places, gil = _GROUPS[minor]
    thread, frame, code, data, text = (words[place:] for place in places)
    interpreter = words[_INTERPRETER:]
    gil_at, gil_state, _, locked, holder = interpreter[gil : gil + 5]
    layout = Layout(
        threads_head=interpreter[3], state_next=thread[2], state_frame=thread[4], state_tid=thread[6],
        frame_previous=frame[1], frame_code=frame[2], frame_instruction=frame[3], frame_owner=frame[5],
        code_file=code[1], code_name=code[3], code_lines=code[4], code_first_line=code[5], code_bytes=code[9],
        bytes_size=data[1], bytes_data=data[2], text_state=text[1], text_length=text[2], text_ascii=text[3],
        text_compact=text[3] + 16, text_shift=2 if minor < 14 else 16, gil_holder=holder - gil_state,
        gil_locked=locked - gil_state,
    )  # fmt: skip
    head = memory.word(runtime + words[_INTERPRETERS_HEAD])
    return layout, head, memory.word(head + gil_at) if head else 0

"""The stack of a thread that sleeps, read from outside: for one that doesn't come back to a CPU before the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from perfscope.collectors.pycode import Code
from perfscope.collectors.pyspy.interpreter import WINDOW, Interpreter, Layout, Memory, opened

MOST_THREADS, MOST_FRAMES = 4096, 256
_MOST_TEXT, _MOST_LINES = 4096, 1 << 18
_CODECS = {0: "ascii", 1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}
_OWNED_BY_INTERPRETER = 3


@dataclass(frozen=True)
class Asleep:
    """A thread's stack from since_ns until time_ns. frames: (code object, index of the instruction), innermost first.
    cut: it is deeper."""

    tid: int
    since_ns: int
    time_ns: int
    frames: list[tuple[Code, int]]
    cut: bool = False


def asleep(interpreter: Interpreter, tids: Mapping[int, int], off_since: Callable[[int], int | None]) -> list[Asleep]:
    """Stacks of the threads that are off the CPU, and stay so while they are read.

    tids: of the host, by those that the process sees. off_since: when a thread left the CPU; None if that isn't known,
    or if it is on one.
    """
    found = []
    codes: dict[int, Code] = {}
    try:
        with opened(interpreter.pid) as memory:
            for inner, state in states(memory, interpreter):
                tid = tids.get(inner)
                since = None if tid is None else off_since(tid)
                if tid is None or since is None:
                    continue
                now = time.monotonic_ns()
                try:
                    frames = stack(memory, interpreter.layout, state, codes)
                except OSError:
                    continue
                if frames and off_since(tid) == since:
                    found.append(Asleep(tid, since, now, frames[:MOST_FRAMES], len(frames) > MOST_FRAMES))
    except OSError:
        pass  # the process has just ended
    return found


def states(memory: Memory, interpreter: Interpreter) -> Iterator[tuple[int, int]]:
    """(tid as the process sees it, address of its PyThreadState) of each thread. Raises OSError."""
    layout = interpreter.layout
    state = memory.word(interpreter.address + layout.threads_head)
    for _ in range(MOST_THREADS):
        if not state:
            return
        yield memory.word(state + layout.state_tid, 4), state
        state = memory.word(state + layout.state_next)


def stack(memory: Memory, layout: Layout, state: int, codes: dict[int, Code]) -> list[tuple[Code, int]]:
    """Frames of a thread that sleeps, innermost first, up to one more than are kept. Raises OSError.

    codes: those known already, by address.
    """
    frame = memory.word(state + layout.state_frame)
    if layout.through_cframe and frame:
        frame = memory.word(frame + layout.cframe_frame)
    frames: list[tuple[Code, int]] = []
    for _ in range(2 * MOST_FRAMES):  # up to one marker a function; and frames that changed meanwhile may form a ring
        if not frame or len(frames) > MOST_FRAMES:
            break
        data = memory.read(frame, WINDOW)
        frame = _word(data, layout.frame_previous)
        address = _word(data, layout.frame_code) & ~3
        if data[layout.frame_owner] >= _OWNED_BY_INTERPRETER or not address:
            continue
        if address not in codes:
            codes[address] = _code(memory, layout, address)
        ahead = _word(data, layout.frame_instruction) - (address + layout.code_bytes)
        frames.append((codes[address], max(ahead, 0) // 2))
    return frames


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _code(memory: Memory, layout: Layout, address: int) -> Code:
    lines = memory.word(address + layout.code_lines)
    size = memory.word(lines + layout.bytes_size)
    return Code(
        _text(memory, layout, memory.word(address + layout.code_file)),
        _text(memory, layout, memory.word(address + layout.code_name)),
        memory.word(address + layout.code_first_line, 4),
        memory.read(lines + layout.bytes_data, size) if size <= _MOST_LINES else b"",
    )


def _text(memory: Memory, layout: Layout, address: int) -> str:
    state = memory.word(address + layout.text_state, 4)
    kind, is_ascii = state >> layout.text_shift & 7, state >> (layout.text_shift + 4) & 1
    length = min(memory.word(address + layout.text_length), _MOST_TEXT)
    data = memory.read(address + (layout.text_ascii if is_ascii else layout.text_compact), length * kind)
    return text(data, 0 if is_ascii else kind)


def text(data: bytes, kind: int) -> str:
    """A str's characters; kind: bytes of each, 0 for ASCII."""
    return data.decode(_CODECS.get(kind, "ascii"), "replace")

"""Java stacks of a JFR chunk -> frames of the session, and names as people write them."""

from __future__ import annotations

import re
from typing import Any

from perfscope.collectors.jfr.chunk import Chunk
from perfscope.model.stacks import ROOT, Frame, StackTable

TRUNCATED = Frame("java", "[deeper frames not recorded]")
"""Outermost frame of a stack that JFR cut at its depth limit (64 unless the JVM was told otherwise)."""

_ADDRESS = re.compile(r"[/+.]0x[0-9a-f]+([./]\d+)?$")
_PRIMITIVES = {
    "Z": "boolean",
    "B": "byte",
    "C": "char",
    "S": "short",
    "I": "int",
    "J": "long",
    "F": "float",
    "D": "double",
}


def class_name(internal: str) -> str:
    """java.lang.String of java/lang/String, byte[][] of [[B; hidden classes lose their run's address."""
    depth = len(internal) - len(internal.lstrip("["))
    name = internal[depth:]
    if depth:
        name = _PRIMITIVES.get(name) or name.removeprefix("L").removesuffix(";")
    return _ADDRESS.sub("", name).replace("/", ".") + "[]" * depth


class ChunkNames:
    """Resolves the constants of one chunk. Unknown keys give None, never a made-up name."""

    def __init__(self, chunk: Chunk) -> None:
        self._symbols = chunk.pool("jdk.types.Symbol")
        self._strings = chunk.pool("java.lang.String")
        self._classes = chunk.pool("java.lang.Class")
        self._methods = chunk.pool("jdk.types.Method")
        self._traces = chunk.pool("jdk.types.StackTrace")
        kinds = chunk.pool("jdk.types.FrameType")
        self._native = {key for key, (text, *_) in kinds.items() if self.text(text) == "Native"}
        self.threads = chunk.pool("java.lang.Thread")
        self.truncated = 0
        self._known: dict[int, int] = {}
        self._frames: dict[tuple[int, int, bool], int] = {}

    def text(self, value: Any) -> str | None:
        """A string value of an event: held in it, or in the string pool."""
        if value is None or type(value) is str:
            return value
        found = self._strings.get(value)
        return found[0] if found and type(found[0]) is str else None

    def symbol(self, key: int) -> str | None:
        found = self._symbols.get(key)
        return self.text(found[0]) if found else None

    def class_of(self, key: int) -> str | None:
        """A class's name as in Java source; None for no class."""
        found = self._classes.get(key)
        internal = self.symbol(found[0]) if found else None
        return class_name(internal) if internal else None

    def stack(self, key: int | None, stacks: StackTable) -> int | None:
        """stack_id of a stack trace; None if the event has none or it is not in the file."""
        if not key:
            return None
        known = self._known.get(key)
        if known is not None:
            return known
        trace = self._traces.get(key)
        if trace is None or len(trace) != 2:
            return None
        truncated, frames = trace
        parent = stacks.push(ROOT, stacks.frame(TRUNCATED)) if truncated else ROOT
        self.truncated += bool(truncated)
        for method, line, _, kind in reversed(frames):
            frame_key = (method, line, kind in self._native)
            frame_id = self._frames.get(frame_key)
            if frame_id is None:
                frame_id = self._frames[frame_key] = stacks.frame(self._frame(*frame_key))
            parent = stacks.push(parent, frame_id)
        self._known[key] = parent
        return parent

    def is_truncated(self, key: int) -> bool:
        trace = self._traces.get(key)
        return bool(trace and trace[0])

    def _frame(self, method: int, line: int, native: bool) -> Frame:
        found = self._methods.get(method)
        owner = self.class_of(found[0]) if found else None
        name = self.symbol(found[1]) if found else None
        function = f"{owner}.{name}" if owner and name else name or "[unknown method]"
        return Frame("native" if native else "java", function, None, line if line > 0 else None, owner)

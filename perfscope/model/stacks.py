"""Stacks as a trie: each distinct frame and each distinct (caller's stack, frame) is kept once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from perfscope.model.schema import schema

ROOT = -1
"""parent_id of an outermost frame's stack, and the stack_id of the empty stack."""


class Frame(NamedTuple):
    """One frame. Two frames are the same only if all of this is: same-named functions of two languages never merge."""

    layer: str
    function: str
    file: str | None = None
    line: int | None = None
    module: str | None = None


class StackTable:
    """Interns frames and stacks and turns them into the `frames` and `stacks` tables. Ids are row numbers."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.parents: list[int] = []
        self.stack_frames: list[int] = []
        self._frame_ids: dict[Frame, int] = {}
        self._stack_ids: dict[tuple[int, int], int] = {}

    def frame(self, frame: Frame) -> int:
        """frame_id of a frame, new or known."""
        found = self._frame_ids.get(frame)
        if found is None:
            found = self._frame_ids[frame] = len(self.frames)
            self.frames.append(frame)
        return found

    def push(self, parent: int, frame_id: int) -> int:
        """stack_id of `frame_id` called from stack `parent` (ROOT for an outermost frame)."""
        key = (parent, frame_id)
        found = self._stack_ids.get(key)
        if found is None:
            found = self._stack_ids[key] = len(self.parents)
            self.parents.append(parent)
            self.stack_frames.append(frame_id)
        return found

    def stack(self, frames: Iterable[Frame], parent: int = ROOT) -> int:
        """stack_id of frames given outermost first, below `parent`."""
        for frame in frames:
            parent = self.push(parent, self.frame(frame))
        return parent

    def path(self, stack_id: int) -> list[Frame]:
        """Frames of a stack, outermost first."""
        path: list[Frame] = []
        while stack_id != ROOT:
            path.append(self.frames[self.stack_frames[stack_id]])
            stack_id = self.parents[stack_id]
        return path[::-1]

    def parent_array(self) -> npt.NDArray[np.int32]:
        return np.asarray(self.parents, np.int32)

    def frame_array(self) -> npt.NDArray[np.int32]:
        return np.asarray(self.stack_frames, np.int32)

    def to_arrow(self) -> tuple[pa.Table, pa.Table]:
        """The `frames` and `stacks` tables."""
        layer, function, file, line, module = (
            [list(c) for c in zip(*self.frames, strict=True)] if self.frames else ([], [], [], [], [])
        )
        target = schema("frames")
        frames = pa.table(
            [
                pa.array(np.arange(len(self.frames), dtype=np.int32)),
                pa.array(layer, pa.string()).dictionary_encode(),
                pa.array(function, pa.string()),
                pa.array(file, pa.string()),
                pa.array(line, pa.int32()),
                pa.array(module, pa.string()),
            ],
            schema=target,
        )
        stacks = pa.table(
            [pa.array(np.arange(len(self.parents), dtype=np.int32)), self.parent_array(), self.frame_array()],
            schema=schema("stacks"),
        )
        return frames, stacks

    @classmethod
    def from_arrow(cls, frames: pa.Table, stacks: pa.Table) -> StackTable:
        """Rebuilds it. Raises ValueError if a stack names a frame or a parent that doesn't stand before it."""
        table = cls()
        columns = [frames.column(n).to_pylist() for n in ("layer", "function", "file", "line", "module")]
        table.frames = [Frame(*row) for row in zip(*columns, strict=True)]
        parents = stacks.column("parent_id").to_numpy()
        frame_ids = stacks.column("frame_id").to_numpy()
        ids = np.arange(len(parents))
        if len(parents) and (
            (parents < ROOT).any()
            or (parents >= ids).any()
            or (frame_ids < 0).any()
            or (frame_ids >= len(table.frames)).any()
        ):
            raise ValueError("stacks refer to frames or callers that don't exist")
        table.parents = parents.tolist()
        table.stack_frames = frame_ids.tolist()
        table._frame_ids = {f: i for i, f in enumerate(table.frames)}
        table._stack_ids = {k: i for i, k in enumerate(zip(table.parents, table.stack_frames, strict=True))}
        return table

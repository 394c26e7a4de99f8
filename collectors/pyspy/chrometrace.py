"""py-spy's chrometrace: the only format of it that carries time.

An event is {"ph": "B"|"E", "name", "args": {"filename", "line"}, "pid", "tid", "ts"}: ts in microseconds since py-spy
started, tid a pthread handle. At each look at a thread py-spy writes only what changed since the look before: ends of
the frames that are gone, then begins of the new ones, all with one ts. It keeps that state by pthread handle *alone*,
so with `--subprocesses` a forked child (same handles) ends its parent's frames. Read with the same key, such a file is
sound again: the state after each group of events is the stack of the process that the group names.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perfscope.collectors.pyspy import frames as fr
from perfscope.collectors.pyspy.slices import Slices, ThreadKey
from perfscope.collectors.pyspy.textstream import MAX_JUNK, MAX_ROWS, MAX_STACKS, Unsound, json_array, open_binary
from perfscope.model.stacks import ROOT, StackTable

MAX_DEPTH = 4096
MAX_TS = 2**50
"""Latest stamp believed, in microseconds (36 years)."""


class _Level(NamedTuple):
    """One open frame: the stack that it ends, and whose it is, as its innermost pseudo frames say."""

    frame: tuple[str, str, int]
    stack: int = ROOT
    pid: int | None = None
    tid: int | None = None
    name: str | None = None


_BASE = _Level(("", "", 0))


@dataclass
class _Handle:
    """State of one pthread handle. pid, ts: of the look being read. thread: whose stack it showed last.

    named: the first thread that went by a name. py-spy keeps names by handle, so that a thread which got the handle of
    a dead one is shown with that one's name.
    """

    open: list[_Level] = field(default_factory=list)
    pid: int = -1
    ts: int = -1
    sound: bool = True
    thread: int | None = None
    pids: set[int] = field(default_factory=set)
    ordinal: int = 0
    named: dict[str, int] = field(default_factory=dict)


class _Reader:
    def __init__(self, stacks: StackTable) -> None:
        self.stacks = stacks
        self.handles: dict[int, _Handle] = {}
        self.frame_ids: dict[tuple[str, str, int], int] = {}
        self.index: dict[ThreadKey, int] = {}
        self.result = Slices()
        self.open_slice: dict[int, tuple[int, int]] = {}  # thread -> (start, stack)
        self.left_at: dict[int, int] = {}  # thread -> when its handle was first seen to be another thread's
        self.columns = array("q")  # thread, start, end, stack, flattened

    def event(self, event: Any) -> bool:
        """Takes one event; False if it is none of py-spy's or doesn't fit."""
        if not isinstance(event, dict):
            return False
        phase, name, pid, handle, ts = (event.get(k) for k in ("ph", "name", "pid", "tid", "ts"))
        args = event.get("args") or {}
        if phase == "M":
            return True
        if phase not in ("B", "E") or not isinstance(name, str) or not isinstance(args, dict):
            return False
        filename, line = args.get("filename") or "", args.get("line") or 0
        if type(pid) is not int or type(handle) is not int or type(ts) is not int or type(line) is not int:
            return False
        if not isinstance(filename, str) or not (0 <= ts < MAX_TS and 0 <= pid < 2**31 and 0 <= line < 2**31):
            return False
        state = self.handles.get(handle)
        if state is None:
            state = self.handles[handle] = _Handle(ordinal=len(self.handles))
        if ts != state.ts or pid != state.pid:
            if ts < state.ts:
                return self._unsound(state)
            self._look(state)
            state.ts, state.pid = ts, pid
        frame = (name, filename, line)
        if phase == "E":
            return self._end(state, frame)
        if not state.sound and not (filename == "" and (fr.thread_frame(name) or fr.process_frame(name) is not None)):
            return False
        return self._begin(state, frame)

    def _begin(self, state: _Handle, frame: tuple[str, str, int]) -> bool:
        if len(state.open) >= MAX_DEPTH:
            return self._unsound(state)
        state.sound = True
        above = state.open[-1] if state.open else _BASE
        if above.stack == ROOT and frame[1] == "" and (thread := fr.thread_frame(frame[0])) is not None:
            level = above._replace(frame=frame, tid=thread.tid, name=thread.name)
        elif above.stack == ROOT and frame[1] == "" and (pid := fr.process_frame(frame[0])) is not None:
            level = above._replace(frame=frame, pid=pid)
        else:
            level = above._replace(frame=frame, stack=self._push(above.stack, frame))
        state.open.append(level)
        return True

    def _end(self, state: _Handle, frame: tuple[str, str, int]) -> bool:
        if not state.sound or not state.open or state.open[-1].frame != frame:
            return self._unsound(state)
        state.open.pop()
        return True

    def _push(self, parent: int, frame: tuple[str, str, int]) -> int:
        frame_id = self.frame_ids.get(frame)
        if frame_id is None:
            frame_id = self.frame_ids[frame] = self.stacks.frame(fr.make_frame(*frame))
        if (
            parent != ROOT
            and self.stacks.stack_frames[parent] == frame_id
            and fr.collapsed(self.stacks.frames[frame_id])
        ):
            return parent
        return self.stacks.push(parent, frame_id)

    def _unsound(self, state: _Handle) -> bool:
        """Gives up this handle's stack: it is unknown until a thread's or process's root frame begins again."""
        if state.sound:
            self._close(state.thread, state.ts)
            state.sound, state.thread = False, None
            state.open.clear()
        return False

    def _look(self, state: _Handle) -> None:
        """The events of one look are complete: the state is what that look saw."""
        if not state.sound or state.ts < 0:
            return
        if not state.open:
            self._close(state.thread, state.ts)
            state.thread = None
            return
        thread = self._thread(state)
        if state.thread is not None and state.thread != thread:
            # A fork's thread with the same handle, looked at in turn, or a new thread after a death. If the former
            # one is never looked at again, this is where it was gone at the latest.
            self.left_at[state.thread] = state.ts
        self.left_at.pop(thread, None)
        state.thread = thread
        known, stack = self.open_slice.get(thread), state.open[-1].stack
        if known is None or known[1] != stack:
            self._close(thread, state.ts)
            if stack != ROOT:
                self.open_slice[thread] = (state.ts, stack)

    def _thread(self, state: _Handle) -> int:
        top = state.open[-1]
        key = (
            state.pid if top.pid is None else top.pid,
            -1 - state.ordinal if top.tid is None else top.tid,
        )
        state.pids.add(key[0])
        thread = self.index.get(key)
        if thread is None:
            thread = self.index[key] = len(self.index)
            self.result.threads.append(key)
        if top.name and state.named.setdefault(top.name, thread) == thread:
            self.result.names[key] = top.name
        return thread

    def _close(self, thread: int | None, ts: int) -> None:
        if thread is not None and (known := self.open_slice.pop(thread, None)) is not None and ts > known[0]:
            self.columns.extend((thread, known[0], ts, known[1]))

    def finish(self) -> Slices:
        for state in self.handles.values():
            self._look(state)
        for thread in list(self.open_slice):
            self._close(thread, self.left_at.get(thread, self.result.last_ts))
        self.result.shared_handles = sum(len(state.pids) > 1 for state in self.handles.values())
        table = np.frombuffer(self.columns, np.int64).reshape(-1, 4) if self.columns else np.zeros((0, 4), np.int64)
        self.result.thread, self.result.stack = table[:, 0].astype(np.int32), table[:, 3].astype(np.int32)
        self.result.start, self.result.end = table[:, 1].copy(), table[:, 2].copy()
        stacks = self.stacks
        self.result.leaf = lambda row: stacks.frames[stacks.stack_frames[self.result.stack[row]]].function
        return self.result


def read_chrometrace(path: Path, stacks: StackTable) -> Slices:
    """Reads a chrometrace as far as it is sound, interning its stacks. Memory is bounded by the number of slices.

    Raises InputError if the file can't be opened, and nothing else: what is unsound is in lost_events and cut_at.
    """
    reader = _Reader(stacks)
    result = reader.result
    with open_binary(path) as stream:
        try:
            for event in json_array(stream):
                if reader.event(event):
                    ts = event.get("ts")
                    if type(ts) is int and event["ph"] != "M":
                        result.first_ts = ts if result.events == 0 else min(result.first_ts, ts)
                        result.last_ts = max(result.last_ts, ts)
                        result.events += 1
                else:
                    result.lost_events += 1
                    if result.lost_events > max(MAX_JUNK, result.events):
                        raise Unsound("most of it is no event of py-spy's", 0)
                if len(stacks.parents) > MAX_STACKS or len(reader.columns) > 4 * MAX_ROWS:
                    raise Unsound(f"more than {MAX_STACKS:,} distinct stacks or {MAX_ROWS:,} changes of them", 0)
        except Unsound as error:
            result.cut_at, result.cut_why = error.offset, str(error)
    return reader.finish()

"""Where a selection of thread_time is spent most."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import pyarrow as pa

from perfscope.model.session import Session
from perfscope.model.stacks import Frame

_LANGUAGES = ("python", "java")


@dataclass(frozen=True)
class HotSpot:
    """The source line with the most self time, and its heaviest stack.

    frame: the innermost Python or Java frame (of any layer where a stack has none), with its line. stack: outermost
    first, whole. self_ns: time of that line. sampled_ns: time of the selection that has a stack which can be
    believed; the share of the line is self_ns / sampled_ns.
    """

    frame: Frame
    stack: tuple[Frame, ...]
    self_ns: int
    sampled_ns: int


def hot_spot(session: Session, times: pa.Table) -> HotSpot | None:
    """The hot spot of some rows of thread_time, or None if none of their time has a stack that can be believed.

    Unsampled time and torn stacks are left out.
    """
    stacks = session.stacks
    by_stack: defaultdict[int, int] = defaultdict(int)
    for stack_id, ns in zip(times["stack_id"].to_pylist(), times["total_ns"].to_pylist(), strict=True):
        by_stack[stack_id] += ns
    by_line: defaultdict[Frame, int] = defaultdict(int)
    heaviest: dict[Frame, tuple[int, int]] = {}
    for stack_id, ns in by_stack.items():
        path = stacks.path(stack_id)
        if not path or path[0].layer == "state":
            continue
        frame = next((f for f in reversed(path) if f.layer in _LANGUAGES), path[-1])
        by_line[frame] += ns
        heaviest[frame] = max(heaviest.get(frame, (0, stack_id)), (ns, stack_id))
    if not by_line:
        return None
    frame = max(by_line, key=by_line.__getitem__)
    stack = tuple(stacks.path(heaviest[frame][1]))
    return HotSpot(frame, stack, by_line[frame], sum(by_line.values()))

"""Putting what a rule found into words and evidence."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.intervals import Intervals
from perfscope.diagnosis.thresholds import Threshold
from perfscope.model.finding import Evidence, Verdict, Where
from perfscope.model.stacks import ROOT, Frame

_NAMED = 3


def ok(rule: str, why: str) -> Verdict:
    """Measured, and nothing wrong."""
    return Verdict(rule, "ok", why)


def not_evaluable(rule: str, missing: str, get: str | None = None) -> Verdict:
    """An input is missing: which, and how to get it."""
    return Verdict(rule, "not_evaluable", missing + (f" (get it with: {get})" if get else ""))


def against(what: str, value: float, limit: Threshold, measured_by: str) -> Evidence:
    """Evidence: a value beside the threshold it was held against."""
    return Evidence(what, round(value, 3), limit.unit, limit.value, measured_by, limit.source)


def observed(what: str, value: float, unit: str, measured_by: str) -> Evidence:
    """Evidence without a threshold."""
    return Evidence(what, round(value, 3), unit, None, measured_by)


def seconds(ns: float) -> str:
    """A duration for people."""
    return f"{ns / 1e9:.2f} s" if ns >= 1e8 else f"{ns / 1e6:.1f} ms"


def label(frame: Frame) -> str:
    """`function (file:line)`, as far as known; `function:line` where the file isn't (Java)."""
    if frame.file is None:
        return frame.function if frame.line is None else f"{frame.function}:{frame.line}"
    return f"{frame.function} ({frame.file}{'' if frame.line is None else f':{frame.line}'})"


def path(facts: Facts, stack_id: int) -> tuple[str, ...]:
    """Labels of a stack's frames, outermost first."""
    return tuple(label(f) for f in facts.stacks.path(stack_id))


def thread_name(facts: Facts, thread: int) -> str:
    """A thread's name, or its id."""
    t = facts.threads[thread]
    return t.name or f"tid {t.tid}"


def thread_pattern(names: Iterable[str]) -> str:
    """One glob for several thread names: what they begin with in common, and `*`."""
    distinct = sorted(set(names))
    if len(distinct) == 1:
        return distinct[0]
    first, last = distinct[0], distinct[-1]  # what these two begin with in common, all between them do
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:same] + "*"


def _named(names: list[str]) -> str:
    """The pattern of several threads' names; some of them where they have nothing in common."""
    pattern, distinct = thread_pattern(names), list(dict.fromkeys(names))
    if pattern != "*" or distinct == ["*"]:
        return pattern
    more = f" and {len(distinct) - _NAMED} more" if len(distinct) > _NAMED else ""
    return ", ".join(distinct[:_NAMED]) + more


def main_threads(intervals: Intervals) -> list[int]:
    """Threads that make up these intervals, longest first, without those with less than 5 % of what the first has."""
    totals = intervals.by_thread()
    most = max(totals.values(), default=0)
    return [thread for thread, total in totals.items() if 20 * total >= most]


def threads_text(facts: Facts, intervals: Intervals) -> str:
    """The threads of these intervals for people: one name, or how many and their common pattern."""
    threads = main_threads(intervals)
    names = [thread_name(facts, t) for t in threads]
    if len(threads) == 1:
        return names[0]
    pattern = thread_pattern(names)
    return f"{len(threads)} threads" if pattern == "*" else f"{len(threads)} threads {pattern}"


_NEED_SCHED = {"cpu": "samples", "off-cpu": "wall"}
"""Weights that need sched events, and what stands in for each."""


def flame(facts: Facts, weight: str, names: Iterable[str] = ()) -> str:
    """The command that shows it, by a weight that this session has: both of these need sched events."""
    if weight in _NEED_SCHED and facts.collector_gap("ebpf"):
        weight = _NEED_SCHED[weight]
    parts = ["perfscope", "flame", str(facts.session.path), "--weight", weight]
    pattern = thread_pattern(names) if (names := list(names)) else "*"
    if pattern != "*":
        parts += ["--thread", pattern]
    return shlex.join(parts)


def where(facts: Facts, intervals: Intervals, stack_id: int = ROOT, layer: str = "python") -> Where:
    """Where intervals lie: their main threads, their window, and the code of `stack_id`."""
    threads = main_threads(intervals)
    first = facts.threads[threads[0]] if threads else None
    names = [thread_name(facts, t) for t in threads]
    same_process = first is not None and all(facts.threads[t].pid == first.pid for t in threads)
    frame = None if stack_id == ROOT else facts.code_frame(stack_id, layer)
    return Where(
        process=first.process if first and same_process else None,
        pid=first.pid if first and same_process else None,
        thread=_named(names) if names else None,
        tid=first.tid if first and len(threads) == 1 else None,
        stack=path(facts, stack_id),
        file=frame.file if frame else None,
        line=frame.line if frame else None,
        function=frame.function if frame else None,
        window_ns=intervals.window(),
    )


def by_function(
    facts: Facts, stack_ids: npt.NDArray[np.int32], weights: npt.NDArray[np.number], layer: str
) -> list[tuple[Frame, float, int]]:
    """Weights summed per innermost function of a layer, heaviest first: (frame, weight, heaviest stack_id).

    What the standard library does counts for the function that called it. A function is known by name, file and
    module; the frame carries the line that weighs most. Stacks without a frame of the layer are left out.
    """
    owners = facts.own_code[layer][stack_ids]
    known = owners != ROOT
    distinct, index = np.unique(owners[known], return_inverse=True)
    sums = np.bincount(index, weights[known], len(distinct))
    lines: dict[Frame, dict[int, float]] = defaultdict(dict)
    for stack, weight in zip(distinct.tolist(), sums.tolist(), strict=True):
        frame = facts.stacks.frames[facts.stacks.stack_frames[stack]]
        lines[frame._replace(line=None)][stack] = weight
    result = []
    for function, stacks in lines.items():
        per_line: dict[int | None, float] = defaultdict(float)
        for stack, weight in stacks.items():
            per_line[facts.stacks.frames[facts.stacks.stack_frames[stack]].line] += weight
        heaviest = max(per_line, key=lambda line: per_line[line])
        on_line = [s for s in stacks if facts.stacks.frames[facts.stacks.stack_frames[s]].line == heaviest]
        best = max(on_line, key=lambda s: stacks[s])
        result.append((function._replace(line=heaviest), sum(stacks.values()), best))
    return sorted(result, key=lambda row: -row[1])

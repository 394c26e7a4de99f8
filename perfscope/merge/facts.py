"""Slices and samples added up: how long each thread was in each state with each stack, in each window of time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from perfscope.merge.gpu import Attribution, GpuTime
from perfscope.merge.gpu_activity import activity_of
from perfscope.merge.intervals import Ints, bounded
from perfscope.merge.slices import STATES, ThreadSlices
from perfscope.merge.sums import summed
from perfscope.merge.tables import NEVER, ThreadInfo, codes, filled, process_labels, stack_ids, thread_keys, threads
from perfscope.merge.timeline import Merge
from perfscope.model.session import Session

WINDOWS = 200
"""Windows of equal length that a recording, or the part looked at, is cut into."""

NOBODY = -1
"""pid or tid of samples whose tool didn't say it."""


@dataclass(frozen=True)
class Facts:
    """Sums over [edges_ns[0], edges_ns[-1]), in arrays of equal length k (times) and m (samples).

    threads: by pid and tid. thread: index into it. stack: ROOT where unsampled. window: between edges window and
    window + 1. ns: their time, all of it: for each thread the sum is its observed time within the edges.
    sample_*: looks of samplers, torn ones and those of the GIL sampler left out; window -1: the tool gave no time.
    gpu: sums of GPU time in these windows, None if there was none. gpu_thread: index into threads, of each of its rows.
    torn_looks, all_looks: how many of all looks were torn. unlisted_sched_rows: records of threads not in `threads`.
    """

    threads: list[ThreadInfo]
    edges_ns: Ints
    thread: npt.NDArray[np.int64]
    stack: npt.NDArray[np.int64]
    state: npt.NDArray[np.int64]
    window: npt.NDArray[np.int64]
    ns: Ints
    sample_thread: npt.NDArray[np.int64]
    sample_stack: npt.NDArray[np.int64]
    sample_window: npt.NDArray[np.int64]
    sample_count: npt.NDArray[np.int64]
    torn_looks: int
    all_looks: int
    unlisted_sched_rows: int
    gpu: GpuTime | None
    gpu_thread: npt.NDArray[np.int64]


_whole: WeakKeyDictionary[Session, Facts] = WeakKeyDictionary()
_times: WeakKeyDictionary[Session, pa.Table] = WeakKeyDictionary()


def facts_of(session: Session, *, from_ns: int | None = None, to_ns: int | None = None) -> Facts:
    """Facts of [from_ns, to_ns), by default all that was observed; those of the whole are kept with the session."""
    if from_ns is None and to_ns is None:
        if session not in _whole:
            _whole[session] = _gather(session, None, None)
        return _whole[session]
    return _gather(session, from_ns, to_ns)


def thread_time(session: Session) -> pa.Table:
    """How long each thread was in each state with each stack, over the whole recording; kept with the session.

    Columns: pid, tid (int32), name, process, state (string; the last one of slices.STATES), stack_id (int32; ROOT
    where no sample says; torn samples share a stack of one frame "[torn stack]"), total_ns (int64, > 0).
    Per thread the sum of total_ns is its observed time, to the nanosecond.
    """
    if session not in _times:
        facts = facts_of(session)
        (thread, state, stack), ns = summed([facts.thread, facts.state, facts.stack], facts.ns)
        infos = facts.threads

        def of_thread(values: list[Any], type_: pa.DataType) -> pa.Array:
            return pa.array(values, type_).take(pa.array(thread))

        _times[session] = pa.table(
            {
                "pid": of_thread([i.pid for i in infos], pa.int32()),
                "tid": of_thread([i.tid for i in infos], pa.int32()),
                "name": of_thread([i.name for i in infos], pa.string()),
                "process": of_thread([i.process for i in infos], pa.string()),
                "state": pa.array(STATES, pa.string()).take(pa.array(state)),
                "stack_id": pa.array(stack.astype(np.int32)),
                "total_ns": pa.array(ns),
            }
        )
    return _times[session]


def _gather(session: Session, from_ns: int | None, to_ns: int | None) -> Facts:
    infos = threads(session)
    whole = (session.info.start_ns, session.info.stop_ns) if len(activity_of(session)) else (0, 0)
    low = min((i.start_ns for i in infos), default=whole[0])
    high = max((i.end_ns for i in infos), default=whole[1])
    # A part that isn't there at all is empty, not an error: its edges are one moment.
    low = low if from_ns is None else min(max(low, from_ns), high)
    high = max(low, high if to_ns is None else min(high, to_ns))
    edges = np.unique(np.array([low + (high - low) * k // WINDOWS for k in range(WINDOWS + 1)], np.int64))
    merge = Merge(session, infos)
    attribution = Attribution(session, edges)
    parts = []
    for number, slices in merge.parts():
        parts.append(_add_up(slices, edges, number))
        attribution.look(infos[number], slices, partial(merge.sources.samples.rows, number))
    thread, stack, state, window, ns = (
        np.concatenate([part[column] for part in parts] or [np.empty(0, np.int64)]) for column in range(5)
    )
    looks = _Looks(session, infos, edges, everything=from_ns is None and to_ns is None)
    (sample_thread, sample_stack, sample_window), sample_count = looks.sums
    gpu = attribution.result()
    threads_, gpu_thread = _numbered(session, looks.threads, np.empty(0, np.int64) if gpu is None else gpu.key)
    return Facts(
        threads_, edges, thread, stack, state, window, ns,
        sample_thread, sample_stack, sample_window, sample_count, looks.torn, looks.all, merge.unlisted_sched_rows,
        gpu, gpu_thread,
    )  # fmt: skip


def _add_up(slices: ThreadSlices, edges: Ints, number: int) -> tuple[npt.NDArray[np.int64], ...]:
    """thread, stack, state, window and ns of slices of one thread."""
    windows = len(edges) - 1
    if not len(slices.start_ns) or windows < 1:
        none = np.empty(0, np.int64)
        return none, none, none, none, none
    last = slices.end_ns[-1]
    inner = edges[(edges > slices.start_ns[0]) & (edges < last)]
    bounds = np.concatenate([slices.start_ns, inner])
    bounds.sort(kind="stable")
    length = np.diff(bounds, append=last)
    source = np.cumsum(np.bincount(np.searchsorted(bounds, slices.start_ns), minlength=len(bounds))) - 1
    window = np.cumsum(np.bincount(np.searchsorted(bounds, edges), minlength=len(bounds) + 1)[: len(bounds)]) - 1
    inside = (window >= 0) & (window < windows)
    # stack ids are few beside slices: one small integer for (stack, state, window) keeps the sort cheap
    code = (slices.stack_id[source].astype(np.int64) + 1) * len(STATES) + slices.state[source]
    code = (code * windows + window)[inside]
    (code,), ns = summed([code], length[inside])
    code, window = np.divmod(code, windows)
    stack, state = np.divmod(code, len(STATES))
    return np.full(len(ns), number, np.int64), stack - 1, state, window, ns


def _numbered(
    session: Session, infos: list[ThreadInfo], keys: npt.NDArray[np.int64]
) -> tuple[list[ThreadInfo], npt.NDArray[np.int64]]:
    """The threads with those added that only these keys know of, and the number of each key's thread."""
    distinct, index = np.unique(keys, return_inverse=True)
    everyone = list(infos)
    known = {(i.pid, i.tid): number for number, i in enumerate(infos)}
    labels = process_labels(session)
    numbers = np.empty(len(distinct), np.int64)
    for at, key in enumerate(distinct.tolist()):
        who = (key >> 32, (key & 0xFFFFFFFF) if (key & 0xFFFFFFFF) != 0xFFFFFFFF else NOBODY)
        if who not in known:
            known[who] = len(everyone)
            everyone.append(ThreadInfo(*who, "thread", labels.get(who[0], "process"), 0, 0, False))
        numbers[at] = known[who]
    return everyone, numbers[index]


class _Looks:
    """Samples by thread, stack and window. A row of several looks spreads them evenly over its duration."""

    def __init__(self, session: Session, infos: list[ThreadInfo], edges: Ints, *, everything: bool) -> None:
        table = session.table("samples")
        table = table.filter(pa.array(codes(table["source"], lambda s: s != "pyspy-gil") == 1))
        torn = table["torn"].to_numpy()
        count = np.maximum(table["count"].to_numpy(), 0)
        self.all, self.torn = int(count.sum()), int(count[torn].sum())
        table, count = table.filter(pa.array(~torn)), count[~torn]

        pid, tid = filled(table["pid"], NOBODY), filled(table["tid"], NOBODY)
        self.threads, thread = _numbered(session, infos, thread_keys(pid, tid))

        stack = stack_ids(session, "samples", table["stack_id"]).astype(np.int64)
        time = filled(table["time_ns"], NEVER)
        timed = time != NEVER
        row, window, share = _spread(
            bounded(time[timed]), bounded(filled(table["duration_ns"], 0))[timed], count[timed], edges, everything
        )
        row = np.flatnonzero(timed)[row]
        if everything:
            untimed = np.flatnonzero(~timed)
            row = np.concatenate([row, untimed])
            window = np.concatenate([window, np.full(len(untimed), -1)])
            share = np.concatenate([share, count[untimed]])
        self.sums = summed([thread[row], stack[row], window], share)


def _spread(
    time: Ints, duration: Ints, count: Ints, edges: Ints, everything: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Ints]:
    """Row, window and number of looks, for rows of `count` looks at time, time + duration / count, ...

    With `everything`, looks outside the edges count in the first or last window.
    """
    windows = len(edges) - 1
    if windows < 1:
        none = np.empty(0, np.int64)
        return (np.arange(len(time)), np.full(len(time), -1), count) if everything else (none, none, none)
    step = np.maximum(duration, 0) / np.maximum(count, 1)
    last = time + (step * np.maximum(count - 1, 0)).astype(np.int64)
    first_window = np.searchsorted(edges, time, "right") - 1
    last_window = np.searchsorted(edges, last, "right") - 1
    times = last_window - first_window + 1
    row = np.repeat(np.arange(len(time)), times)
    window = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times) + first_window[row]

    def looks_before(edge: Ints) -> Ints:
        with np.errstate(divide="ignore", invalid="ignore"):
            looks = np.ceil((edge - time[row]) / step[row])
        bounded_looks: Ints = np.clip(np.nan_to_num(looks, nan=0.0), 0, count[row]).astype(np.int64)
        return bounded_looks

    before = np.where(window < 0, 0, looks_before(edges[np.clip(window, 0, windows)]))
    before[window == first_window[row]] = 0
    until = np.where(window >= windows, count[row], looks_before(edges[np.clip(window + 1, 0, windows)]))
    until[window == last_window[row]] = count[row][window == last_window[row]]
    share = until - before
    if everything:
        window = np.clip(window, 0, windows - 1)
        keep = share > 0
    else:
        keep = (share > 0) & (window >= 0) & (window < windows)
    return row[keep], window[keep], share[keep]

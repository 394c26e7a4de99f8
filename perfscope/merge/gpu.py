"""GPU time under the code that caused it: kernels below what launched them, idle time below what the host did.

For each device all of the window is divided: what ran (gpu_activity.divide), and the gaps. A gap ends when the next
kernel starts, so it belongs to the thread that launched that one: up to its launch call to what that thread did, from
then on to the launch itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfscope.merge.gpu_activity import NO_THREAD, Activity, Division, activity_of, divide
from perfscope.merge.intervals import FAR, Ints, distinct, index_at_bounds
from perfscope.merge.slices import RUNNING, UNKNOWN, ThreadSlices
from perfscope.merge.sums import summed
from perfscope.merge.tables import NEVER, Columns, ThreadInfo, filled, thread_keys
from perfscope.model.session import Session
from perfscope.model.stacks import ROOT, Frame

NO_LAUNCH_STACK = "[no launch stack]"
"""Frame of GPU time of which no source says which code asked for it."""

GPU_IDLE = "[GPU idle]"
"""Frame of the time in which a device had nothing to do."""

IDLE = -1
"""`what` of idle time; else it is a name of Activity.names."""

_Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shares:
    """How the launch stacks became known, in ns of busy time; and how idle time's stacks did.

    exact: read in the launch. statistical: told by `looks` samples that fell into launch calls. none: not known.
    idle_seen: samples say what the host did. idle_launch: in the launch, or no sample, so its stack is that of the
    launch that ended it. idle_none: neither.
    """

    exact: int = 0
    statistical: int = 0
    looks: int = 0
    none: int = 0
    idle_seen: int = 0
    idle_launch: int = 0
    idle_none: int = 0


@dataclass(frozen=True)
class GpuTime:
    """Sums of GPU time, k rows. key: of the thread (tables.thread_keys; tid NO_THREAD where unknown).

    what: IDLE or an index into names. state: of the host thread in idle time, else RUNNING. device: index into
    devices. Per device the rows of all threads add up to the window, exactly.
    """

    devices: list[tuple[int, int]]
    names: list[str]
    key: _Index
    stack: _Index
    state: _Index
    device: _Index
    what: _Index
    window: _Index
    ns: Ints
    shares: Shares
    left_out: int


_EMPTY: _Index = np.empty(0, np.int64)


class Attribution:
    """Gathers GpuTime while the slices of each thread pass by."""

    def __init__(self, session: Session, edges: Ints) -> None:
        self.session = session
        self.edges = edges
        self.activity = activity_of(session)
        self._rows: list[tuple[_Index, ...]] = []
        self._shares: dict[str, int] = defaultdict(int)
        self._gaps: dict[int, list[tuple[_Index, ...]]] = defaultdict(list)
        self._open: dict[int, list[tuple[_Index, ...]]] = defaultdict(list)
        self._ends: tuple[_Index, Ints, Ints] | None = None
        if len(self.activity) and len(edges) > 1:
            self.no_stack = session.stacks.stack([Frame("state", NO_LAUNCH_STACK)])
            for device in range(len(self.activity.devices)):
                self._device(device)

    def _device(self, device: int) -> None:
        rows = np.flatnonzero(self.activity.device == device)
        own = self.activity.where(rows)
        division = divide(own.start, own.end, self.edges)
        key = thread_keys(own.pid, own.tid)
        known = own.stack[division.row] != ROOT
        row, window, ns = division.row[known], division.window[known], division.ns[known]
        self._add(key[row], own.stack[row], device, own.name[row], window, ns)
        self._shares["exact"] += int(ns.sum())
        row, window, ns = division.row[~known], division.window[~known], division.ns[~known]
        for thread_key in distinct(key[row]).tolist():
            mine = key[row] == thread_key
            self._open[thread_key].append((rows[row[mine]], window[mine], ns[mine]))
        self._divide_gaps(device, own, key, division)

    def _divide_gaps(self, device: int, own: Activity, key: _Index, division: Division) -> None:
        start, end = division.idle_start, division.idle_end
        if not len(start):
            return
        # The last gap is ended by nothing: it is with the thread that launched last.
        last = int(np.argmax(own.end)) if len(own) else -1
        by = np.where(division.next_row >= 0, division.next_row, last)
        launch = np.where(division.next_row >= 0, own.launch[by], NEVER)
        launch = np.where((launch == NEVER) & (division.next_row >= 0) & (own.tid[by] == NO_THREAD), start, launch)
        until = np.clip(launch, start, end)
        stack = np.where(division.next_row >= 0, own.stack[by], ROOT)
        for thread_key in distinct(key[by]).tolist():
            mine = np.flatnonzero(key[by] == thread_key)
            host = (start[mine], until[mine], stack[mine], np.full(len(mine), device))
            self._gaps[thread_key].append(host)
            inside = mine[end[mine] > until[mine]]
            self._idle(
                thread_key,
                until[inside],
                end[inside],
                stack[inside],
                np.full(len(inside), RUNNING),
                device,
                "idle_launch",
            )

    def look(self, info: ThreadInfo, slices: ThreadSlices, samples: Callable[[], Columns]) -> None:
        """Takes in slices of a thread, part after part of its time, and its samples (see Sources.samples) if needed."""
        key = int(thread_keys(info.pid, info.tid))
        if key in self._gaps and len(slices.start_ns):
            until = slices.end_ns[-1]
            for start, end, launch_stack, device in (gaps := self._gaps.pop(key)):
                self._host_part(key, start, np.minimum(end, until), launch_stack, int(device[0]), slices)
            self._gaps[key] = [(np.maximum(start, until), end, *rest) for start, end, *rest in gaps]
        for rows, window, ns in self._open.pop(key, ()):
            self._statistical(key, rows, window, ns, samples())

    def _host_part(
        self, key: int, start: Ints, end: Ints, launch_stack: _Index, device: int, slices: ThreadSlices | None
    ) -> None:
        """Idle time in which a thread hadn't called the next launch yet, by what the thread did."""
        live = end > start
        start, end, launch_stack = start[live], end[live], launch_stack[live]
        if not len(start):
            return
        if slices is None or not len(slices.start_ns):
            state = np.full(len(start), UNKNOWN)
            self._idle(key, start, end, launch_stack, state, device, "idle_launch")
            return
        bounds = distinct(np.concatenate([slices.start_ns, slices.end_ns[-1:], start, end]))
        gap = index_at_bounds(start, bounds)
        inside = np.flatnonzero((gap >= 0) & (bounds < end[gap]))
        gap = gap[inside]
        begin, until = bounds[inside], bounds[inside + 1]
        at = index_at_bounds(slices.start_ns, bounds)[inside]
        observed = (at >= 0) & (begin < slices.end_ns[-1])
        stack = np.where(observed, slices.stack_id[at], ROOT).astype(np.int64)
        state = np.where(observed, slices.state[at], UNKNOWN).astype(np.int64)
        seen = stack != ROOT
        self._idle(key, begin[seen], until[seen], stack[seen], state[seen], device, "idle_seen")
        rest = ~seen
        self._idle(key, begin[rest], until[rest], launch_stack[gap[rest]], state[rest], device, "idle_launch")

    def _idle(self, key: int, start: Ints, end: Ints, stack: _Index, state: _Index, device: int, how: str) -> None:
        if not len(start):
            return
        for name, part in ((how, stack != ROOT), ("idle_none", stack == ROOT)):
            self._shares[name] += int((end[part] - start[part]).sum())
        stack = np.where(stack == ROOT, self.no_stack, stack)
        cuts = distinct(np.concatenate([start, self.edges]))
        cuts = cuts[cuts < self.edges[-1]]
        row = index_at_bounds(start, cuts)
        inside = np.flatnonzero((row >= 0) & (cuts < end[row]))
        row, begin = row[inside], cuts[inside]
        next_cut = np.append(cuts[1:], self.edges[-1])[inside]
        until = np.minimum(next_cut, end[row])
        window = np.searchsorted(self.edges, begin, "right") - 1
        self._add(
            np.full(len(row), key), stack[row], device, np.full(len(row), IDLE), window, until - begin, state[row]
        )

    def _statistical(self, key: int, rows: _Index, window: _Index, ns: Ints, samples: Columns) -> None:
        """Busy time whose launches have no stack of their own, by the samples that fell into such launches.

        Of each kernel's time, each stack gets the share that it has of the looks into that kernel's launch calls.
        """
        looks = self._looks_into(distinct(rows), samples) if samples else {}
        device, name = self.activity.device[rows], self.activity.name[rows]
        for kernel in distinct(name).tolist():
            mine = name == kernel
            if kernel not in looks:
                self._unknown(key, device[mine], name[mine], window[mine], ns[mine])
                continue
            stacks, counts = looks[kernel]
            upto = np.cumsum(counts)
            self._shares["statistical"] += int(ns[mine].sum())
            self._shares["looks"] += int(upto[-1])
            for one in distinct(device[mine]).tolist():
                here = mine & (device == one)
                windows, index = np.unique(window[here], return_inverse=True)
                total = np.zeros(len(windows), np.int64)
                np.add.at(total, index, ns[here])
                # in Python's integers: ns times looks may pass 2**63
                parts = np.array(
                    [np.diff([0, *(int(t) * int(u) // int(upto[-1]) for u in upto)]) for t in total], np.int64
                )
                for number, stack in enumerate(stacks.tolist()):
                    length = len(windows)
                    self._add(
                        np.full(length, key), np.full(length, stack), one, np.full(length, kernel), windows,
                        parts[:, number],
                    )  # fmt: skip

    def _looks_into(self, rows: _Index, samples: Columns) -> dict[int, tuple[_Index, _Index]]:
        """Kernel -> distinct stacks of the samples that fell into the calls that launched these rows, and how many."""
        begin = self.activity.launch[rows]
        end = self._call_ends(rows)
        order = np.argsort(begin, kind="stable")
        begin, end, name = begin[order], end[order], self.activity.name[rows][order]
        sound = (samples["time"] != NEVER) & (samples["period"] > 0) & ~samples["torn"].astype(bool)
        sound &= samples["stack"] != ROOT
        time, stack = samples["time"][sound], samples["stack"][sound]
        at = np.searchsorted(begin, time, "right") - 1
        hit = (at >= 0) & (time < end[at])
        found = {}
        for kernel in distinct(name[at[hit]]).tolist():
            found[kernel] = np.unique(stack[hit][name[at[hit]] == kernel].astype(np.int64), return_counts=True)
        return found

    def _call_ends(self, rows: _Index) -> Ints:
        """Return of the call that launched each row; its entry where that isn't known."""
        if self._ends is None:
            parts = [
                (piece["pid"].to_numpy().astype(np.int64), piece["correlation"].to_numpy(), filled(piece["end_ns"], 0))
                for piece in self.session.batches("cuda_api", ["pid", "correlation", "end_ns"])
            ]
            pid, correlation, end = (np.concatenate([p[i] for p in parts] or [_EMPTY]) for i in range(3))
            order = np.lexsort((correlation, pid))
            self._ends = (pid[order], correlation[order], end[order])
        pids, correlations, ends = self._ends
        found = self.activity.launch[rows].copy()
        for pid in distinct(self.activity.pid[rows]).tolist():
            first, last = np.searchsorted(pids, [pid, pid + 1])
            if first == last:
                continue
            mine = np.flatnonzero(self.activity.pid[rows] == pid)
            wanted = self.activity.correlation[rows[mine]]
            at = np.minimum(np.searchsorted(correlations[first:last], wanted), last - first - 1) + first
            same = correlations[at] == wanted
            found[mine[same]] = ends[at[same]]
        return np.clip(found, -FAR, FAR)

    def _unknown(self, key: int, device: _Index, name: _Index, window: _Index, ns: Ints) -> None:
        self._shares["none"] += int(ns.sum())
        for one in distinct(device).tolist():
            here = device == one
            count = int(np.count_nonzero(here))
            self._add(np.full(count, key), np.full(count, self.no_stack), one, name[here], window[here], ns[here])

    def _add(
        self,
        key: _Index,
        stack: _Index,
        device: int,
        what: _Index,
        window: _Index,
        ns: Ints,
        state: _Index | None = None,
    ) -> None:
        if len(ns):
            state = np.full(len(ns), RUNNING, np.int64) if state is None else state
            self._rows.append((key, stack, state, np.full(len(ns), device, np.int64), what, window, ns))

    def result(self) -> GpuTime | None:
        """All of it, once every thread has passed by; None if there was no GPU activity."""
        if not len(self.activity) or len(self.edges) < 2:
            return None
        for key in list(self._gaps):  # of threads that the session doesn't list, or beyond the time it observed them
            for start, end, launch_stack, device in self._gaps.pop(key):
                self._host_part(key, start, end, launch_stack, int(device[0]), None)
        for key in list(self._open):
            for rows, window, ns in self._open.pop(key):
                self._unknown(key, self.activity.device[rows], self.activity.name[rows], window, ns)
        columns = [np.concatenate(column) for column in zip(*self._rows, strict=True)]
        (key_, stack, state, device, what, window), ns = summed(columns[:-1], columns[-1])
        activity = self.activity
        return GpuTime(
            activity.devices, activity.names, key_, stack, state, device, what, window, ns,
            Shares(**self._shares), activity.left_out,
        )  # fmt: skip

"""Host threads inside CUDA calls that return only when the device is done: when, and what they waited for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from perfscope.merge.gpu_activity import KERNEL, Activity, activity_of
from perfscope.merge.intervals import Intervals, Ints, bounded, distinct, earliest_wins, index_at_bounds
from perfscope.merge.slices import GPU_SYNC, RUNNING, UNKNOWN, ThreadSlices
from perfscope.merge.tables import ThreadInfo, codes, filled, stack_ids, thread_keys
from perfscope.model.kernels import function_name
from perfscope.model.session import Session
from perfscope.model.stacks import Frame, StackTable

WAITING = "[waiting: GPU sync"
SPINNING = "[spinning: GPU sync"
"""How the frames begin that stand below a stack whose thread waits for a GPU, asleep or on a CPU."""

_SYNC_COPY = re.compile(r"(?:cu|cuda)(?:Memcpy|MemcpyPeer|Memcpy2D|Memcpy3D|MemcpyToSymbol|MemcpyFromSymbol)\w*")


def blocks_host(name: str) -> bool:
    """Whether a CUDA function waits for the device: a synchronisation, or a copy that isn't asynchronous."""
    if name.startswith(("cudaStreamWaitEvent", "cuStreamWaitEvent")):
        return False
    return "Synchronize" in name or ("Async" not in name and _SYNC_COPY.fullmatch(name) is not None)


class Syncs:
    """Synchronising calls by thread. labels: what was waited for (" for KERNEL]" or "]")."""

    def __init__(self, session: Session, infos: Sequence[ThreadInfo]) -> None:
        self.labels: list[str] = []
        self._by_thread: dict[int, tuple[Intervals, npt.NDArray[np.int64]]] = {}
        calls = calls_that_block(session)
        if not len(calls.start):
            return
        label = self._label(activity_of(session), calls)
        keys = thread_keys([i.pid for i in infos], [i.tid for i in infos])
        own = thread_keys(calls.pid, calls.tid)
        for number in np.flatnonzero(np.isin(keys, own)).tolist():
            mine = np.flatnonzero(own == keys[number])
            spans = earliest_wins(calls.start[mine], calls.end[mine])
            if len(spans.row):
                self._by_thread[number] = (spans, label[mine[spans.row]])

    def of(self, thread: int) -> tuple[Intervals, npt.NDArray[np.int64]] | None:
        """Disjoint calls of a thread and the label of each; None if it made none."""
        return self._by_thread.get(thread)

    def cut(self, thread: int, slices: ThreadSlices, stacks: StackTable) -> ThreadSlices:
        """A thread's slices, cut at its synchronising calls; in these its stack ends in what is waited for."""
        found = self.of(thread)
        if found is None or not len(slices.start_ns):
            return slices
        calls, label = found
        end = int(slices.end_ns[-1])
        cuts = np.concatenate([calls.start, calls.end])
        bounds = distinct(np.concatenate([slices.start_ns, cuts[(cuts > slices.start_ns[0]) & (cuts < end)]]))
        source = index_at_bounds(slices.start_ns, bounds)
        state, stack = slices.state[source], slices.stack_id[source].copy()
        call = index_at_bounds(calls.start, bounds)
        inside = (call >= 0) & (bounds < calls.end[call])
        # A stretch asleep has one cause, so what of it lies just outside of the call waits for the same: its number is
        # that of the last call begun.
        for rows, begin in (
            (np.flatnonzero(inside & (state == RUNNING)), SPINNING),
            (np.flatnonzero((inside & (state == UNKNOWN)) | (state == GPU_SYNC)), WAITING),
        ):
            if len(rows):
                stack[rows] = self._push(stacks, stack[rows], label[np.maximum(call[rows], 0)], begin)
        return replace(slices, start_ns=bounds, end_ns=np.append(bounds[1:], end), stack_id=stack, state=state)

    def _push(
        self, stacks: StackTable, stack: npt.NDArray[np.int32], label: npt.NDArray[np.int64], begin: str
    ) -> npt.NDArray[np.int32]:
        """Each stack with the frame that says what is waited for."""
        width = len(self.labels)
        pairs, index = np.unique((stack.astype(np.int64) + 1) * width + label, return_inverse=True)
        made = [
            stacks.push(pair // width - 1, stacks.frame(Frame("state", begin + self.labels[pair % width])))
            for pair in pairs.tolist()
        ]
        return np.asarray(made, np.int32)[index]

    def _label(self, activity: Activity, calls: Calls) -> npt.NDArray[np.int64]:
        """Label of each call: the last kernel that ended in it on its stream, else the last copy, else neither."""
        kernels = set(activity.name[activity.kind == KERNEL].tolist())
        names = [(function_name(name) or name) if i in kernels else name for i, name in enumerate(activity.names)]
        self.labels = ["]", *(f" for {name}]" for name in names)]
        label = np.zeros(len(calls.start), np.int64)
        order = np.argsort(activity.end, kind="stable")
        for of_kernels in (False, True):  # kernels last: they win
            rows = order[(activity.kind[order] == KERNEL) == of_kernels]
            for pid in np.unique(calls.pid).tolist():
                of_pid = rows[activity.pid[rows] == pid]
                streams = np.unique(calls.stream[calls.pid == pid])
                for stream in streams.tolist():
                    candidates = of_pid if stream < 0 else of_pid[activity.stream[of_pid] == stream]
                    asked = np.flatnonzero((calls.pid == pid) & (calls.stream == stream))
                    if not len(candidates):
                        continue
                    ends = activity.end[candidates]
                    last = np.searchsorted(ends, calls.end[asked], "right") - 1
                    inside = (last >= 0) & (ends[last] > calls.start[asked])
                    label[asked[inside]] = activity.name[candidates[last[inside]]] + 1
        return label


class Calls:
    """Columns of the synchronising calls, by start. stream: -1 where not tied to one. stack: ROOT if unknown."""

    def __init__(self, columns: dict[str, Ints]) -> None:
        self.start, self.end = columns["start"], columns["end"]
        self.pid, self.tid = columns["pid"], columns["tid"]
        self.stream, self.stack = columns["stream"], columns["stack"]


def calls_that_block(session: Session) -> Calls:
    """Every call of cuda_api that waited for the device, without those that failed."""
    parts: dict[str, list[Ints]] = {n: [] for n in ("start", "end", "pid", "tid", "stream", "stack")}
    wanted = ["start_ns", "end_ns", "pid", "tid", "name", "stack_id", "result", "waited_for", "stream"]
    for piece in session.batches("cuda_api", wanted):
        waits = codes(piece["waited_for"], lambda what: 2 if what == "stream-event" else 1)
        blocks = (waits == 1) | ((waits == 0) & (codes(piece["name"], blocks_host) == 1))
        piece = piece.filter(blocks & (piece["result"].to_numpy() == 0))
        for name, values in (
            ("start", bounded(piece["start_ns"].to_numpy())),
            ("end", bounded(piece["end_ns"].to_numpy())),
            ("pid", piece["pid"].to_numpy()),
            ("tid", piece["tid"].to_numpy()),
            ("stream", filled(piece["stream"], -1)),
            ("stack", stack_ids(session, "cuda_api", piece["stack_id"])),
        ):
            parts[name].append(values.astype(np.int64))
    columns = {name: np.concatenate(values or [np.empty(0, np.int64)]) for name, values in parts.items()}
    order = np.argsort(columns["start"], kind="stable")
    return Calls({name: values[order] for name, values in columns.items()})

"""What the GPUs did, as numpy columns in order of time, and one device's time divided between what ran on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from perfscope.merge.intervals import FAR, Ints, bounded, distinct
from perfscope.merge.tables import NEVER, codes, filled, stack_ids
from perfscope.model.session import Session

KERNEL, COPY, SET = range(3)
NO_THREAD = -1
"""tid of what no launch call was seen for."""

_KINDS = {"kernel": KERNEL, "copy": COPY, "set": SET}
_COLUMNS = [
    *("start_ns", "end_ns", "kind", "pid", "device", "stream", "correlation", "name", "grid_x", "grid_y", "grid_z"),
    *("bytes", "source_memory", "target_memory", "launch_tid", "launch_ns", "stack_id", "graph_node"),
]


@dataclass(frozen=True)
class Activity:
    """n rows of gpu_activity that have a usable time, by start (then: as they stood in the table).

    devices: (pid, CUDA device number as that process counts). device: index into it. name: index into names.
    tid: NO_THREAD, launch: NEVER and stack: ROOT where unknown. blocks: of the grid, 0 where unknown.
    bytes: -1 where unknown. pageable: a copy from or to pageable memory. between_host: a copy between host and device.
    graph: launched by a CUDA graph. left_out: rows without a usable time.
    """

    devices: list[tuple[int, int]]
    names: list[str]
    start: Ints
    end: Ints
    kind: npt.NDArray[np.int64]
    device: npt.NDArray[np.int64]
    pid: npt.NDArray[np.int64]
    stream: npt.NDArray[np.int64]
    correlation: Ints
    name: npt.NDArray[np.int64]
    blocks: Ints
    bytes: Ints
    pageable: npt.NDArray[np.bool_]
    between_host: npt.NDArray[np.bool_]
    tid: npt.NDArray[np.int64]
    launch: Ints
    stack: npt.NDArray[np.int64]
    graph: npt.NDArray[np.bool_]
    left_out: int

    def __len__(self) -> int:
        return len(self.start)

    def where(self, mask: npt.NDArray[Any]) -> Activity:
        """Some of the rows, by mask or ascending index."""
        columns = {n: v[mask] for n, v in vars(self).items() if isinstance(v, np.ndarray)}
        return Activity(devices=self.devices, names=self.names, left_out=self.left_out, **columns)


_known: WeakKeyDictionary[Session, Activity] = WeakKeyDictionary()


def activity_of(session: Session) -> Activity:
    """The session's GPU activity; kept with the session. Raises SessionError for a damaged table."""
    if session not in _known:
        _known[session] = _read(session)
    return _known[session]


def _read(session: Session) -> Activity:
    parts = [_piece(session, piece) for piece in session.batches("gpu_activity", _COLUMNS)]
    names: dict[str, int] = {}
    for texts, columns in parts:
        numbers = np.array([names.setdefault(text, len(names)) for text in texts], np.int64)
        columns["name"] = numbers[columns["name"]] if len(numbers) else columns["name"]
    joined = {
        key: np.concatenate([columns[key] for _, columns in parts] or [np.empty(0, np.int64)])
        for key in (parts[0][1] if parts else _EMPTY)
    }
    usable = (joined["start"] > 0) & (joined["end"] >= joined["start"])
    order = np.flatnonzero(usable)
    order = order[np.argsort(joined["start"][order], kind="stable")]
    joined = {key: values[order] for key, values in joined.items()}
    key, device = np.unique((joined["pid"] << 32) | (joined.pop("number") & 0xFFFFFFFF), return_inverse=True)
    devices = [(k >> 32, k & 0xFFFFFFFF) for k in key.tolist()]
    flags = {n: joined.pop(n).astype(bool) for n in ("pageable", "between_host", "graph")}
    return Activity(
        devices=devices,
        names=list(names),
        device=device.astype(np.int64),
        left_out=int(len(usable) - np.count_nonzero(usable)),
        **joined,
        **flags,
    )


_EMPTY = (
    *("start", "end", "kind", "number", "pid", "stream", "correlation", "name", "blocks", "bytes", "pageable"),
    *("between_host", "tid", "launch", "stack", "graph"),
)


def _piece(session: Session, piece: pa.Table) -> tuple[list[str], dict[str, npt.NDArray[Any]]]:
    texts: list[str] = []
    index: dict[str, int] = {}

    def name_code(text: str) -> int:
        if text not in index:
            index[text] = len(texts)
            texts.append(text)
        return index[text]

    grid = np.stack([filled(piece[f"grid_{axis}"], 0).astype(np.int64) for axis in "xyz"])
    source, target = (codes(piece[f"{side}_memory"], lambda m: _SIDES.get(m, 0)) for side in ("source", "target"))
    kind = codes(piece["kind"], lambda k: _KINDS.get(k, KERNEL))
    name = codes(piece["name"], name_code)
    launch = filled(piece["launch_ns"], NEVER)
    return texts, {
        "start": bounded(piece["start_ns"].to_numpy()),
        "end": bounded(piece["end_ns"].to_numpy()),
        "kind": kind,
        "number": piece["device"].to_numpy().astype(np.int64),
        "pid": piece["pid"].to_numpy().astype(np.int64),
        "stream": piece["stream"].to_numpy().astype(np.int64),
        "correlation": piece["correlation"].to_numpy(),
        "name": name,
        "blocks": np.clip(grid, 0, 1 << 20).prod(axis=0),
        "bytes": filled(piece["bytes"], -1),
        "pageable": (kind == COPY) & ((source == _PAGEABLE) | (target == _PAGEABLE)),
        "between_host": (kind == COPY) & ((source == _DEVICE) != (target == _DEVICE)) & (source * target != 0),
        "tid": filled(piece["launch_tid"], NO_THREAD).astype(np.int64),
        "launch": np.where(launch == NEVER, NEVER, np.clip(launch, -FAR, FAR)),
        "stack": stack_ids(session, "gpu_activity", piece["stack_id"]).astype(np.int64),
        "graph": filled(piece["graph_node"], 0) != 0,
    }


_PAGEABLE, _PINNED, _DEVICE = 1, 2, 3
_SIDES = {"pageable": _PAGEABLE, "pinned": _PINNED, "device": _DEVICE, "array": _DEVICE}


@dataclass(frozen=True)
class Division:
    """One device's time in [edges[0], edges[-1]), all of it: what each row has, by window, and when nothing ran.

    row, window, ns: int64[k]. idle_start, idle_end: int64[g], ascending. next_row: the row that ended each gap, -1 for
    the one at the end. ns and the gaps together are edges[-1] - edges[0], exactly.
    """

    row: npt.NDArray[np.int64]
    window: npt.NDArray[np.int64]
    ns: Ints
    idle_start: Ints
    idle_end: Ints
    next_row: npt.NDArray[np.int64]


def divide(start: Ints, end: Ints, edges: Ints) -> Division:
    """Divides a device's time between rows, which ascend by start: of a moment in which k of them run, each has 1/k.

    Nanoseconds that don't divide by k go to the running row that ends last (of several: the first).
    """
    low, high = int(edges[0]), int(edges[-1])
    begin, until = np.clip(start, low, high), np.clip(end, low, high)
    live = np.flatnonzero(until > begin)
    begin, until = begin[live], until[live]
    bounds = distinct(np.concatenate([begin, until, edges]))
    length = np.diff(bounds)
    first, past = np.searchsorted(bounds, begin), np.searchsorted(bounds, until)
    steps = np.bincount(first, minlength=len(bounds)) - np.bincount(past, minlength=len(bounds))
    depth = np.cumsum(steps)[:-1]
    share, rest = np.divmod(length, np.maximum(depth, 1))
    share[depth == 0] = 0
    rest[depth == 0] = 0

    before = np.concatenate([[0], np.cumsum(share)])
    at_edge = np.searchsorted(bounds, edges)
    from_window = np.searchsorted(at_edge, first, "right") - 1
    to_window = np.searchsorted(at_edge, past, "left") - 1
    row, window = _runs(from_window, to_window)
    ns = before[np.minimum(past[row], at_edge[window + 1])] - before[np.maximum(first[row], at_edge[window])]

    odd = np.flatnonzero(rest)
    if len(odd):
        ends_last = _running_argmax(until)
        begun = np.searchsorted(begin, bounds[odd], "right") - 1
        row = np.concatenate([row, ends_last[begun]])
        window = np.concatenate([window, np.searchsorted(at_edge, odd, "right") - 1])
        ns = np.concatenate([ns, rest[odd]])

    idle = depth == 0
    opens = np.flatnonzero(idle & np.concatenate([[True], ~idle[:-1]]))
    closes = np.flatnonzero(idle & np.concatenate([~idle[1:], [True]]))
    idle_start, idle_end = bounds[opens], bounds[closes + 1]
    after = np.searchsorted(begin, idle_end)
    next_row = np.where(idle_end < high, live[np.minimum(after, len(live) - 1)] if len(live) else -1, -1)
    return Division(live[row], window, ns, idle_start, idle_end, next_row.astype(np.int64))


def _runs(first: npt.NDArray[np.intp], last: npt.NDArray[np.intp]) -> tuple[npt.NDArray[np.int64], ...]:
    """(i, first[i]), (i, first[i] + 1), ..., (i, last[i]) of every i."""
    times = last - first + 1
    row = np.repeat(np.arange(len(times)), times)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times) + first[row]


def _running_argmax(values: Ints) -> npt.NDArray[np.int64]:
    """For each i the index of the greatest of values[:i + 1]; of equal ones the first."""
    highest = np.maximum.accumulate(values)
    new = np.ones(len(values), bool)
    new[1:] = values[1:] > highest[:-1]
    found: npt.NDArray[np.int64] = np.maximum.accumulate(np.where(new, np.arange(len(values)), 0))
    return found

"""One process's spool -> rows of gpu_activity, cuda_api, gpu_memory and spans."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from perfscope.collectors.cuda import spool as records
from perfscope.collectors.cuda.spool import Spool
from perfscope.demangle import demangle
from perfscope.model.session_writer import SessionWriter
from perfscope.model.stacks import ROOT, Frame, StackTable

# CUpti_ActivityMemcpyKind, CUpti_ActivityMemoryKind, CUpti_ActivitySynchronizationType of cupti_activity.h
_COPIES = dict(enumerate(("HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"), 1))
_MEMORY = {1: "pageable", 2: "pinned", 3: "device", 4: "array", 5: "managed", 6: "device", 7: "managed"}
_WAITS = {1: "event", 2: "stream-event", 3: "stream", 4: "context"}
# CUpti_ActivityOverheadKind: what the tool itself costs the program, and what CUDA's lazy loading does
_OVERHEADS = {
    1: "compiling",
    1 << 16: "flushing records",
    2 << 16: "instrumenting",
    3 << 16: "setting up CUPTI",
    4 << 16: "loading modules",
    5 << 16: "loading functions",
    6 << 16: "full command buffer",
    7 << 16: "fetching record buffers",
    8 << 16: "setting up UVM records",
}
_SET = 255
_ALLOCATE, _FREE = 1, 2
_MARKER_START, _MARKER_END = 2, 4

Ints = npt.NDArray[np.int64]


@dataclass
class Counts:
    """What a spool held, for the report. launches_unseen: launch calls without any record of the device for them.

    overhead_ns: what CUPTI says it spent, by purpose.
    """

    activities: int = 0
    calls: int = 0
    with_stack_ns: int = 0
    device_ns: int = 0
    bad_times: int = 0
    launches_unseen: int = 0
    overhead_ns: dict[str, int] = field(default_factory=dict)

    def add(self, other: Counts) -> None:
        """Adds another process's counts."""
        for name, value in vars(other).items():
            if isinstance(value, int):
                setattr(self, name, getattr(self, name) + value)
        for purpose, spent in other.overhead_ns.items():
            self.overhead_ns[purpose] = self.overhead_ns.get(purpose, 0) + spent


def write(spool: Spool, pid: int, tids: dict[int, int], writer: SessionWriter) -> Counts:
    """Appends a spool's rows. pid: the process on the host; tids: thread ids as it sees them -> on the host."""
    counts = Counts()
    stacks = _stack_ids(spool, writer.stacks)
    calls = spool.fixed[records.CALL]
    call_rows = _Calls(calls, stacks, tids)
    names = {ident: demangle(text) for ident, text in spool.names.items()}
    seen = [
        _kernels(spool, pid, names, call_rows, writer, counts),
        _copies(spool, pid, call_rows, writer, counts),
    ]
    _calls(spool, pid, call_rows, writer, counts, np.concatenate(seen))
    for row in spool.fixed[records.OVERHEAD]:
        purpose = _OVERHEADS.get(int(row["kind"]), "other")
        spent = max(int(row["end"]) - int(row["start"]), 0)
        counts.overhead_ns[purpose] = counts.overhead_ns.get(purpose, 0) + spent
    _memory(spool, pid, writer)
    _ranges(spool, pid, names, tids, writer)
    return counts


def _stack_ids(spool: Spool, table: StackTable) -> Ints:
    """Session stack ids by the spool's own (index), ROOT where there is none."""
    ids = np.full(max(spool.stacks, default=0) + 1, ROOT, np.int64)
    frames: dict[tuple[int, int], Frame] = {}
    for ident, path in spool.stacks.items():
        parent = ROOT
        for code_id, instruction in reversed(path):
            frame = frames.get((code_id, instruction))
            if frame is None:
                code = spool.codes.get(code_id)
                frame = (
                    Frame("python", "[unknown code]")
                    if code is None
                    else Frame("python", code.name, code.file, code.line(instruction))
                )
                frames[code_id, instruction] = frame
            parent = table.push(parent, table.frame(frame))
        ids[ident] = parent
    return ids


class _Calls:
    """Calls by correlation id, for what they asked of the device."""

    def __init__(self, calls: npt.NDArray[np.void], stacks: Ints, tids: dict[int, int]) -> None:
        self.correlation = calls["correlation"].astype(np.int64)
        self.order = np.argsort(self.correlation, kind="stable")
        self.sorted = self.correlation[self.order]
        self.start = calls["start"].astype(np.int64)
        known = calls["stack"] < len(stacks)
        self.stack = np.where(known, stacks[np.where(known, calls["stack"], 0)], ROOT)
        self.tid = _map(calls["tid"], tids)

    def find(self, correlation: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Row of each correlation's call, and whether there is one."""
        if not len(self.sorted):
            return np.zeros(len(correlation), np.int64), np.zeros(len(correlation), bool)
        at = np.minimum(np.searchsorted(self.sorted, correlation), len(self.sorted) - 1)
        return self.order[at], self.sorted[at] == correlation

    def columns(self, correlation: Ints) -> dict[str, pa.Array]:
        """launch_tid, launch_ns and stack_id of what these correlations asked for."""
        row, found = self.find(correlation)
        if not len(self.sorted):
            return {}
        stack = self.stack[row]
        return {
            "launch_tid": pa.array(self.tid[row], pa.int32(), mask=~found),
            "launch_ns": pa.array(self.start[row], pa.int64(), mask=~found),
            "stack_id": pa.array(stack, pa.int32(), mask=~found | (stack == ROOT)),
        }


def _map(inner: npt.NDArray[np.uint32], tids: dict[int, int]) -> Ints:
    distinct, index = np.unique(inner, return_inverse=True)
    return np.array([tids.get(int(tid), int(tid)) for tid in distinct], np.int64)[index]


def _texts(idents: npt.NDArray[Any], names: dict[int, str], default: str) -> pa.Array:
    """A dictionary array of the names of these ids."""
    distinct, index = np.unique(idents, return_inverse=True)
    return pa.DictionaryArray.from_arrays(
        pa.array(index.astype(np.int32)), pa.array([names.get(int(i), default) for i in distinct], pa.string())
    )


def _sound(rows: npt.NDArray[np.void], counts: Counts) -> npt.NDArray[np.void]:
    """Rows with a time: CUPTI writes 0 or an end before the start where it has none."""
    good = (rows["start"] > 0) & (rows["end"] >= rows["start"])
    counts.bad_times += int((~good).sum())
    return rows[good]


def _tally(rows: npt.NDArray[np.void], columns: dict[str, pa.Array], counts: Counts) -> None:
    spent = rows["end"].astype(np.int64) - rows["start"].astype(np.int64)
    counts.activities += len(rows)
    counts.device_ns += int(spent.sum())
    if "stack_id" in columns:
        counts.with_stack_ns += int(spent[np.asarray(columns["stack_id"].is_valid())].sum())


def _kernels(
    spool: Spool, pid: int, names: dict[int, str], calls: _Calls, writer: SessionWriter, counts: Counts
) -> Ints:
    everything = spool.fixed[records.KERNEL]
    rows = _sound(everything, counts)
    correlation = rows["correlation"].astype(np.int64)
    launched = calls.columns(correlation)
    _tally(rows, launched, counts)
    node = rows["graph_node"]
    writer.append(
        "gpu_activity",
        {
            "start_ns": rows["start"].astype(np.int64),
            "end_ns": rows["end"].astype(np.int64),
            "kind": _texts(np.zeros(len(rows), np.int8), {0: "kernel"}, "kernel"),
            "pid": np.full(len(rows), pid, np.int32),
            **{name: rows[name].astype(np.int32) for name in ("device", "context", "stream", "registers")},
            "correlation": correlation,
            "name": _texts(rows["name"], names, "[unknown kernel]"),
            **{f"grid_{axis}": rows["grid"][:, i].astype(np.int32) for i, axis in enumerate("xyz")},
            **{f"block_{axis}": rows["block"][:, i].astype(np.int32) for i, axis in enumerate("xyz")},
            "shared_bytes": rows["static_shared"].astype(np.int64) + rows["dynamic_shared"],
            "graph_node": pa.array(node, pa.uint64(), mask=node == 0),
            **launched,
        },
    )
    return everything["correlation"].astype(np.int64)


def _copies(spool: Spool, pid: int, calls: _Calls, writer: SessionWriter, counts: Counts) -> Ints:
    everything = spool.fixed[records.COPY]
    rows = _sound(everything, counts)
    correlation = rows["correlation"].astype(np.int64)
    launched = calls.columns(correlation)
    _tally(rows, launched, counts)
    is_set = rows["kind"] == _SET
    node = rows["graph_node"]
    names = [
        f"set {_MEMORY.get(int(t), 'unknown')}"
        if k == _SET
        else f"copy {_COPIES.get(int(k), 'unknown')}" + (" pageable" if 1 in (s, t) else "")
        for k, s, t in zip(rows["kind"].tolist(), rows["source"].tolist(), rows["target"].tolist(), strict=True)
    ]
    source = _texts(rows["source"], _MEMORY, "unknown")
    writer.append(
        "gpu_activity",
        {
            "start_ns": rows["start"].astype(np.int64),
            "end_ns": rows["end"].astype(np.int64),
            "kind": _texts(is_set.astype(np.int8), {0: "copy", 1: "set"}, "copy"),
            "pid": np.full(len(rows), pid, np.int32),
            **{name: rows[name].astype(np.int32) for name in ("device", "context", "stream")},
            "correlation": correlation,
            "name": pa.array(names, pa.string()).dictionary_encode(),
            "graph_node": pa.array(node, pa.uint64(), mask=node == 0),
            "bytes": rows["bytes"].astype(np.int64),
            "source_memory": pa.array(source.cast(pa.string()).to_numpy(zero_copy_only=False), mask=is_set),
            "target_memory": _texts(rows["target"], _MEMORY, "unknown"),
            **launched,
        },
    )
    return everything["correlation"].astype(np.int64)


def _calls(
    spool: Spool, pid: int, calls: _Calls, writer: SessionWriter, counts: Counts, seen: npt.NDArray[np.int64]
) -> None:
    rows = spool.fixed[records.CALL]
    syncs = spool.fixed[records.SYNC]
    sync_by = {int(c): i for i, c in enumerate(syncs["correlation"].tolist())}
    sync = np.array([sync_by.get(c, -1) for c in calls.correlation.tolist()], np.int64)
    is_sync = sync >= 0
    kind = syncs["kind"][sync] if len(syncs) else np.zeros(len(rows), np.uint32)
    stream = syncs["stream"][sync].astype(np.int64) if len(syncs) else np.zeros(len(rows), np.int64)
    writer.append(
        "cuda_api",
        {
            "start_ns": calls.start,
            "end_ns": rows["end"].astype(np.int64),
            "pid": np.full(len(rows), pid, np.int32),
            "tid": calls.tid.astype(np.int32),
            "name": _texts(rows["api"], {i: n.partition("_v")[0] for i, n in spool.apis.items()}, "[unknown call]"),
            "correlation": calls.correlation,
            "stack_id": pa.array(calls.stack, pa.int32(), mask=calls.stack == ROOT),
            "result": rows["result"],
            "waited_for": pa.array(
                _texts(kind, _WAITS, "unknown").cast(pa.string()).to_numpy(zero_copy_only=False), mask=~is_sync
            )
            if len(rows)
            else None,
            # CUPTI gives all ones where a synchronisation isn't tied to one stream
            "stream": pa.array(stream.astype(np.int32), pa.int32(), mask=~is_sync | (stream == 0xFFFFFFFF)),
        },
    )
    counts.calls += len(rows)
    launches = np.array([("Launch" in name) for name in (spool.apis.get(int(a), "") for a in rows["api"])], bool)
    counts.launches_unseen += int((launches & ~np.isin(calls.correlation, seen)).sum()) if len(rows) else 0


def _memory(spool: Spool, pid: int, writer: SessionWriter) -> None:
    rows = spool.fixed[records.MEMORY]
    rows = rows[np.isin(rows["operation"], (_ALLOCATE, _FREE))]
    writer.append(
        "gpu_memory",
        {
            "time_ns": rows["time"].astype(np.int64),
            "pid": np.full(len(rows), pid, np.int32),
            "device": rows["device"].astype(np.int32),
            "operation": _texts(rows["operation"], {_ALLOCATE: "allocate", _FREE: "free"}, "free"),
            "memory": _texts(rows["kind"], _MEMORY, "unknown"),
            "address": rows["address"],
            "bytes": rows["bytes"].astype(np.int64),
            "correlation": rows["correlation"].astype(np.int64),
        },
    )


def _ranges(spool: Spool, pid: int, names: dict[int, str], tids: dict[int, int], writer: SessionWriter) -> None:
    """NVTX ranges: a start and an end marker share an id. An end without its start can't be placed and is left out."""
    open_ranges: dict[int, tuple[int, int, str]] = {}
    spans: list[dict[str, Any]] = []
    rows = spool.fixed[records.MARKER]
    for row in rows[np.argsort(rows["time"], kind="stable")]:
        ident, flags, time = int(row["id"]), int(row["flags"]), int(row["time"])
        if flags & _MARKER_START:
            open_ranges[ident] = (time, int(row["thread"]), names.get(int(row["name"]), "[unnamed]"))
        elif flags & _MARKER_END and ident in open_ranges:
            start, thread, name = open_ranges.pop(ident)
            spans.append({"start_ns": start, "end_ns": time, "tid": thread, "name": name})
    spans += [{"start_ns": s, "end_ns": None, "tid": t, "name": n} for s, t, n in open_ranges.values()]
    writer.append(
        "spans",
        [{**span, "pid": pid, "source": "nvtx", "tid": tids.get(span["tid"], span["tid"])} for span in spans],
    )

"""What the backends without state in the kernel share: raw tracepoint records become unpaired EVENT, BLOCK records."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfscope.collectors.ebpf import pairing, tracefs
from perfscope.collectors.ebpf.backend import Backend, Thread
from perfscope.collectors.ebpf.records import (
    BLOCK,
    EVENT,
    EXEC,
    FORK,
    FUTEX_IN,
    FUTEX_OUT,
    OP_TIMED,
    SWITCH,
    WAIT_COMMANDS,
    WAKE,
    WAKING,
    Records,
)
from perfscope.collectors.ebpf.tracefs import Tracepoint

CLONE_THREAD = 0x10000
_KINDS = {
    "sched_switch": SWITCH,
    "sched_waking": WAKING,
    "sched_wakeup": WAKE,
    "sched_wakeup_new": WAKE,
    "sys_enter_futex": FUTEX_IN,
    "sys_exit_futex": FUTEX_OUT,
    "task_newtask": FORK,
    "sched_process_exec": EXEC,
}
_BLOCK_TIMES = {
    "block_io_start": "start",
    "block_getrq": "start",
    "block_rq_issue": "issue",
    "block_rq_complete": "complete",
}


def block_tracepoints() -> tuple[str, str, str]:
    """Names of the tracepoints for a request's start (block_getrq before Linux 6.5), issue and completion."""
    start = "block_io_start" if "block_io_start" in tracefs.events("block") else "block_getrq"
    return start, "block_rq_issue", "block_rq_complete"


@dataclass(frozen=True)
class Samples:
    """Perf samples of one tracepoint, a row each: header 8, tgid, tid 4 each, time, cpu 8 each, size 4, raw record."""

    point: Tracepoint
    table: npt.NDArray[np.uint8]

    def common(self, offset: int, kind: str) -> npt.NDArray[Any]:
        width = np.dtype(kind).itemsize
        return np.ascontiguousarray(self.table[:, offset : offset + width]).view(kind)[:, 0]

    def field(self, name: str) -> npt.NDArray[Any]:
        """A field's values: integers of its own width, or bytes."""
        field = self.point.fields[name]
        at = 36 + field.offset
        raw = np.ascontiguousarray(self.table[:, at : at + field.size])
        if field.text:  # the kernel doesn't clear what follows the end of a string
            raw = np.where(np.logical_or.accumulate(raw == 0, axis=1), 0, raw).astype(np.uint8)
            return raw.view(f"S{field.size}")[:, 0]
        return raw.view(f"<{'i' if field.signed else 'u'}{field.size}")[:, 0]


def events_of(samples: Samples) -> Records:
    """EVENT records of one sched, task or futex tracepoint."""
    name = samples.point.name
    events = np.zeros(len(samples.table), EVENT)
    events["kind"] = _KINDS[name]
    events["tgid"], events["tid"] = samples.common(8, "<u4"), samples.common(12, "<u4")
    events["time"], events["cpu"] = samples.common(16, "<u8"), samples.common(24, "<u4")
    if name == "sched_switch":
        events["tid"], events["other"] = samples.field("prev_pid"), samples.field("next_pid")
        events["value"] = samples.field("prev_state")
        _put_name(events, samples.field("prev_comm"))
    elif name in ("sched_waking", "sched_wakeup", "sched_wakeup_new"):
        events["other"], events["tid"] = events["tid"].copy(), samples.field("pid")
        if name == "sched_wakeup_new":  # the creator wakes its child
            also = events.copy()
            also["kind"] = WAKING
            return np.concatenate([also, events])
    elif name == "sys_enter_futex":
        op = samples.field("op").astype(np.uint64)
        timed = samples.field("utime") != 0
        events["a"] = (op & 0xFFFF) | np.where(timed, OP_TIMED, 0).astype(np.uint64)
        events["b"] = samples.field("uaddr")
        return events[np.isin(op & 0x7F, WAIT_COMMANDS)]
    elif name == "sys_exit_futex":
        events["value"] = samples.field("ret")
    elif name == "task_newtask":
        events["value"], events["other"] = events["tid"].copy(), events["tgid"].copy()
        events["tid"] = samples.field("pid")
        same = (samples.field("clone_flags") & CLONE_THREAD) != 0
        events["tgid"] = np.where(same, events["other"], events["tid"])
        _put_name(events, samples.field("comm"))
    elif name == "sched_process_exec":
        events["other"] = samples.field("old_pid")
        names = [_program(samples.point, row) for row in samples.table]
        _put_name(events, np.array(names, "S16"))
    return events


def _put_name(events: Records, names: npt.NDArray[Any]) -> None:
    halves = np.ascontiguousarray(names.astype("S16")).view("<u8").reshape(-1, 2)
    events["a"], events["b"] = halves[:, 0], halves[:, 1]


def _program(point: Tracepoint, row: npt.NDArray[np.uint8]) -> bytes:
    """The name exec gives a thread: the program's file name, cut to 15 bytes."""
    path = str(point.parse(row[36:].tobytes()).get("filename", ""))
    return path.rsplit("/", 1)[-1].encode()[:15]


def blocks_of(samples: Samples) -> Records:
    """BLOCK records, each with the one time its tracepoint stands for."""
    name = samples.point.name
    blocks = np.zeros(len(samples.table), BLOCK)
    blocks[_BLOCK_TIMES[name]] = samples.common(16, "<u8")
    blocks["tgid"], blocks["tid"] = samples.common(8, "<u4"), samples.common(12, "<u4")
    device = samples.field("dev").astype(np.uint32)
    if name == "block_getrq":  # of the partition, where the others name the disk
        known, codes = np.unique(device, return_inverse=True)
        device = np.array([_whole_disk(int(d)) for d in known], np.uint32)[codes]
    blocks["dev"], blocks["sector"] = device, samples.field("sector")
    blocks["rwbs"] = samples.field("rwbs")
    if "bytes" in samples.point.fields:
        blocks["bytes"] = samples.field("bytes")
    if "error" in samples.point.fields:
        blocks["error"] = samples.field("error")
    if "comm" in samples.point.fields:
        blocks["comm"] = samples.field("comm")
    return blocks


def _whole_disk(device: int) -> int:
    path = Path(f"/sys/dev/block/{device >> 20}:{device & 0xFFFFF}")
    if not (path / "partition").exists():
        return device
    major, minor = (path.resolve().parent / "dev").read_text().split(":")
    return int(major) << 20 | int(minor)


class UnpairedBackend(Backend):
    """Keeps the unpaired records of followed threads in unpaired.bin and requests.bin; `finish` pairs them."""

    paired = False

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._followed: list[tuple[int, Thread]] = []
        self._tids = np.empty(0, np.uint32)
        self._groups: set[tuple[int, int]] = set()
        self._lock = threading.Lock()

    @abstractmethod
    def take(self) -> None:
        """Gives what the buffers hold to `write` or `write_events`."""

    def drain(self) -> None:
        with self._lock:
            self.take()

    def follow(self, thread: Thread) -> bool:
        self.drain()  # it may be a child of a followed thread, its birth still in a buffer
        with self._lock:
            if thread.tid in self._tids:
                return False
            self._tids = np.append(self._tids, np.uint32(thread.tid))
        self._groups.add((thread.tgid, thread.tid))
        self._followed.append((time.monotonic_ns(), thread))
        return True

    def followed(self) -> list[tuple[int, int]]:
        return sorted(self._groups)

    def forget(self, tid: int) -> None:
        self._followed = [(at, thread) for at, thread in self._followed if thread.tid != tid]

    def write(self, batch: list[Samples]) -> None:
        """Appends what is about followed threads, and all block requests."""
        events = [events_of(samples) for samples in batch if samples.point.name in _KINDS]
        blocks = [blocks_of(samples) for samples in batch if samples.point.name in _BLOCK_TIMES]
        if events:
            self.write_events(np.concatenate(events))
        if blocks:
            with (self.directory / "requests.bin").open("ab") as file:
                file.write(np.concatenate(blocks).tobytes())

    def write_events(self, events: Records) -> None:
        """Appends those of followed threads; children of followed threads are followed from here on."""
        births = events[events["kind"] == FORK]
        for birth in births[np.argsort(births["time"])]:
            if birth["value"] in self._tids and birth["tid"] not in self._tids:
                self._tids = np.append(self._tids, birth["tid"])
                self._groups.add((int(birth["tgid"]), int(birth["tid"])))
        mine = np.isin(events["tid"], self._tids)
        mine &= (events["kind"] != FORK) | np.isin(events["value"].astype(np.uint32), self._tids)
        mine |= (events["kind"] == SWITCH) & np.isin(events["other"], self._tids)
        with (self.directory / "unpaired.bin").open("ab") as file:
            file.write(events[mine].tobytes())

    def finish(self) -> None:
        """Writes events.bin and blocks.bin as a paired backend would have."""
        unpaired, requests = self.directory / "unpaired.bin", self.directory / "requests.bin"
        self.broken |= pairing.pair(unpaired, self.directory / "events.bin", self._followed)
        pairing.pair_blocks(requests, self.directory / "blocks.bin")
        unpaired.unlink(missing_ok=True)
        requests.unlink(missing_ok=True)

"""GPU scheduler jobs from the kernel's gpu_scheduler:* tracepoints, where there are any; dma_fence:* is kept raw.

Two generations of names (told apart by the events there are, not by the kernel's version): drm_sched_job,
drm_run_job, drm_sched_process_job, paired by the address of the job's finished fence; and drm_sched_job_queue, _run,
_done, paired by fence context and sequence number. NVIDIA's driver fires neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from perfscope import probes
from perfscope.collectors.ebpf import libbpf, tracefs
from perfscope.collectors.ebpf.records import Records, chunks
from perfscope.collectors.ebpf.ring import Ring, drain_last, open_ring
from perfscope.collectors.ebpf.tables import Window
from perfscope.errors import CollectorError
from perfscope.model.session_writer import SessionWriter

CATEGORIES = ("gpu_scheduler", "dma_fence")
RAW = np.dtype([("time", "<u8"), ("tgid", "<u4"), ("tid", "<u4"), ("id", "<u4"), ("cpu", "<u2"), ("size", "<u2"),
                ("data", "V256")])  # fmt: skip
"""struct raw of probes/bpf/generic.bpf.c; 280 bytes."""

PHASES = {
    "drm_sched_job": "queue",
    "drm_sched_job_queue": "queue",
    "drm_run_job": "run",
    "drm_sched_job_run": "run",
    "drm_sched_process_job": "done",
    "drm_sched_job_done": "done",
}


@dataclass
class Job:
    """One job; its times in ns on CLOCK_MONOTONIC, None where not seen."""

    queue_ns: int | None = None
    run_ns: int | None = None
    done_ns: int | None = None
    pid: int | None = None
    tid: int | None = None
    device: str | None = None
    ring: str | None = None
    job: int | None = None
    queued_jobs: int | None = None


def missing() -> str | None:
    """Why no GPU scheduler job can be seen here; None if they can."""
    if any(name in PHASES for name in tracefs.events("gpu_scheduler")):
        return None
    return "gpu_scheduler events: not available on this kernel or driver (NVIDIA's driver has none)"


class DrmEvents:
    """Forwards every gpu_scheduler and dma_fence event through libbpf while any GPU scheduler exists."""

    def __init__(self, directory: Path) -> None:
        self.notes: list[str] = []
        self._file = directory / "drm.bin"
        self._object: libbpf.Object | None = None
        self._ring: Ring | None = None
        self._points: dict[int, tracefs.Tracepoint] = {}
        self.lost = 0

    @classmethod
    def open(cls, directory: Path) -> DrmEvents:
        """Attaches where that is possible; `notes` says why it isn't."""
        events = cls(directory)
        if why := missing():
            events.notes.append(why)
            return events
        try:
            events._attach()
        except CollectorError as error:
            events.notes.append(f"gpu_scheduler events: {error}")
            events.stop()
        return events

    def _attach(self) -> None:
        self._object = libbpf.Object(probes.path("bpf", "generic.bpf.o"), ["any_tracepoint"])
        self._ring = open_ring(self._object.map("raws").fd, 4 << 20, RAW.itemsize, self._file)
        for category in CATEGORIES:
            for name in tracefs.events(category):
                point = tracefs.tracepoint(category, name)
                self._points[point.id] = point
                size = min(point.size + 128, 256)  # strings follow the fixed part
                self._object.attach_tracepoint("any_tracepoint", category, name, size << 32 | point.id)

    def drain(self) -> None:
        if self._ring is not None:
            self._ring.drain()

    def stop(self) -> None:
        """Detaches and drains the rest. Idempotent."""
        if self._object is None:
            return
        self._object.detach()
        if self._ring is not None:
            drain_last([self._ring])
            self._ring.close()
            self._ring = None
        self.lost = self._object.counter(0)
        self._object.close()
        self._object = None

    def read(self, writer: SessionWriter, window: Window) -> int:
        """Writes drm_jobs; returns how many events there were."""
        count, jobs = 0, JobTable()
        for raws in chunks(self._file, RAW, 1 << 16):
            count += len(raws)
            jobs.add(raws, self._points)
        rows = [vars(job) for job in jobs.rows() if _within(job, window)]
        if rows:
            writer.append("drm_jobs", {name: _column(name, rows) for name in rows[0]})
        return count


def _column(name: str, rows: list[dict[str, Any]]) -> Any:
    values = [row[name] for row in rows]
    return (
        pa.array(values, pa.string())
        if name in ("device", "ring")
        else pa.array(values, pa.uint64() if name == "job" else pa.int64())
    )


def _within(job: Job, window: Window) -> bool:
    times = [time for time in (job.queue_ns, job.run_ns, job.done_ns) if time is not None]
    return max(times) > window.start_ns and min(times) < window.stop_ns


class JobTable:
    """Pairs the three moments of each job."""

    def __init__(self) -> None:
        self._open: dict[tuple[Any, ...], Job] = {}
        self._closed: list[Job] = []

    def add(self, raws: Records, points: dict[int, tracefs.Tracepoint]) -> None:
        """Takes raw records, of which those of gpu_scheduler jobs count."""
        for raw in raws[np.argsort(raws["time"], kind="stable")]:
            point = points.get(int(raw["id"]))
            if point is not None and point.name in PHASES:
                self.event(point.name, int(raw["time"]), int(raw["tgid"]), int(raw["tid"]),
                           point.parse(raw["data"].tobytes()[: int(raw["size"])]))  # fmt: skip

    def event(self, name: str, time_ns: int, tgid: int, tid: int, fields: dict[str, int | str]) -> None:
        """One event of any generation."""
        key = (fields["fence"],) if "fence" in fields else (fields.get("fence_context"), fields.get("fence_seqno"))
        phase = PHASES[name]
        if phase == "queue":
            if (stale := self._open.pop(key, None)) is not None:
                self._closed.append(stale)  # its fence's address is used again, its end was not seen
            self._open[key] = Job(queue_ns=time_ns, pid=tgid, tid=tid)
        job = self._open.setdefault(key, Job())
        if phase == "run":
            job.run_ns = time_ns
        elif phase == "done":
            job.done_ns = time_ns
            self._closed.append(self._open.pop(key))
        for attribute, names in (("device", ("dev",)), ("ring", ("name",)), ("job", ("id", "fence_seqno"))):
            for field in names:
                if field in fields and getattr(job, attribute) is None:
                    setattr(job, attribute, fields[field])
        if phase == "queue" and isinstance(count := fields.get("job_count"), int):
            job.queued_jobs = count

    def rows(self) -> list[Job]:
        """All jobs, those without an end last."""
        return self._closed + list(self._open.values())

"""The sampling itself: one pass over the devices.

A pass has a cheap part, which is made every time: power, SM clock, clock events, who is on the devices. The rest is
made where the budget allows (see pacer): GPM, whose answer costs the driver more than 1 ms, and what changes slowly.
GPM's values are means since its last answer, so with fewer of them nothing goes unseen.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from dataclasses import dataclass, field
from typing import Any

import pynvml

from perfscope.collectors.nvml.calls import Bracketed
from perfscope.collectors.nvml.devices import Device
from perfscope.collectors.nvml.gpm import Gpm, supported
from perfscope.collectors.nvml.owners import Owners, opened, visible
from perfscope.collectors.nvml.readings import Reading, readings
from perfscope.collectors.nvml.values import ValueFile

LOOK_NS = 1_000_000_000
"""Time between two looks at which processes are on a device, once it is known that the target is on one."""

SEARCH_NS = 200_000_000
"""Time between two such looks before that."""

UNUSED_NS = 1_000_000_000
"""Time between two readings of a device while the target is on none."""

_PATIENCE_NS = 2_000_000
"""A GPM sample that may be taken this soon is waited for; else it's the next pass's."""


@dataclass
class _Watched:
    """A device and what is needed to go on reading it."""

    device: Device
    readings: tuple[Reading, ...]
    gpm: Gpm | None
    due_ns: dict[str, int] = field(default_factory=dict)
    read_ns: int = 0
    looked_ns: int = 0
    pids: dict[int, int] = field(default_factory=dict)
    utilization_since: tuple[int, int] | None = None
    """Driver's stamp (us) of the newest utilisation sample of a process, and when it was asked for (our ns)."""


class Sampler:
    """Samples devices. `pids` (the target's processes) may change from outside while it runs."""

    def __init__(self, devices: list[Device], values: ValueFile, owners: Owners) -> None:
        self.pids: set[int] = set()
        self.owners = owners
        self.passes = 0
        self.means = 0
        """Answers of GPM, of all devices."""
        self.late = 0
        self.cpu_ns = 0
        self.setup_cpu_ns = 0
        self.longest_call_ns = 0
        self.xids = 0
        self._values = values
        self._watched = [self._watch(device) for device in devices]
        self._devices = devices
        self._events: Any = None
        self._events_since_ns = time.monotonic_ns()
        self._registered: dict[int, str] = {}
        self._holders: dict[int, set[int]] = {}
        self._holders_ns = 0

    @property
    def uses_gpm(self) -> list[str]:
        return [w.device.label for w in self._watched if w.gpm]

    def _watch(self, device: Device) -> _Watched:
        gpm = None
        if supported(device):
            made = device.calls.read("GPM sample buffers", lambda: Gpm(device))
            gpm = made.value if made else None
        # Of a GPU cut into MIG instances, utilisation and processes are read on those.
        return _Watched(device, readings(device, gpm is not None or device.mig_enabled), gpm)

    def before_target(self) -> None:
        """Notes who is on the devices already (unless the target is, as it runs already), and asks for Xid errors."""
        held = set().union(*map(opened, self.pids))
        for watched in self._watched:
            listed = self._processes(watched.device)
            if listed is not None and watched.device.minor not in held:
                self.owners.before(watched.device.label, listed.value)
        self._register()

    def warm_up(self) -> int:
        """A first pass, of its own account: the driver's first answers take ms each. Returns what `sample` does."""
        cpu = time.thread_time_ns()
        taken = self.sample()
        self.longest_call_ns = 0
        self.setup_cpu_ns = time.thread_time_ns() - cpu
        return taken

    def wanted(self, device: Device) -> bool:
        """Whether a device is to be read: all, until it is known which ones the target uses; then only those."""
        known = self.owners.known
        return not known or device.label in known or any(label.startswith(f"{device.label}/") for label in known)

    def sample(self, full: bool = True) -> int:
        """One pass over all devices, or its cheap part. Returns when its GPM samples were taken."""
        now = time.monotonic_ns()
        rest = 0 if self.owners.known else UNUSED_NS
        due = [w for w in self._watched if self.wanted(w.device) and now >= w.read_ns + rest]
        if full:
            for watched in due:
                if watched.gpm:
                    self._means(watched, watched.gpm)
        taken = time.monotonic_ns()
        self._look()
        for watched in due:
            watched.read_ns = now
            self._read(watched, full)
        if full:
            self._xid()
        self.passes += 1
        return taken

    def close(self) -> None:
        for watched in self._watched:
            if watched.gpm:
                with contextlib.suppress(pynvml.NVMLError):
                    watched.gpm.close()
        if self._events is not None:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(self._events)

    def _means(self, watched: _Watched, gpm: Gpm) -> None:
        wait = gpm.due_in_ns()
        if wait > _PATIENCE_NS:
            return
        if wait > 0:
            time.sleep(wait / 1e9)
        means = gpm.read()
        if means:
            self.means += 1
            self._values.write(means.before_ns, means.after_ns, watched.device.label, means.value)

    def _read(self, watched: _Watched, full: bool) -> None:
        device, label = watched.device, watched.device.label
        for reading in watched.readings:
            if reading.every_ns and not (full and time.monotonic_ns() >= watched.due_ns.get(reading.what, 0)):
                continue
            answer = device.calls.read(reading.what, lambda reading=reading: reading.call(device))  # type: ignore[misc]
            if answer is None:
                continue
            watched.due_ns[reading.what] = answer.before_ns + reading.every_ns
            self.longest_call_ns = max(self.longest_call_ns, answer.after_ns - answer.before_ns)
            known = {}
            for name, value in answer.value.items():
                if value is None:
                    device.calls.missing(name, "the driver says: not available")
                else:
                    known[name] = value
            self._values.write(answer.before_ns, answer.after_ns, label, known)

    # Processes

    def _processes(self, device: Device) -> Bracketed[dict[int, int | None]] | None:
        """The driver's process ids on a device, with the memory of each (None: not told)."""
        if device.mig_enabled:
            return None
        return device.calls.read(
            "processes",
            lambda: {p.pid: p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(device.handle)},
        )

    def _look(self) -> None:
        """Who is on which device, and what they use."""
        now = time.monotonic_ns()
        every = LOOK_NS if self.owners.used else SEARCH_NS
        pids = set(self.pids)
        for watched in self._watched:
            device = watched.device
            if device.mig_enabled or now < watched.looked_ns + every:
                continue
            watched.looked_ns = now
            listed = self._processes(device)
            known = self.owners.host and listed is not None and not pids.isdisjoint(listed.value)
            holders = set() if known else self._holding(device, pids, now)
            watched.pids = self.owners.match(device.label, listed.value if listed else None, pids, holders)
            if listed:
                for theirs, ours in watched.pids.items():
                    memory = listed.value[theirs]
                    if memory is None:
                        device.calls.missing("memory of a process", "the driver says: not available")
                    else:
                        self._values.write(
                            listed.before_ns, listed.after_ns, device.label, {"gpu_process_memory_bytes": memory}, ours
                        )
            if watched.pids:
                self._utilization(watched)

    def _holding(self, device: Device, pids: set[int], now: int) -> set[int]:
        if now - self._holders_ns >= (LOOK_NS if self.owners.used else SEARCH_NS):
            self._holders_ns = now
            self._holders = {}
            for pid in pids:
                if minors := opened(pid):
                    self._holders[pid] = minors
        return {
            pid
            for pid, minors in self._holders.items()
            if device.minor in minors and ((seen := visible(pid, self._devices)) is None or device.label in seen)
        }

    def _utilization(self, watched: _Watched) -> None:
        """What each process of the target used of a device since the last time this was asked."""
        device, since = watched.device, watched.utilization_since
        answer = device.calls.read(
            "utilisation of processes", lambda: _process_samples(device, since[0] if since else 0)
        )
        if answer is None:
            return
        newest = max((s.timeStamp for s in answer.value), default=since[0] if since else 0)
        watched.utilization_since = (newest, answer.after_ns)
        if since is None:
            return  # of a time before the recording
        for theirs, ours in watched.pids.items():
            mine = [s for s in answer.value if s.pid == theirs and s.smUtil <= 100 and s.memUtil <= 100]
            if mine:
                values = {
                    "gpu_process_sm_pct": sum(s.smUtil for s in mine) / len(mine),
                    "gpu_process_memory_pct": sum(s.memUtil for s in mine) / len(mine),
                }
                self._values.write(since[1], answer.before_ns, device.label, values, ours)

    # Xid errors

    def _register(self) -> None:
        whole = [d for d in self._devices if d.parent is None]
        for device in whole:
            if self._events is None:
                made = device.calls.read("Xid events", pynvml.nvmlEventSetCreate)
                if made is None:
                    continue
                self._events = made.value
            registered = device.calls.read(
                "Xid events",
                lambda device=device: pynvml.nvmlDeviceRegisterEvents(  # type: ignore[misc]
                    device.handle, pynvml.nvmlEventTypeXidCriticalError, self._events
                ),
            )
            if registered is not None:
                self._registered[_address(device.handle)] = device.label
        self._events_since_ns = time.monotonic_ns()

    def _xid(self) -> None:
        """Takes the Xid errors that came since the last pass; their bracket is the time between the two."""
        if not self._registered or time.monotonic_ns() < self._events_since_ns + UNUSED_NS:
            return
        while True:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError_Timeout:
                break
            except pynvml.NVMLError as error:
                for device in self._devices:
                    if device.label in self._registered.values():
                        device.calls.missing("Xid events", str(error))
                self._registered = {}
                return
            label = self._registered.get(_address(event.device))
            if label is not None and event.eventType & pynvml.nvmlEventTypeXidCriticalError:
                self.xids += 1
                self._values.write(
                    self._events_since_ns, time.monotonic_ns(), label, {"gpu_xid": float(event.eventData)}
                )
        self._events_since_ns = time.monotonic_ns()


def _process_samples(device: Device, since_us: int) -> list[Any]:
    try:
        found: list[Any] = pynvml.nvmlDeviceGetProcessUtilization(device.handle, since_us)
    except pynvml.NVMLError as error:
        # Nothing used it since then: NOT_FOUND, or a success without samples, which the binding raises as well.
        if error.value in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND):
            return []
        raise
    return found


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0

"""NvmlCollector: finds the GPUs, samples them in a thread of its own, and keeps those that the target used."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import compress
from typing import Any

import pynvml

from perfscope.clock import ClockMap
from perfscope.collectors.base import Check, Collector, Context
from perfscope.collectors.nvml import devices, values
from perfscope.collectors.nvml.devices import Device
from perfscope.collectors.nvml.owners import Owners
from perfscope.collectors.nvml.pacer import Pacer
from perfscope.collectors.nvml.readings import CONSTANTS
from perfscope.collectors.nvml.sampler import Sampler
from perfscope.errors import CollectorError
from perfscope.model.session_writer import SessionWriter
from perfscope.options import Options
from perfscope.procfs import Process

_STOP_WAIT_S = 10.0


class NvmlCollector(Collector):
    """Samples NVIDIA GPUs: GPM where the GPU has it, classic calls elsewhere."""

    name = "nvml"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._devices: list[Device] = []
        self._refused: dict[str, str] = {}
        self._sampler: Sampler | None = None
        self._pacer: Pacer | None = None
        self._values: values.ValueFile | None = None
        self._open = False

    @classmethod
    def check(cls, options: Options) -> Iterable[Check]:
        try:
            devices.open_driver()
            try:
                found = devices.count()
            finally:
                pynvml.nvmlShutdown()
        except CollectorError as error:
            return [Check(cls.name, "NVIDIA GPU", "unavailable", str(error), error.hint or "")]
        return [Check(cls.name, "NVIDIA GPU", "ok", f"{found} found")]

    def start(self, root_pids: list[int]) -> None:
        devices.open_driver()
        self._open = True
        self._devices, self._refused = devices.find()
        if not self._devices:
            reasons = "; ".join(f"{label}: {reason}" for label, reason in self._refused.items())
            raise CollectorError(f"no GPU can be opened: {reasons}", hint="nvidia-smi")
        self._values = values.ValueFile(self._file)
        self._sampler = Sampler(self._devices, self._values, Owners())
        self._sampler.pids = set(root_pids)
        self._sampler.before_target()
        self._pacer = Pacer(self._sampler, self._values, self.context.options.gpu_rate_hz)
        self._pacer.start()

    def process_started(self, process: Process) -> None:
        if self._sampler:
            self._sampler.pids = self._sampler.pids | {process.pid}

    def process_ended(self, pid: int) -> None:
        if self._sampler:
            self._sampler.pids = self._sampler.pids - {pid}

    def tick(self) -> None:
        if self._pacer and self._pacer.error:
            error, self._pacer.error = self._pacer.error, None
            raise CollectorError(f"sampling ended early: {type(error).__name__}: {error}")

    def stop(self) -> None:
        pacer, self._pacer = self._pacer, None
        if pacer and not pacer.stop(_STOP_WAIT_S):
            # Its memory may still be written to by the driver, so nothing is freed.
            self._open = False
            if self._values:
                self._values.flush()
            raise CollectorError("the driver didn't answer a call; what was sampled before is kept", hint="nvidia-smi")
        if self._sampler:
            self._sampler.close()
        if self._values:
            self._values.close()
            self._values = None
        if self._open:
            self._version()
            self._open = False
            pynvml.nvmlShutdown()
        if pacer and pacer.error:
            raise CollectorError(f"sampling ended early: {type(pacer.error).__name__}: {pacer.error}")

    def read(self, writer: SessionWriter, start_ns: int, stop_ns: int) -> None:
        sampler, report = self._sampler, self.report
        if sampler is None:
            raise CollectorError("sampling never began")
        kept = {device.label for device in self._devices if sampler.owners.known and sampler.wanted(device)}
        rows = 0
        for columns in values.read(self._file):
            _hold_from(start_ns, columns)
            times = zip(columns["device"], columns["time_ns"], strict=True)
            mask = [label in kept and start_ns <= t <= stop_ns for label, t in times]
            batch = {name: list(compress(cells, mask)) for name, cells in columns.items()}
            count = len(batch["value"])
            writer.append("counters", {**batch, "source": ["nvml"] * count})
            rows += count
        report.events = rows
        report.late_samples = sampler.late
        report.cpu_ns = sampler.setup_cpu_ns + sampler.cpu_ns
        report.covered_ns = [(start_ns, stop_ns)]
        report.details = self._details(kept)
        self._notes(sampler, kept, (stop_ns - start_ns) / 1e9)
        self.clocks[self.name] = ClockMap(
            "monotonic",
            0,
            sampler.longest_call_ns // 2 + 1,
            resolution_ns=1_000_000_000 // self.context.options.gpu_rate_hz,
            method="each call bracketed by two reads of CLOCK_MONOTONIC; the error is half of the longest",
        )
        if not kept:
            report.status, report.why = "unavailable", "no process of the target was seen on a GPU"

    @property
    def _file(self) -> Any:
        return self.context.raw / "values.jsonl"

    def _version(self) -> None:
        try:
            driver, library = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetNVMLVersion()
        except pynvml.NVMLError:
            return
        self.report.version = f"NVML {library}, driver {driver}"

    def _details(self, kept: set[str]) -> dict[str, Any]:
        return {
            "devices": {d.label: {**d.facts, "used": d.label in kept} for d in self._devices},
            "absent": {
                **{d.label: d.calls.absent for d in self._devices if d.calls.absent},
                **{label: {"device": reason} for label, reason in self._refused.items()},
            },
        }

    def _notes(self, sampler: Sampler, kept: set[str], elapsed_s: float) -> None:
        notes = self.report.notes
        for device in self._devices:
            if device.label in kept and (absent := device.calls.absent):
                notes.append(f"{device.label} doesn't tell: " + "; ".join(f"{k}: {v}" for k, v in absent.items()))
        notes += [f"{label} can't be opened: {reason}" for label, reason in self._refused.items()]
        gpm = sorted(kept & set(sampler.uses_gpm))
        if gpm:
            notes.append(
                f"{', '.join(gpm)}: SM, tensor, DRAM, PCIe and NVLink values are means over time_ns ± error_ns, one "
                f"after the other without a gap ({sampler.means} in {elapsed_s:.1f} s)"
            )
        if kept - set(gpm):
            notes.append("gpu_utilization_pct covers a window of the driver's own (1/6 to 1 s) before its time")
        if sampler.late and elapsed_s > 0:
            notes.append(
                f"sampled {sampler.passes / elapsed_s:.1f} times a second instead of "
                f"{self.context.options.gpu_rate_hz}, to keep its cost under 1 % of a core at 10 Hz"
            )
        if kept and not sampler.owners.used:
            notes.append(
                f"{', '.join(sorted(kept))}: kept as the target has it open; the driver listed no process of it"
            )
        if sampler.owners.by_exclusion:
            notes.append(
                "the driver's process ids are those of a host that can't be seen from here: "
                "which of them is the target's was told by exclusion"
            )
        if sampler.xids:
            notes.append(f"{sampler.xids} Xid errors of the GPUs were reported (counter gpu_xid)")


def _hold_from(start_ns: int, columns: dict[str, list[Any]]) -> None:
    """Gives constants that were read before the recording its start as their time, and a bracket that reaches back."""
    for row, name in enumerate(columns["name"]):
        early = start_ns - columns["time_ns"][row]
        if early > 0 and name in CONSTANTS:
            columns["time_ns"][row] += early
            columns["error_ns"][row] += early

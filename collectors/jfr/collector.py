"""Records every JVM of the target with Java Flight Recorder."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from perfscope import procfs
from perfscope.clock import ClockMap
from perfscope.collectors.base import CALM_TICK_S, TICK_S, Check, Collector, Context
from perfscope.collectors.jfr import attach, jvm
from perfscope.collectors.jfr.chunk import JfrFile
from perfscope.collectors.jfr.importer import fill_report
from perfscope.collectors.jfr.jfrclock import headers, measure
from perfscope.collectors.jfr.kinds import CONSTANTS, WANTED
from perfscope.collectors.jfr.recording import JvmRecording
from perfscope.collectors.jfr.tables import Tables
from perfscope.errors import CollectorError, InputError
from perfscope.model.session_writer import SessionWriter
from perfscope.options import Options
from perfscope.procfs import Process

SECRET = frozenset(
    f"jdk.{name}"
    for name in (
        "InitialEnvironmentVariable",
        "InitialSystemProperty",
        "SystemProcess",
        "JVMInformation",
        "ProcessStart",
    )
)
"""Events that hold command lines, environment variables or properties. We never switch them on; others may."""
_TID_SCAN_NS = 500_000_000
_LATE_NS = 100_000_000
_STARTING_NS = 10_000_000_000
"""Age below which a JVM that can't be asked is asked again: on a loaded machine it may still be starting."""
FROM_THE_START = (
    "java -XX:StartFlightRecording:filename=FILE.jfr ... records a JVM from its start; "
    "perfscope import FILE.jfr reads that"
)


@dataclass
class _Waiting:
    """A JVM that could not be asked yet, and when to try again: soon, then ever more rarely."""

    process: Process
    error: CollectorError | None = None
    next_ns: int = 0
    pause_ns: int = 20_000_000

    def put_off(self, error: CollectorError) -> None:
        self.error = error
        self.next_ns = time.monotonic_ns() + self.pause_ns
        self.pause_ns = min(2 * self.pause_ns, 5_000_000_000)


class JfrCollector(Collector):
    """One recording in each JVM. What it costs is paid inside the JVM, so `cpu_ns` is only what driving it took."""

    name = "jfr"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.period_ms = max(1, round(1000 / context.options.rate_hz))
        self.recordings: list[JvmRecording] = []
        self._waiting: dict[int, _Waiting] = {}
        self._failed: dict[tuple[int, int], CollectorError] = {}
        self._tids: dict[int, dict[int, int]] = {}
        self._next_scan = 0
        self._cpu_ns = 0

    @classmethod
    def check(cls, options: Options) -> Iterable[Check]:
        user = "any user" if os.geteuid() == 0 else "your own user"
        yield Check("jfr", "attach socket", "ok", f"reaches JVMs of {user}; needs no JDK on this host")
        tool = shutil.which("jcmd")
        yield Check(
            "jfr", "jcmd", "ok", f"{tool}, used where the socket can't be reached" if tool else "none; not needed"
        )
        found = [p for name in os.listdir("/proc") if name.isdigit() and (p := _java_process(int(name)))]  # noqa: PTH208 (hot)
        if not found:
            yield Check("jfr", "running JVMs", "ok", "none now; those of the target are found as they start")
        for process in found[:20]:
            what = f"JVM {process.pid}"
            try:
                attach.check_attachable(process)
                owner = jvm.effective_ids(process.pid)
                if os.geteuid() not in (0, owner[0] if owner else -1):
                    yield Check("jfr", what, "unavailable", "belongs to another user", "run as that user, or as root")
                else:
                    yield Check("jfr", what, "ok", f"Java {jvm.java_version(process.pid) or '(version unknown)'}")
            except CollectorError as error:
                yield Check("jfr", what, "unavailable", str(error), error.hint or "")

    def start(self, root_pids: list[int]) -> None:
        for pid in root_pids:
            process = procfs.process(pid)
            if process is not None and process.runtime == "java":
                self.process_started(process)

    def process_started(self, process: Process) -> None:
        key = (process.pid, process.start_ticks)
        if process.runtime != "java" or process.pid in self.context.own_pids or key in self._failed:
            return
        if any((r.process.pid, r.process.start_ticks) == key for r in self.recordings):
            return
        began = time.thread_time_ns()
        try:
            self.recordings.append(JvmRecording.start(process, self.period_ms, self.context.guard))
            self._waiting.pop(process.pid, None)
            self._scan_tids()
        except attach.NotReadyError as error:
            waiting = self._waiting.setdefault(process.pid, _Waiting(process))
            waiting.put_off(error)
        except CollectorError as error:
            if time.monotonic_ns() - _born_ns(process) < _STARTING_NS and process.alive():
                self._waiting.setdefault(process.pid, _Waiting(process)).put_off(error)
            else:
                self._waiting.pop(process.pid, None)
                self._failed[key] = error
        finally:
            self._cpu_ns += time.thread_time_ns() - began

    def process_ended(self, pid: int) -> None:
        self._gave_up(pid)
        for recording in self.recordings:
            if recording.process.pid == pid and not recording.process.alive():
                recording.stop(self.context.raw, self.context.guard)

    def _gave_up(self, pid: int) -> None:
        """A JVM ended before it could be asked."""
        waiting = self._waiting.pop(pid, None)
        if waiting is not None and waiting.error is not None:
            error = CollectorError(
                f"JVM {pid} ended before it could be asked to record: {waiting.error}", hint=waiting.error.hint
            )
            self._failed[waiting.process.pid, waiting.process.start_ticks] = error

    @property
    def tick_s(self) -> float:
        return TICK_S if self._waiting else CALM_TICK_S

    def tick(self) -> None:
        for pid, waiting in list(self._waiting.items()):
            if not waiting.process.alive():
                self._gave_up(pid)
            elif time.monotonic_ns() >= waiting.next_ns:
                self.process_started(waiting.process)
        if time.monotonic_ns() >= self._next_scan:
            self._scan_tids()
        for recording in self.recordings:
            recording.tick()

    def stop(self) -> None:
        began = time.thread_time_ns()
        for recording in self.recordings:
            recording.stop(self.context.raw, self.context.guard)
        for waiting in self._waiting.values():
            process, error = waiting.process, waiting.error
            if error is not None:
                self._failed.setdefault((process.pid, process.start_ticks), error)
        self._waiting.clear()
        self._cpu_ns += time.thread_time_ns() - began

    def _scan_tids(self) -> None:
        """In another pid namespace JFR names threads by their inner ids: keep the translation while they live."""
        self._next_scan = time.monotonic_ns() + _TID_SCAN_NS
        for recording in self.recordings:
            process = recording.process
            if recording.running and process.ns_pid != process.pid:
                self._tids.setdefault(process.pid, {}).update(procfs.inner_to_host_tids(process.pid))

    def read(self, writer: SessionWriter, start_ns: int, stop_ns: int) -> None:
        report = self.report
        problems = [str(error) for error in self._failed.values()]
        hints = [error.hint for error in self._failed.values() if error.hint]
        for recording in self.recordings:
            last_ns = None
            if recording.file is not None:
                try:
                    last_ns = self._read_one(recording, recording.file, writer, start_ns, stop_ns)
                except InputError as error:
                    problems.append(str(error))
            problems += recording.problems
            if recording.salvaged:
                problems.append(_salvaged(recording, last_ns))
            if not recording.via:
                hints.append(FROM_THE_START)
        if not self.recordings and not self._failed:
            report.status, report.why = "unavailable", "no JVM among the recorded processes"
        elif not report.events:
            report.status = "unavailable" if not self.recordings else "failed"
            report.why = "; ".join(filter(None, [report.why, *problems])) or "nothing was recorded"
        elif problems:
            report.status = "partial"
            report.why = "; ".join(filter(None, [report.why, *problems]))
        report.hint = hints[0] if hints else None
        if self.recordings:
            report.version = ", ".join(sorted({f"Java {r.version or 'of unknown version'}" for r in self.recordings}))
            if via := sorted({r.via for r in self.recordings if r.via}):
                report.notes.append("driven by: " + ", ".join(via))
            report.notes.append("JFR looks at a few threads each period: samples times period is not CPU time")
        report.cpu_ns = self._cpu_ns

    def _read_one(
        self, recording: JvmRecording, path: Path, writer: SessionWriter, start_ns: int, stop_ns: int
    ) -> int | None:
        """When the last event of its file ended."""
        process = recording.process
        until = recording.end_ns or recording.gone_ns or stop_ns
        clock = measure(path, recording.anchors, self.period_ms * 1_000_000, until)
        self._keep_clock(process.pid, clock)
        (path.with_suffix(".json")).write_text(
            json.dumps({"process": asdict(process), "anchors": [asdict(a) for a in recording.anchors]})
        )
        tids = None if process.ns_pid == process.pid else self._tids.get(process.pid, {})
        tables = Tables(writer, process.pid, tids, (start_ns, stop_ns))
        file = JfrFile(path, WANTED | SECRET, CONSTANTS)
        secret = False
        for chunk in file:
            tables.add(chunk, clock)
            secret = secret or any(chunk.count(name) for name in SECRET)
        fill_report(self.report, tables, file.losses, file.damaged_events)
        writer.note_process(process.pid, runtime="java")
        begin = clock.to_mono(headers(path)[0].start_ticks)
        end = recording.end_ns or tables.last_ns or begin
        late = begin - max(start_ns, _born_ns(process))
        if late > _LATE_NS:
            self.report.notes.append(f"the first {late / 1e9:.1f} s of JVM {process.pid} are not in its recording")
        if end > begin:
            self.report.covered_ns.append((max(start_ns, begin), min(stop_ns, end)))
        if recording.others:
            self.report.notes.append(f"another JFR recording was in JVM {process.pid}; it was left as it was")
        if secret:
            path.unlink()
            self.report.notes.append(
                f"the raw file of JVM {process.pid} was not kept: another recording in that JVM had put command lines, "
                "properties or environment variables into it"
            )
        return tables.last_ns

    def _keep_clock(self, pid: int, clock: ClockMap) -> None:
        """`jfr` is the worst clock of all JVMs; several have one each beside it."""
        if len(self.recordings) > 1:
            self.clocks[f"jfr:{pid}"] = clock
        if "jfr" not in self.clocks or clock.error_ns > self.clocks["jfr"].error_ns:
            self.clocks["jfr"] = clock


def _born_ns(process: Process) -> int:
    suspended = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return process.start_ticks * 10**9 // os.sysconf("SC_CLK_TCK") - suspended


def _salvaged(recording: JvmRecording, last_ns: int | None) -> str:
    end = ""
    if recording.gone_ns is not None and last_ns is not None:
        end = f", which end {max(0, recording.gone_ns - last_ns) / 1e9:.1f} s before it did"
    return (
        f"JVM {recording.process.pid} was killed, or halted itself, before it had written its recording: "
        f"read from the chunks it left{end}"
    )


def _java_process(pid: int) -> Process | None:
    process = procfs.process(pid)
    return process if process is not None and process.runtime == "java" else None

"""One recording from plan to session."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from perfscope import __version__, collectors, procfs
from perfscope.clock import realtime_offset
from perfscope.collectors.base import Check, Collector, Context
from perfscope.errors import CollectorError, RecordingError
from perfscope.model.info import CollectorReport, SessionInfo
from perfscope.model.session_writer import SessionWriter
from perfscope.options import Options
from perfscope.pace import until_beat_s
from perfscope.procfs import Process
from perfscope.recording.environment import fingerprint
from perfscope.recording.guardian import Guard
from perfscope.recording.launch import Target
from perfscope.recording.signals import Signals
from perfscope.recording.supervise import Supervisor
from perfscope.recording.watch import Watcher

_CAP_SYS_PTRACE = 19
_STEP_SLACK_PPM = 500
"""Fastest slew of the wall clock by NTP; what exceeds it was a step."""


@dataclass(frozen=True)
class Request:
    """What is to be recorded: a launched command (`command`) or running processes (`pids`)."""

    output: Path
    command: list[str] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    duration_s: float | None = None
    collect: list[str] = field(default_factory=lambda: list(collectors.COLLECTORS))
    options: Options = field(default_factory=Options)
    force: bool = False
    keep_raw: bool = True


@dataclass(frozen=True)
class Progress:
    """How a recording is going, for the status line."""

    phase: str
    elapsed_s: float
    processes: int
    threads: int
    collectors: list[str]


Report = Callable[[Progress], None]


def plan(request: Request) -> tuple[dict[str, type[Collector]], dict[str, CollectorReport]]:
    """The collectors that can run here, and the reports of those that can't.

    Raises RecordingError if none of those asked for can.
    """
    usable: dict[str, type[Collector]] = {}
    missing: dict[str, CollectorReport] = {}
    for name in request.collect:
        try:
            kind = collectors.load(name)
            checks = list(kind.check(request.options))
        except CollectorError as error:
            missing[name] = CollectorReport("unavailable", str(error), error.hint)
            continue
        except Exception as error:  # noqa: BLE001 (a defect of one collector must not cost the others' data)
            missing[name] = CollectorReport("unavailable", f"can't be loaded: {type(error).__name__}: {error}")
            continue
        if checks and all(check.state == "unavailable" for check in checks):
            missing[name] = CollectorReport("unavailable", _join(checks, "why"), _join(checks, "fix") or None)
        else:
            usable[name] = kind
    if not usable:
        reasons = "".join(f"\n  {name}: {report.why}" for name, report in missing.items())
        raise RecordingError(f"nothing can record here:{reasons}", hint="perfscope doctor")
    return usable, missing


def _refuse_unreadable(pids: list[int]) -> None:
    """Raises RecordingError naming what is no process, or one that we may not look into: its record would mislead."""
    if not Path("/proc/self/status").exists():
        raise RecordingError("/proc is not mounted, and everything is found there", hint="mount -t proc proc /proc")
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            leader = int(status.partition("Tgid:")[2].split()[0])
            if leader != pid:
                raise RecordingError(
                    f"{pid} is a thread of process {leader}",
                    hint=f"perfscope record -p {leader} records all its threads",
                )
            if pid == os.getpid():
                raise RecordingError(f"{pid} is this very perfscope", hint="ps -e lists the running processes")
            if (stat := procfs.read_stat(pid)) and stat.ended:
                raise RecordingError(
                    f"{pid} has ended; only its exit status is left for its parent, process {stat.ppid}",
                    hint="ps -e lists the running processes",
                )
            Path(f"/proc/{pid}/maps").open("rb").close()
        except PermissionError:
            raise _no_right(pid) from None
        except OSError:
            raise RecordingError(f"no process with pid {pid}", hint="ps -e lists the running ones") from None


def _no_right(pid: int) -> RecordingError:
    owner, user = Path(f"/proc/{pid}").stat().st_uid, os.geteuid()
    if procfs.has_capability(_CAP_SYS_PTRACE):
        why = "it has capabilities that perfscope lacks, or a security module protects it"
        hint = f"run perfscope with more capabilities than pid {pid} has: grep Cap /proc/{pid}/status"
    else:
        why = f"it belongs to user {owner}, and this is user {user} without CAP_SYS_PTRACE"
        hint = f"sudo perfscope record -p {pid}"
    return RecordingError(f"no right to record pid {pid}: {why}", hint=hint)


def _join(checks: list[Check], what: str) -> str:
    return "; ".join(dict.fromkeys(text for check in checks if (text := getattr(check, what))))


class Recording:
    """Runs one recording. Use `run`, once."""

    def __init__(self, request: Request, target: Target | None, signals: Signals, report: Report) -> None:
        self.request = request
        self.target = target
        self.signals = signals
        self.report = report
        self.info = SessionInfo(
            command=request.command,
            host=fingerprint(),
            options={
                **asdict(request.options),
                "collect": request.collect,
                "duration_s": request.duration_s,
                "keep_raw": request.keep_raw,
            },
            tool_version=__version__,
            state="recording",
        )

    def run(self) -> SessionInfo:
        """Records until the target ends, the duration is over or a signal comes; then writes the session.

        A launched target may still be running on return. Raises RecordingError if there is no session to show for it,
        and CommandError if the command can't be executed.
        """
        request = self.request
        _refuse_unreadable(request.pids)
        usable, self.info.collectors = plan(request)
        writer = SessionWriter(request.output, force=request.force)
        cpu_before_s = _cpu_s()
        guard = Guard()
        try:
            own = {os.getpid(), guard.pid}
            self.supervisors = [self._supervise(name, kind, writer, guard, own) for name, kind in usable.items()]
            try:
                self._record(writer, own)
            except BaseException:
                self._stop()
                writer.discard()
                raise
            self._stop()
        finally:
            guard.close()
        self._own_cost(cpu_before_s)
        self.signals.writing = True
        self._read(writer)
        writer.finish(self.info, keep_raw=request.keep_raw)
        self.signals.writing = False
        return self.info

    def left_running(self) -> list[int]:
        """Pids of what a launched command started and what outlived it: daemons."""
        others = [pid for pid in self.watcher.live if pid not in self.info.pids]
        return [pid for pid in others if (stat := procfs.read_stat(pid)) and not stat.ended]

    def process_started(self, process: Process) -> None:
        for supervisor in self.supervisors:
            supervisor.process_started(process)

    def process_ended(self, pid: int) -> None:
        for supervisor in self.supervisors:
            supervisor.process_ended(pid)

    def followed(self) -> list[int]:
        return [pid for supervisor in self.supervisors for pid in supervisor.collector.followed()]

    def _supervise(
        self, name: str, kind: type[Collector], writer: SessionWriter, guard: Guard, own: set[int]
    ) -> Supervisor:
        raw = writer.raw / name
        raw.mkdir()

        def undo(key: str, argv: list[str]) -> None:
            guard.register(f"{name}:{key}", argv)

        collector = kind(Context(raw, self.request.options, undo, own))
        return Supervisor(name, collector, guard.run_now)

    def _record(self, writer: SessionWriter, own: set[int]) -> None:
        info = self.info
        roots = [self.target.pid] if self.target else self.request.pids
        info.pids = roots
        wall_start, wall_error = realtime_offset()
        info.started_at = datetime.now(UTC).isoformat(timespec="seconds")
        writer.write_info(info)
        self.report(Progress("attaching", 0.0, 0, 0, [s.name for s in self.supervisors]))
        for supervisor in self.supervisors:
            supervisor.start(roots)
        self._settle("start")
        self.watcher = Watcher(roots, self, own)
        info.start_ns = time.monotonic_ns()
        if self.target:
            self.target.go(self._probe_variables())
        self._watch()
        info.stop_ns = time.monotonic_ns()
        wall_stop, error = realtime_offset()
        info.host["wall_clock"] = _wall_clock(wall_start, wall_stop, wall_error + error, info.stop_ns - info.start_ns)

    def _probe_variables(self) -> dict[str, str]:
        """What the collectors that are working add to the command's environment."""
        added: dict[str, str] = {}
        for supervisor in self.supervisors:
            if not supervisor.failed:
                added |= supervisor.collector.environment()
        if added:
            self.info.options["environment_added"] = sorted(added)
        return added

    def _watch(self) -> None:
        info, watcher = self.info, self.watcher
        duration = self.request.duration_s
        end = None if duration is None else info.start_ns + int(duration * 1e9)
        while True:
            before = time.monotonic()
            exited = self.target is not None and self.target.exited()
            watcher.scan(last=exited)
            now = time.monotonic_ns()
            if exited:
                info.stopped_by = "target exited"
            elif self.target is None and not watcher.live_roots:
                info.stopped_by = "all recorded processes ended"
            elif self.signals.stop_requested:
                info.stopped_by = self.signals.stop_requested
            elif end is not None and now >= end:
                info.stopped_by = "duration over"
            if info.stopped_by:
                watcher.scan(last=True)
                return
            elapsed = (now - info.start_ns) / 1e9
            working = [s.name for s in self.supervisors if not s.failed]
            self.report(Progress("recording", elapsed, len(watcher.live), watcher.thread_count, working))
            wait = until_beat_s(watcher.wait_s)
            self.signals.wait(wait if end is None else min(wait, (end - now) / 1e9))
            stood_still = time.monotonic() - before - wait - 1.0
            for supervisor in self.supervisors:
                supervisor.settled("stop")
                if stood_still > 0:
                    supervisor.forgive(stood_still)

    def _stop(self) -> None:
        self.report(Progress("stopping", 0.0, 0, 0, [s.name for s in self.supervisors]))
        for supervisor in self.supervisors:
            supervisor.stop()
        self._settle("stop")

    def _settle(self, call: str) -> None:
        while [s for s in self.supervisors if not s.settled(call)]:
            self.signals.wait(0.01)

    def _own_cost(self, before_s: float) -> None:
        """CPU time of perfscope and its tools from attaching to detaching: what competes with the target for CPUs."""
        if self.target and self.target.exited():
            self.info.exit_status = self.target.reap()
        spent = _cpu_s() - before_s
        if self.target and self.target.usage:
            spent -= self.target.usage.ru_utime + self.target.usage.ru_stime
        self.info.own_cpu_ns = int(spent * 1e9)

    def _read(self, writer: SessionWriter) -> None:
        info = self.info
        self.report(Progress("reading", 0.0, 0, 0, [s.name for s in self.supervisors]))
        self.watcher.write(writer)
        for supervisor in self.supervisors:
            info.collectors[supervisor.name] = supervisor.read(writer, info.start_ns, info.stop_ns)
            info.clocks.update(supervisor.collector.clocks)


def _cpu_s() -> float:
    """CPU time so far of perfscope and of all its children that have ended, the target among them."""
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime


def _wall_clock(start_ns: int, stop_ns: int, error_ns: int, elapsed_ns: int) -> dict[str, int | None]:
    """REALTIME - MONOTONIC at start and end; `step_ns` is null unless it moved by more than slewing can."""
    moved = stop_ns - start_ns
    slack = error_ns + elapsed_ns * _STEP_SLACK_PPM // 1_000_000
    return {
        "offset_start_ns": start_ns,
        "offset_stop_ns": stop_ns,
        "error_ns": error_ns,
        "step_ns": moved if abs(moved) > slack else None,
    }

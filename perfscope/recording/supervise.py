"""Supervises the collectors: each has its own thread, and one that raises, hangs or dies costs only its own data."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from perfscope.collectors.base import Collector
from perfscope.errors import CollectorError, RecordingError
from perfscope.model.info import CollectorReport
from perfscope.model.session_writer import SessionWriter
from perfscope.pace import until_beat_s
from perfscope.procfs import Process

DEADLINES_S = {"start": 20.0, "process_started": 30.0, "process_ended": 30.0, "tick": 20.0, "stop": 25.0}
"""Longest a call may take before its collector counts as hung. The slowest honest ones: bcc compiles for seconds on a
loaded machine; a first JFR start takes 2.3 s and a stopped JVM lets go after ~11 s."""
_MOST_ERRORS = 10
"""Failed calls after which a collector gets no more events: it is broken, not unlucky."""

Call = tuple[str, tuple[Any, ...]]


class Supervisor:
    """One collector and its thread."""

    def __init__(self, name: str, collector: Collector, undo_now: Callable[[str], None]) -> None:
        """`undo_now(prefix)` has the guardian clean up after this collector, should it hang."""
        self.name = name
        self.collector = collector
        self.errors: list[str] = []
        self.hint: str | None = None
        self.failed = False
        self.cpu_ns = 0
        self._undo_now = undo_now
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._running: tuple[str, float] | None = None
        self._done: dict[str, threading.Event] = {"start": threading.Event(), "stop": threading.Event()}
        self._abandoned = False
        self._thread = threading.Thread(target=self._work, name=f"perfscope-{name}", daemon=True)
        self._thread.start()

    def start(self, roots: list[int]) -> None:
        self._calls.put(("start", (roots,)))

    def process_started(self, process: Process) -> None:
        self._calls.put(("process_started", (process,)))

    def process_ended(self, pid: int) -> None:
        self._calls.put(("process_ended", (pid,)))

    def stop(self) -> None:
        self._calls.put(("stop", ()))

    def settled(self, call: str) -> bool:
        """True once `start` or `stop` has returned, or never will. Finds out about a collector that hangs."""
        running = self._running
        if running and not self._abandoned and time.monotonic() - running[1] > DEADLINES_S[running[0]]:
            self._abandon(running[0])
        return self._abandoned or self._done[call].is_set()

    def forgive(self, seconds: float) -> None:
        """Perfscope itself stood still for so long (Ctrl-Z): that doesn't count as hanging."""
        if running := self._running:
            self._running = (running[0], running[1] + seconds)

    def read(self, writer: SessionWriter, start_ns: int, stop_ns: int) -> CollectorReport:
        """Has the collector turn its raw files into tables, and returns its report with all that went wrong.

        Runs in the calling thread. Raises RecordingError if the session itself can't be written.
        """
        report = self.collector.report
        before = time.thread_time_ns()
        if not self._abandoned:
            try:
                self.collector.read(writer, start_ns, stop_ns)
            except RecordingError:
                raise
            except CollectorError as error:
                self._note(error)
                self.failed = True
            except Exception as error:  # noqa: BLE001 (a defect of one collector must not cost the others' data)
                self._note(error, "reading what was recorded: ")
                self.failed = True
        report.details["read_cpu_ns"] = time.thread_time_ns() - before  # after the recording: no cost to the target
        report.cpu_ns = (report.cpu_ns or 0) + self.cpu_ns
        if self.errors:
            if self.failed:
                report.status = "failed"
            elif report.status == "ok":
                report.status = "partial"
            own = [report.why] if report.why else []
            report.why = "; ".join(dict.fromkeys([*own, *self.errors]))
            report.hint = report.hint or self.hint
        return report

    @property
    def _unusable(self) -> bool:
        return self.failed or len(self.errors) >= _MOST_ERRORS or not self._done["start"].is_set()

    def _work(self) -> None:
        while True:
            try:
                patience = None if self._unusable else until_beat_s(self.collector.tick_s)
                call, arguments = self._calls.get(timeout=patience)
            except queue.Empty:
                call, arguments = "tick", ()
            if call in ("start", "stop") or not self._unusable:
                self._call(call, arguments)
            if self._abandoned or call == "stop":
                return

    def _call(self, call: str, arguments: tuple[Any, ...]) -> None:
        self._running = (call, time.monotonic())
        try:
            getattr(self.collector, call)(*arguments)
        except CollectorError as error:
            self._note(error)
            self.failed = self.failed or call == "start"
        except Exception as error:  # noqa: BLE001 (a defect of one collector must not cost the others' data)
            self._note(error, f"{call}: ")
            self.failed = self.failed or call == "start"
        self._running = None
        self.cpu_ns = time.thread_time_ns()
        if call in self._done:
            self._done[call].set()

    def _note(self, error: Exception, prefix: str = "") -> None:
        text = str(error) if isinstance(error, CollectorError) else f"{prefix}{type(error).__name__}: {error}"
        if text not in self.errors:
            self.errors.append(text)
        self.hint = self.hint or getattr(error, "hint", None)

    def _abandon(self, call: str) -> None:
        self._abandoned = self.failed = True
        self.errors.append(f"hung: no answer to {call} within {DEADLINES_S[call]:.0f} s")
        self._undo_now(f"{self.name}:")
        if call != "stop":
            # It may still be attached to the target; its own way of letting go is tried, but not waited for.
            threading.Thread(target=self._last_stop, name=f"perfscope-{self.name}-stop", daemon=True).start()

    def _last_stop(self) -> None:
        try:
            self.collector.stop()
        except Exception as error:  # noqa: BLE001 (already failed; nothing is left to do but to say so)
            self._note(error, "stop: ")

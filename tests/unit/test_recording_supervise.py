"""A collector that raises or hangs costs only its own data."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from recording_helpers import Hangs, Notes, RaisesInRead, RaisesInStart, RaisesInTick, wait_for

from perfscope.collectors.base import Collector, Context
from perfscope.errors import RecordingError
from perfscope.model.session_writer import SessionWriter
from perfscope.options import Options
from perfscope.procfs import Process
from perfscope.recording import supervise
from perfscope.recording.supervise import Supervisor

PROCESS = Process(1, 0, 1, "native")


def _supervise(kind: type[Collector], raw: Path, undone: list[str] | None = None) -> Supervisor:
    context = Context(raw, Options(), lambda key, argv: None)
    return Supervisor(kind.name, kind(context), (undone if undone is not None else []).append)


def _run(supervisor: Supervisor) -> None:
    supervisor.start([1])
    wait_for(lambda: supervisor.settled("start"))
    supervisor.process_started(PROCESS)
    supervisor.stop()
    wait_for(lambda: supervisor.settled("stop"))


@pytest.fixture
def writer(tmp_path: Path) -> SessionWriter:
    return SessionWriter(tmp_path / "s")


def test_calls_arrive_in_order(writer: SessionWriter, tmp_path: Path) -> None:
    supervisor = _supervise(Notes, tmp_path)
    _run(supervisor)
    lines = (tmp_path / "notes").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["start", "started", "stop"]
    report = supervisor.read(writer, 0, 1)
    assert (report.status, report.events) == ("ok", 3)
    assert report.cpu_ns is not None and report.cpu_ns > 0
    writer.discard()


def test_a_failed_start_is_a_failed_collector_with_reason_and_remedy(writer: SessionWriter, tmp_path: Path) -> None:
    supervisor = _supervise(RaisesInStart, tmp_path)
    _run(supervisor)
    report = supervisor.read(writer, 0, 1)
    assert (report.status, report.why, report.hint) == ("failed", "the tool said no", "ask it nicely")
    writer.discard()


def test_a_failing_tick_makes_the_data_partial_and_is_said_once(writer: SessionWriter, tmp_path: Path) -> None:
    supervisor = _supervise(RaisesInTick, tmp_path)
    supervisor.start([1])
    wait_for(lambda: supervisor.errors)
    supervisor.stop()
    wait_for(lambda: supervisor.settled("stop"))
    report = supervisor.read(writer, 0, 1)
    assert (report.status, report.why) == ("partial", "tick: ZeroDivisionError: a defect")
    writer.discard()


def test_a_failing_reader_is_a_failed_collector(writer: SessionWriter, tmp_path: Path) -> None:
    supervisor = _supervise(RaisesInRead, tmp_path)
    _run(supervisor)
    report = supervisor.read(writer, 0, 1)
    assert report.status == "failed"
    assert report.why is not None and "KeyError" in report.why
    writer.discard()


def test_a_full_disk_is_no_fault_of_the_collector(writer: SessionWriter, tmp_path: Path) -> None:
    class Full(RaisesInRead):
        def read(self, writer: SessionWriter, start_ns: int, stop_ns: int) -> None:
            raise RecordingError("disk full")

    supervisor = _supervise(Full, tmp_path)
    _run(supervisor)
    with pytest.raises(RecordingError, match="disk full"):
        supervisor.read(writer, 0, 1)
    writer.discard()


def test_a_hanging_collector_is_given_up_and_cleaned_up_after(
    writer: SessionWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(supervise.DEADLINES_S, "process_started", 0.2)
    stopped = threading.Event()
    monkeypatch.setattr(Hangs, "stop", lambda self: stopped.set())
    undone: list[str] = []
    supervisor = _supervise(Hangs, tmp_path, undone)
    _run(supervisor)
    assert undone == ["hangs:"]
    assert stopped.wait(10)
    report = supervisor.read(writer, 0, 1)
    assert report.status == "failed"
    assert report.why == "hung: no answer to process_started within 0 s"
    writer.discard()


def test_standing_still_with_the_target_is_not_hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(supervise.DEADLINES_S, "process_started", 5)
    supervisor = _supervise(Hangs, tmp_path)
    supervisor.start([1])
    supervisor.process_started(PROCESS)
    wait_for(lambda: supervisor._running)
    supervisor.forgive(-100)  # as if the call had begun 100 s earlier
    supervisor.forgive(100)
    assert not supervisor.settled("stop")
    supervisor.forgive(-100)
    assert supervisor.settled("stop")

"""The JFR collector on real JVMs: right times, nothing harmed, nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfscope import procfs
from perfscope.collectors.jfr import attach, jvm
from perfscope.collectors.jfr.chunk import JfrFile
from perfscope.collectors.jfr.collector import SECRET, JfrCollector
from perfscope.errors import CollectorError
from perfscope.model.session import Session
from perfscope.options import Options
from tests.jfr_helpers import DATA, Program, Recorder, compile_java, java


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_java(tmp_path_factory.mktemp("classes"))


@pytest.fixture(scope="module")
def recorded(classes: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Program, Session, Recorder, list[str]]:
    """One recording of all phases, looked at by many tests."""
    with java(classes, "-Dpassword=hunter2-in-property") as program:
        recorder = Recorder(tmp_path_factory.mktemp("recording"))
        recorder.collector.start([program.pid])
        assert recorder.guards
        names = [path.name for path in Path("/tmp").iterdir() if path.name in recorder.guards]
        program.order("phases")
        session = recorder.finish()
        program.order("still-there")
        return program, session, recorder, names


def events(session: Session, type_: str) -> list[dict[str, Any]]:
    return [row for row in session.table("jvm_events").to_pylist() if row["type"] == type_]


def tid_of(session: Session, name: str) -> int:
    (found,) = {row["tid"] for row in session.table("threads").to_pylist() if row["name"] == name}
    return int(found)


def path(session: Session, stack: int) -> list[str]:
    return [frame.function for frame in session.stacks.path(stack)]


def inside(row: dict[str, Any], mark: tuple[int, int], error_ns: int) -> bool:
    return mark[0] - error_ns <= row["time_ns"] and row["time_ns"] + row["duration_ns"] <= mark[1] + error_ns


@pytest.mark.parametrize(
    ("mark", "type_", "thread", "subject", "at_least_ms"),
    [
        ("sleep", "ThreadSleep", "ps-sleeper", None, 70),
        ("monitor", "JavaMonitorEnter", "ps-blocked", "java.lang.Object", 55),
        ("park", "ThreadPark", "ps-parked", "java.util.concurrent.locks.ReentrantLock$NonfairSync", 45),
    ],
)
def test_a_wait_lies_within_its_marks(
    recorded: Any, mark: str, type_: str, thread: str, subject: str | None, at_least_ms: int
) -> None:
    program, session, _, _ = recorded
    tid = tid_of(session, thread)
    (row,) = [r for r in events(session, type_) if r["tid"] == tid and r["duration_ns"] > 20_000_000]
    assert inside(row, program.marks[mark], session.info.clocks["jfr"].error_ns)
    assert row["subject"] == subject
    assert row["duration_ns"] >= at_least_ms * 1_000_000
    assert any(name.startswith("Phases.") for name in path(session, row["stack_id"]))


def test_who_held_the_monitor_is_known(recorded: Any) -> None:
    _, session, _, _ = recorded
    (row,) = [r for r in events(session, "JavaMonitorEnter") if r["tid"] == tid_of(session, "ps-blocked")]
    assert row["other_tid"] == tid_of(session, "main")


def test_a_socket_read_has_its_peer_and_size(recorded: Any) -> None:
    program, session, _, _ = recorded
    (row,) = [r for r in events(session, "SocketRead") if r["tid"] == tid_of(session, "ps-reader")]
    assert inside(row, program.marks["socket"], session.info.clocks["jfr"].error_ns)
    assert row["subject"].rsplit(":", 1)[1] == str(program.port)
    assert row["bytes"] == 123


def test_a_collection_lies_within_the_call_that_asked_for_it(recorded: Any) -> None:
    program, session, _, _ = recorded
    error = session.info.clocks["jfr"].error_ns
    (row,) = [r for r in events(session, "GarbageCollection") if r["cause"] == "System.gc()"]
    assert inside(row, program.marks["gc"], error)
    pauses = [r for r in events(session, "GCPhasePause") if inside(r, program.marks["gc"], error)]
    assert pauses
    heap = [r for r in session.table("counters").to_pylist() if r["name"] == "jvm_heap_used_after_gc_bytes"]
    assert any(0 < r["value"] < 128 << 20 for r in heap)


def test_allocation_samples_stand_for_what_was_allocated(recorded: Any) -> None:
    _, session, _, _ = recorded
    tid = tid_of(session, "ps-allocator")
    rows = [r for r in events(session, "ObjectAllocationSample") if r["tid"] == tid and r["subject"] == "byte[]"]
    # 3000 arrays of 100 kB. A sample stands for all that its thread allocated since the one before; only what
    # follows the last sample is missing.
    assert 0.6 * 300e6 < sum(r["bytes"] for r in rows) < 1.05 * 300e6


def test_samples_of_a_busy_thread_fall_into_its_busy_time(recorded: Any) -> None:
    program, session, _, _ = recorded
    tid = tid_of(session, "ps-burner")
    rows = [r for r in session.table("samples").to_pylist() if r["tid"] == tid]
    burning = [r for r in rows if "Phases.burn" in path(session, r["stack_id"])]
    assert len(burning) > 5
    start, end = program.marks["burn"]
    error = session.info.clocks["jfr"].error_ns
    # JFR stamps a sample before it walks the stack, so one may carry a moment just before its code began.
    assert sum(start - error <= r["time_ns"] <= end + error for r in burning) >= len(burning) - 1
    assert {r["source"] for r in rows} == {"jfr"} and {r["pid"] for r in rows} == {program.pid}
    leaves = Counter(session.stacks.path(r["stack_id"])[-1] for r in burning)
    ((leaf, _),) = leaves.most_common(1)
    assert (leaf.layer, leaf.function, leaf.module) == ("java", "Phases.burn", "Phases")
    source = (DATA / "Phases.java").read_text().splitlines()
    assert leaf.line is not None and "sink++" in source[leaf.line - 1]


def test_stacks_deeper_than_jfr_records_say_so(recorded: Any) -> None:
    _, session, recorder, _ = recorded
    tid = tid_of(session, "ps-deep")
    stacks = [r["stack_id"] for r in session.table("samples").to_pylist() if r["tid"] == tid]
    assert stacks
    assert any(path(session, s)[0] == "[deeper frames not recorded]" for s in stacks)
    assert any("deeper than JFR recorded" in note for note in recorder.collector.report.notes)


def test_the_clock_is_measured_several_times(recorded: Any) -> None:
    _, session, recorder, _ = recorded
    clock = session.info.clocks["jfr"]
    assert "chunk headers" in clock.method
    assert 0 < clock.error_ns < 10_000_000 and clock.resolution_ns == 10_000_000
    assert recorder.collector.report.status == "ok", recorder.collector.report


def test_nothing_stays_in_the_jvm_or_its_file_system(recorded: Any) -> None:
    program, _, recorder, names = recorded
    assert len(names) == 1
    assert not Path(f"/tmp/{names[0]}").exists()
    assert recorder.guards == {}
    assert "done still-there\n" in program.lines


def test_no_secret_is_in_the_file(recorded: Any) -> None:
    _, session, _, _ = recorded
    raw = (session.path / "raw" / "jfr" / f"{recorded[0].pid}.jfr").read_bytes()
    assert b"FLR\0" in raw
    assert b"hunter2" not in raw
    for chunk in JfrFile(session.path / "raw" / "jfr" / f"{recorded[0].pid}.jfr", SECRET, {}):
        assert not any(chunk.count(name) for name in SECRET)


@pytest.mark.parametrize(
    ("end", "status"), [("return", 0), ("exit", 0), ("throw", 1), (signal.SIGTERM, 143), (signal.SIGINT, 130)]
)
def test_a_jvm_that_ends_by_itself_keeps_its_recording(
    classes: Path, tmp_path: Path, end: str | signal.Signals, status: int
) -> None:
    with java(classes) as program:
        recorder = Recorder(tmp_path)
        recorder.collector.start([program.pid])
        (recording,) = recorder.collector.recordings
        program.order("burn")
        recording._next_look_ns = 0
        recorder.collector.tick()
        assert len(recording.anchors) == 2 and recording._next_look_ns > time.monotonic_ns()
        if isinstance(end, signal.Signals):
            program.popen.send_signal(end)
        else:
            program.order(end)
        assert program.popen.wait(timeout=60) == status
        recorder.collector.process_ended(program.pid)
        session = recorder.finish()
    assert recorder.collector.report.status == "ok", recorder.collector.report
    start, last = program.marks["last"]
    times = [r["time_ns"] for r in session.table("samples").to_pylist() if r["tid"] == tid_of(session, "ps-last")]
    assert len(times) > 5 and max(times) > start + (last - start) * 2 // 3  # it burned to the end, and was seen to
    assert recorder.collector.report.covered_ns[0][1] >= max(times)
    assert session.info.clocks["jfr"].method.startswith("5 chunk headers")
    assert recorder.guards == {} and not Path("/tmp", recorder.collector.recordings[0].name).exists()


def repositories(program: Program) -> list[Path]:
    """What the JVM left of its own, not an earlier process of that number."""
    return [path for path in Path("/tmp").glob(f"2*_{program.pid}") if path.stat().st_mtime > program.started]


@pytest.mark.parametrize("how", ["halt", signal.SIGKILL])
def test_what_a_jvm_takes_along_when_it_is_killed_is_said(
    classes: Path, tmp_path: Path, how: str | signal.Signals
) -> None:
    with java(classes) as program:
        recorder = Recorder(tmp_path)
        recorder.collector.start([program.pid])
        program.order("burn")
        if isinstance(how, signal.Signals):
            program.popen.send_signal(how)
        else:
            program.order(how)
        program.popen.wait(timeout=60)
        gone_ns = time.monotonic_ns()
        recorder.collector.process_ended(program.pid)
        session = recorder.finish()
    report = recorder.collector.report
    assert report.status in ("partial", "failed") and report.why is not None
    assert "was killed, or halted itself, before it had written its recording" in report.why
    rows = [*session.table("samples").to_pylist(), *session.table("jvm_events").to_pylist()]
    if rows:
        last_ns = max(r["time_ns"] + (r["duration_ns"] or 0) for r in rows)
        said = re.search(r"which end ([\d.]+) s before it did", report.why)
        assert said and float(said[1]) == pytest.approx((gone_ns - last_ns) / 1e9, abs=0.5)
    assert recorder.guards == {} and not repositories(program)


@pytest.mark.parametrize("end", ["exit", "halt", signal.SIGKILL])
@pytest.mark.parametrize("later_s", [0.05, 0.3])
def test_a_jvm_that_ends_while_its_recording_starts_is_kept_or_said(
    classes: Path, tmp_path: Path, end: str | signal.Signals, later_s: float
) -> None:
    others = set(Path("/tmp").glob("perfscope-*/recording.jfr"))
    with java(classes) as program:
        recorder = Recorder(tmp_path)
        starting = threading.Thread(target=recorder.collector.start, args=([program.pid],))
        starting.start()
        starting.join(later_s)
        if isinstance(end, signal.Signals):
            program.popen.send_signal(end)
        else:
            program.order(end)
        program.popen.wait(timeout=60)
        starting.join()
        recorder.collector.process_ended(program.pid)
        session = recorder.finish()
    report = recorder.collector.report
    if session.table("jvm_events").num_rows == 0:
        assert report.status in ("failed", "unavailable") and report.why is not None
        assert re.search("ended|gone|killed|Shutdown in progress", report.why), report.why
        assert not re.search(r"refused JFR\.\w+: result", report.why)
    else:
        assert report.status == ("ok" if end == "exit" else "partial"), report
    assert recorder.guards == {} and set(Path("/tmp").glob("perfscope-*/recording.jfr")) <= others
    assert not repositories(program)
    assert not list(Path("/proc/self/cwd").glob(f".attach_pid{program.pid}"))


def test_a_killed_jvm_is_read_as_far_as_it_got(classes: Path, tmp_path: Path) -> None:
    with java(classes) as program:
        recorder = Recorder(tmp_path)
        recorder.collector.start([program.pid])
        (recording,) = recorder.collector.recordings
        repository = recording._repository
        assert repository is not None
        program.order("phases")
        # The JVM puts what it has into its repository once a second: wait for the flush after the phases.
        chunks = Path(f"/proc/self/fd/{repository.fd}").resolve()
        while b"ps-allocator" not in b"".join(p.read_bytes() for p in chunks.glob("*.jfr")):
            time.sleep(0.02)
        program.popen.kill()
        program.popen.wait()
        recorder.collector.process_ended(program.pid)
        session = recorder.finish()
    report = recorder.collector.report
    assert report.status == "partial" and report.why is not None and "was killed" in report.why
    (row,) = [r for r in events(session, "ThreadSleep") if r["tid"] == tid_of(session, "ps-sleeper")]
    assert inside(row, program.marks["sleep"], session.info.clocks["jfr"].error_ns)
    assert not chunks.exists() and recorder.guards == {}
    left = [
        p for p in Path("/tmp").iterdir() if p.name.endswith(f"_{program.pid}") or p.name.endswith(f"pid{program.pid}")
    ]
    assert left == []


def test_a_killed_perfscope_leaves_no_recording_running(classes: Path, tmp_path: Path) -> None:
    with java(classes) as program:
        recorder = Recorder(tmp_path)
        recorder.collector.start([program.pid])
        (name, argv), *_ = recorder.guards.items()
        assert f"name={name}" in attach.command(program.process(), "JFR.check")[0]
        subprocess.run(argv, check=True, timeout=60)  # what the guardian does
        assert attach.command(program.process(), "JFR.check")[0].startswith("No available recordings")
        assert not Path(f"/tmp/{name}").exists()
        program.order("still-there")


def test_a_recording_of_the_user_goes_on_and_its_secrets_are_not_kept(classes: Path, tmp_path: Path) -> None:
    mine = tmp_path / "user.jfr"
    option = f"-XX:StartFlightRecording=name=mine,settings=profile,filename={mine}"
    with java(classes, option, "-Dpassword=hunter2-in-property") as program:
        recorder = Recorder(tmp_path)
        recorder.collector.start([program.pid])
        program.order("phases")
        session = recorder.finish()
        reply = attach.command(program.process(), "JFR.check")[0]
        assert "name=mine" in reply and "(running)" in reply and "perfscope" not in reply
    report = recorder.collector.report
    assert any("another JFR recording" in note for note in report.notes)
    assert any("was not kept" in note for note in report.notes)
    assert not list((session.path / "raw").rglob("*.jfr"))
    assert [r for r in events(session, "ThreadSleep") if r["tid"] == tid_of(session, "ps-sleeper")]


def test_attach_disabled_is_said_and_the_jvm_prints_nothing(classes: Path, tmp_path: Path) -> None:
    with java(classes, "-XX:+DisableAttachMechanism") as program:
        recorder = Recorder(tmp_path)
        recorder.collector.start([program.pid])
        recorder.finish()
        program.order("still-there")
        lines = program.lines
    report = recorder.collector.report
    assert report.status == "unavailable"
    assert report.why is not None and "DisableAttachMechanism" in report.why and report.hint
    assert lines == [f"ready {program.pid}\n", "done still-there\n"]


def test_attach_disabled_without_performance_data_is_found_too(classes: Path) -> None:
    with java(classes, "-XX:-UsePerfData", "-XX:+DisableAttachMechanism") as program:
        assert jvm.perf_data(program.pid) == {}
        assert jvm.attach_disabled(program.pid)


def test_a_jvm_that_does_not_catch_the_signal_is_not_signalled(classes: Path, tmp_path: Path) -> None:
    with java(classes, "-Xrs") as program:  # then HotSpot opens its socket by itself
        assert not jvm.catches_sigquit(program.pid)
        recorder = Recorder(tmp_path)
        recorder.collector.start([program.pid])
        recorder.finish()
        program.order("still-there")
        assert recorder.collector.report.status == "ok", recorder.collector.report
        Path(f"/tmp/.java_pid{program.pid}").unlink()
        with pytest.raises(attach.NotReadyError, match="does not take attach requests"):
            attach.command(program.process(), "JFR.check")
        program.order("still-there")


def test_a_starting_jvm_is_recorded_and_survives(classes: Path, tmp_path: Path) -> None:
    with java(classes, wait=False) as program:
        recorder = Recorder(tmp_path)
        while not recorder.collector.recordings:  # from its first instruction on
            process = procfs.process(program.pid)
            assert process is not None and process.alive()
            recorder.collector.process_started(process)
            recorder.collector.tick()
            assert not recorder.collector._failed, recorder.collector._failed
        program.until("ready")
        program.order("phases")
        session = recorder.finish()
    assert recorder.collector.report.status == "ok", recorder.collector.report
    assert session.table("samples").num_rows > 0


@pytest.mark.parametrize("touch", [attach.check_attachable, lambda p: attach.command(p, "JFR.check")])
def test_what_is_no_jvm_is_never_signalled(touch: Callable[[procfs.Process], object]) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        process = procfs.process(other.pid)
        assert process is not None
        with pytest.raises(CollectorError, match="no JVM"):
            touch(process)
        other.communicate(b"\n", timeout=60)
        assert other.returncode == 0


def test_a_successor_with_the_same_pid_is_never_touched(classes: Path) -> None:
    with java(classes) as program:
        now = program.process()
        earlier = procfs.Process(now.pid, now.start_ticks - 1, now.ns_pid, "java")
        with pytest.raises(CollectorError, match="is gone"):
            attach.command(earlier, "JFR.check")
        assert not Path(f"/tmp/.java_pid{program.pid}").exists()


def test_a_stopped_jvm_is_waited_for(classes: Path, tmp_path: Path) -> None:
    with java(classes) as program:
        recorder = Recorder(tmp_path)
        program.popen.send_signal(signal.SIGSTOP)
        while (stat := procfs.read_stat(program.pid)) is None or stat.state != "T":
            time.sleep(0.005)
        recorder.collector.start([program.pid])
        assert not recorder.collector.recordings
        program.popen.send_signal(signal.SIGCONT)
        while not recorder.collector.recordings:
            recorder.collector.tick()
        recorder.finish()


def test_another_users_jvm_is_reached_by_root(classes: Path, tmp_path: Path) -> None:
    for folder in (classes, *classes.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    with java(classes, prefix=("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")) as program:
        recorder = Recorder(tmp_path)
        recorder.collector.start([program.pid])
        program.order("phases")
        session = recorder.finish()
    assert recorder.collector.report.status == "ok", recorder.collector.report
    assert [r for r in events(session, "ThreadSleep") if r["tid"] == tid_of(session, "ps-sleeper")]


def test_a_jvm_in_its_own_namespaces_is_read_through_proc(classes: Path, tmp_path: Path) -> None:
    """Own pid and mount namespace with a /tmp of its own, as in a container: inner tids, inner paths."""
    script = 'mount -t tmpfs none /tmp && cd / && exec "$@"'
    local = compile_java(Path("/var/tmp").joinpath(f"perfscope-test-{os.getpid()}"))
    prefix = ("unshare", "--pid", "--mount", "--fork", "--kill-child", "sh", "-c", script, "sh")
    try:
        with java(local, prefix=prefix) as program:
            (inner,) = procfs.children(program.pid)
            recorder = Recorder(tmp_path)
            recorder.collector.start([inner])
            recorder.collector.tick()
            name = recorder.collector.recordings[0].name
            assert Path(f"/proc/{inner}/root/tmp/{name}").exists() and not Path(f"/tmp/{name}").exists()
            comms = {tid: procfs.comm(inner, tid) for tid in procfs.threads(inner)}
            program.order("phases")
            session = recorder.finish()
            assert not Path(f"/proc/{inner}/root/tmp/{name}").exists()
    finally:
        for file in local.iterdir():
            file.unlink()
        local.rmdir()
    assert recorder.collector.report.status == "ok", recorder.collector.report
    for name in ("Signal Dispatcher", "Reference Handler", "Finalizer", "VM Thread"):
        assert comms[tid_of(session, name)] == name[:15]  # the JVM gives the kernel the same names
    assert [r for r in events(session, "ThreadSleep") if r["tid"] == tid_of(session, "main")]


def test_jcmd_is_used_where_the_socket_cannot_be_reached(classes: Path) -> None:
    with java(classes) as program:
        tool = attach.find_jcmd(program.process())
        assert tool is not None and os.path.realpath(tool) == os.path.realpath("/usr/bin/jcmd")
        assert attach.by_jcmd(program.process(), tool, "JFR.check", 60).startswith("No available recordings")


def test_check_names_running_jvms_and_needs_no_jcmd(classes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with java(classes) as program, java(classes, "-XX:+DisableAttachMechanism") as closed:
        monkeypatch.setenv("PATH", "/nonexistent")
        rows = {row.what: row for row in JfrCollector.check(Options())}
    assert rows[f"JVM {program.pid}"].state == "ok"
    assert rows[f"JVM {closed.pid}"].state == "unavailable" and rows[f"JVM {closed.pid}"].fix
    assert rows["jcmd"].state == "ok" and "not needed" in rows["jcmd"].why

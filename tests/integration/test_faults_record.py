"""Faults during a recording: each gives a clear message or a stated partial result, and never harms the target."""

from __future__ import annotations

import ctypes
import errno
import os
import pwd
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspy_helpers import samplers_on
from recording_helpers import MADE, PERFSCOPE, bpf_programs, wait_for

from perfscope.model.session import Session

_LASTING: dict[str, list[bytes]] = {"bpf": [], "austin": [b"austin", b"py-spy"], "pyspy": [b"py-spy"]}
"""The tools that sample a Python process for as long as it is recorded."""
POWERLESS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
"""Root in name only."""
COUNTER_PY = """
import itertools, pathlib, time
for i in itertools.count():
    pathlib.Path("count.py").write_text(str(i))
    time.sleep(0.01)
"""
COUNTER_JAVA = """
import java.nio.file.*;
public class Counter {
    public static void main(String[] args) throws Exception {
        for (long i = 0; ; i++) {
            Files.writeString(Path.of("count.java"), Long.toString(i));
            long end = System.nanoTime() + 5_000_000L;
            while (System.nanoTime() < end) { }
            Thread.sleep(5);
        }
    }
}
"""


def _bpf_program_exists(program_id: int) -> bool:
    get_fd_by_id = 13
    attributes = ctypes.create_string_buffer(struct.pack("II", program_id, 0) + bytes(120))
    libc = ctypes.CDLL(None, use_errno=True)
    number = 321 if os.uname().machine == "x86_64" else 280
    descriptor = libc.syscall(number, get_fd_by_id, attributes, 128)
    if descriptor < 0:
        assert ctypes.get_errno() == errno.ENOENT
        return False
    os.close(descriptor)
    return True


def _jfr_check(pid: int) -> str:
    return subprocess.run(["jcmd", str(pid), "JFR.check"], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def python(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([os.path.realpath(sys.executable), "-c", COUNTER_PY], cwd=tmp_path)
    wait_for((tmp_path / "count.py").exists)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def java(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / "Counter.java").write_text(COUNTER_JAVA)
    subprocess.run(["javac", "Counter.java"], cwd=tmp_path, check=True)
    process = subprocess.Popen(["java", "-XX:TieredStopAtLevel=1", "Counter"], cwd=tmp_path)
    wait_for((tmp_path / "count.java").exists)
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("sampler", ["bpf", "austin", "pyspy"])
def test_kill_9_leaves_targets_and_machine_clean(
    tmp_path: Path, python: subprocess.Popen[bytes], java: subprocess.Popen[bytes], sampler: str
) -> None:
    pids = ["-p", str(python.pid), "-p", str(java.pid)]
    command = [*PERFSCOPE, "record", "--python-sampler", sampler, *pids, "-o", tmp_path / "s"]
    perfscope = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: "perfscope" in _jfr_check(java.pid))
        wait_for(lambda: bpf_programs(perfscope.pid))
        for tool in _LASTING[sampler]:
            wait_for(lambda tool=tool: samplers_on(python.pid, tool))
        samplers = {pid for tool in (b"py-spy", b"austin") for pid in samplers_on(python.pid, tool)}
        programs = bpf_programs(perfscope.pid)
        assert all(_bpf_program_exists(program) for program in programs)
    finally:
        perfscope.kill()
        perfscope.wait()

    wait_for(lambda: not any(Path(f"/proc/{sampler}").exists() for sampler in samplers))
    wait_for(lambda: "No available recordings" in _jfr_check(java.pid))
    wait_for(lambda: not any(_bpf_program_exists(program) for program in programs))
    for target, file in ((python, "count.py"), (java, "count.java")):
        assert target.poll() is None
        (tmp_path / file).unlink()
        wait_for((tmp_path / file).exists)  # it goes on counting
    shown = subprocess.run([*PERFSCOPE, "show", tmp_path / "s"], capture_output=True, text=True)
    assert shown.returncode == 2
    assert "cut off before it was whole" in shown.stderr


def test_kill_9_of_a_launching_perfscope_leaves_the_command_running(tmp_path: Path) -> None:
    command = [*MADE, "record", "--collect", "notes", "-o", str(tmp_path / "s"), "--", sys.executable, "-c", COUNTER_PY]
    perfscope = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    notes = tmp_path / "s.partial" / "raw" / "notes" / "notes"
    wait_for(lambda: notes.exists() and (tmp_path / "count.py").exists())
    _, target, _, tool = notes.read_text().splitlines()[0].replace("[", "").replace("]", "").split()
    perfscope.kill()
    perfscope.wait()
    wait_for(lambda: not Path(f"/proc/{tool}").exists())
    (tmp_path / "count.py").unlink()
    wait_for((tmp_path / "count.py").exists)
    os.kill(int(target), signal.SIGKILL)


def test_no_such_process(tmp_path: Path) -> None:
    done = subprocess.run([*PERFSCOPE, "record", "-p", "4194305", "-o", tmp_path / "s"], capture_output=True, text=True)
    assert done.returncode == 3
    assert "no process with pid 4194305" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_thread_is_no_process(tmp_path: Path) -> None:
    program = "import threading\nt = threading.Thread(target=input)\nt.start()\nprint(t.native_id, flush=True)\n"
    command = [os.path.realpath(sys.executable), "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as target:
        assert target.stdout
        tid = int(target.stdout.readline())
        done = subprocess.run([*PERFSCOPE, "record", "-p", str(tid)], capture_output=True, text=True, cwd=tmp_path)
        target.communicate("\n")
    assert done.returncode == 3
    assert f"{tid} is a thread of process {target.pid}" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_process_of_another_user_without_rights(tmp_path: Path) -> None:
    target = subprocess.Popen(["sleep", "1000"], user="nobody")
    try:
        wait_for(lambda: Path(f"/proc/{target.pid}/comm").read_text() == "sleep\n")
        done = subprocess.run(
            [*POWERLESS, *PERFSCOPE, "record", "-d", "5", "-p", str(target.pid), "-o", tmp_path / "s"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 3, done.stderr
        owner = pwd.getpwnam("nobody").pw_uid
        assert f"no right to record pid {target.pid}: it belongs to user {owner}" in done.stderr
        assert f"sudo perfscope record -p {target.pid}" in done.stderr
        assert target.poll() is None
        assert not list(tmp_path.iterdir())
    finally:
        target.kill()
        target.wait()


def test_a_command_that_ends_at_once_is_still_a_session(tmp_path: Path) -> None:
    done = subprocess.run([*PERFSCOPE, "record", "-o", tmp_path / "s", "--", "true"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    session = Session.open(tmp_path / "s")
    assert session.info.stopped_by == "target exited"
    assert session.info.pids[0] in session.table("processes").column("pid").to_pylist()
    assert "failed" not in {report.status for report in session.info.collectors.values()}
    assert session.info.collectors["pyspy"].status == "unavailable"


def test_a_command_that_never_becomes_python(tmp_path: Path) -> None:
    done = subprocess.run([*PERFSCOPE, "record", "-o", tmp_path / "s", "--", "sleep", "0.5"], capture_output=True)
    assert done.returncode == 0
    reports = Session.open(tmp_path / "s").info.collectors
    assert {reports["pyspy"].status, reports["jfr"].status} == {"unavailable"}
    assert reports["ebpf"].status == "ok"


def test_a_command_that_forks_and_executes_heavily(tmp_path: Path) -> None:
    script = "i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i+1)); done; echo $i"
    done = subprocess.run(
        [*PERFSCOPE, "record", "-o", tmp_path / "s", "--", "sh", "-c", script], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "300\n"), done.stderr
    session = Session.open(tmp_path / "s")
    assert session.info.collectors["ebpf"].status in ("ok", "partial")
    processes = session.table("processes").to_pylist()
    assert len({row["pid"] for row in processes}) == 301


def test_a_hung_collector_costs_only_its_own_data(tmp_path: Path) -> None:
    done = subprocess.run(
        [*MADE, "record", "--collect", "hangs,notes", "-o", tmp_path / "s", "--", "sh", "-c", "sleep 3; exit 5"],
        capture_output=True,
        text=True,
        env={**os.environ, "TEST_DEADLINE_S": "1"},
    )
    assert done.returncode == 5
    reports = Session.open(tmp_path / "s").info.collectors
    assert (reports["hangs"].status, reports["notes"].status) == ("failed", "ok")
    assert "no answer to process_started" in (reports["hangs"].why or "")


def test_a_full_disk_while_recording(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "none", disk], check=True)
    try:
        done = subprocess.run(
            [
                *MADE,
                "record",
                "--collect",
                "fills,notes",
                "-o",
                disk / "s",
                "--",
                "sh",
                "-c",
                "sleep 0.2; echo unharmed",
            ],
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout) == (3, "unharmed\n")
        assert "No space left on device" in done.stderr and "Traceback" not in done.stderr
        shown = subprocess.run([*PERFSCOPE, "show", disk / "s"], capture_output=True, text=True)
        assert shown.returncode == 2 and "cut off" in shown.stderr
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_disk_that_the_tools_fill(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", disk], check=True)
    try:
        program = "import subprocess\nfor _ in range(40): subprocess.run(['sleep', '0.02'])\nprint('unharmed')"
        done = subprocess.run(
            [*PERFSCOPE, "record", "-o", disk / "s", "--", sys.executable, "-c", program],
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout) == (3, "unharmed\n")
        assert "No space left on device" in done.stderr and "Traceback" not in done.stderr
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_session_that_exists_is_kept(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "session.json").write_text("{}")
    command = [*MADE, "record", "--collect", "notes", "-o", tmp_path / "s", "--", "touch", tmp_path / "ran"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 3
    assert "exists already" in done.stderr and "--force" in done.stderr
    assert not (tmp_path / "ran").exists()
    command.insert(command.index("-o"), "--force")
    assert subprocess.run(command, capture_output=True).returncode == 0
    assert (tmp_path / "ran").exists()


def test_a_killed_jvm_leaves_what_it_had_written(tmp_path: Path) -> None:
    (tmp_path / "Counter.java").write_text(COUNTER_JAVA)
    subprocess.run(["javac", "Counter.java"], cwd=tmp_path, check=True)
    perfscope = subprocess.Popen(
        [*PERFSCOPE, "record", "-o", tmp_path / "s", "--", "java", "Counter"], cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    wait_for(lambda: (tmp_path / "s.partial" / "session.json").exists() and (tmp_path / "count.java").exists())
    jvm = int(Path(f"/proc/{perfscope.pid}/task/{perfscope.pid}/children").read_text().split()[0])
    assert Path(f"/proc/{jvm}/comm").read_text() == "java\n"
    try:
        wait_for(lambda: "perfscope" in _jfr_check(jvm))
    finally:
        os.kill(jvm, signal.SIGKILL)
        status = perfscope.wait()
    assert status == 137
    report = Session.open(tmp_path / "s").info.collectors["jfr"]
    assert report.status in ("partial", "failed") and report.why


def test_no_environment_variable_gets_into_a_session(tmp_path: Path) -> None:
    secret = "hunter2hunter2"
    program = (
        "import subprocess, time\nsubprocess.run(['sleep', '0.5'])\n"
        "end = time.time() + 1.5\nwhile time.time() < end: pass\n"
    )
    done = subprocess.run(
        [*PERFSCOPE, "record", "-o", tmp_path / "s", "--", os.path.realpath(sys.executable), "-c", program],
        capture_output=True,
        env={**os.environ, "API_TOKEN": secret},
    )
    assert done.returncode == 0
    files = [path for path in (tmp_path / "s").rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        content = path.read_bytes()
        assert secret.encode() not in content and b"API_TOKEN" not in content, path


def test_a_daemon_that_outlives_the_command_is_said_to_run_on(tmp_path: Path) -> None:
    script = "setsid sleep 1000 >/dev/null 2>&1 & echo $!; exec sleep 0.3"
    command = [*MADE, "record", "--collect", "notes", "-o", str(tmp_path / "s"), "--", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True)
    daemon = int(done.stdout)
    os.kill(daemon, signal.SIGKILL)
    assert done.returncode == 0
    assert f"sh started runs on, no longer recorded; try: perfscope record -p {daemon}" in done.stderr


def test_perfscope_itself_and_what_has_ended_are_no_targets(tmp_path: Path) -> None:
    record = [*PERFSCOPE, "record", "-o", str(tmp_path / "s"), "-p"]
    script = ["sh", "-c", 'exec "$@" $$', "sh", *record]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 3 and "is this very perfscope" in done.stderr
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        done = subprocess.run([*record, str(ended.pid)], capture_output=True, text=True)
    assert done.returncode == 3 and f"process {os.getpid()}" in done.stderr
    assert not list(tmp_path.iterdir())


def test_without_proc_it_is_said_what_to_mount(tmp_path: Path) -> None:
    record = [*PERFSCOPE, "record", "-o", str(tmp_path / "s"), "--", "true"]
    script = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh", *record]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 3 and "mount -t proc proc /proc" in done.stderr
    assert not list(tmp_path.iterdir())

"""What is recorded runs as if perfscope weren't there."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import pwd
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from recording_helpers import MADE, wait_for

from perfscope.model.session import Session

RECORD = [*MADE, "record", "--collect", "notes"]

SURROUNDINGS = r"""
pwd; umask; ulimit -a; nice
grep -E '^(Sig(Blk|Ign)|CapEff|NoNewPrivs|Groups|Uid|Gid)' /proc/self/status
ls /proc/self/fd
env -0 | sort -z | tr '\0' '\n'
ps -o pgid= -o sid= -o tty= -p $$
cat
"""


def _info(session: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((session / "session.json").read_text())
    return data


def _record(folder: Path, program: str, *options: str) -> str:
    """Records a Python program into `folder`/s and returns what it printed."""
    argv = [*RECORD, *options, "-o", folder / "s", "--", sys.executable, "-c", program]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_the_surroundings_are_the_same(tmp_path: Path, locale: str) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LC_")}
    environment |= {"LANG": locale, "ODD": "line\nbreak", "EMPTY": ""}

    def run(prefix: list[str]) -> str:
        # A descriptor that a caller passes on must arrive, and no other may.
        opened = os.open("/dev/null", os.O_RDONLY)
        extra = fcntl.fcntl(opened, fcntl.F_DUPFD, 50)
        os.close(opened)
        done = subprocess.run(
            ["nice", "-n", "3", *prefix, "sh", "-c", SURROUNDINGS],
            input="through standard input",
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=tmp_path,
            env=environment,
            pass_fds=[extra],
            umask=0o027,
            start_new_session=True,
            check=True,
        )
        os.close(extra)
        return done.stdout

    def without_ids(output: str) -> list[str]:
        lines = output.splitlines()
        group, session = lines.pop(-2).split()[:2]
        assert group == session  # still in the group of the session's leader: nobody made it a group of its own
        return lines

    assert without_ids(run([*RECORD, "-o", "s", "--"])) == without_ids(run([]))


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("echo x >&3", 2)],
)
def test_the_exit_status_is_the_commands_own(tmp_path: Path, script: str, status: int) -> None:
    done = subprocess.run([*RECORD, "-o", tmp_path / "s", "--", "sh", "-c", script], capture_output=True)
    assert done.returncode == status
    assert _info(tmp_path / "s")["exit_status"] == status


def test_a_command_that_does_not_exist_or_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    for command, status, message in (
        ("no-such-command", 127, "no-such-command: command not found"),
        (str(tmp_path / "missing"), 127, "command not found"),
        (str(tmp_path / "data"), 126, "can't be executed: Permission denied"),
    ):
        done = subprocess.run([*RECORD, "-o", tmp_path / "s", "--", command], capture_output=True, text=True)
        assert done.returncode == status
        assert message in done.stderr and "Traceback" not in done.stderr
        assert not list(tmp_path.glob("s*"))


def test_a_script_without_an_interpreter_line_runs_in_a_shell(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo $0 $1; exit 4\n")
    script.chmod(0o755)
    done = subprocess.run([*RECORD, "-o", tmp_path / "s", "--", script, "one"], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (f"{script} one\n", 4)


def test_signals_sent_to_perfscope_reach_the_command(tmp_path: Path) -> None:
    script = "trap 'echo usr1' USR1; trap 'echo term; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    perfscope = subprocess.Popen([*RECORD, "-o", tmp_path / "s", "--", "sh", "-c", script], stdout=subprocess.PIPE)
    assert perfscope.stdout
    assert perfscope.stdout.readline() == b"ready\n"
    perfscope.send_signal(signal.SIGUSR1)
    assert perfscope.stdout.readline() == b"usr1\n"
    perfscope.send_signal(signal.SIGTERM)
    assert perfscope.communicate()[0] == b"term\n"
    assert perfscope.returncode == 5
    assert _info(tmp_path / "s")["state"] == "complete"


def test_the_reader_of_a_pipe_may_leave_early(tmp_path: Path) -> None:
    # `yes | head -1`: yes must die of SIGPIPE, which the interpreter would have it ignore.
    command = f"{' '.join(map(str, RECORD))} -o {tmp_path / 's'} -- yes | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout == "y\n141\n"


class _Terminal:
    """A program on a terminal of its own."""

    def __init__(self, argv: list[str], cwd: Path) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.execvp(argv[0], argv)
        self.shown = b""
        self.status: int | None = None

    def read_until(self, text: bytes, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < end, f"no {text!r} in {self.shown.decode(errors='replace')}"
            if select.select([self.fd], [], [], 0.1)[0]:
                self.shown += os.read(self.fd, 65536)

    def type(self, text: bytes) -> None:
        os.write(self.fd, text)

    def wait(self) -> int:
        while True:
            try:
                if not os.read(self.fd, 65536):
                    break
            except OSError:  # the other end is closed
                break
        self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status

    def close(self) -> None:
        """Hangs up: what still runs there gets SIGHUP."""
        os.close(self.fd)
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


Terminals = Callable[[list[str]], _Terminal]


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    opened: list[_Terminal] = []

    def start(argv: list[str]) -> _Terminal:
        opened.append(_Terminal(argv, tmp_path))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


def test_ctrl_c_reaches_the_command_once_and_the_session_is_finished(tmp_path: Path, terminals: Terminals) -> None:
    program = (
        "import signal, time\n"
        "got = []\n"
        "signal.signal(signal.SIGINT, lambda *_: got.append(1))\n"
        "print('ready', flush=True)\n"
        "while not got: time.sleep(0.01)\n"
        "time.sleep(0.5)\n"
        "print('interrupts', len(got), flush=True)\n"
        "raise SystemExit(6)\n"
    )
    terminal = terminals([*map(str, RECORD), "-o", "s", "--", sys.executable, "-c", program])
    terminal.read_until(b"ready")
    terminal.type(b"\x03")
    terminal.read_until(b"interrupts 1")
    assert terminal.wait() == 6
    assert _info(tmp_path / "s")["exit_status"] == 6


def test_ctrl_z_stops_both_and_fg_continues_both(tmp_path: Path, terminals: Terminals) -> None:
    (tmp_path / "program.py").write_text(
        "import os, pathlib, time\n"
        "pathlib.Path('pid.new').write_text(str(os.getpid()))\n"
        "os.rename('pid.new', 'pid')\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.01)\n"
        "print('fini' + 'shed')\n"
    )
    shell = terminals(["bash", "--norc", "--noprofile", "-i"])
    shell.type(" ".join(map(str, [*RECORD, "-o", "s", "--", sys.executable, "program.py"])).encode() + b"\n")
    wait_for((tmp_path / "pid").exists)
    target = int((tmp_path / "pid").read_text())
    perfscope = int(Path(f"/proc/{target}/stat").read_text().rpartition(")")[2].split()[1])
    shell.type(b"\x1a")
    wait_for(lambda: _state(target) == "T" and _state(perfscope) == "T")
    shell.read_until(b"Stopped")
    shell.type(b"fg\n")
    wait_for(lambda: _state(target) != "T" and _state(perfscope) != "T")
    (tmp_path / "go").touch()
    shell.read_until(b"finished")
    shell.read_until(b"next: perfscope")
    shell.type(b"exit\n")
    assert shell.wait() == 0
    assert _info(tmp_path / "s")["collectors"]["notes"]["status"] == "ok"


def test_the_status_line_is_live_on_a_terminal_that_nobody_else_uses(tmp_path: Path, terminals: Terminals) -> None:
    target = subprocess.Popen(["sleep", "1000"])
    try:
        terminal = terminals([*map(str, RECORD), "-o", "s", "-p", str(target.pid)])
        terminal.read_until(b"1 process, 1 thread")
        terminal.type(b"\x03")
        terminal.read_until(b"recorded (SIGINT)")
        assert terminal.wait() == 0
        assert target.poll() is None
    finally:
        target.kill()
        target.wait()


def test_after_the_duration_the_command_runs_on(tmp_path: Path) -> None:
    program = f"while [ ! -d {tmp_path}/s ]; do sleep 0.05; done; echo the session is there; exit 9"
    done = subprocess.run(
        [*RECORD, "-d", "0.3", "-o", tmp_path / "s", "--", "sh", "-c", program], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (9, "the session is there\n")
    info = _info(tmp_path / "s")
    assert (info["stopped_by"], info["exit_status"]) == ("duration over", None)
    assert info["stop_ns"] - info["start_ns"] >= 300_000_000


def test_the_command_runs_as_another_user_who_gets_the_session(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    environment = {**os.environ, "SUDO_USER": "somebody", "HOME": "/root", "USER": "root"}
    done = subprocess.run(
        [*RECORD, "--user", "nobody", "-o", tmp_path / "s", "--", "sh", "-c", "id -u; id -g; id -G; echo $HOME $USER"],
        capture_output=True,
        text=True,
        env=environment,
    )
    uid, gid, groups, environment_seen = done.stdout.splitlines()
    assert (int(uid), int(gid)) == (nobody.pw_uid, nobody.pw_gid)
    assert "0" not in groups.split()
    assert environment_seen == f"{nobody.pw_dir} nobody"
    owners = {path.stat().st_uid for path in [tmp_path / "s", *(tmp_path / "s").rglob("*")]}
    assert owners == {nobody.pw_uid}
    unknown = subprocess.run([*RECORD, "--user", "no-such-user", "--", "true"], capture_output=True, text=True)
    assert unknown.returncode == 2 and "no user named no-such-user" in unknown.stderr


def test_running_processes_are_recorded_and_left_alone(tmp_path: Path) -> None:
    targets = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]
    try:
        pids = [argument for target in targets for argument in ("-p", str(target.pid))]
        perfscope = subprocess.Popen(
            [*RECORD, *pids, "-o", tmp_path / "s"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        notes = tmp_path / "s.partial" / "raw" / "notes" / "notes"
        wait_for(lambda: notes.exists() and notes.read_text().count("started") == 2)
        perfscope.send_signal(signal.SIGINT)
        out, _ = perfscope.communicate()
        assert (perfscope.returncode, out) == (0, f"{tmp_path / 's'}\n")
        session = Session.open(tmp_path / "s")
        assert session.info.stopped_by == "SIGINT"
        seen = session.table("processes").to_pylist()
        assert {row["pid"] for row in seen} == {target.pid for target in targets}
        assert {row["command"] for row in seen} == {"sleep 1000"}
        assert all(target.poll() is None for target in targets)
    finally:
        for target in targets:
            target.kill()
            target.wait()


def test_nohup_is_respected(tmp_path: Path) -> None:
    target = subprocess.Popen(["sleep", "1000"])
    try:
        command = ["nohup", *map(str, RECORD), "-p", str(target.pid), "-o", str(tmp_path / "s")]
        perfscope = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        notes = tmp_path / "s.partial" / "raw" / "notes" / "notes"
        wait_for(lambda: notes.exists() and "started" in notes.read_text())
        perfscope.send_signal(signal.SIGHUP)
        perfscope.send_signal(signal.SIGTERM)
        assert perfscope.wait() == 0
        assert _info(tmp_path / "s")["stopped_by"] == "SIGTERM"
    finally:
        target.kill()
        target.wait()


def test_a_process_that_nobody_waits_for_has_ended_all_the_same(tmp_path: Path) -> None:
    target = subprocess.Popen(["sleep", "1"])
    done = subprocess.run([*RECORD, "-p", str(target.pid), "-o", tmp_path / "s"], capture_output=True)
    assert done.returncode == 0
    assert _state(target.pid) == "Z"
    target.wait()
    assert _info(tmp_path / "s")["stopped_by"] == "all recorded processes ended"


def test_children_and_threads_are_seen_with_their_cpu_time(tmp_path: Path) -> None:
    program = (
        "import os, subprocess, sys, threading, time\n"
        "def burn():\n"
        "    end = time.thread_time() + 0.5\n"
        "    while time.thread_time() < end: pass\n"
        "    burnt.release()\n"
        "    done.wait()\n"
        "burnt, done = threading.Semaphore(0), threading.Event()\n"
        "workers = [threading.Thread(target=burn) for _ in range(2)]\n"
        "[w.start() for w in workers]\n"
        "subprocess.run(['sleep', '0.5'])\n"
        "[burnt.acquire() for w in workers]\n"
        "for t in os.listdir('/proc/self/task'):\n"
        "    print('task', t, open(f'/proc/self/task/{t}/schedstat').read().split()[0], flush=True)\n"
        "time.sleep(0.4)\n"
        "done.set()\n"
    )
    printed = _record(tmp_path, program)
    truth = {int(line.split()[1]): int(line.split()[2]) for line in printed.splitlines() if "task" in line}
    session = Session.open(tmp_path / "s")
    seen = {row["tid"]: row for row in session.table("threads").to_pylist()}
    main = session.info.pids[0]
    assert len(truth) == 3
    for tid, cpu_ns in truth.items():
        if tid != main and seen[tid]["cpu_ns"] is None:  # gone since the last look at it: what it used then isn't all
            continue
        # The main thread's first milliseconds, before it became Python, are not the command's.
        assert seen[tid]["cpu_ns"] == pytest.approx(cpu_ns, rel=0.02, abs=20e6)
        assert seen[tid]["cpu_ns"] <= seen[tid]["end_ns"] - seen[tid]["start_ns"]
    commands = {row["command"]: row for row in session.table("processes").to_pylist()}
    assert all(row["end_ns"] <= session.info.stop_ns for row in commands.values())
    sleeper = commands["sleep 0.5"]
    assert sleeper["ppid"] == main
    assert sleeper["end_ns"] - sleeper["start_ns"] > 0.3e9
    assert commands[next(c for c in commands if "burn" in c)]["runtime"] == "python"
    notes = (tmp_path / "s" / "raw" / "notes" / "notes").read_text().splitlines()
    assert f"ended {sleeper['pid']}" in notes
    assert notes.index(f"started {main} python") >= 0


def test_a_thread_is_there_until_it_ends_where_only_proc_tells(tmp_path: Path) -> None:
    program = (
        "import threading, time\n"
        "def burn(log):\n"
        "    begin, end = time.monotonic_ns(), time.thread_time() + 0.8\n"
        "    while time.thread_time() < end: pass\n"
        "    print(threading.get_native_id(), begin, time.monotonic_ns(), flush=True)\n"
        "for _ in range(3):\n"
        "    thread = threading.Thread(target=burn, args=(0,))\n"
        "    thread.start(); thread.join()\n"
    )
    printed = _record(tmp_path, program)
    seen = {row["tid"]: row for row in Session.open(tmp_path / "s").table("threads").to_pylist()}
    for tid, begin, end in (map(int, line.split()) for line in printed.splitlines()):
        # A look a tenth of a second, and as long again for a machine that is busy.
        assert seen[tid]["end_ns"] - seen[tid]["start_ns"] > 0.6 * (end - begin)
        assert seen[tid]["end_ns"] < end + 0.5e9


def test_a_process_whose_first_thread_has_ended_lives_on(tmp_path: Path) -> None:
    program = (
        "import ctypes, os, threading, time\n"
        "def work():\n"
        "    end = time.thread_time() + 1.2\n"
        "    while time.thread_time() < end: pass\n"
        "    print(threading.get_native_id(), time.monotonic_ns(), flush=True)\n"
        "    os._exit(0)\n"
        "threading.Thread(target=work).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    printed = _record(tmp_path, program)
    tid, end = map(int, printed.split())
    (process,) = Session.open(tmp_path / "s").table("processes").to_pylist()
    (worker,) = [row for row in Session.open(tmp_path / "s").table("threads").to_pylist() if row["tid"] == tid]
    assert worker["end_ns"] - worker["start_ns"] > 0.8e9
    assert process["end_ns"] > end - 0.5e9


def test_a_daemon_whose_parent_is_gone_at_once_is_followed(tmp_path: Path) -> None:
    program = (
        "import os, time\n"
        "def serve():\n"
        "    end = time.monotonic() + 4\n"
        "    while time.monotonic() < end: sum(range(1000))\n"
        "if os.fork() == 0:\n"
        "    if os.fork() == 0:\n"
        "        print(os.getpid(), flush=True)\n"
        "        serve()\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "time.sleep(3)\n"
    )
    daemon = int(_record(tmp_path, program, "--collect", "ebpf,pyspy"))
    session = Session.open(tmp_path / "s")
    assert {row["pid"]: row["runtime"] for row in session.table("processes").to_pylist()}[daemon] == "python"
    served = [row for row in session.table("samples").to_pylist() if row["pid"] == daemon and row["source"] == "pyspy"]
    assert any(frame.function == "serve" for row in served for frame in session.stacks.path(row["stack_id"]))


def test_show_knows_the_cpu_time_of_threads_that_have_ended(tmp_path: Path) -> None:
    program = (
        "import threading, time\n"
        "def burn():\n"
        "    end = time.thread_time() + 0.4\n"
        "    while time.thread_time() < end: pass\n"
        "for _ in range(3):\n"
        "    thread = threading.Thread(target=burn)\n"
        "    thread.start(); thread.join()\n"
        "print(time.process_time())\n"
    )
    spent = float(_record(tmp_path, program, "--collect", "ebpf"))
    shown = subprocess.run([*MADE, "show", str(tmp_path / "s")], capture_output=True, text=True, check=True).stdout
    (figure,) = re.findall(r"python +4 +([\d.]+) s ", shown)  # without "at least"
    assert float(figure) == pytest.approx(spent, rel=0.1)

"""py-spy on real programs whose behaviour is known: shares, threads, children, deaths, kills, torn stacks."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope import procfs
from perfscope.collectors.base import Context, Options
from perfscope.collectors.pyspy import PySpyCollector, budget, instance
from perfscope.collectors.pyspy.torn import TornJudge
from perfscope.errors import CollectorError
from perfscope.model.info import SessionInfo
from perfscope.model.session import Session
from perfscope.model.session_writer import SessionWriter

TIMEOUT_S = 60


@dataclass
class Recording:
    """A collector at work on a process, driven as the recording drives it."""

    folder: Path
    options: Options = field(default_factory=Options)
    guarded: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.writer = SessionWriter(self.folder / "s.perfscope")
        self.collector = PySpyCollector(
            Context(self.writer.raw / "pyspy", self.options, lambda key, argv: self.guarded.__setitem__(key, argv))
        )
        self.start_ns = time.monotonic_ns()
        self._known: dict[int, procfs.Runtime] = {}

    def start(self, pid: int) -> None:
        self.root = pid
        self.collector.start([pid])
        self.tick()

    def tick(self) -> None:
        pids = procfs.tree([self.root])
        for pid in pids:
            process = procfs.process(pid)
            if process is not None and self._known.get(pid) != process.runtime and process.alive():
                self._known[pid] = process.runtime
                self.collector.process_started(process)
        for pid in set(self._known) - set(pids):
            del self._known[pid]
            self.collector.process_ended(pid)
        self.collector.tick()

    def until(self, reached: Callable[[], bool]) -> None:
        """Ticks until something is so."""
        give_up = time.monotonic() + TIMEOUT_S
        while not reached():
            assert time.monotonic() < give_up, "waited too long"
            self.tick()
            time.sleep(0.05)

    def sampled(self, pid: int, looks_s: float) -> Callable[[], bool]:
        """True once a py-spy has been sampling that process for so long."""

        def reached() -> bool:
            began = [i.sampling_ns for i in self.running(pid)]
            return any(b is not None and time.monotonic_ns() - b > looks_s * 1e9 for b in began)

        return reached

    def running(self, pid: int) -> list[instance.Instance]:
        return [
            lane.current
            for lane in self.collector._lanes()
            if lane.pid == pid and not lane.gil and lane.current is not None
        ]

    def finish(self) -> Session:
        self.collector.stop()
        stop_ns = time.monotonic_ns()
        self.collector.read(self.writer, self.start_ns, stop_ns)
        info = SessionInfo(start_ns=self.start_ns, stop_ns=stop_ns, clocks=self.collector.clocks)
        assert not any(self.guarded.values()), "every guard is taken back"
        return Session.open(self.writer.finish(info))

    @property
    def report(self) -> Any:
        return self.collector.report


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a Python program that prints a line once it is under way, and ends it after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(source: str, *arguments: str, command: tuple[str, ...] = (sys.executable,)) -> subprocess.Popen[str]:
        path = tmp_path / "program.py"
        path.write_text(source)
        os.utime(path, (1, 1))  # a file of before the process, whatever the granularity of its start time
        process = subprocess.Popen(
            [*command, str(path), *arguments], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def looks(session: Session, source: str = "pyspy") -> list[dict[str, Any]]:
    rows = [r for r in session.table("samples").to_pylist() if r["source"] == source]
    for row in rows:
        row["frames"] = session.stacks.path(row["stack_id"])
        row["names"] = [f.function for f in row["frames"]]
    return rows


def cpu_s(pid: int) -> float:
    stat = procfs.read_stat(pid)
    assert stat is not None
    return (stat.user_ticks + stat.system_ticks) / os.sysconf("SC_CLK_TCK")


PHASES = """
import asyncio, sys, threading, time
count = [0, 0]
def work(seconds, which):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        count[which] += 1
def long_phase(): work(0.06, 0)
def short_phase(): work(0.02, 1)
async def idle_task():
    await asyncio.sleep(3600)
def worker(ready):
    print(threading.get_native_id(), flush=True); ready.set()
    asyncio.run(idle_task())
def brief(go):
    print(threading.get_native_id(), flush=True)
    go.wait()
go, ready = threading.Event(), threading.Event()
print(threading.get_native_id(), flush=True)
threading.Thread(target=worker, args=(ready,), name="wörker; 1", daemon=True).start(); ready.wait()
dying = threading.Thread(target=brief, args=(go,), name="brief"); dying.start()
def until_told():
    for _ in sys.stdin: go.set()
threading.Thread(target=until_told, daemon=True, name="stdin").start()
while True:
    long_phase()
    short_phase()
"""


def test_shares_threads_names_deaths_and_gil(tmp_path: Path, program: Callable[..., subprocess.Popen[str]]) -> None:
    target = program(PHASES)
    main, worker, brief = (int(line(target)[0]) for _ in range(3))
    recording = Recording(tmp_path)
    recording.start(target.pid)
    recording.until(recording.sampled(target.pid, 1.0))
    assert target.stdin is not None
    target.stdin.write("\n")
    target.stdin.flush()
    recording.until(lambda: brief not in procfs.threads(target.pid))
    gone_ns = time.monotonic_ns()
    recording.until(recording.sampled(target.pid, 3.0))
    session = recording.finish()

    rows = looks(session)
    assert {r["pid"] for r in rows} == {target.pid}
    assert {main, worker, brief} <= {r["tid"] for r in rows} == set(procfs.threads(target.pid)) | {brief}
    names = {t["tid"]: t["name"] for t in session.table("threads").to_pylist()}
    assert (names[main], names[worker], names[brief]) == ("MainThread", "wörker; 1", "brief")
    # The program spends three times as long in one phase as in the other, measured in its own CPU time.
    spent: dict[str, int] = defaultdict(int)
    seen = 0
    for row in rows:
        if row["tid"] == main:
            for name in ("long_phase", "short_phase"):
                spent[name] += row["duration_ns"] if name in row["names"] else 0
            seen += row["count"]
    share = spent["long_phase"] / (spent["long_phase"] + spent["short_phase"])
    assert share == pytest.approx(0.75, abs=0.12), recording.report  # 300 looks at 80 ms phases on a loaded machine
    assert seen > 100
    # A dead thread's stack ends with it, not with the recording.
    end = max(r["time_ns"] + r["duration_ns"] for r in rows if r["tid"] == brief)
    assert end <= gone_ns + 20_000_000
    assert any("BaseEventLoop.run_forever" in r["names"] for r in rows if r["tid"] == worker)
    # Slices of a thread neither overlap nor leave gaps while it lives: its time is its time.
    mine = sorted((r["time_ns"], r["time_ns"] + r["duration_ns"]) for r in rows if r["tid"] == main)
    assert all(b[0] == a[1] for a, b in itertools.pairwise(mine))
    assert sum(e - s for s, e in mine) == mine[-1][1] - mine[0][0]
    # Only the spinning main thread holds the GIL to speak of.
    held: dict[int, int] = defaultdict(int)
    for row in looks(session, "pyspy-gil"):
        assert row["time_ns"] is None
        held[row["tid"]] += row["count"]
    assert held[main] > 0.9 * sum(held.values())
    report = recording.report
    assert report.status == "ok" and report.version and report.cpu_ns > 0 and report.lost_events == 0
    assert session.info.clocks["pyspy"].error_ns < 2_000_000
    assert report.covered_ns and report.covered_ns[0][0] >= recording.start_ns


ROLES = """
import sys, threading, time
def nap(): time.sleep(0.002)
def work_alpha(end):
    while time.monotonic() < end: nap()
def work_beta(end):
    while time.monotonic() < end: nap()
def work_gamma(end):
    while time.monotonic() < end: nap()
ROLES = [work_alpha, work_beta, work_gamma]
print(flush=True)
number = 0
while True:
    end = time.monotonic() + (0.05 if number % 4 else 1.5)
    threads = []
    for role in ROLES[number % 3:] + ROLES[:number % 3]:
        name = f"{role.__name__}-{number}"
        threads.append(threading.Thread(target=role, args=(end,), name=name, daemon=True))
        threads[-1].start()
    for thread in threads: thread.join()
    number += 1
"""


def test_a_thread_is_never_called_by_a_dead_ones_name(
    tmp_path: Path, program: Callable[..., subprocess.Popen[str]]
) -> None:
    target = program(ROLES)  # many threads, one after the other: they get each other's pthread handles
    line(target)
    recording = Recording(tmp_path)
    recording.start(target.pid)
    recording.until(recording.sampled(target.pid, 5.0))
    session = recording.finish()
    names = {t["tid"]: t["name"] for t in session.table("threads").to_pylist()}
    roles: dict[int, set[str]] = defaultdict(set)
    time_ns: dict[int, int] = defaultdict(int)
    for row in looks(session):
        if not row["torn"]:
            roles[row["tid"]] |= {name for name in row["names"] if name.startswith("work_")}
            time_ns[row["tid"]] += row["duration_ns"]
    assert len(roles) > 10
    for tid, found in roles.items():
        if found and names.get(tid) is not None:
            assert {names[tid].partition("-")[0]} == found, (tid, names[tid])
    lasting = [tid for tid, ns in time_ns.items() if ns > 1_200_000_000 and roles[tid]]
    assert len(lasting) >= 3 and all(names.get(tid) for tid in lasting)  # who lives for long has a name
    assert not list(recording.collector.context.raw.glob("*.names.json"))


MARKS = """
import sys, time
def spin_a(until):
    while time.monotonic_ns() < until: pass
def spin_b(until):
    while time.monotonic_ns() < until: pass
print(flush=True)
SLOT = 50_000_000
while True:
    slot = time.monotonic_ns() // SLOT
    (spin_b if slot % 2 else spin_a)((slot + 1) * SLOT)
"""


def test_times_are_those_of_the_monotonic_clock(tmp_path: Path, program: Callable[..., subprocess.Popen[str]]) -> None:
    target = program(MARKS)
    line(target)
    recording = Recording(tmp_path, Options(rate_hz=200))
    recording.start(target.pid)
    recording.until(recording.sampled(target.pid, 2.0))
    session = recording.finish()
    late = []
    for row in looks(session):
        wanted = {"spin_a": 0, "spin_b": 1}.get(row["names"][-1])
        if wanted is not None and not row["torn"]:
            # A look at a phase can't come before it: how far into a slot of its own phase it is, modulo two slots.
            into = (row["time_ns"] - wanted * 50_000_000) % 100_000_000
            late.append(into if into < 75_000_000 else into - 100_000_000)
    assert len(late) > 20
    error = session.info.clocks["pyspy"].error_ns
    assert sorted(late)[len(late) // 20] > -error - 2_000_000
    assert sorted(late)[len(late) // 4] < 25_000_000


CHILDREN = """
import os, subprocess, sys, time
def spin():
    end = time.monotonic() + 60
    while time.monotonic() < end: pass
if sys.argv[1:] == ["forked"] and os.fork() == 0:
    def in_child(): spin()
    in_child()
print(flush=True)
def in_parent(): spin()
in_parent()
"""


def test_forks_and_late_starters_are_covered(tmp_path: Path, program: Callable[..., subprocess.Popen[str]]) -> None:
    # A shell that only becomes Python later, and forks then.
    target = program(CHILDREN, "forked", command=("sh", "-c", 'read x; exec "$0" "$@"', sys.executable))
    recording = Recording(tmp_path)
    recording.start(target.pid)
    assert not recording.running(target.pid)
    assert target.stdin is not None
    target.stdin.write("go\n")
    target.stdin.flush()
    recording.until(lambda: bool(procfs.children(target.pid)))
    (child,) = procfs.children(target.pid)
    recording.until(recording.sampled(target.pid, 0.5))
    recording.until(recording.sampled(child, 0.5))
    os.kill(child, signal.SIGKILL)  # only ours to end: the fixture knows its parent alone
    recording.until(lambda: not recording.running(child))
    session = recording.finish()
    where = {name: {r["pid"] for r in looks(session) if name in r["names"]} for name in ("in_parent", "in_child")}
    assert where == {"in_parent": {target.pid}, "in_child": {child}}
    assert {r["tid"] for r in looks(session)} == {target.pid, child}
    assert recording.report.status == "ok", recording.report


def test_ids_in_a_pid_namespace_are_the_hosts(tmp_path: Path, program: Callable[..., subprocess.Popen[str]]) -> None:
    target = program(
        "import threading, time\n"
        "def nap(): print(threading.get_native_id(), flush=True); time.sleep(600)\n"
        "threading.Thread(target=nap, name='napper').start(); time.sleep(600)\n",
        command=("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable),
    )
    inner = int(line(target)[0])
    recording = Recording(tmp_path)
    recording.start(target.pid)
    recording.until(lambda: bool(recording._known) and "python" in recording._known.values())
    (child,) = procfs.children(target.pid)
    recording.until(recording.sampled(child, 0.5))
    threads = procfs.threads(child)
    session = recording.finish()
    napper = {r["tid"] for r in looks(session) if "nap" in r["names"]}
    assert {r["tid"] for r in looks(session)} == set(threads) and {r["pid"] for r in looks(session)} == {child}
    assert napper == set(threads) - {child} and inner not in threads


def test_the_guards_command_makes_a_py_spy_write_and_end(
    tmp_path: Path, program: Callable[..., subprocess.Popen[str]]
) -> None:
    target = program(MARKS)
    line(target)
    recording = Recording(tmp_path)
    recording.start(target.pid)
    recording.until(recording.sampled(target.pid, 0.3))
    (running,) = recording.running(target.pid)
    assert os.getsid(running.own_pid) == running.own_pid  # the terminal's Ctrl-C doesn't reach it
    subprocess.run(recording.guarded[f"pyspy:{running.own_pid}"], check=True)
    assert running.wait(time.monotonic_ns() + TIMEOUT_S * 10**9)
    assert running.whole and running.output.stat().st_size > 100
    recording.finish()


def test_a_stopped_process_is_sampled_once_it_goes_on(
    tmp_path: Path, program: Callable[..., subprocess.Popen[str]]
) -> None:
    target = program(MARKS)
    line(target)
    os.kill(target.pid, signal.SIGSTOP)
    recording = Recording(tmp_path, Options(blocking=True))
    recording.start(target.pid)
    (stacks, _) = recording.collector._lanes()
    recording.until(lambda: stacks.failure is not None)
    assert stacks.failure is not None and "stopped" in stacks.failure.why
    os.kill(target.pid, signal.SIGCONT)
    recording.until(recording.sampled(target.pid, 0.3))  # it is taken up as soon as it goes on
    assert looks(recording.finish())
    assert recording.report.status == "ok" and any("--blocking" in note for note in recording.report.notes)


def test_a_process_that_becomes_another_program_is_followed(
    tmp_path: Path, program: Callable[..., subprocess.Popen[str]]
) -> None:
    target = program(
        "import os, sys, time\n"
        "def first(): sys.stdin.readline()\n"
        "def second(): time.sleep(600)\n"
        "print(flush=True)\n"
        "if len(sys.argv) == 1:\n"
        "    first(); os.execv(sys.executable, [sys.executable, *sys.argv, 'again'])\n"
        "second()\n"
    )
    line(target)
    recording = Recording(tmp_path)
    recording.start(target.pid)
    recording.until(recording.sampled(target.pid, 0.5))
    assert target.stdin is not None
    told_ns = time.monotonic_ns()
    target.stdin.write("\n")
    target.stdin.flush()
    line(target)
    recording.until(lambda: any(i.began_ns > told_ns for i in recording.running(target.pid)))
    recording.until(recording.sampled(target.pid, 0.5))
    session = recording.finish()
    ends = {name: max(r["time_ns"] + r["duration_ns"] for r in looks(session) if name in r["names"]) for name in
            ("first", "second")}  # fmt: skip
    assert ends["first"] < told_ns + 300_000_000 < ends["second"]
    assert recording.report.status == "ok", recording.report


def test_a_target_that_forks_all_the_time_is_not_flooded(
    tmp_path: Path, program: Callable[..., subprocess.Popen[str]]
) -> None:
    target = program("print(flush=True)\nimport time\ntime.sleep(600)\n")
    line(target)
    process = procfs.process(target.pid)
    assert process is not None
    recording = Recording(tmp_path)
    recording.start(target.pid)
    for number in range(40):
        gone = procfs.Process(2**22 + number, process.start_ticks, 1, "python")  # beyond any pid: short-lived children
        recording.collector.process_started(gone)
        recording.collector.process_ended(gone.pid)
    recording.until(recording.sampled(target.pid, 0.3))
    session = recording.finish()
    assert {r["pid"] for r in looks(session)} == {target.pid}
    assert recording.report.status == "partial" and "too quickly to be sampled" in recording.report.why


def test_a_killed_py_spy_costs_a_stated_interval_only(
    tmp_path: Path, program: Callable[..., subprocess.Popen[str]]
) -> None:
    target = program(MARKS)
    line(target)
    recording = Recording(tmp_path)
    recording.start(target.pid)
    recording.until(recording.sampled(target.pid, 0.5))
    (first,) = recording.running(target.pid)
    os.kill(first.own_pid, signal.SIGKILL)
    recording.until(lambda: bool(recording.running(target.pid)) and recording.running(target.pid)[0] is not first)
    recording.until(recording.sampled(target.pid, 0.5))
    session = recording.finish()
    assert looks(session)
    assert recording.report.status == "partial"
    assert "missing for" in recording.report.why and "SIGKILL" in recording.report.why
    assert recording.report.covered_ns[0][0] > first.ended_ns
    assert target.poll() is None


def test_each_failure_has_its_reason(tmp_path: Path, program: Callable[..., subprocess.Popen[str]]) -> None:
    def failure(pid: int, output: Path, **how: bool) -> instance.Failure:
        made = instance.Instance(pid, 100, output, **{"gil": False, "native": False, "blocking": False, **how})
        if not how:
            assert made.wait(time.monotonic_ns() + 30 * 10**9)
        else:
            end = time.monotonic_ns() + 30 * 10**9
            while made.running() and made.sampling_ns is None and time.monotonic_ns() < end:
                time.sleep(0.01)
            made.interrupt()
            made.wait(end)
        assert not made.whole
        return made.failure()

    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        assert "no Python" in failure(sleeper.pid, tmp_path / "a").why
    finally:
        sleeper.kill()
        sleeper.wait()
    assert "gone" in failure(sleeper.pid, tmp_path / "b").why
    target = program(MARKS)
    line(target)
    (tmp_path / "folder").mkdir()
    assert "written" in failure(target.pid, tmp_path / "folder", blocking=False).why
    with pytest.raises(CollectorError, match="No such file"):
        failure(target.pid, tmp_path / "no" / "such")
    without = ["setpriv", "--reuid", "65534", "--clear-groups", instance.binary(), "record", "-p", str(target.pid)]
    done = subprocess.run([*without, "-o", "/dev/null"], capture_output=True, text=True, timeout=60)
    explained = instance.explain(done.stdout + done.stderr)
    assert explained is not None and "permission" in explained.why and explained.final and explained.hint


def test_a_target_that_exits_at_once_is_said_not_raised(
    tmp_path: Path, program: Callable[..., subprocess.Popen[str]]
) -> None:
    target = program("pass")
    process = procfs.process(target.pid)
    target.wait()
    assert process is not None
    recording = Recording(tmp_path)
    recording.root = target.pid
    recording.collector.start([target.pid])
    recording.collector.process_started(procfs.Process(target.pid, process.start_ticks, target.pid, "python"))
    recording.until(lambda: all(lane.current is None for lane in recording.collector._lanes()))
    recording.finish()
    assert recording.report.status == "unavailable"
    assert recording.report.why == f"process {target.pid} ended before py-spy had looked at it"


def test_nothing_python_is_unavailable(tmp_path: Path) -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        recording = Recording(tmp_path)
        recording.start(sleeper.pid)
        recording.finish()
    finally:
        sleeper.kill()
        sleeper.wait()
    assert recording.report.status == "unavailable" and "no Python process" in recording.report.why


LEAVES = """
import sys
def leaf_a(n):
    x = 0
    for i in range(n):
        x += i
    return x
def leaf_b(n):
    x = 1
    for i in range(n):
        x ^= i
    return x
class Model:
    def step(self, n):
        self.norm(n)
        self.attend(n)
    def norm(self, n):
        return leaf_a(n)
    def attend(self, n):
        y = leaf_b(n)
        return y
def left(n):
    leaf_a(n)
    leaf_a(n)
def right(n):
    leaf_b(n)
    leaf_b(n)
def main(n):
    model = Model()
    while True:
        left(n)
        right(n)
        model.step(n)
print(flush=True)
main(int(sys.argv[1]))
"""
CALLS = {
    ("<module>", "main"), ("main", "left"), ("main", "right"), ("main", "step"), ("left", "leaf_a"),
    ("right", "leaf_b"), ("step", "norm"), ("step", "attend"), ("norm", "leaf_a"), ("attend", "leaf_b"),
}  # fmt: skip


def test_made_up_calls_are_marked_torn_and_true_ones_are_not(
    tmp_path: Path, program: Callable[..., subprocess.Popen[str]]
) -> None:
    target = program(LEAVES, "400")  # leaves of some 10 to 20 us
    line(target)
    # On a machine without a CPU to spare a py-spy looks a few times only: then another one goes on.
    true = 0
    for number in range(60):
        true += true_stacks(tmp_path / str(number), target.pid)
        if true > 100:
            break
    assert true > 100


def true_stacks(path: Path, pid: int) -> int:
    """Records it for a while, proves that exactly its made-up stacks are torn, and returns the number of the others."""
    path.mkdir()
    recording = Recording(path, Options(rate_hz=400))
    recording.start(pid)
    recording.until(recording.sampled(pid, 1.5))
    session = recording.finish()
    lines = LEAVES.splitlines()
    made_up = marked = true = wrongly = 0
    for row in looks(session):
        frames = [(f.function.rsplit(".", 1)[-1], f.line) for f in row["frames"]]
        # Right function below the right function, from a line that names it: the program's own call graph.
        real = all((a, b) in CALLS and b in lines[line - 1] for (a, line), (b, _) in itertools.pairwise(frames))
        if real:
            true, wrongly = true + 1, wrongly + row["torn"]
        else:
            made_up, marked = made_up + 1, marked + row["torn"]
    assert wrongly == 0 and marked == made_up
    assert (recording.report.details["torn_share"] > 0) == (made_up > 0)
    return true


LIBRARY = """
import argparse, ast, asyncio, configparser, csv, difflib, email, email.policy, http.server, io, json, logging, pprint
import re, threading, tokenize, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"path": self.path, "data": list(range(20))}, indent=1).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words): logging.getLogger("x").info("%s", words)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
def client():
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/a") as reply: json.loads(reply.read())
async def passes(queue, number):
    while True:
        await asyncio.sleep(0.001); await queue.put(number); await asyncio.wait_for(queue.get(), 1)
async def tasks():
    queue = asyncio.Queue()
    await asyncio.gather(*(passes(queue, number) for number in range(5)))
threading.Thread(target=client, daemon=True).start()
threading.Thread(target=lambda: asyncio.run(tasks()), daemon=True).start()
print(flush=True)
source = open(ast.__file__).read()[:20000]
while True:
    list(tokenize.generate_tokens(io.StringIO("x = (1,\\n 2)\\n" * 50).readline))
    ast.unparse(ast.parse("def f(a, *b):\\n    return [i + 1 for i in b if a]\\n" * 30))
    re.purge(); re.compile(r"(a|b)*c[d-f]{2,3}(?P<x>\\w+)")
    list(csv.DictReader(io.StringIO("a,b\\n1,2\\n" * 50)))
    parser = argparse.ArgumentParser(); parser.add_argument("--x", type=int); parser.parse_args(["--x", "3"])
    list(difflib.unified_diff(source.splitlines()[:80], source.splitlines()[20:100]))
    configparser.ConfigParser().read_string("[a]\\nb=1")
    email.message_from_string("To: c@d\\nSubject: =?utf-8?q?x?=\\n\\nhi", policy=email.policy.default)["subject"]
    pprint.pformat({i: list(range(9)) for i in range(30)})
"""


def test_no_stack_of_a_paused_process_is_called_torn(
    tmp_path: Path, program: Callable[..., subprocess.Popen[str]]
) -> None:
    target = program(LIBRARY)
    line(target)
    recording = Recording(tmp_path, Options(rate_hz=300, blocking=True))
    recording.start(target.pid)
    recording.until(recording.sampled(target.pid, 1.5))
    session = recording.finish()
    stacks = np.array([row["stack_id"] for row in looks(session)], np.int32)
    torn, judged = TornJudge(session.stacks, lambda name: Path(name).read_text() if name[0] == "/" else None).judge(
        stacks
    )
    assert len(stacks) > 100 and judged.mean() > 0.5
    assert not torn.any(), [session.stacks.path(stack) for stack in stacks[torn]][:3]
    # What the frames are called and where they lie, as the interpreter has it.
    frames = {f for row in looks(session) for f in row["frames"]}
    assert all(f.layer == "python" and f.file and (f.file[0] == "/" or f.file[0] == "<") for f in frames)
    assert all(Path(f.file).is_file() for f in frames if f.file and f.file[0] == "/")


def test_its_own_cost_is_kept_in_bounds(
    tmp_path: Path, program: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A bound that is exceeded however little CPU a loaded machine leaves to py-spy.
    for name, share in (("SHARE", 0.03), ("_AIM", 0.02), ("_URGENT", 0.04)):
        monkeypatch.setattr(budget, name, share)
    target = program(
        "import threading, time\n"
        "def deep(n):\n    return deep(n - 1) if n else time.sleep(600)\n"
        "for _ in range(40): threading.Thread(target=deep, args=(40,), daemon=True).start()\n"
        "print(flush=True)\ntime.sleep(600)\n"
    )
    line(target)
    recording = Recording(tmp_path, Options(rate_hz=400))
    recording.start(target.pid)
    recording.until(lambda: bool(recording.collector._lowered))
    rate = recording.collector._budget.rate_hz
    assert rate < 400
    recording.until(recording.sampled(target.pid, 0.5))
    session = recording.finish()
    assert any("lowered from 400" in note for note in recording.report.notes)
    assert len({r["tid"] for r in looks(session)}) == 41
    for tid in {r["tid"] for r in looks(session)}:  # the new py-spy took over from the old one: nothing twice
        mine = sorted((r["time_ns"], r["time_ns"] + r["duration_ns"]) for r in looks(session) if r["tid"] == tid)
        assert all(b[0] >= a[1] for a, b in itertools.pairwise(mine))


def test_native_frames_on_request(tmp_path: Path, program: Callable[..., subprocess.Popen[str]]) -> None:
    target = program("import hashlib\nprint(flush=True)\ndata = bytes(1 << 22)\nwhile True: hashlib.sha256(data)\n")
    line(target)
    recording = Recording(tmp_path, Options(native=True))
    recording.start(target.pid)
    recording.until(recording.sampled(target.pid, 1.0))
    session = recording.finish()
    layers = {f.layer for r in looks(session) for f in r["frames"]}
    assert layers == {"python", "native"}
    assert any("--native" in note for note in recording.report.notes)
    assert not any(r["torn"] for r in looks(session))


def test_missing_py_spy_names_the_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(instance.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(instance.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(CollectorError) as caught:
        Recording(tmp_path).start(os.getpid())
    assert "pip install" in str(caught.value.hint)

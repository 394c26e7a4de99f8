"""Python stacks read by the kernel, of programs that say themselves what each thread did, where, and for how long."""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import re
import struct
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyspy_helpers
import pytest
from pyspy_helpers import Recording, line, looks, samplers_on
from recording_helpers import PERFSCOPE, bpf_programs, wait_for

from perfscope import procfs
from perfscope.collectors.ebpf.ring import write_all
from perfscope.collectors.pyspy import kernelfile
from perfscope.errors import CollectorError
from perfscope.merge import ThreadSlices, build_tree, slices_of
from perfscope.merge.slices import RUNNING, SLEEP
from perfscope.model.info import CollectorReport
from perfscope.model.session import Session
from perfscope.options import Options

program = pyspy_helpers.program

MS = 1_000_000
TICK_NS = 10_101_010
"""Between two ticks of the timer where 100 Hz were asked for."""
BPF = Options(python_sampler="bpf")
PROLOGUE = """
import json, sys, threading, time
now = time.monotonic_ns
"""
EPILOGUE = """
with open(sys.argv[1], "w") as file:
    json.dump(said, file)
"""


@dataclass
class Known:
    """A recording of a program, and what the program said of itself."""

    session: Session
    said: dict[str, Any]

    @property
    def report(self) -> CollectorReport:
        return self.session.info.collectors["pyspy"]

    @property
    def watched_ns(self) -> int:
        """From when on the program was watched."""
        return self.report.covered_ns[0][0]

    def slices(self, tid: int) -> ThreadSlices:
        (found,) = (s for s in slices_of(self.session) if s.tid == tid)
        return found

    def names(self, stack: int) -> list[str]:
        return [] if stack < 0 else [f.function for f in self.session.stacks.path(stack)]

    def shows(self, slices: ThreadSlices, name: str) -> npt.NDArray[np.bool_]:
        """Which of the slices have a function of that name in their stack."""
        distinct, inverse = np.unique(slices.stack_id, return_inverse=True)
        return np.array([name in self.names(stack) for stack in distinct.tolist()])[inverse]


def inside(slices: ThreadSlices, windows: list[list[int]]) -> npt.NDArray[np.int64]:
    """ns of each slice that lie in any of the windows, which don't overlap."""
    found = np.zeros(len(slices.start_ns), np.int64)
    for start, end in windows:
        found += np.maximum(0, np.minimum(slices.end_ns, end) - np.maximum(slices.start_ns, start))
    return found


def record(where: Path, source: str, *options: str) -> Known:
    """Records a program by the command line, with the default way to read its stacks."""
    script, said = where / "known.py", where / "said.json"
    script.write_text(PROLOGUE + source + EPILOGUE)
    command = [*PERFSCOPE, "record", "-o", str(where / "s"), "--collect", "ebpf,pyspy", *options]
    done = subprocess.run(
        [*command, "--", sys.executable, str(script), str(said)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    known = Known(Session.open(where / "s"), json.loads(said.read_text()))
    assert known.report.details["sampler"] == "bpf", known.report
    assert known.report.lost_events == 0, known.report
    return known


SLEEPS = """
said = {}
def f(mine):
    start = now(); time.sleep(0.03); mine["f"].append([start, now()])
def g(mine):
    start = now(); time.sleep(0.06); mine["g"].append([start, now()])
def alternates():
    mine = said[threading.get_native_id()] = {"f": [], "g": []}
    for _ in range(40):
        f(mine); g(mine)
threads = [threading.Thread(target=alternates) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_time_asleep_is_that_of_the_function_that_slept(tmp_path: Path) -> None:
    known = record(tmp_path, SLEEPS)
    assert len(known.said) == 8
    for tid, said in known.said.items():
        slices = known.slices(int(tid))
        for name, other in (("f", "g"), ("g", "f")):
            shows, shows_other = known.shows(slices, name), known.shows(slices, other)
            windows = [w for w in said[name] if w[0] > known.watched_ns]
            assert len(windows) > 20
            # The deadline of a sleep is fixed before it begins: a thread that is kept from its CPU just then sleeps for
            # less, and what it was kept in is looked at once a period.
            for start, end in windows:  # none is lost, or shown as another
                asleep = inside(slices, [[start, end]]) * (slices.state == SLEEP)
                assert int(asleep.sum()) > 0.5 * (end - start), (name, start, end)
                assert int(asleep[shows].sum()) == pytest.approx(int(asleep.sum()), rel=0.02), (name, start, end)
            spent = sum(end - start for start, end in windows)
            length = inside(slices, windows)
            assert int(length[shows].sum()) == pytest.approx(spent, rel=0.05)
            assert int(length[shows_other].sum()) < 0.01 * spent


def test_threads_were_off_the_cpu_since_the_schedulers_own_event(tmp_path: Path) -> None:
    known = record(tmp_path, SLEEPS)
    (file,) = (tmp_path / "s").rglob("looks.bin")
    seen = np.fromfile(file, kernelfile.LOOK)
    seen = seen[(seen["flags"] & (kernelfile.AT_TICK | kernelfile.ENDED)) == 0]
    sched = known.session.table("sched")
    tids, offs, ons = (sched.column(name).to_numpy(zero_copy_only=False) for name in ("tid", "off_ns", "on_ns"))
    late: list[int] = []
    for tid in map(int, known.said):
        mine, back = seen[seen["tid"] == tid], np.sort(ons[tids == tid])
        left = offs[tids == tid][np.argsort(ons[tids == tid])]
        at = np.searchsorted(back, mine["time"].astype(float), side="right") - 1
        late += (mine["since"].astype(np.int64) - left[np.maximum(at, 0)])[at >= 0].tolist()
    assert len(late) > 8 * 40
    off = np.abs(late)
    assert np.median(off) < 50_000
    assert np.mean(off < MS) > 0.95


BURNS = """
import random
said = {"cpu": {"sixty": 0, "thirty": 0, "ten": 0}, "tid": threading.get_native_id()}
cpu = time.thread_time_ns
def not_ours():
    with open("/proc/stat") as stat:           # irq, softirq, steal: in clock ticks of 10 ms
        return sum(map(int, stat.readline().split()[6:9])) * 10_000_000
def burn(until):
    while cpu() < until: pass
def sixty(until): burn(until)
def thirty(until): burn(until)
def ten(until): burn(until)
begun, other = cpu(), not_ours()
said["start"] = now()
while cpu() < begun + 4_000_000_000:
    (role,) = random.choices((sixty, thirty, ten), (6, 3, 1))
    start = cpu()
    role(start + 3_000_000)
    said["cpu"][role.__name__] += cpu() - start
said["end"], said["all"], said["other"] = now(), cpu() - begun, not_ours() - other
"""


def test_cpu_time_is_that_of_the_functions_that_ran(tmp_path: Path) -> None:
    known = record(tmp_path, BURNS)
    tid, cpu = known.said["tid"], known.said["cpu"]
    ticks = [r for r in looks(known.session) if r["tid"] == tid and "burn" in r["names"]]
    count = sum(r["count"] for r in ticks)
    assert count > 200
    tree = build_tree(known.session, thread=str(tid))
    labels = np.array([tree.frames[f].label if f >= 0 else "" for f in tree.frame.tolist()])
    weight = tree.weights["cpu"]
    parents = np.asarray(tree.parent)
    shown: Counter[str] = Counter()
    for node, label in enumerate(labels):
        at = node
        while at >= 0 and labels[at] not in cpu:
            at = int(parents[at])
        if at >= 0 and label:
            shown[labels[at]] += int(weight[node])
    whole = sum(cpu.values())
    for name, spent in cpu.items():
        share = spent / whole
        four_sigma = 4 * (share * (1 - share) / count) ** 0.5
        assert shown[name] / sum(shown.values()) == pytest.approx(share, abs=four_sigma), (shown, cpu)

    slices = known.slices(tid)
    running = int(inside(slices, [[known.said["start"], known.said["end"]]])[slices.state == RUNNING].sum())
    # The kernel takes interrupts and what the hypervisor stole off a thread's own count, the scheduler's events don't.
    assert 0.98 * known.said["all"] < running < 1.02 * known.said["all"] + known.said["other"] + 30 * MS
    (thread,) = (t for t in known.session.table("threads").to_pylist() if t["tid"] == tid)
    all_running = int((slices.end_ns - slices.start_ns)[slices.state == RUNNING].sum())
    assert 0.98 * thread["cpu_ns"] < all_running < 1.02 * thread["cpu_ns"] + known.said["other"] + 30 * MS
    assert int(weight.sum()) == all_running


SLEEPERS = r"""
import sys, threading, time
now = time.monotonic_ns
def say(*words): print(*words, flush=True)
def from_before(): sleeps_on()
def sleeps_on(): time.sleep(600)
def born():
    say(threading.get_native_id(), now())
    born_and_asleep()
def born_and_asleep(): time.sleep(600)
def dies():
    say(threading.get_native_id(), now())
    waits_to_die()
    say(now())
def waits_to_die(): die.wait()
die = threading.Event()
start = lambda role: threading.Thread(target=role, daemon=True).start()
thread = threading.Thread(target=from_before, daemon=True)
thread.start()
say(thread.native_id)
for word in sys.stdin:
    if word == "born\n": start(born)
    if word == "dies\n": start(dies)
    if word == "die\n": die.set()
"""


def tell(target: subprocess.Popen[str], word: str) -> None:
    assert target.stdin is not None
    target.stdin.write(word + "\n")
    target.stdin.flush()


def asleep(pid: int, tid: int) -> Callable[[], bool]:
    """True once that thread sleeps in a wait for time or for a lock."""
    return lambda: Path(f"/proc/{pid}/task/{tid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_threads_that_sleep_on_are_born_and_die(tmp_path: Path, program: Callable[..., subprocess.Popen[str]]) -> None:
    target = program(SLEEPERS)
    old = int(line(target)[0])
    wait_for(asleep(target.pid, old))
    recording = Recording(tmp_path, BPF)
    recording.start(target.pid)
    began_ns = recording.began_ns(target.pid)
    assert began_ns is not None
    tell(target, "born")
    young, young_ns = map(int, line(target))
    tell(target, "dies")
    dying, dying_ns = map(int, line(target))
    wait_for(asleep(target.pid, dying))
    recording.until(recording.sampled(target.pid, 1.0))
    tell(target, "die")
    died_ns = int(line(target)[0])
    wait_for(lambda: dying not in procfs.threads(target.pid))
    recording.until(recording.sampled(target.pid, 1.6))
    session = recording.finish()
    spans: dict[int, dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for row in looks(session):
        name = next(name for name in reversed(row["names"]) if "." not in name)  # the program's own, not threading's
        spans[row["tid"]][name].append((row["time_ns"], row["time_ns"] + row["duration_ns"]))
    stop_ns = session.info.stop_ns
    assert stop_ns is not None
    # From before it was watched until the end, at one stack, without a gap.
    assert set(spans[old]) == {"sleeps_on"}
    pieces = sorted(spans[old]["sleeps_on"])
    assert began_ns <= pieces[0][0] < began_ns + 50 * MS and pieces[-1][1] == stop_ns
    assert all(a[1] == b[0] for a, b in itertools.pairwise(pieces))
    # Born: all of its time but the first moment, in which it ran.
    pieces = sorted(spans[young]["born_and_asleep"])
    assert young_ns <= pieces[0][0] < young_ns + 50 * MS and pieces[-1][1] == stop_ns
    assert all(a[1] == b[0] for a, b in itertools.pairwise(pieces))
    # Dead: no later than it was seen to be gone, no earlier than it said.
    assert dying_ns <= min(s for s, _ in spans[dying]["waits_to_die"]) < dying_ns + 50 * MS
    last = max(e for ranges in spans[dying].values() for _, e in ranges)
    assert died_ns <= last < died_ns + 50 * MS


def test_one_that_ended_was_not_missed(tmp_path: Path, program: Callable[..., subprocess.Popen[str]]) -> None:
    target = program("import time\nprint(flush=True)\nwhile True: time.sleep(0.01)\n")
    line(target)
    recording = Recording(tmp_path, BPF)
    recording.start(target.pid)
    recording.until(recording.sampled(target.pid, 0.3))
    target.kill()
    target.wait()
    recording.collector.tick()  # the kernel has forgotten it, and nobody has said yet that it is gone
    recording.tick()
    assert looks(recording.finish())
    assert recording.report.status == "ok", recording.report


NATIVE = """
import ctypes, threading, time
libc = ctypes.CDLL(None)
for _ in range(3):
    libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.sleep, ctypes.c_void_p(600))
    libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.usleep, ctypes.c_void_p(400_000))
print(threading.get_native_id(), flush=True)
def naps():
    while True: time.sleep(0.02)
naps()
"""


def test_threads_without_python_have_no_stack(tmp_path: Path, program: Callable[..., subprocess.Popen[str]]) -> None:
    """The only state there is belongs to the main thread."""
    target = program(NATIVE)
    main = int(line(target)[0])
    recording = Recording(tmp_path, BPF)
    recording.start(target.pid)
    assert len(procfs.threads(target.pid)) >= 4
    recording.until(recording.sampled(target.pid, 1.0))
    rows = looks(recording.finish())
    assert {r["tid"] for r in rows} == {main} and "naps" in {name for r in rows for name in r["names"]}


FORKS = """
import os, sys, time
def burn():
    end = time.thread_time_ns() + 80_000_000
    while time.thread_time_ns() < end: pass
def named(number):
    scope = {"burn": burn}
    exec(f"def in_child_{number}(): burn()", scope)
    return scope[f"in_child_{number}"]
print(flush=True)
sys.stdin.readline()
for number in range(40):
    role = named(number)
    pid = os.fork()
    if pid == 0:
        role()
        os._exit(0)
    print(pid, number, flush=True)
    os.waitpid(pid, 0)
"""


def test_forked_children_are_seen_from_their_first_instruction_on(
    tmp_path: Path, program: Callable[..., subprocess.Popen[str]]
) -> None:
    target = program(FORKS)
    line(target)
    recording = Recording(tmp_path, BPF)
    recording.start(target.pid)
    tell(target, "go")
    recording.until(lambda: target.poll() is not None)
    assert target.stdout is not None
    children = {int(pid): int(number) for pid, number in (text.split() for text in target.stdout)}
    assert len(children) == 40
    session = recording.finish()
    shown: dict[int, Counter[str]] = defaultdict(Counter)
    counts: Counter[int] = Counter()
    for row in looks(session):
        if row["pid"] in children:
            counts[row["pid"]] += row["count"]
            for name in row["names"]:
                if name.startswith("in_child_"):
                    shown[row["pid"]][name] += row["duration_ns"]
    assert {pid: set(names) for pid, names in shown.items()} == {
        pid: {f"in_child_{number}"} for pid, number in children.items()
    }
    # Its 80 ms of CPU time hold 7 or 8 ticks; on its way from one CPU to another, with its own timer, it may miss some.
    assert all(counts[pid] >= 3 for pid in children), counts
    assert sum(counts.values()) > 6.5 * len(children), counts
    assert all(sum(names.values()) >= 60 * MS for names in shown.values())
    assert recording.report.lost_events == 0


EXECS = """
import os, sys, time
def before():
    end = time.monotonic() + 0.5
    while time.monotonic() < end: pass
def after():
    end = time.monotonic() + 1
    while time.monotonic() < end: pass
    time.sleep(600)
if sys.argv[1:] == []:
    print(flush=True)
    sys.stdin.readline()
    before()
    print(time.monotonic_ns(), flush=True)
    other = sys.argv[0] + ".other.py"
    with open(sys.argv[0]) as mine, open(other, "w") as copy: copy.write(mine.read())
    os.execv(sys.executable, [sys.executable, other, "again"])
print(time.monotonic_ns(), flush=True)
after()
"""


def test_stacks_after_exec_are_those_of_the_new_program(
    tmp_path: Path, program: Callable[..., subprocess.Popen[str]]
) -> None:
    target = program(EXECS)
    line(target)
    recording = Recording(tmp_path, BPF)
    recording.start(target.pid)
    tell(target, "go")
    recording.until(recording.sampled(target.pid, 0.3))
    old_ns, new_ns = int(line(target)[0]), int(line(target)[0])
    recording.until(lambda: (recording.began_ns(target.pid) or 0) > new_ns)
    recording.until(recording.sampled(target.pid, 1.5))
    session = recording.finish()
    first, second = str(tmp_path / "program.py"), str(tmp_path / "program.py.other.py")
    spans = defaultdict(list)
    for row in looks(session):
        for file in {f.file for f in row["frames"]} & {first, second}:
            spans[file].append((row["time_ns"], row["time_ns"] + row["duration_ns"]))
            wanted = {first: {"<module>", "before"}, second: {"<module>", "after"}}[file]
            assert {f.function for f in row["frames"] if f.file == file} <= wanted
    assert old_ns - 50 * MS < max(e for _, e in spans[first]) < new_ns
    assert min(s for s, _ in spans[second]) > old_ns
    assert max(e for _, e in spans[second]) == session.info.stop_ns
    assert recording.report.status == "ok", recording.report


HOLDS = """
import hashlib, numpy
said = {"tids": {}, "hold": [0, 0], "hash": 0, "numpy": 0}
over = threading.Event()
def known(role):
    def run():
        said["tids"][role.__name__] = threading.get_native_id()
        role()
    return threading.Thread(target=run)
def hold():
    start, cpu = now(), time.thread_time_ns()
    while time.thread_time_ns() - cpu < 1_500_000_000: pass
    said["hold"] = now() - start, time.thread_time_ns() - cpu
def wants():
    while not over.is_set(): time.sleep(0.003)
def hashes():
    data, cpu = bytes(1 << 24), time.thread_time_ns()
    while time.thread_time_ns() - cpu < 1_000_000_000: hashlib.sha256(data).digest()
    said["hash"] = time.thread_time_ns() - cpu
def adds():
    data, cpu = numpy.ones(1 << 22), time.thread_time_ns()
    while time.thread_time_ns() - cpu < 1_000_000_000: data * data
    said["numpy"] = time.thread_time_ns() - cpu
for together in ((hashes,), (adds,), (hold, wants)):
    threads = [known(role) for role in together]
    for thread in threads: thread.start()
    threads[0].join()
over.set()
"""


def test_who_holds_the_gil(tmp_path: Path) -> None:
    known = record(tmp_path, HOLDS)
    tids = known.said["tids"]
    held: dict[int, Counter[str]] = defaultdict(Counter)
    for row in looks(known.session, "pyspy-gil"):
        for name in set(row["names"]):
            held[row["tid"]][name] += row["duration_ns"]
    wall, cpu = known.said["hold"]
    # Between its CPU time and its wall time, in which others had it for moments; nearly the same on an idle machine.
    assert 0.9 * cpu < held[tids["hold"]]["hold"] < 1.1 * wall
    assert held[tids["wants"]]["wants"] < 0.1 * cpu
    assert held[tids["hashes"]]["hashes"] < 0.1 * known.said["hash"]
    assert held[tids["adds"]]["adds"] < 0.1 * known.said["numpy"]
    # They ran, and their stacks were seen, though.
    seen = Counter(dict.fromkeys(tids.values(), 0))
    for row in looks(known.session):
        seen[row["tid"]] += row["count"]
    assert seen[tids["hashes"]] > 60 and seen[tids["adds"]] > 60


ODD = r"""
import threading
said = {"line": {}, "tid": threading.get_native_id()}
def sleeps(name):
    scope = {"time": time}
    exec(compile("def named():\n    time.sleep(0.03)\n", "odd.py", "exec"), scope)
    named = scope["named"]
    named.__code__ = named.__code__.replace(co_name=name, co_qualname=name)
    return named
said["names"] = ["größe", "λ", "\U0001f40d snake", "x" * 400, "; 12", "</script>", "a\nb", "\ud800 lone"]
functions = [sleeps(name) for name in said["names"]]
nap = lambda: time.sleep(0.03)
def generates():
    while True:
        time.sleep(0.03); yield
class Outer:
    def method(self):
        def closure(): time.sleep(0.03)
        closure()
def deep(left):
    if left:
        deep(left - 1)
    else:
        bottom()
def bottom(): time.sleep(0.03)
sys.setrecursionlimit(2000)
def caller(): deep(400)
generator = generates()
for _ in range(6):
    for function in functions: function()
    nap(); next(generator); Outer().method(); caller()
"""


def test_odd_names_and_deep_stacks(tmp_path: Path) -> None:
    known = record(tmp_path, ODD)
    spent: Counter[str] = Counter()
    lines: dict[str, set[tuple[str | None, int | None]]] = defaultdict(set)
    paths: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    slices = known.slices(known.said["tid"])
    for stack, length in zip(slices.stack_id.tolist(), (slices.end_ns - slices.start_ns).tolist(), strict=True):
        if stack >= 0 and length > 20 * MS:
            path = [f for f in known.session.stacks.path(stack) if not f.function.startswith("[sleep")]
            spent[path[-1].function] += length
            lines[path[-1].function].add((path[-1].file, path[-1].line))
            paths[path[-1].function].add(tuple(f.function for f in path))
    source = (tmp_path / "known.py").read_text().splitlines()
    for name in known.said["names"]:
        name = name.replace("\ud800", "\ufffd")
        assert spent[name] > 100 * MS, (name, spent)
        assert lines[name] == {("odd.py", 2)}
    script = str(tmp_path / "known.py")
    for name, text in (
        ("<lambda>", "nap = lambda: time.sleep(0.03)"),
        ("generates", "        time.sleep(0.03); yield"),
        ("Outer.method.<locals>.closure", "        def closure(): time.sleep(0.03)"),
        ("bottom", "def bottom(): time.sleep(0.03)"),
    ):
        assert spent[name] > 100 * MS
        assert lines[name] == {(script, source.index(text) + 1)}
    assert paths["bottom"] == {("[deeper frames not read]", *["deep"] * 255, "bottom")}


REUSED = r"""
said = {"existed": [], "addresses": 0}
addresses = []
for number in range(300):
    name = f"fn_{number:04}"
    # Same size of everything, so that memory is used again; every other one at the line of the one before.
    line = 1 + number // 2
    scope = {"time": time}
    exec(compile("\n" * (line - 1) + f"def {name}(): time.sleep(0.012)\n", "made.py", "exec"), scope)
    function = scope[name]
    addresses.append(id(function.__code__))
    start = now(); function(); said["existed"].append([name, line, start, now()])
    del function, scope
said["addresses"], said["tid"] = len(set(addresses)), threading.get_native_id()
"""


def test_an_old_name_never_stands_at_code_that_took_its_place(tmp_path: Path) -> None:
    known = record(tmp_path, REUSED)
    existed = known.said["existed"]
    assert known.said["addresses"] < len(existed) - 50  # much of it in memory that was another's before
    shown: Counter[str] = Counter()
    for row in looks(known.session):
        leaf = row["frames"][-1]
        if leaf.file != "made.py":
            continue
        if row["duration_ns"] < 5 * MS or not row["count"]:  # what follows on a sleep is told by the next look
            continue
        middle = row["time_ns"] + row["duration_ns"] // 2
        (here,) = [(name, line) for name, line, start, end in existed if start <= middle < end]
        assert (leaf.function, leaf.line) == here
        shown[leaf.function] += row["duration_ns"]
    assert len(shown) > 250


def interpreters() -> list[Path]:
    """Each CPython that is installed here, the running one first."""
    found = [Path(sys.executable)]
    for folder in sorted(Path.home().glob(".pyenv/versions/3.*")):
        match = re.fullmatch(r"3\.(\d+)\.\d+", folder.name)
        if match and 8 <= int(match[1]) <= 14 and (folder / "bin" / "python3").exists():
            found.append(folder / "bin" / "python3")
    return found


def minor(python: Path) -> int:
    told = subprocess.run([python, "-c", "import sys; print(sys.version_info[1])"], capture_output=True, check=True)
    return int(told.stdout)


SHAPES = """
import sys, threading, time
class Thing:
    def method(self):
        def inner():
            end = time.monotonic() + 0.05
            while time.monotonic() < end:
                pass  # inner: here or a line above
        inner()
    @staticmethod
    def sleeps():
        time.sleep(0.05)
def generates():
    while True:
        yield [value for value in map(naps, (1,))]
def naps(_):
    time.sleep(
        0.05
    )
def sleeper():
    wait = threading.Event()
    wait.wait()
threading.Thread(target=sleeper, daemon=True).start()
print(flush=True)
generator = generates()
while True:
    Thing().method()
    Thing.sleeps()
    next(generator)
"""


def lines_of(frames: list[Any], file: str) -> list[tuple[str, int | None]]:
    return [(f.function, f.line) for f in frames if f.file == file]


@pytest.mark.parametrize("python", interpreters(), ids=lambda path: "-".join(path.parts[-3:-2]))
def test_each_interpreter(tmp_path: Path, program: Callable[..., subprocess.Popen[str]], python: Path) -> None:
    readable = minor(python) >= 11
    target = program(SHAPES, command=(str(python),))
    line(target)
    recording = Recording(tmp_path, BPF if readable else Options())
    recording.start(target.pid)
    recording.until(recording.sampled(target.pid, 2.0))
    session = recording.finish()
    rows = [r for r in looks(session) if not r["torn"]]
    if not readable:
        assert recording.report.details["sampler"] in ("austin", "pyspy", "austin+pyspy")
        why = "not by the kernel: it shows no CPython from 3.11 to 3.14"
        assert any(why in note for note in recording.report.notes), recording.report
        assert any("sleeps" in name for r in rows for name in r["names"])
        return
    assert recording.report.details["sampler"] == "bpf" and recording.report.status == "ok", recording.report
    file = str(tmp_path / "program.py")
    source = [text.strip() for text in SHAPES.splitlines()]
    at = {text: number for number, text in enumerate(source, 1)}
    time_ns: Counter[tuple[tuple[str, int | None], ...]] = Counter()
    for row in rows:
        time_ns[tuple(lines_of(row["frames"], file))] += row["duration_ns"]
    inner, outer = "Thing.method.<locals>.inner", ("<module>", at["Thing().method()"])
    loop = "while time.monotonic() < end:"
    # A list comprehension is a function of its own before 3.12.
    made = at["yield [value for value in map(naps, (1,))]"]
    middle = [("generates", made)] + ([("generates.<locals>.<listcomp>", made)] if minor(python) < 12 else [])
    sleeping = (("<module>", at["Thing.sleeps()"]), ("Thing.sleeps", at["time.sleep(0.05)"]))
    napping = (("<module>", at["next(generator)"]), *middle, ("naps", at["time.sleep("]))
    waiting = (("sleeper", at["wait.wait()"]),)
    turns = sum(time_ns[stack] for stack in (sleeping, napping))
    assert 0.4 < time_ns[sleeping] / turns < 0.6 and turns > 500 * MS, time_ns
    assert time_ns[waiting] > 1900 * MS, time_ns
    spun = {stack: ns for stack, ns in time_ns.items() if stack and stack[-1][0] == inner}
    assert sum(spun.values()) > 250 * MS
    for stack in spun:
        assert stack[:2] == (outer, ("Thing.method", at["inner()"])), spun
        assert stack[2][1] in (at["end = time.monotonic() + 0.05"], at[loop], at[loop] + 1)
    # Nothing that isn't there.
    assert sum(ns for stack, ns in time_ns.items() if stack in (sleeping, napping, waiting, *spun)) > 0.97 * sum(
        time_ns.values()
    )


def is_loaded(program_id: int) -> bool:
    """Whether the kernel has a BPF program of that id, by bpf(2)."""
    get_fd_by_id = 13
    libc, number = ctypes.CDLL(None, use_errno=True), 321 if os.uname().machine == "x86_64" else 280
    descriptor = libc.syscall(number, get_fd_by_id, struct.pack("II", program_id, 0) + bytes(120), 128)
    if descriptor < 0:
        assert ctypes.get_errno() == errno.ENOENT
        return False
    os.close(descriptor)
    return True


ECHOES = """
import sys, time
def waits(): return sys.stdin.readline()
print(flush=True)
while text := waits(): print(text, flush=True)
"""


def test_kill_9_leaves_no_program_attached(tmp_path: Path, program: Callable[..., subprocess.Popen[str]]) -> None:
    target = program(ECHOES)
    line(target)
    options = ["--collect", "pyspy", "-p", str(target.pid), "-o", str(tmp_path / "s")]
    perfscope = subprocess.Popen([*PERFSCOPE, "record", *options], stderr=subprocess.DEVNULL)
    # Of on_tick, on_return, on_exit, on_fork and on_exec.
    wait_for(lambda: len(bpf_programs(perfscope.pid)) >= 5)
    words = tmp_path / "s.partial" / "raw" / "pyspy" / "words.bin"

    def seen() -> bool:
        tell(target, "moves")
        assert line(target) == ["moves"]
        line(target)
        return words.exists() and words.stat().st_size > 0

    wait_for(seen)
    programs = bpf_programs(perfscope.pid)
    assert all(map(is_loaded, programs)) and not samplers_on(target.pid)
    perfscope.kill()
    perfscope.wait()
    wait_for(lambda: not any(map(is_loaded, programs)))
    tell(target, "alive")
    assert line(target) == ["alive"]
    shown = subprocess.run([*PERFSCOPE, "show", tmp_path / "s"], capture_output=True, text=True)
    assert shown.returncode == 2 and "cut off before it was whole" in shown.stderr


MANY_CODES = """
import sys, time
print(flush=True)
sys.stdin.readline()
def run(number):
    scope = {"time": time}
    exec(f"def made_{number}(): time.sleep(0.006)", scope)
    scope[f"made_{number}"]()
for number in range(int(sys.argv[1])): run(number)
print("unharmed", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "none", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_full_disk_under_what_is_seen(
    small_disk: Path, tmp_path: Path, program: Callable[..., subprocess.Popen[str]]
) -> None:
    target = program(MANY_CODES, "600")
    line(target)
    recording = Recording(tmp_path, BPF)
    recording.collector.context.raw.parent.mkdir(parents=True, exist_ok=True)
    recording.collector.context.raw.symlink_to(small_disk)
    recording.start(target.pid)
    tell(target, "go")
    with pytest.raises(CollectorError, match=r"can't write .*: No space left on device"):
        recording.until(lambda: target.poll() is not None)
    assert line(target) == ["unharmed"]
    session = recording.finish()
    assert recording.report.status == "partial", recording.report
    assert "what the kernel saw couldn't be written: No space left on device" in recording.report.why
    rows = looks(session)
    stop_ns = session.info.stop_ns
    assert stop_ns is not None
    assert {r["pid"] for r in rows} == {target.pid} == {r["tid"] for r in rows}
    assert all(session.info.start_ns <= r["time_ns"] <= r["time_ns"] + r["duration_ns"] <= stop_ns for r in rows)
    assert any(name.startswith("made_") for r in rows for name in r["names"])


def test_a_full_disk_of_the_session(small_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "many.py").write_text(MANY_CODES)
    done = subprocess.run(
        [*PERFSCOPE, "record", "-o", small_disk / "s", "--collect", "pyspy", "--", sys.executable, tmp_path / "many.py",
         "400"],
        capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode, done.stdout.split()) == (3, ["unharmed"]), done.stderr
    assert "No space left on device" in done.stderr and "Traceback" not in done.stderr


def test_records_that_do_not_fit_are_written_whole_or_not_at_all(small_disk: Path) -> None:
    records = np.arange(6 * 4000, dtype=np.uint64).reshape(-1, 6)
    with (small_disk / "x.bin").open("ab", buffering=0) as file:
        write_all(file.fileno(), records[:3000].view(np.uint8))
        (small_disk / "other").write_bytes(bytes(130_000))
        with pytest.raises(OSError, match="No space left"):
            write_all(file.fileno(), records[3000:].view(np.uint8))
        (small_disk / "other").unlink()
        write_all(file.fileno(), records[3000:].view(np.uint8))
    assert np.array_equal(np.fromfile(small_disk / "x.bin", np.uint64), records.ravel())


SWITCHES = """
said = {"turns": 0, "tids": []}
over = threading.Event()
def switches():
    said["tids"].append(threading.get_native_id())
    while not over.is_set():
        time.sleep(0.0005)
threads = [threading.Thread(target=switches) for _ in range(200)]
start = now()
for thread in threads: thread.start()
time.sleep(4)
over.set()
for thread in threads: thread.join()
said["wall"] = now() - start
"""


def test_switches_of_200_threads_cost_a_bounded_share_of_the_cpus(tmp_path: Path) -> None:
    script, said = tmp_path / "known.py", tmp_path / "said.json"
    script.write_text(PROLOGUE + SWITCHES + EPILOGUE)
    command = [*PERFSCOPE, "record", "-o", str(tmp_path / "s"), "--collect", "pyspy", "--python-sampler", "bpf"]
    done = subprocess.run([*command, "--", sys.executable, str(script), str(said)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    known = Known(Session.open(tmp_path / "s"), json.loads(said.read_text()))
    report = known.report
    assert report.lost_events == 0 or (report.status == "partial" and "lost (buffers full)" in (report.why or ""))
    assert report.cpu_ns is not None
    whole = known.said["wall"] * os.sysconf("SC_NPROCESSORS_ONLN")
    assert report.cpu_ns < 0.05 * whole, report
    rows = looks(known.session)
    assert {r["tid"] for r in rows} >= set(known.said["tids"])
    # What was left out for its cost is said.
    left_out = [note for note in report.notes if "looks left out" in note]
    spans = defaultdict(int)
    for row in rows:
        spans[row["tid"]] += row["duration_ns"]
    shown = sum(spans[tid] for tid in known.said["tids"])
    assert shown > 0.5 * 200 * known.said["wall"] or left_out, report

"""The kernel's events of real programs, against /proc's own accounting and against each other's backend."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.compute as pc
import pytest

from perfscope import procfs
from perfscope.collectors.base import Context
from perfscope.collectors.ebpf import EbpfCollector
from perfscope.model.info import SessionInfo
from perfscope.model.session import Session
from perfscope.model.session_writer import SessionWriter
from perfscope.options import Options

BACKENDS = ("libbpf", "bcc", "perf")
TRACEFS = Path("/sys/kernel/tracing/events")


@pytest.fixture(scope="module", autouse=True)
def _tracefs() -> None:
    if not TRACEFS.is_dir():
        subprocess.run(["mount", "-t", "tracefs", "nodev", str(TRACEFS.parent)], check=True)


@pytest.fixture(scope="module", autouse=True)
def _headers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """bcc compiles against some kernel's headers; the fields it reads come from the running one."""
    if Path(f"/lib/modules/{os.uname().release}/build/include").exists():
        yield
        return
    merged = tmp_path_factory.mktemp("headers")
    for tree in sorted(Path("/usr/src").glob("linux-headers-*"), key=lambda p: not p.name.endswith("-common")):
        subprocess.run(["cp", "-asf", f"{tree}/.", str(merged)], check=True)
    os.environ["BCC_KERNEL_SOURCE"] = str(merged)
    yield
    del os.environ["BCC_KERNEL_SOURCE"]


class Waiting:
    """A child that executes `argv` once `go` is called; collectors can follow it before its first instruction."""

    def __init__(self, argv: list[str], stdin: int | None = None) -> None:
        release, self._go = os.pipe()
        script = "import os, sys; os.read(int(sys.argv[1]), 1); os.execvp(sys.argv[2], sys.argv[2:])"
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, str(release), *argv],
            pass_fds=[release],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        os.close(release)

    def go(self) -> None:
        os.write(self._go, b"x")
        os.close(self._go)


def collector(tmp_path: Path, backend: str) -> tuple[EbpfCollector, SessionWriter]:
    writer = SessionWriter(tmp_path / f"{backend}.perfscope")
    context = Context(writer.raw / "ebpf", Options(ebpf_backend=backend), lambda key, argv: None, {os.getpid()})
    return EbpfCollector(context), writer


def finish(made: tuple[EbpfCollector, SessionWriter], start_ns: int, stop_ns: int) -> Session:
    ebpf, writer = made
    ebpf.stop()
    ebpf.read(writer, start_ns, stop_ns)
    return Session.open(writer.finish(SessionInfo(start_ns=start_ns, stop_ns=stop_ns)))


def ran(pid: int) -> bool:
    """True once a process is past its start and spins."""
    stat = procfs.schedstat(pid)
    return stat is not None and stat.cpu_ns > 100_000_000


@contextmanager
def no_cpu_idles() -> Iterator[None]:
    """Keeps each CPU busy with what yields to everything else.

    A disk's completion interrupts whatever runs. What interrupts the idle task is hidden by some hosts, so that no
    backend can see it (each says how many requests stayed open).
    """
    spin = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile os.getppid() != 1: pass"
    spinners = [subprocess.Popen([sys.executable, "-c", spin]) for _ in os.sched_getaffinity(0)]
    try:
        for cpu, spinner in zip(sorted(os.sched_getaffinity(0)), spinners, strict=True):
            os.sched_setaffinity(spinner.pid, {cpu})
        while not all(ran(spinner.pid) for spinner in spinners):
            time.sleep(0.01)
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def record(tmp_path: Path, argv: list[str], *backends: str) -> dict[str, tuple[EbpfCollector, Session]]:
    """Records one run with several backends at once."""
    child = Waiting(argv)
    assert child.process.stdout is not None
    made = {backend: collector(tmp_path, backend) for backend in backends}
    try:
        for ebpf, _ in made.values():
            ebpf.start([child.process.pid])
        start_ns = time.monotonic_ns()
        child.go()
        for line in child.process.stdout:  # a program that wants to be looked at says so and waits
            if line == b"look\n" and (process := procfs.process(child.process.pid)) is not None:
                for ebpf, _ in made.values():
                    ebpf.process_started(process)
                os.kill(process.pid, signal.SIGUSR1)
        assert child.process.wait() == 0
        return {name: (pair[0], finish(pair, start_ns, time.monotonic_ns())) for name, pair in made.items()}
    finally:
        child.process.kill()
        child.process.wait()
        child.process.stdout.close()
        for ebpf, _ in made.values():
            ebpf.stop()


def record_whole(tmp_path: Path, argv: list[str], *backends: str) -> dict[str, tuple[EbpfCollector, Session]]:
    """A recording at which the kernel skipped no probe. Where it did, the recording has to say so, and is repeated."""
    for attempt in range(40):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        recorded = record(directory, argv, *backends)
        reports = [ebpf.report for ebpf, _ in recorded.values()]
        if all(report.status == "ok" for report in reports):
            return recorded
        whys = [str(report.why) for report in reports if report.status != "ok"]
        assert all(re.search("missed|gaps|never seen to complete", why) for why in whys), whys
    raise AssertionError(f"no whole run: {whys}")


MIXED = """
import os, subprocess, sys, threading, time
def spin(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end: pass
threads = [threading.Thread(target=spin, args=(.05,)) for _ in range(3)]
for t in threads: t.start()
for t in threads: t.join()
time.sleep(.02)
for _ in range(5): subprocess.run(["true"], check=True)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
for i in range(20):
    os.pwrite(fd, bytes(8192), i * 65536); os.fsync(fd)
os.unlink(sys.argv[1])
"""


def rows(session: Session, table: str, order: tuple[str, ...], drop: tuple[str, ...]) -> list[tuple[object, ...]]:
    found = session.table(table).sort_by([(name, "ascending") for name in order]).drop_columns(list(drop))
    return [tuple(row.values()) for row in found.to_pylist()]


def complete(session: Session) -> set[int]:
    return {t["tid"] for t in session.table("threads").to_pylist() if t["sched_complete"]}


def test_all_backends_tell_the_same(tmp_path: Path) -> None:
    """Three backends watch one run. Only their time stamps may differ, by the microseconds between their probes."""
    argv = [sys.executable, "-c", MIXED, str(tmp_path / "file")]
    whole: set[int] = set()
    for attempt in range(40):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        recorded = record(directory, argv, *BACKENDS)
        # A thread with a switch that fired no event counts as incomplete where that can't be restored.
        whole = set.intersection(*(complete(session) for _, session in recorded.values()))
        seen = [tid for tid in recorded["libbpf"][1].table("sched").column("tid").to_pylist() if tid in whole]
        if len(whole) >= 6 and len(seen) > 20 and not any(ebpf.report.lost_events for ebpf, _ in recorded.values()):
            break
    else:
        raise AssertionError({name: (ebpf.report.why, len(complete(s))) for name, (ebpf, s) in recorded.items()})
    sessions = {name: session for name, (_, session) in recorded.items()}
    times = ("off_ns", "wake_ns", "on_ns")
    sched = {
        name: [row for row in rows(s, "sched", ("tid", "off_ns"), times) if row[1] in whole]
        for name, s in sessions.items()
    }
    # A CPU that the hypervisor took away fires no event: libbpf alone learns of it, from the scheduler's run times.
    stolen = [row for row in sched["libbpf"] if row[2] == "R" and row[4] is not None and row[5] is None]
    sched["libbpf"] = [row for row in sched["libbpf"] if row not in stolen]
    assert len(sched["libbpf"]) > 15
    assert sched["libbpf"] == sched["bcc"] == sched["perf"]
    waits = {
        name: [row for row in rows(s, "waits", ("tid", "start_ns"), ("start_ns", "end_ns")) if row[1] in whole]
        for name, s in sessions.items()
    }
    assert len(waits["libbpf"]) > 3
    calls = {name: [row[:-2] for row in found] for name, found in waits.items()}
    assert calls["libbpf"] == calls["bcc"] == calls["perf"]
    # Where a timer wakes a thread that another one is just about to wake, a backend may call it either.
    wakers = [{row[-2:] for row in same} for same in zip(*waits.values(), strict=True)]
    assert all(len(told - {(None, None)}) <= 1 for told in wakers)
    assert sum(len(told) > 1 for told in wakers) <= len(wakers) / 20
    assert any((None, None) not in told for told in wakers)
    blocks, unseen = {}, 0
    for name, s in sessions.items():
        mine = s.table("block_io").filter(s.table("block_io")["in_target"])
        asked = [r for r in mine.to_pylist() if r["bytes"]]  # an empty flush is two requests in one to the kernel
        unseen += sum(r["complete_ns"] is None for r in asked)
        blocks[name] = Counter(
            (r["tid"], r["device"], r["sector"], r["bytes"], r["operation"], r["flags"]) for r in asked
        )
        assert {r["error"] for r in asked if r["complete_ns"]} <= {0}
    assert blocks["libbpf"].total() >= 20
    # Requests are joined by device and sector, so that of several open ones for a place only the last can be told.
    count = set if unseen else dict
    assert count(blocks["libbpf"]) == count(blocks["bcc"]) == count(blocks["perf"])
    threads = {
        name: {(t["pid"], t["tid"], t["name"]) for t in s.table("threads").to_pylist()} for name, s in sessions.items()
    }
    assert len(threads["libbpf"]) >= 9  # itself, 3 threads, 5 children
    assert threads["libbpf"] == threads["bcc"] == threads["perf"]
    assert complete(sessions["libbpf"]) == {tid for _, tid, _ in threads["libbpf"]}


def cpu_by_sched(session: Session, tid: int) -> int:
    """ns on a CPU: observed time less the intervals off it."""
    (thread,) = [t for t in session.table("threads").to_pylist() if t["tid"] == tid]
    assert thread["sched_complete"]
    off = [r for r in session.table("sched").to_pylist() if r["tid"] == tid]
    lost = sum((thread["end_ns"] if r["on_ns"] is None else r["on_ns"]) - r["off_ns"] for r in off)
    return int(thread["end_ns"] - thread["start_ns"] - lost)


BUSY = """
import signal, threading, time, sys
def spin(share):
    while True:
        end = time.thread_time() + share / 50
        while time.thread_time() < end: pass
        time.sleep((1 - share) / 50)
threading.Thread(target=spin, args=(.2,), daemon=True).start()
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
print("ready", flush=True)
spin(.4)
"""


def not_charged() -> int:
    """ns of interrupts and of CPUs taken away by the hypervisor, which schedstat doesn't charge to the thread."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()
    return sum(map(int, fields[6:9])) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


SHORT_RUNS = """
import os, sys, threading
ends = [os.pipe() for _ in range(2)]
done, end = threading.Barrier(3), threading.Event()
def pass_on(me):
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-me]})
    for _ in range(20_000):
        if me == 0: os.write(ends[0][1], b"x")
        os.read(ends[me - 1][0], 1)
        if me == 1: os.write(ends[1][1], b"x")
    done.wait()
    end.wait()
threads = [threading.Thread(target=pass_on, args=(me,)) for me in range(2)]
for t in threads: t.start()
done.wait()
os.sched_yield()
with open(sys.argv[1], "w") as file:
    for t in threads:
        print(t.native_id, open(f"/proc/self/task/{t.native_id}/schedstat").read().split()[0], file=file)
end.set()
"""


def test_cpu_time_of_short_runs_is_the_schedulers(tmp_path: Path) -> None:
    """20,000 runs of some 10 us of two threads, on a CPU each that idles between them: what the scheduler charges for a
    switch, from before its event, is a tenth of their CPU time."""
    recorded = record_whole(tmp_path, [sys.executable, "-c", SHORT_RUNS, str(tmp_path / "accounts")], "libbpf")
    ((_, session),) = recorded.values()
    for line in (tmp_path / "accounts").read_text().splitlines():
        tid, charged = map(int, line.split())
        assert session.table("sched").filter(pc.field("tid") == tid).num_rows > 10_000
        assert cpu_by_sched(session, tid) == pytest.approx(charged, rel=0.02)


@pytest.mark.parametrize("backend", BACKENDS)
def test_cpu_time_of_running_threads_is_the_schedulers(tmp_path: Path, backend: str) -> None:
    """Attached to a running process: threads that run, that mostly sleep, and that sleep from before to after."""
    target = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    made = collector(tmp_path, backend)
    try:
        assert target.stdout is not None
        assert target.stdout.readline() == b"ready\n"
        start_ns, elsewhere = time.monotonic_ns(), not_charged()
        made[0].start([target.pid])
        began = {tid: procfs.schedstat(target.pid, tid) for tid in procfs.threads(target.pid)}
        used = 0
        while used < 500_000_000:  # until the main thread has worked enough for 2 % to mean something
            now = procfs.schedstat(target.pid)
            first = began[target.pid]
            assert now is not None and first is not None
            used = now.cpu_ns - first.cpu_ns
            made[0].tick()
        session = finish(made, start_ns, time.monotonic_ns())
        threads = session.table("threads").to_pylist()
        assert len(threads) == 3
        elsewhere = not_charged() - elsewhere
        for thread in threads:
            if not thread["sched_complete"]:  # the kernel skipped a probe; the recording must say so, and does
                assert made[0].report.status == "partial"
                continue
            expected = thread["cpu_ns"]
            ticks = 20_000_000  # schedstat of a running thread is a tick behind, at either end
            slack = ticks if backend == "libbpf" else ticks + elsewhere
            assert abs(cpu_by_sched(session, thread["tid"]) - expected) <= 0.02 * expected + slack
        sleeper = max(threads, key=lambda t: -t["cpu_ns"])
        rows_of_it = [r for r in session.table("sched").to_pylist() if r["tid"] == sleeper["tid"]]
        if sleeper["sched_complete"]:
            assert [(r["state"], r["on_ns"], r["wake_ns"]) for r in rows_of_it] == [("S", None, None)]
    finally:
        made[0].stop()
        target.kill()
        target.wait()
        assert target.stdout is not None
        target.stdout.close()


GIL = """
import signal, threading, time
held = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: held.set())
print("look", flush=True)
held.wait()
end = time.monotonic() + .4
def spin():
    while time.monotonic() < end: sum(range(500))
workers = [threading.Thread(target=spin) for _ in range(4)]
for w in workers: w.start()
for w in workers: w.join()
lock = threading.Lock(); lock.acquire()
def blocked():
    with lock: pass
t = threading.Thread(target=blocked); t.start()
time.sleep(.3)
lock.release(); t.join()
"""


def test_gil_waits_are_told_from_lock_waits(tmp_path: Path) -> None:
    """Four threads share one GIL for 0.4 s: they sleep for nothing else. One waits 0.3 s for the main thread's lock."""
    ((_, session),) = record_whole(tmp_path, [sys.executable, "-c", GIL], "libbpf").values()
    waits = session.table("waits").to_pylist()
    threads = sorted(
        (t for t in session.table("threads").to_pylist() if t["tid"] != t["pid"]), key=lambda t: t["start_ns"]
    )
    workers, blocked = {t["tid"] for t in threads[:4]}, threads[4]["tid"]
    gil = sum(w["end_ns"] - w["start_ns"] for w in waits if w["kind"] == "gil" and w["tid"] in workers)
    off = [r for r in session.table("sched").to_pylist() if r["tid"] in workers and r["state"] == "S"]
    woken = [r["wake_ns"] or r["on_ns"] for r in off]  # some hosts hide a wake-up
    slept = sum(wake - r["off_ns"] for wake, r in zip(woken, off, strict=True))  # they have nothing else to wait for
    runnable = sum(r["on_ns"] - wake for wake, r in zip(woken, off, strict=True))
    assert slept > 0.2e9
    assert 0.98 * slept < gil < 1.05 * (slept + runnable)
    (longest,) = [w for w in waits if w["tid"] == blocked and w["end_ns"] - w["start_ns"] > 200_000_000]
    assert longest["kind"] == "futex"
    assert longest["result"] == 0
    assert longest["waker_tid"] == next(iter(session.table("processes").to_pylist()))["pid"]


SHORT_GIL = """
import threading, time
end = time.monotonic() + .02
def spin():
    while time.monotonic() < end: sum(range(200))
workers = [threading.Thread(target=spin) for _ in range(4)]
for w in workers: w.start()
for w in workers: w.join()
"""


@pytest.mark.parametrize("backend", ["libbpf", "perf"])
def test_gil_of_pythons_that_are_gone_before_a_look(tmp_path: Path, backend: str) -> None:
    """Nobody says that they started, or looks at them: they live some 40 ms, on a machine with four busy processes."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        script = f"{sys.executable} -c '{SHORT_GIL}'; " * 5 + "true"
        ((ebpf, session),) = record(tmp_path, ["sh", "-c", script], backend).values()
    finally:
        for process in busy:
            process.kill()
            process.wait()
    waits = session.table("waits").to_pylist()
    by_gil = Counter(w["pid"] for w in waits if w["kind"] == "gil")
    # A child per program; each has three threads in line for its GIL at any time.
    pythons = {p["pid"] for p in session.table("processes").to_pylist() if str(p["name"]).startswith("python")}
    assert len(pythons) == 5
    assert by_gil.keys() == pythons
    assert not [note for note in ebpf.report.notes if "unknown" in note]


def test_every_birth_and_death_is_seen(tmp_path: Path) -> None:
    script = "for i in 1 2 3 4 5 6 7 8; do (true; true) & done; wait"
    ((ebpf, session),) = record_whole(tmp_path, ["sh", "-c", script], "libbpf").values()
    processes = session.table("processes").to_pylist()
    assert len(processes) == 9
    (root,) = [p for p in processes if p["name"] == "sh" and p["ppid"] is None]
    for child in processes:
        if child is not root:
            assert child["ppid"] == root["pid"]
            assert root["start_ns"] < child["start_ns"] < child["end_ns"] < root["end_ns"]
    newborn = session.table("sched").filter(pc.equal(session.table("sched")["state"], "N"))
    assert newborn.num_rows == 8
    assert ebpf.report.lost_events == 0


def test_nothing_is_lost_at_full_switch_rate(tmp_path: Path) -> None:
    """Each operation of the benchmark is two switches: 200,000 of them, on one CPU so that each really happens."""
    argv = ["taskset", "-c", "0", "perf", "bench", "sched", "pipe", "-l", "100000"]
    ((ebpf, session),) = record_whole(tmp_path, argv, "libbpf").values()
    assert ebpf.report.lost_events == 0
    assert session.table("sched").num_rows >= 200_000


def whole_disk_of(path: Path) -> str:
    device = path.stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    return block.parent.name if (block / "partition").exists() else block.name


def diskstats(name: str) -> tuple[int, int]:
    """Read requests completed and sectors read."""
    for line in Path("/proc/diskstats").read_text().splitlines():
        fields = line.split()
        if fields[2] == name:
            return int(fields[3]), int(fields[5])
    raise AssertionError(name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_block_totals_are_those_of_diskstats(tmp_path: Path, backend: str) -> None:
    # A completion that interrupts a thread whose events the host hides goes unseen; its request then stays open.
    # How many do is the host's doing, so that one try of three must have next to none.
    with no_cpu_idles():
        assert any(open_requests(tmp_path / str(n), backend) <= 2 for n in range(3))


def open_requests(tmp_path: Path, backend: str) -> int:
    """Reads 256 blocks, proves what was recorded of them, and returns how many were not seen to complete."""
    tmp_path.mkdir()
    disk = whole_disk_of(tmp_path)
    file = tmp_path / "data"
    file.write_bytes(os.urandom(4 << 20))
    fd = os.open(file, os.O_RDONLY | os.O_DIRECT)
    os.fsync(fd)
    made = collector(tmp_path, backend)
    try:
        made[0].start([])
        start_ns = time.monotonic_ns()
        before = diskstats(disk)
        buffer = mmap.mmap(-1, 16384)
        for offset in range(0, 4 << 20, 16384):
            assert os.preadv(fd, [buffer], offset) == 16384
        after = diskstats(disk)
        session = finish(made, start_ns, time.monotonic_ns())
    finally:
        made[0].stop()
        os.close(fd)
    reads = [r for r in session.table("block_io").to_pylist() if r["operation"] == "read" and r["device"] == disk]
    mine = [r for r in reads if r["pid"] == os.getpid() and r["flags"] in ("R", "RS")]  # not readahead
    assert sum(r["bytes"] for r in mine) == 4 << 20
    done = [r for r in mine if r["complete_ns"] is not None]
    assert all(r["start_ns"] <= r["issue_ns"] <= r["complete_ns"] and r["error"] == 0 for r in done)
    # Others may read too: between the two looks at diskstats at least ours were counted, at most all recorded.
    assert len(mine) <= after[0] - before[0] <= len(reads)
    assert 8192 <= after[1] - before[1] <= sum(r["bytes"] for r in reads) // 512
    return len(mine) - len(done)


def programs_of(pid: int) -> set[int]:
    """Ids of the BPF programs that a process holds."""
    ids = set()
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        ids |= {int(line.split()[1]) for line in info.read_text().splitlines() if line.startswith("prog_id:")}
    return ids


def is_loaded(program: int) -> bool:
    """Whether the kernel has a BPF program of that id, by bpf(2)."""
    libc, number = ctypes.CDLL(None, use_errno=True), {"x86_64": 321, "aarch64": 280}[os.uname().machine]
    attr = (ctypes.c_uint32 * 32)(program)
    fd = libc.syscall(number, 13, attr, 128)  # BPF_PROG_GET_FD_BY_ID
    if fd >= 0:
        os.close(fd)
    return bool(fd >= 0)


ATTACHED = """
import os, sys
from pathlib import Path
from perfscope.collectors.base import Context
from perfscope.options import Options
from perfscope.collectors.ebpf import EbpfCollector
context = Context(Path(sys.argv[1]), Options(ebpf_backend="libbpf"), lambda k, a: None)
EbpfCollector(context).start([os.getppid()])
print("attached", flush=True)
os.read(0, 1)
"""


def wait_until(condition: Callable[[], bool]) -> None:
    """The kernel frees programs a grace period after their last descriptor closed; pytest's timeout is the limit."""
    while not condition():
        os.sched_yield()


def test_nothing_stays_attached_after_kill_9(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", ATTACHED, str(tmp_path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"attached\n"
        programs = programs_of(child.pid)
        assert len(programs) >= 9
        assert all(map(is_loaded, programs))
        child.kill()
    wait_until(lambda: not any(map(is_loaded, programs)))


def test_works_without_tracefs_and_doctor_names_the_mount(tmp_path: Path) -> None:
    """In a mount namespace of its own without tracefs: libbpf records all the same, perf says what it needs."""
    script = f"""
import os, sys
from pathlib import Path
from perfscope.collectors.base import Context
from perfscope.options import Options
from perfscope.collectors.ebpf import EbpfCollector
rows = {{c.what.split()[-1] if c.what == "tracefs" else c.what: c for c in EbpfCollector.check(Options())}}
assert rows["tracefs"].fix == "mount -t tracefs nodev /sys/kernel/tracing", rows
assert rows["backend libbpf (CO-RE)"].state == "ok", rows
for backend in ("perf", "libbpf"):
    c = EbpfCollector(Context(Path({str(tmp_path)!r}) / backend, Options(ebpf_backend=backend), lambda k, a: None))
    try:
        c.start([os.getppid()])
        print(backend, "started")
    except Exception as error:
        print(backend, error.hint)
    c.stop()
"""
    unmount = 'umount /sys/kernel/tracing; umount -l /sys/kernel/debug 2>/dev/null; exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", unmount, "sh", sys.executable, "-c", script], capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["perf mount -t tracefs nodev /sys/kernel/tracing", "libbpf started"], (
        done.stderr
    )


def test_auto_says_why_it_fell_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfscope.collectors.ebpf.backend_libbpf.BTF", tmp_path / "nothing")
    from perfscope.collectors.ebpf.backend_libbpf import kernel_has

    kernel_has.cache_clear()
    made = collector(tmp_path, "auto")
    made[0].start([])
    session = finish(made, time.monotonic_ns(), time.monotonic_ns() + 1)
    kernel_has.cache_clear()
    assert session.table("sched").schema.names[0] == "pid"
    assert str(made[0].report.version).startswith("bcc")
    assert any("libbpf can't run here" in note for note in made[0].report.notes)


def test_shipped_objects_are_what_the_source_gives(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "probes" / "bpf"
    subprocess.run(["make", "-s", "-B", "-C", str(source), f"OUT={tmp_path}"], check=True)
    for name in ("perfscope.bpf.o", "generic.bpf.o", "python.bpf.o"):
        assert (tmp_path / name).read_bytes() == (source / name).read_bytes(), f"make -C probes/bpf rebuilds {name}"

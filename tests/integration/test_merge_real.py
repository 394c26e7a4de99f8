"""The merge on a real recording of a program that knows what each of its threads was doing, and when."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.merge import ThreadSlices, build_tree, slices_of
from perfscope.merge.slices import GIL, LOCK, RUNNABLE, RUNNING, SLEEP
from perfscope.model.session import Session

PROGRAM = """
import ctypes, json, sys, threading, time, queue

now = time.monotonic_ns
hold_gil = ctypes.PyDLL(None).usleep          # PyDLL keeps the GIL during the call
said = {"gil": [], "lock": [], "idle": [], "burn": [], "tids": {}}
lock, work = threading.Lock(), queue.Queue()
go, inside = threading.Event(), threading.Event()

def wants_gil():
    said["tids"]["wants-gil"] = threading.get_native_id()
    while not go.is_set():
        pass

def wants_lock():
    said["tids"]["wants-lock"] = threading.get_native_id()
    inside.set()
    start = now()
    with lock:
        said["lock"].append([start, now()])

def waits_for_work():
    said["tids"]["waits-for-work"] = threading.get_native_id()
    start = now()
    work.get()
    said["idle"].append([start, now()])

def not_ours():
    with open("/proc/stat") as stat:           # irq, softirq, steal: in clock ticks of 10 ms
        return sum(map(int, stat.readline().split()[6:9])) * 10_000_000

def burns():
    said["tids"]["burns"] = threading.get_native_id()
    start, cpu, other = now(), time.thread_time_ns(), not_ours()
    while time.thread_time_ns() - cpu < 600_000_000:
        pass
    said["burn"].append([start, now(), time.thread_time_ns() - cpu, not_ours() - other])

gil = threading.Thread(target=wants_gil, name="wants-gil"); gil.start()
for _ in range(3):
    time.sleep(0.2)
    start = now()
    hold_gil(400_000)
    said["gil"].append([start, now()])
go.set(); gil.join()
idle = threading.Thread(target=waits_for_work, name="waits-for-work"); idle.start()
with lock:
    locked = threading.Thread(target=wants_lock, name="wants-lock"); locked.start()
    inside.wait()
    time.sleep(1.5)
locked.join()
burn = threading.Thread(target=burns, name="burns"); burn.start(); burn.join()
work.put(None); idle.join()
with open(sys.argv[1], "w") as file:
    json.dump(said, file)
"""


class Recorded:
    def __init__(self, session: Session, said: dict[str, Any]) -> None:
        self.session = session
        self.said = said
        by_tid = {s.tid: s for s in slices_of(session)}
        self.slices = {name: by_tid[tid] for name, tid in said["tids"].items()}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    where = tmp_path_factory.mktemp("merge")
    (where / "known.py").write_text(PROGRAM)
    said = where / "said.json"
    record = [sys.executable, "-m", "perfscope", "record", "-o", str(where / "known.perfscope")]
    subprocess.run(
        [*record, "--collect", "ebpf,pyspy", "--", sys.executable, str(where / "known.py"), str(said)],
        check=True,
        timeout=120,
    )
    yield Recorded(Session.open(where / "known.perfscope"), json.loads(Path(said).read_text()))


def within(slices: ThreadSlices, start: int, end: int) -> dict[int, int]:
    """State -> ns of a thread in [start, end)."""
    inside = np.maximum(0, np.minimum(slices.end_ns, end) - np.maximum(slices.start_ns, start))
    return {int(s): int(inside[slices.state == s].sum()) for s in np.unique(slices.state)}


def test_waits_for_the_gil_are_where_the_program_held_it(recorded: Recorded) -> None:
    slices = recorded.slices["wants-gil"]
    for start, end in recorded.said["gil"]:
        found = within(slices, start, end)
        # The wait is renewed every 5 ms; each renewal takes a CPU for a moment, for which it may have to queue.
        assert sum(found.values()) == end - start
        assert found[GIL] + found.get(RUNNABLE, 0) + found[RUNNING] > 0.99 * (end - start)
        assert found[RUNNING] < 0.1 * (end - start)
    # Between them it had the GIL, but for the moments in which the main thread woke, started and stopped.
    known = sum(within(slices, start, end)[GIL] for start, end in recorded.said["gil"])
    assert within(slices, 0, 2**62)[GIL] < 1.1 * known


def test_a_wait_for_a_lock(recorded: Recorded) -> None:
    ((start, end),) = recorded.said["lock"]
    found = within(recorded.slices["wants-lock"], start, end)
    assert found[LOCK] + found.get(RUNNABLE, 0) + found.get(GIL, 0) > 0.97 * (end - start)
    assert found[LOCK] > 1_000_000_000


def test_a_wait_for_work_is_sleep(recorded: Recorded) -> None:
    ((start, end),) = recorded.said["idle"]
    found = within(recorded.slices["waits-for-work"], start, end)
    assert found[SLEEP] > 400_000_000
    assert found.get(LOCK, 0) < 0.01 * (end - start)


def test_time_on_a_cpu_agrees_with_the_kernels_own_count(recorded: Recorded) -> None:
    """The kernel takes interrupts and what the hypervisor stole off a thread's count, where it is built to; the
    scheduler's events don't tell: so much more is right, on a busy machine."""
    ((start, end, cpu, interrupted),) = recorded.said["burn"]
    running = within(recorded.slices["burns"], start, end)[RUNNING]
    a_tick_of_each = 3 * 10_000_000
    assert 0.98 * cpu < running < 1.02 * cpu + interrupted + a_tick_of_each


def test_the_stack_of_the_burning_thread(recorded: Recorded) -> None:
    tree = build_tree(recorded.session, thread=str(recorded.said["tids"]["burns"]))
    labels = np.array([f >= 0 and tree.frames[f].label == "burns" for f in tree.frame.tolist()])
    assert int(tree.weights["cpu"][labels].sum()) > 0.8 * recorded.said["burn"][0][2]


def test_conserved(recorded: Recorded) -> None:
    tree = build_tree(recorded.session)
    threads = recorded.session.table("threads").to_pylist()
    assert int(tree.weights["wall"].sum()) == sum(t["end_ns"] - t["start_ns"] for t in threads)
    if all(t["sched_complete"] for t in threads):
        assert (tree.weights["wall"] == tree.weights["cpu"] + tree.weights["off-cpu"]).all()

"""The program that `doctor --clock` records: it marks known instants, on CLOCK_MONOTONIC, in its directory.

Runs as a script of its own: clock_marks.py DIRECTORY [JAVA]. It writes, as JSON lines [tid, before_ns, after_ns]:

sleeps     around sleeps, each one leaving the CPU and coming back
writes     around direct block writes (absent where the file system has none)
parks      around parks of a Java thread (if JAVA, the path of a java launcher, is given)
spinners   [pid, 0, 0] of each Python process that spins through functions named after the time
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

QUANTUM_NS = 500_000
"""How long each time-named function runs: so short that a sample tells the time, so long that few samples are torn."""
FUNCTIONS = 1000
"""Time-named functions; after all of them (500 ms) the names begin again."""
ROUNDS, SPINNERS = 4, 2
"""Spinning processes: one sampler, and so one clock anchor, each."""
SPINNER_S = 1.6
_BURST_S = 0.02


def time_functions() -> list[Callable[[int], None]]:
    """Functions clock_0, clock_1, ...: each runs until the time it is given."""
    space: dict[str, Callable[[int], None]] = {}
    source = "def clock_{0}(end):\n    while monotonic_ns() < end:\n        pass\n"
    exec("from time import monotonic_ns\n" + "".join(source.format(i) for i in range(FUNCTIONS)), space)
    return [space[f"clock_{i}"] for i in range(FUNCTIONS)]


def spin(seconds: float) -> None:
    """Spins and sleeps by turns; while it spins, the running function's name is the time."""
    functions = time_functions()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        burst_end = time.monotonic_ns() + int(_BURST_S * 1e9)
        while (now := time.monotonic_ns()) < burst_end:
            quantum = now // QUANTUM_NS
            functions[quantum % FUNCTIONS]((quantum + 1) * QUANTUM_NS)
        time.sleep(_BURST_S)


def _mark_sleeps(path: Path, stop: threading.Event) -> None:
    tid = threading.get_native_id()
    marks = []
    while not stop.is_set():
        before = time.monotonic_ns()
        time.sleep(0.002)
        marks.append([tid, before, time.monotonic_ns()])
    _save(path, marks)


def _mark_writes(path: Path, scratch: Path, stop: threading.Event) -> None:
    tid = threading.get_native_id()
    marks = []
    block = mmap.mmap(-1, 4096)
    try:
        file = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    except OSError:  # a file system in memory
        return
    while not stop.wait(0.02):
        before = time.monotonic_ns()
        os.pwrite(file, block, 0)
        marks.append([tid, before, time.monotonic_ns()])
    os.close(file)
    _save(path, marks)


def _save(path: Path, marks: list[list[int]]) -> None:
    path.write_text("".join(json.dumps(mark) + "\n" for mark in marks))


def main(directory: Path, java: str | None) -> None:
    """Marks for about ROUNDS * SPINNER_S seconds."""
    stop = threading.Event()
    threads = [
        threading.Thread(target=_mark_sleeps, args=(directory / "sleeps", stop)),
        threading.Thread(target=_mark_writes, args=(directory / "writes", directory / "scratch", stop)),
    ]
    for thread in threads:
        thread.start()
    source = Path(__file__).with_name("ClockMarks.java")
    jvm = subprocess.Popen([java, str(source), str(directory / "parks")]) if java else None
    spinners = []
    for _ in range(ROUNDS):
        processes = [
            subprocess.Popen([sys.executable, "-S", __file__, "spin"], stdin=subprocess.DEVNULL)
            for _ in range(SPINNERS)
        ]
        spinners += [[process.pid, 0, 0] for process in processes]
        for process in processes:
            process.wait()
    _save(directory / "spinners", spinners)
    if jvm:
        jvm.wait()
    stop.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    if sys.argv[1] == "spin":
        spin(SPINNER_S)
    else:
        main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)

"""What reading Python stacks by BPF costs: `python benchmarks/stack_cost.py [OPERATIONS]`, as root.

Interleaved runs of `perf bench sched pipe` (two switches an operation) on one CPU, without and with the programs
attached: what they cost those that nobody follows. Then the time of a look, as the programs count it, at threads that
sleep for a millisecond each time, below so many frames.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ebpf_cost import bench

from perfscope.collectors.pyspy.kernel import Kernel

ROUNDS = 5
DEPTHS = 5, 20, 80
SECONDS = 3.0
SLEEPER = """
import sys, time
def below(frames): below(frames - 1) if frames else sleep()
def sleep():
    print(flush=True)
    while True: time.sleep(0.001)
below(int(sys.argv[1]) - 3)
"""


def attached(operations: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        kernel = Kernel(Path(folder), 100)
        time_us = bench(operations)
        kernel.stop()
    return time_us


def look(depth: int) -> tuple[float, float]:
    """Microseconds a look at a stack so deep takes, and looks a second."""
    argv = [sys.executable, "-c", SLEEPER, str(depth)]
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(argv, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        kernel = Kernel(Path(folder), 100)
        kernel.follow(program.pid)
        began = time.monotonic()
        time.sleep(SECONDS)
        kernel.stop()
        seconds = time.monotonic() - began
        program.kill()
        (followed,) = kernel.followed[program.pid]
    return float(followed.spent_ns / 1e3 / max(followed.looks, 1)), float(followed.looks / seconds)


def main() -> None:
    operations = int(sys.argv[1]) if len(sys.argv) > 1 else 300_000
    plain, beside = [], []
    for _ in range(ROUNDS):
        plain.append(bench(operations))
        beside.append(attached(operations))
    without, with_it = statistics.median(plain), statistics.median(beside)
    print(f"not followed: {without:.2f} us/op without, {with_it:.2f} with ({with_it / without:.3f}x)")
    for depth in DEPTHS:
        times, rates = zip(*(look(depth) for _ in range(ROUNDS)), strict=True)
        print(
            f"{depth} frames: {statistics.median(times):.2f} us a look, {statistics.median(rates):.0f} looks a second"
        )


if __name__ == "__main__":
    main()

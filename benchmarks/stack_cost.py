"""What a look at a Python stack by BPF costs the thread: `python benchmarks/stack_cost.py`, as root.

Threads sleep for a millisecond each time, below so many frames. Prints medians of interleaved runs: the time of a look,
as the programs count it, and how many there are.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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


def look(depth: int) -> tuple[float, float]:
    """Microseconds that a look at a stack so deep takes, and looks a second."""
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
    return kernel.spent_ns / 1e3 / max(kernel.looks, 1), kernel.looks / seconds


def main() -> None:
    found: dict[int, list[tuple[float, float]]] = {depth: [] for depth in DEPTHS}
    for _ in range(ROUNDS):
        for depth, results in found.items():
            results.append(look(depth))
    for depth, results in found.items():
        time_us, rate = (statistics.median(column) for column in zip(*results, strict=True))
        print(f"{depth} frames: {time_us:.2f} us a look, {rate:.0f} looks a second")


if __name__ == "__main__":
    main()

"""What each backend of the eBPF collector costs: `python benchmarks/ebpf_cost.py [OPERATIONS]`, as root.

Interleaved runs of `perf bench sched pipe` (two switches an operation) on one CPU, without and with each backend.
Prints medians: microseconds an operation, own CPU time a record, records and losses. The added time an operation is
what the probes cost the target; the own time is what draining costs perfscope. "stacks": the programs that read Python
stacks, of which none is there: what they cost all other programs.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from perfscope.collectors.base import Context
from perfscope.collectors.ebpf import EbpfCollector
from perfscope.collectors.pyspy.kernel import Kernel
from perfscope.model.session_writer import SessionWriter
from perfscope.options import Options

ROUNDS = 3


def bench(operations: int) -> float:
    """Microseconds an operation."""
    command = ["taskset", "-c", "0", "perf", "bench", "sched", "pipe", "-l", str(operations)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"([\d.]+) usecs/op", out)
    if found is None:
        raise SystemExit("perf bench said nothing")
    return float(found[1])


def recorded(backend: str, operations: int) -> tuple[float, float, int, int]:
    """Microseconds an operation, own nanoseconds a record, records, losses. It follows this process's children."""
    with tempfile.TemporaryDirectory() as directory:
        writer = SessionWriter(Path(directory) / "cost.perfscope")
        ebpf = EbpfCollector(Context(writer.raw / "ebpf", Options(ebpf_backend=backend), lambda key, argv: None))
        ebpf.start([os.getpid()])
        began = ebpf._cpu_ns
        time_us = bench(operations)
        ebpf.stop()
        own = ebpf._cpu_ns - began
        ebpf.read(writer, 0, 1 << 62)
        events = ebpf.report.events or 0
        return time_us, own / max(events, 1), events, ebpf.report.lost_events or 0


def beside_stacks(operations: int) -> float:
    """Microseconds an operation."""
    with tempfile.TemporaryDirectory() as directory:
        kernel = Kernel(Path(directory), 100)
        time_us = bench(operations)
        kernel.stop()
    return time_us


def main() -> None:
    operations = int(sys.argv[1]) if len(sys.argv) > 1 else 300_000
    plain: list[float] = []
    stacks: list[float] = []
    runs: dict[str, list[tuple[float, float, int, int]]] = {"libbpf": [], "bcc": [], "perf": []}
    for _ in range(ROUNDS):
        plain.append(bench(operations))
        stacks.append(beside_stacks(operations))
        for backend, results in runs.items():
            results.append(recorded(backend, operations))
    base = statistics.median(plain)
    print(f"without: {base:.2f} us/op")
    print(f"stacks: {statistics.median(stacks):.2f} us/op ({statistics.median(stacks) / base:.2f}x)")
    for backend, results in runs.items():
        time_us, own, events, lost = (statistics.median(column) for column in zip(*results, strict=True))
        print(
            f"{backend}: {time_us:.2f} us/op ({time_us / base:.2f}x), own {own:.0f} ns each, {events:.0f}, {lost} lost"
        )


if __name__ == "__main__":
    main()

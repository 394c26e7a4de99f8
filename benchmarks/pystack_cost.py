"""What reading a thread's own Python stack by the CUDA probe costs it, by depth: python benchmarks/pystack_cost.py

Compiles the reader (needs cc), calls it again and again from the same stack, and takes the cost of calling an empty
function of the same library off. Prints nanoseconds a walk, the median of seven rounds.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from perfscope import probes

CALLS = 50_000


def cost_ns(function: Callable[[], int]) -> float:
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        function()
    return (time.perf_counter_ns() - start) / CALLS


def deeper(frames: int, measure: Callable[[], float]) -> float:
    return measure() if frames <= 1 else deeper(frames - 1, measure)


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        library = Path(place) / "pystack.so"
        sources = [str(probes.path("cuda", name)) for name in ("pystack.c", "spool.c")]
        subprocess.run(["cc", "-O2", "-fPIC", "-shared", "-o", str(library), *sources, "-lpthread"], check=True)
        probe = ctypes.CDLL(str(library))
        why = ctypes.c_char_p()
        probe.spool_open(place.encode(), ctypes.c_uint64(1 << 24))
        if not probe.pystack_open(ctypes.byref(why)):
            raise SystemExit(f"no stacks here: {why.value!r}")
        for depth in (10, 40):
            rounds = [
                deeper(depth - 4, lambda: cost_ns(probe.pystack_id) - cost_ns(probe.spool_header)) for _ in range(7)
            ]
            print(json.dumps({"depth": depth, "ns_a_walk": round(statistics.median(rounds))}))


if __name__ == "__main__":
    main()

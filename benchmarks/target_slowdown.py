"""What recording costs the target: its throughput with everything on at 100 Hz, over that without.

    python benchmarks/target_slowdown.py [--pairs N] [--seconds S] [--target stack|threads] [RECORD OPTIONS ...]

One target runs throughout. Windows with and without a recording alternate, and each pair of neighbours gives one
ratio, so that a machine that slows down or speeds up meanwhile moves both. The median ratio and all pairs are printed,
with what each recording's collectors said: a ratio near 1 means nothing if a collector wasn't there.

stack: the example service, behind the Java gateway where there is a JDK; requests a second under four closed-loop
clients that run on the same machine. threads: 40 Python threads, four of which compute and 36 wait with timeouts;
chunks of work a second.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import perfscope.examples
from perfscope.examples import load

SETTLE_SECONDS = 3.0
"""From the recording's start until its window begins: py-spy and JFR attach in it."""


@dataclass(frozen=True)
class Target:
    """What is measured. rate(seconds, window) runs it for so long and returns work done a second."""

    pids: list[int]
    rate: Callable[[float, int], float]


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        sys.exit(f"{process.args!r} did not start")
    return line


@contextmanager
def child(*argv: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def stack() -> Iterator[Target]:
    with ExitStack() as running:
        service = running.enter_context(child(sys.executable, "-m", "perfscope.examples.service"))
        url, pids = first_line(service), [service.pid]
        java = shutil.which("java")
        if java and shutil.which("javac"):
            source = Path(perfscope.examples.__file__).parent / "gateway" / "Gateway.java"
            gateway = running.enter_context(child(java, str(source), url))
            url = first_line(gateway)
            pids.append(gateway.pid)

        def rate(seconds: float, window: int) -> float:
            # Other requests in each window: the gateway would answer the same ones from its cache.
            result = load.run(url, seconds, clients=4, max_tokens=16, seed=window)
            if result.failures:
                sys.exit(f"{result.failures} requests failed")
            return len(result.latencies_ms) / result.seconds

        yield Target(pids, rate)


@contextmanager
def threads() -> Iterator[Target]:
    with child(sys.executable, __file__, "--be-the-threads") as process:

        def rate(seconds: float, window: int) -> float:
            assert process.stdin is not None
            print(seconds, file=process.stdin, flush=True)
            return float(first_line(process))

        yield Target([process.pid], rate)


def be_the_threads() -> None:
    """The 40-thread program: a number of seconds in on stdin, chunks of work a second out."""
    counts = [0] * 4
    never = threading.Event()

    def compute(index: int) -> None:
        while True:
            sum(number * number for number in range(2_000))
            counts[index] += 1

    def wait() -> None:
        while not never.wait(0.1):
            pass

    for number in range(40):
        work = (compute, (number,)) if number < len(counts) else (wait, ())
        threading.Thread(target=work[0], args=work[1], daemon=True).start()
    for line in sys.stdin:
        before, begin = sum(counts), time.monotonic()
        time.sleep(float(line))
        print((sum(counts) - before) / (time.monotonic() - begin), flush=True)


@contextmanager
def recording(pids: list[int], options: list[str], reports: list[dict[str, Any]]) -> Iterator[None]:
    """perfscope record on the target for as long as the block runs; what its collectors said goes to `reports`."""
    with tempfile.TemporaryDirectory() as folder:
        session = Path(folder) / "slowdown.perfscope"
        attach = [part for pid in pids for part in ("-p", str(pid))]
        argv = [sys.executable, "-m", "perfscope", "record", "-o", str(session), *options, *attach]
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if "recording" in line:
                    break
            time.sleep(SETTLE_SECONDS)
            yield
            process.send_signal(signal.SIGINT)
            process.stderr.read()
            process.wait()
        info = json.loads((session / "session.json").read_text())
        seconds = (info["stop_ns"] - info["start_ns"]) / 1e9
        own = info["own_cpu_ns"]
        reports.append(
            {
                "own_cpu_pct_of_one_core": None if own is None else round(own / 1e7 / seconds, 2),
                "collectors": {
                    name: {key: report[key] for key in ("status", "events", "lost_events")}
                    for name, report in info["collectors"].items()
                },
            }
        )


def measure(target: Target, pairs: int, seconds: float, options: list[str]) -> dict[str, Any]:
    """Runs the pairs. Ratios are throughput recorded / throughput alone."""
    target.rate(min(seconds, 3.0), -1)
    reports: list[dict[str, Any]] = []
    rows = []
    for pair in range(pairs):
        rates: dict[bool, float] = {}
        for on in (pair % 2 == 0, pair % 2 == 1):
            if on:
                with recording(target.pids, options, reports):
                    rates[on] = target.rate(seconds, 2 * pair + 1)
            else:
                rates[on] = target.rate(seconds, 2 * pair)
        rows.append({"alone": rates[False], "recorded": rates[True], "ratio": rates[True] / rates[False]})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    ratios = [row["ratio"] for row in rows]
    return {
        "median_ratio": round(statistics.median(ratios), 4),
        "min_ratio": round(min(ratios), 4),
        "max_ratio": round(max(ratios), 4),
        "median_alone_per_second": round(statistics.median(row["alone"] for row in rows), 2),
        "pairs": pairs,
        "seconds_per_window": seconds,
        "last_recording": reports[-1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--target", choices=["stack", "threads"], action="append")
    parser.add_argument("--be-the-threads", action="store_true", help=argparse.SUPPRESS)
    arguments, options = parser.parse_known_args()
    if arguments.be_the_threads:
        be_the_threads()
        return
    for name in arguments.target or ["stack", "threads"]:
        with {"stack": stack, "threads": threads}[name]() as target:
            print(
                json.dumps({"target": name, **measure(target, arguments.pairs, arguments.seconds, options)}, indent=1)
            )


if __name__ == "__main__":
    main()

"""What recording costs the target: its throughput with everything on at 100 Hz, over that without.

    python benchmarks/target_slowdown.py [--rounds N] [--seconds S] [--target NAME] [--clients N] [RECORD OPTIONS ...]

One target works throughout. Windows without and with a recording alternate, and each recorded one is held against the
mean of its two neighbours, so that a machine that slows down or speeds up meanwhile moves both. Between windows the
recording starts and stops, and the target settles: a JVM compiles anew what JFR's start and end have changed. What
that costs is told apart, as the same ratio from the start of `perfscope record` to the end of its window. The control
is what the neighbours say of each other: how far two windows without any recording differ. Medians are printed with
their 95 % intervals (bootstrap), and with what the last recording's collectors said: a ratio near 1 means nothing if a
collector wasn't there.

stack: the example service, behind the Java gateway where there is a JDK; requests a second under closed-loop clients
that run on the same machine: four, as the demo has, while eight keep the batches of both its workers full. service: the
same without the gateway. threads: 40 Python threads, four of which compute and 36 wait with timeouts; chunks of work a
second.
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
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import perfscope.examples
from perfscope.examples import load

SETTLE_SECONDS = 2.5
"""After a recording has begun or ended, ahead of the next window."""
WARM_UP_SECONDS = 20.0
"""Until the JVM has compiled most of the gateway."""
FOREVER = 1e9


@dataclass(frozen=True)
class Target:
    """What is measured. done() is the work it has done so far."""

    pids: list[int]
    done: Callable[[], float]


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
def stack(clients: int, *, behind_gateway: bool = True) -> Iterator[Target]:
    with ExitStack() as running:
        service = running.enter_context(child(sys.executable, "-m", "perfscope.examples.service"))
        url, pids = first_line(service), [service.pid]
        java = shutil.which("java")
        if behind_gateway and java and shutil.which("javac"):
            source = Path(perfscope.examples.__file__).parent / "gateway" / "Gateway.java"
            gateway = running.enter_context(child(java, str(source), url))
            url = first_line(gateway)
            pids.append(gateway.pid)
        result, stop = load.Result(), threading.Event()
        loading = threading.Thread(
            target=load.run, args=(url, FOREVER, clients, 16), kwargs={"stop": stop, "result": result}
        )
        loading.start()
        running.callback(loading.join)
        running.callback(stop.set)

        def done() -> float:
            if result.failures:
                sys.exit(f"{result.failures} requests failed")
            return len(result.latencies_ms)

        yield Target(pids, done)


@contextmanager
def threads(_: int) -> Iterator[Target]:
    with child(sys.executable, __file__, "--be-the-threads") as process:

        def done() -> float:
            assert process.stdin is not None
            print(file=process.stdin, flush=True)
            return float(first_line(process))

        yield Target([process.pid], done)


def be_the_threads() -> None:
    """The 40-thread program: a line in on stdin, chunks of work so far out."""
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
    for _ in sys.stdin:
        print(sum(counts), flush=True)


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


def interval(values: list[float]) -> dict[str, float]:
    """Median, and the 95 % interval of the median over 10,000 draws with replacement."""
    draws = np.median(np.random.default_rng(0).choice(values, (10_000, len(values))), axis=1)
    low, high = np.percentile(draws, (2.5, 97.5))
    return {"median": round(float(np.median(values)), 4), "low": round(float(low), 4), "high": round(float(high), 4)}


def measure(target: Target, rounds: int, seconds: float, options: list[str]) -> dict[str, Any]:
    """Runs the windows. Ratios are throughput recorded / throughput alone; control: alone / alone before."""
    reports: list[dict[str, Any]] = []

    def since(then: tuple[float, float]) -> float:
        return (target.done() - then[0]) / (time.monotonic() - then[1])

    def now() -> tuple[float, float]:
        return target.done(), time.monotonic()

    def window() -> float:
        time.sleep(SETTLE_SECONDS)
        begin = now()
        time.sleep(seconds)
        return since(begin)

    time.sleep(WARM_UP_SECONDS)
    alone, recorded, whole = [window()], [], []
    for _ in range(rounds):
        begin = now()
        with recording(target.pids, options, reports):
            recorded.append(window())
            whole.append(since(begin))
        alone.append(window())
        told = {"alone": alone[-2:], "recorded": recorded[-1], "with_start": whole[-1]}
        print(json.dumps(told), file=sys.stderr, flush=True)
    beside = [(before + after) / 2 for before, after in pairwise(alone)]
    return {
        "ratio": interval([on / off for on, off in zip(recorded, beside, strict=True)]),
        "ratio_with_start": interval([on / off for on, off in zip(whole, beside, strict=True)]),
        "control": interval([after / before for before, after in pairwise(alone)]),
        "alone_per_second": round(statistics.median(alone), 2),
        "rounds": rounds,
        "seconds_per_window": seconds,
        "own_cpu_pct_of_one_core": statistics.median(report["own_cpu_pct_of_one_core"] for report in reports),
        "last_recording": reports[-1],
    }


TARGETS: dict[str, Callable[[int], AbstractContextManager[Target]]] = {
    "stack": stack,
    "service": partial(stack, behind_gateway=False),
    "threads": threads,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--target", choices=TARGETS, action="append")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--be-the-threads", action="store_true", help=argparse.SUPPRESS)
    arguments, options = parser.parse_known_args()
    if arguments.be_the_threads:
        be_the_threads()
        return
    for name in arguments.target or TARGETS:
        with TARGETS[name](arguments.clients) as target:
            measured = measure(target, arguments.rounds, arguments.seconds, options)
            print(json.dumps({"target": name, **measured}, indent=1), flush=True)


if __name__ == "__main__":
    main()

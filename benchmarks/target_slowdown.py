"""What recording costs the target: its throughput with everything on at 100 Hz, over that without.

    python benchmarks/target_slowdown.py [--rounds N] [--seconds S] [--target NAME] [--clients N] [RECORD OPTIONS ...]

One target works throughout. Windows without and with a recording alternate, and each recorded one is held against the
mean of its two neighbours, so that a machine that slows down or speeds up meanwhile moves both. Between windows the
recording starts and stops, and the target settles. What that costs is told apart, as the same ratio from the start of
`perfscope record` to the end of its window. The first recording is told apart as well: after JFR's first start in its
life, a JVM (17) compiles its code anew for many seconds. The control is what the neighbours say of each other: how far
two windows without any recording differ.

A machine whose CPUs are shared may change its speed twofold within minutes. So a small loop of Python runs on each CPU
at 2 to 3 % of its time, and `at_equal_speed` is the same ratio with each throughput multiplied by how long that loop
took in its window. It is the steadier figure; the loop isn't recorded, but shares the caches.

Medians are printed with their 95 % intervals (bootstrap), and with what the last recording's collectors said: a ratio
near 1 means nothing if a collector wasn't there.

stack: the example service, behind the Java gateway where there is a JDK; requests a second under closed-loop clients
that run on the same machine: four, as the demo has, while eight keep the batches of both its workers full. service: the
same without the gateway. threads: 40 Python threads, four of which compute and 36 wait with timeouts; chunks of work a
second.
"""

from __future__ import annotations

import argparse
import json
import os
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
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import perfscope.examples
from perfscope.examples import load

SETTLE_SECONDS = 2.5
"""After a recording has begun or ended, ahead of the next window."""
WARM_UP_SECONDS = 30.0
"""Before the first recording, and again after it: until the JVM has compiled most of the gateway."""
GAUGE_SECONDS = 0.03
"""Between two runs of the loop that tells the machine's speed; one takes a millisecond or less."""
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


def be_the_gauge(cpu: int) -> None:
    """A line in on stdin, CPU time of all runs of a fixed loop and their number out."""
    os.sched_setaffinity(0, {cpu})
    words = {number: str(number) for number in range(10_000)}
    total = [0, 0]

    def gauge() -> None:
        while True:
            begin = time.thread_time_ns()
            sum(len(words[number]) for number in range(10_000))
            total[0] += time.thread_time_ns() - begin
            total[1] += 1
            time.sleep(GAUGE_SECONDS)

    threading.Thread(target=gauge, daemon=True).start()
    for _ in sys.stdin:
        print(*total, flush=True)


class Gauges:
    """The machine's speed: CPU time that a fixed loop takes, the mean of all CPUs."""

    def __init__(self, running: ExitStack) -> None:
        cpus = sorted(os.sched_getaffinity(0))
        self._children = [
            running.enter_context(child(sys.executable, __file__, "--be-the-gauge", str(cpu))) for cpu in cpus
        ]

    def read(self) -> npt.NDArray[np.float64]:
        """(ns, runs) so far, a row a CPU."""
        for process in self._children:
            assert process.stdin is not None
            print(file=process.stdin, flush=True)
        return np.array([first_line(process).split() for process in self._children], np.float64)


@dataclass(frozen=True)
class Window:
    """throughput: work done a second. slowness: ns that the gauge's loop took meanwhile."""

    throughput: float
    slowness: float

    @property
    def work(self) -> float:
        """Work done in the time of one such loop."""
        return self.throughput * self.slowness


class Clock:
    """Windows that begin where it is made."""

    def __init__(self, target: Target, gauges: Gauges) -> None:
        self._target, self._gauges = target, gauges
        self._done, self._time, self._loops = target.done(), time.monotonic(), gauges.read()

    def window(self) -> Window:
        done, now, loops = self._target.done(), time.monotonic(), self._gauges.read()
        spent, runs = (loops - self._loops).T
        return Window((done - self._done) / (now - self._time), float(np.mean(spent / runs)))


def measure(target: Target, rounds: int, seconds: float, options: list[str]) -> dict[str, Any]:
    """Runs the windows. Ratios are throughput recorded / throughput alone; control: alone / alone before."""
    reports: list[dict[str, Any]] = []
    with ExitStack() as running:
        gauges = Gauges(running)

        def window(settle: float = SETTLE_SECONDS) -> Window:
            time.sleep(settle)
            clock = Clock(target, gauges)
            time.sleep(seconds)
            return clock.window()

        def recorded_round() -> tuple[Window, Window]:
            clock = Clock(target, gauges)
            with recording(target.pids, options, reports):
                return window(), clock.window()

        before = window(WARM_UP_SECONDS)
        _, first = recorded_round()
        alone = [window(WARM_UP_SECONDS)]
        recorded, whole = [], []
        for _ in range(rounds):
            settled, with_start = recorded_round()
            recorded.append(settled)
            whole.append(with_start)
            alone.append(window())
            told = {"alone": alone[-2:], "recorded": settled, "with_start": with_start}
            print(json.dumps(told, default=vars), file=sys.stderr, flush=True)

    def ratio(those: list[Window], value: Callable[[Window], float]) -> dict[str, float]:
        beside = [(value(before) + value(after)) / 2 for before, after in pairwise(alone)]
        return interval([value(on) / off for on, off in zip(those, beside, strict=True)])

    throughput, work = attrgetter("throughput"), attrgetter("work")
    return {
        "ratio": ratio(recorded, throughput),
        "control": interval([after.throughput / before.throughput for before, after in pairwise(alone)]),
        "at_equal_speed": {
            "ratio": ratio(recorded, work),
            "control": interval([after.work / before.work for before, after in pairwise(alone)]),
        },
        "ratio_with_start": ratio(whole, throughput),
        "first_recording": round(first.work / before.work, 4),
        "alone_per_second": round(statistics.median(window.throughput for window in alone), 2),
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
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--target", choices=TARGETS, action="append")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--be-the-threads", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--be-the-gauge", type=int, help=argparse.SUPPRESS)
    arguments, options = parser.parse_known_args()
    if arguments.be_the_threads:
        be_the_threads()
        return
    if arguments.be_the_gauge is not None:
        be_the_gauge(arguments.be_the_gauge)
        return
    for name in arguments.target or TARGETS:
        with TARGETS[name](arguments.clients) as target:
            measured = measure(target, arguments.rounds, arguments.seconds, options)
            print(json.dumps({"target": name, **measured}, indent=1), flush=True)


if __name__ == "__main__":
    main()

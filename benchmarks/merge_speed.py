"""How long merge and diagnosis take, and how much memory.

    python benchmarks/merge_speed.py [--sched N] [--samples N] [--threads N]

Makes a session of N scheduler records, N samples and as many futex waits as a server of that many threads would have,
then, in a fresh process each, opens it and builds thread_time and the call tree, or runs all rules on it. Prints
seconds and the peak of resident memory of these processes, their reading included.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from perfscope.diagnosis.engine import diagnose
from perfscope.merge import build_tree, thread_time
from perfscope.model.info import CollectorReport, SessionInfo
from perfscope.model.session import Session
from perfscope.model.session_writer import SessionWriter
from perfscope.model.stacks import Frame

PID = 4121
PIECE = 1_000_000
LOCKS = 8


def make(path: Path, sched: int, samples: int, threads: int) -> None:
    """A session of `threads` alike threads that leave the CPU every ~30 us for ~300 us."""
    random = np.random.default_rng(1)
    writer = SessionWriter(path, force=True)
    writer.note_process(PID, name="python", command="python serve.py", runtime="python")
    tids = np.arange(PID, PID + threads)
    each = sched // threads
    span = each * 330_000
    for number, thread in enumerate(tids.tolist()):
        writer.note_thread(PID, thread, name=f"worker-{number}", start_ns=0, end_ns=span, sched_complete=True)
    clock = np.zeros(threads, np.int64)
    rows = max(1, PIECE // threads)
    for first in range(0, each, rows):
        count = min(rows, each - first)
        run = random.integers(10_000, 50_000, (threads, count))
        blocked = random.integers(100_000, 500_000, (threads, count))
        off = np.cumsum(run + blocked, axis=1) - blocked + clock[:, None]
        clock = off[:, -1] + blocked[:, -1]
        on = off + blocked
        order = np.argsort(on.ravel(), kind="stable")  # a record is written when it is whole
        tid = np.repeat(tids, count)[order]
        state = np.array(["S", "R", "D"])[random.choice(3, len(order), p=[0.7, 0.25, 0.05])]
        wake = np.where(state == "R", off.ravel()[order], on.ravel()[order] - 5_000)
        others = random.choice(tids, (2, len(order)))
        columns = {"off_ns": off.ravel()[order], "wake_ns": wake, "on_ns": on.ravel()[order], "state": state}
        columns |= {"waker_tid": others[0], "prev_tid": others[1]}
        writer.append("sched", {"pid": np.full(len(order), PID), "tid": tid, **columns})
        waits = np.flatnonzero(state == "S")[::4]
        writer.append(
            "waits",
            {
                "pid": np.full(len(waits), PID),
                "tid": tid[waits],
                "start_ns": columns["off_ns"][waits] - 1000,
                "end_ns": columns["on_ns"][waits] + 1000,
                "kind": np.array(["gil", "futex"])[random.integers(0, 2, len(waits))],
                "address": random.integers(1, LOCKS + 1, len(waits), np.uint64),
                "waker_tid": others[0][waits],
            },
        )
    stacks = [
        writer.stacks.stack(
            Frame("python", f"f{min(3, int(random.exponential(0.7)))}", f"m{level}.py", int(random.integers(1, 4)))
            for level in range(int(random.integers(5, 30)))
        )
        for _ in range(5000)
    ]
    per_thread = samples // threads
    period = span // per_thread
    for thread in tids.tolist():
        writer.append(
            "samples",
            {
                "source": ["pyspy"] * per_thread,
                "pid": np.full(per_thread, PID),
                "tid": np.full(per_thread, thread),
                "time_ns": np.arange(per_thread) * period + random.integers(0, period),
                "duration_ns": np.full(per_thread, period),
                "stack_id": random.choice(stacks, per_thread),
                "count": np.ones(per_thread, np.int64),
                "torn": random.random(per_thread) < 0.02,
            },
        )
    info = SessionInfo(command=["python", "serve.py"], start_ns=0, stop_ns=span, host={"cpus_online": 2})
    info.collectors = {name: CollectorReport("ok") for name in ("ebpf", "pyspy")}
    writer.finish(info)


def measure_diagnosis(path: Path) -> dict[str, float]:
    """Seconds and MB for opening the session and judging it."""
    start = time.monotonic()
    found = diagnose(Session.open(path))
    return {
        "diagnosis_s": round(time.monotonic() - start, 2),
        "cpu_s": round(time.process_time(), 2),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "rules_evaluated": sum(verdict.verdict != "not_evaluable" for verdict in found.verdicts),
    }


def measure(path: Path) -> dict[str, float]:
    """Seconds and MB for opening the session and merging it."""
    start = time.monotonic()
    session = Session.open(path)
    times = thread_time(session)
    first = time.monotonic()
    tree = build_tree(session)
    done = time.monotonic()
    observed = pc.sum(pc.subtract(session.table("threads")["end_ns"], session.table("threads")["start_ns"])).as_py()
    assert observed == int(tree.weights["wall"].sum()) == pc.sum(times["total_ns"]).as_py()
    return {
        "thread_time_s": round(first - start, 2),
        "tree_s": round(done - first, 2),
        "total_s": round(done - start, 2),
        "cpu_s": round(time.process_time(), 2),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "nodes": len(tree.parent),
        "timeline_cells": 0 if tree.timeline is None else len(tree.timeline.node),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sched", type=int, default=10_000_000)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=40)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--diagnose", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure or options.diagnose:
        print(json.dumps(measure(options.measure) if options.measure else measure_diagnosis(options.diagnose)))
        return
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "speed.perfscope"
        make(path, options.sched, options.samples, options.threads)
        for what in ("--measure", "--diagnose"):
            subprocess.run([sys.executable, __file__, what, str(path)], check=True)


if __name__ == "__main__":
    main()

"""python-hotspot: one function holds most of a process's CPU time.

Measured on slices in state running with a Python stack (torn samples are not in them): CPU time by the innermost
function, where time in the standard library counts for the function that called it. The share's 95 % confidence
interval (Wilson's score interval, E. B. Wilson 1927) is taken over the looks py-spy had at running threads, and its
lower end must reach the threshold. gives_back: Facts.ceiling_pct of the function's running time, work gone.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from perfscope.diagnosis.describe import (
    against,
    by_function,
    flame,
    label,
    not_evaluable,
    observed,
    ok,
    seconds,
    thread_name,
    where,
)
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.thresholds import Limits
from perfscope.merge.slices import RUNNING
from perfscope.model.finding import Finding, Severity, Verdict
from perfscope.model.stacks import ROOT

RULE = "python-hotspot"
MEASURED = "samples (py-spy) on a CPU (sched, exact)"


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    pids = facts.pids("python")
    if not pids:
        return not_evaluable(RULE, "no Python process in this session")
    for collector in ("pyspy", "ebpf"):
        if gap := facts.collector_gap(collector):
            return not_evaluable(RULE, gap[0], gap[1])
    results = [_process(facts, limits, pid) for pid in pids]
    findings = tuple(r for r in results if isinstance(r, Finding))
    said = [r for r in results if isinstance(r, str)]
    missing = [r.missing for r in results if isinstance(r, _Missing)]
    if findings:
        return Verdict(RULE, "flagged", "; ".join(f.title for f in findings), findings)
    if missing and not said:
        return not_evaluable(RULE, "; ".join(missing), "a longer recording, or a higher rate with -r")
    return ok(RULE, "; ".join(said + missing))


class _Missing:
    def __init__(self, missing: str) -> None:
        self.missing = missing


def _process(facts: Facts, limits: Limits, pid: int) -> Finding | str | _Missing:
    running, stacks = facts.slices([RUNNING], [pid])
    lengths = running.end_ns - running.start_ns
    owners = _responsible(facts)[stacks]
    known = owners != ROOT
    sampled_ns, total_ns = int(lengths[known].sum()), running.total_ns
    if total_ns == 0:
        return f"pid {pid}: no CPU time"
    # With too little CPU time for any function to matter there is nothing to be sure about.
    if facts.ceiling_pct(running, work_stays=False) < limits["gives_back_pct"].value:
        return f"pid {pid}: its CPU time is below {limits['gives_back_pct'].value:g} % of the recording"
    unsampled = 100 * (1 - sampled_ns / total_ns)
    if unsampled > limits["unsampled_pct"].value:
        return _Missing(f"pid {pid}: {unsampled:.0f} % of its CPU time has no Python stack")
    period = _period_ns(facts, pid)
    if period is None:
        return _Missing(f"pid {pid}: no py-spy samples with times")
    looks = sampled_ns / period
    if looks < limits["looks"].value:
        return _Missing(f"pid {pid}: only {looks:.0f} samples of running threads")
    frame, ns, stack = by_function(facts, owners[known], lengths[known], "python")[0]
    share = ns / sampled_ns
    low, high = wilson(share, looks)
    inside = running.where(_in_function(facts, owners, frame.function, frame.file))
    gain = facts.ceiling_pct(inside, work_stays=False)
    text = f"{label(frame)} holds {100 * share:.0f} % of the CPU time of pid {pid} ({100 * low:.0f}-{100 * high:.0f} %)"
    if 100 * low < limits["cpu_share_pct"].value or gain < limits["gives_back_pct"].value:
        return f"the hottest function, {text}, is below the thresholds"
    return Finding(
        RULE,
        f"Python hotspot: {text}",
        Severity.INFO,
        where(facts, inside, stack),
        (
            against(
                "CPU time of the process, lower end of the 95 % interval", 100 * low, limits["cpu_share_pct"], MEASURED
            ),
            against("ceiling of elapsed time saved", gain, limits["gives_back_pct"], MEASURED),
            observed("CPU time of the process", 100 * share, "%", MEASURED),
            observed("upper end of the 95 % interval", 100 * high, "%", MEASURED),
            against("looks at running threads", looks, limits["looks"], "samples (py-spy)"),
            against("CPU time without a Python stack", unsampled, limits["unsampled_pct"], MEASURED),
        ),
        round(gain, 1),
        f"{seconds(ns)} of CPU time in one function: cache its results, vectorise it with numpy, move the loop into a "
        "compiled library (tokenizers, a C extension, Cython, Numba), or call it less often by batching",
        flame(facts, "cpu", [thread_name(facts, t) for t in inside.by_thread()]),
    )


def wilson(share: float, looks: float, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval of a share seen in `looks` independent looks; z = 1.96 for 95 %."""
    centre = share + z * z / (2 * looks)
    spread = z * math.sqrt(share * (1 - share) / looks + z * z / (4 * looks * looks))
    scale = 1 + z * z / looks
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def _period_ns(facts: Facts, pid: int) -> float | None:
    """Mean time between two looks at a thread, as sampled; null if no sample of the process says."""
    rows = facts.rows("samples", source=["pyspy", "austin"], pid=pid)
    rows = rows.select(["duration_ns", "count"]).drop_null()
    looks = int(rows["count"].to_numpy().sum())
    watched = int(rows["duration_ns"].to_numpy().sum())
    return watched / looks if looks and watched else None


def _responsible(facts: Facts) -> npt.NDArray[np.int32]:
    """For each stack the stack of its innermost Python frame outside the standard library (inside, if all are)."""
    stacks, innermost = facts.stacks, facts.innermost["python"]
    found = np.full(len(innermost), ROOT, np.int32)
    for stack, (parent, frame) in enumerate(zip(stacks.parents, stacks.stack_frames, strict=True)):
        if innermost[stack] == ROOT:
            continue
        own = stacks.frames[frame]
        if own.layer == "python" and not _standard_library(own.file):
            found[stack] = stack
        elif found[parent] != ROOT and not _standard_library(_frame_file(facts, int(found[parent]))):
            found[stack] = found[parent]
        else:
            found[stack] = innermost[stack]
    return found


def _frame_file(facts: Facts, stack: int) -> str | None:
    return facts.stacks.frames[facts.stacks.stack_frames[stack]].file


def _standard_library(file: str | None) -> bool:
    if not file:
        return False
    return file.startswith("<frozen") or (
        "/lib/python3" in file and "site-packages" not in file and "dist-packages" not in file
    )


def _in_function(facts: Facts, owners: npt.NDArray[np.int32], function: str, file: str | None) -> npt.NDArray[np.bool_]:
    frames, stack_frames = facts.stacks.frames, facts.stacks.stack_frames
    same = [
        stack
        for stack in np.unique(owners).tolist()
        if stack != ROOT and frames[stack_frames[stack]][1:3] == (function, file)
    ]
    return np.isin(owners, same)

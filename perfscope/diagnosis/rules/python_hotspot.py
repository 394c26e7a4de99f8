"""python-hotspot: one function holds most of a process's CPU time.

Measured on the looks of the sampler at threads that were on a CPU at that moment (torn ones left out), by the innermost
function, where time in the standard library counts for the function that called it. The lower end of the share's 95 %
confidence interval (Wilson's, see diagnosis.shares) must reach the threshold. CPU time spent in calls that wait for a
GPU is no work of the function that called, and left out. gives_back:
Facts.ceiling_of_parts_pct: of each thread's CPU time goes the share in which it was seen in the function.

Without the scheduler's events nobody knows who was on a CPU, but the sampler's second instance knows who held the GIL,
as one thread at most does: the same rule then takes its looks, of Python code alone, and says so. gives_back: the time
in which the function held the GIL, as no one else ran Python meanwhile.
"""

from __future__ import annotations

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
from perfscope.diagnosis.intervals import Intervals
from perfscope.diagnosis.shares import wilson
from perfscope.diagnosis.thresholds import Limits
from perfscope.merge.slices import RUNNING, UNKNOWN
from perfscope.model.finding import Finding, Severity, Verdict
from perfscope.model.stacks import ROOT

RULE = "python-hotspot"
NEEDS = ("ebpf", "pyspy")
MEASURED = "Python samples on a CPU (sched, exact)"
BY_GIL = "GIL holders (py-spy)"
NOT_KNOWN = "without eBPF, code that lets the GIL go, as numpy does, is not counted"


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    pids = facts.pids("python")
    if not pids:
        return not_evaluable(RULE, "no Python process in this session")
    if gap := facts.collector_gap("pyspy"):
        return not_evaluable(RULE, gap[0], gap[1])
    no_cpu = facts.collector_gap("ebpf")
    results = [_by_gil(facts, limits, pid, no_cpu) if no_cpu else _process(facts, limits, pid) for pid in pids]
    findings = tuple(r for r in results if isinstance(r, Finding))
    said = [r for r in results if isinstance(r, str)]
    missing = [r.missing for r in results if isinstance(r, _Missing)]
    if findings:
        return Verdict(RULE, "flagged", "; ".join(f.title for f in findings), findings)
    if missing and not said:
        return not_evaluable(RULE, "; ".join(missing), no_cpu[1] if no_cpu else _MORE_LOOKS)
    return ok(RULE, "; ".join(said + missing) + (f" ({NOT_KNOWN})" if no_cpu else ""))


_MEND = (
    "cache its results, vectorise it with numpy, move the loop into a compiled library (tokenizers, a C extension, "
    "Cython, Numba), or call it less often by batching"
)
_MORE_LOOKS = "a longer recording, a higher rate with -r, or a host with a CPU to spare for the sampler"


class _Missing:
    def __init__(self, missing: str) -> None:
        self.missing = missing


def _process(facts: Facts, limits: Limits, pid: int) -> Finding | str | _Missing:
    of_pid = facts.threads_of(pid)
    if facts.total_ns([RUNNING], of_pid) == 0:
        return f"pid {pid}: no CPU time"
    # With too little CPU time for any function to matter there is nothing to be sure about.
    if facts.ceiling_of_state_pct(RUNNING, of_pid, work_stays=False) < limits["gives_back_pct"].value:
        return f"pid {pid}: its CPU time is below {limits['gives_back_pct'].value:g} % of the recording"
    period = _period_ns(facts, pid)
    if period is None:
        return _Missing(f"pid {pid}: no Python samples with times")
    worked_ns = {t: facts.working_ns(t) for t in of_pid}
    running_ns = max(sum(worked_ns.values()), 1)
    threads, stacks, looks = facts.looks_on_cpu(pid)
    owners = facts.own_code["python"][stacks]
    known = owners != ROOT
    threads, owners, looks = threads[known], owners[known], looks[known]
    seen = float(looks.sum())
    if seen < limits["looks"].value:
        return _Missing(f"pid {pid}: only {seen:.0f} samples of running threads")
    unsampled = max(0.0, 100 * (1 - seen * period / running_ns))
    if unsampled > limits["unsampled_pct"].value:
        return _Missing(
            f"pid {pid}: {unsampled:.0f} % of its CPU time has no Python stack (threads without Python, or "
            "the sampler got no CPU to look)"
        )
    frame, count, stack = by_function(facts, owners, looks, "python")[0]
    share = count / seen
    low, high = wilson(share, seen)
    inside = _in_function(facts, owners, frame.function, frame.file)
    all_looks = np.bincount(threads, looks)
    hot_looks = np.bincount(threads[inside], looks[inside], len(all_looks))
    parts = {
        t: float(hot_looks[t] / all_looks[t]) * worked_ns[t] / facts.total_ns([RUNNING], [t])
        for t in np.flatnonzero(hot_looks).tolist()
    }
    gain = facts.ceiling_of_parts_pct(RUNNING, parts, of_pid)
    text = f"{label(frame)} holds {100 * share:.0f} % of the CPU time of pid {pid} ({100 * low:.0f}-{100 * high:.0f} %)"
    if 100 * low < limits["cpu_share_pct"].value or gain < limits["gives_back_pct"].value:
        return f"the hottest function, {text}, is below the thresholds"
    busy = facts.spent([RUNNING], parts)
    interval = "CPU time of the process, lower end of the 95 % interval"
    return Finding(
        RULE,
        f"Python hotspot: {text}",
        Severity.INFO,
        where(facts, busy, stack),
        (
            against(interval, 100 * low, limits["cpu_share_pct"], MEASURED),
            against("ceiling of elapsed time saved", gain, limits["gives_back_pct"], MEASURED),
            observed("CPU time of the process", 100 * share, "%", MEASURED),
            observed("upper end of the 95 % interval", 100 * high, "%", MEASURED),
            against("looks at running threads", seen, limits["looks"], "Python samples"),
            against("CPU time without a Python stack", unsampled, limits["unsampled_pct"], MEASURED),
        ),
        round(gain, 1),
        f"{seconds(share * running_ns)} of CPU time in one function: {_MEND}",
        flame(facts, "cpu", [thread_name(facts, t) for t in parts]),
    )


def _by_gil(facts: Facts, limits: Limits, pid: int, gap: tuple[str, str]) -> Finding | str | _Missing:
    """The rule where nothing but samples is there."""
    rows = facts.rows("samples", source="pyspy-gil", pid=pid, torn=False)
    owners = facts.own_code["python"][rows["stack_id"].to_numpy()]
    looks = rows["count"].to_numpy().astype(float)
    held = float(looks.sum())
    if not held or rows["duration_ns"].null_count:
        return _Missing(f"pid {pid}: {gap[0]}, and no sample says who held the GIL for how long")
    held_ns = rows["duration_ns"].to_numpy()
    if facts.elapsed_ns <= 0 or 100 * held_ns.sum() / facts.elapsed_ns < limits["gives_back_pct"].value:
        return f"pid {pid}: it held the GIL for less than {limits['gives_back_pct'].value:g} % of the recording"
    if held < limits["looks"].value:
        return _Missing(f"pid {pid}: {gap[0]}, and only {held:.0f} samples of who held the GIL")
    found = by_function(facts, owners, looks, "python")
    if not found:
        return _Missing(f"pid {pid}: no Python stack among the samples of who held the GIL")
    frame, count, stack = found[0]
    share = count / held
    low, high = wilson(share, held)
    inside = _in_function(facts, owners, frame.function, frame.file)
    gain = min(100.0, 100 * held_ns[inside].sum() / facts.elapsed_ns)
    text = f"{label(frame)} has the GIL in {100 * share:.0f} % of the time in which pid {pid} holds it"
    if 100 * low < limits["cpu_share_pct"].value or gain < limits["gives_back_pct"].value:
        return f"the hottest function, {text}, is below the thresholds"
    tids = rows.filter(inside)["tid"].drop_null().unique().to_pylist()
    threads = [facts.index[pid, tid] for tid in tids if (pid, tid) in facts.index]
    seen = facts.spent([UNKNOWN], facts.threads_of(pid))
    return Finding(
        RULE,
        f"Python hotspot: {text} ({100 * low:.0f}-{100 * high:.0f} %)",
        Severity.INFO,
        where(facts, seen.where(np.isin(seen.thread, threads)) if threads else Intervals.of([]), stack),
        (
            against("GIL time, lower end of the 95 % interval", 100 * low, limits["cpu_share_pct"], BY_GIL),
            against("ceiling of elapsed time saved", gain, limits["gives_back_pct"], BY_GIL),
            observed("share of the process's GIL time", 100 * share, "%", BY_GIL),
            observed("upper end of the 95 % interval", 100 * high, "%", BY_GIL),
            against("looks that found the GIL held", held, limits["looks"], BY_GIL),
        ),
        round(gain, 1),
        f"{seconds(held_ns[inside].sum())} of holding the GIL in one function ({NOT_KNOWN}): {_MEND}",
        flame(facts, "wall", [thread_name(facts, t) for t in threads]),
    )


def _period_ns(facts: Facts, pid: int) -> float | None:
    """Time between two looks at a thread: of the kernel's, the timer's; else the mean, as sampled. None: not known."""
    report = facts.info.collectors.get("pyspy")
    details = report.details if report is not None else {}
    if str(pid) in (details.get("clock_error_ns") or {}).get("bpf", {}):
        return details.get("bpf_period_ns")
    rows = facts.rows("samples", source=["pyspy", "austin"], pid=pid)
    rows = rows.select(["duration_ns", "count"]).drop_null()
    looks = int(rows["count"].to_numpy().sum())
    watched = int(rows["duration_ns"].to_numpy().sum())
    return watched / looks if looks and watched else None


def _in_function(facts: Facts, owners: npt.NDArray[np.int32], function: str, file: str | None) -> npt.NDArray[np.bool_]:
    frames, stack_frames = facts.stacks.frames, facts.stacks.stack_frames
    same = [
        stack
        for stack in np.unique(owners).tolist()
        if stack != ROOT and frames[stack_frames[stack]][1:3] == (function, file)
    ]
    return np.isin(owners, same)

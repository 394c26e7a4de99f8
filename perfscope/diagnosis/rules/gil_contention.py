"""gil-contention: Python threads wait for the global interpreter lock.

Lost time is the slices in state gil, one process at a time: the futex waits of its threads on the GIL's own address,
while some thread of the process ran. Where none did, the GIL's holder had no CPU itself (see cpu-oversubscription).
gives_back: Facts.ceiling_pct with the work staying: waits vanish, the bytecode still has to run on the cores there are.
"""

from __future__ import annotations

import numpy as np

from perfscope.diagnosis.describe import (
    against,
    by_function,
    flame,
    label,
    main_threads,
    not_evaluable,
    observed,
    ok,
    seconds,
    thread_name,
    threads_text,
    where,
)
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.intervals import Intervals, overlap_ns, union, union_ns
from perfscope.diagnosis.thresholds import Limits
from perfscope.merge.slices import GIL, RUNNING
from perfscope.model.finding import Evidence, Finding, Severity, Verdict
from perfscope.model.stacks import ROOT, Frame

RULE = "gil-contention"
NEEDS = ("ebpf",)
MEASURED = "waits (eBPF futex, exact) while a thread of the process ran"
_ENOUGH_GIL_SAMPLES = 30


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    pids = facts.pids("python")
    if not pids:
        return not_evaluable(RULE, "no Python process in this session")
    if gap := facts.collector_gap("ebpf"):
        return not_evaluable(RULE, f"no futex waits: {gap[0]}", gap[1])
    findings, seen = [], []
    for pid in pids:
        running = facts.spent([RUNNING], facts.threads_of(pid))
        waits = facts.spent([GIL], facts.threads_of(pid)).within(*union(running.start_ns, running.end_ns))
        lost = facts.lost_pct(waits)
        seen.append(f"pid {pid}: {lost:.1f} % of the waiting threads' working time")
        if not len(waits) or lost < limits["lost_pct"].value:
            continue
        gain = facts.ceiling_pct(waits, work_stays=True)
        if gain >= limits["gives_back_pct"].value:
            findings.append(_finding(facts, limits, pid, waits, lost, gain))
    if findings:
        return Verdict(RULE, "flagged", "; ".join(seen), tuple(findings))
    return ok(RULE, "waited for the GIL: " + "; ".join(seen))


def _finding(facts: Facts, limits: Limits, pid: int, waits: Intervals, lost: float, gain: float) -> Finding:
    evidence = [
        against("waiting for the GIL, of the waiters' working time", lost, limits["lost_pct"], MEASURED),
        against("ceiling of elapsed time saved", gain, limits["gives_back_pct"], MEASURED + " and sched"),
        observed("waited for the GIL, all threads", waits.total_ns / 1e9, "s", MEASURED),
        observed("time in which at least one thread waited", union_ns(waits) / 1e9, "s", MEASURED),
        observed("threads that waited", len(waits.by_thread()), "threads", MEASURED),
    ]
    stack = ROOT
    text = f"{threads_text(facts, waits)} waited {seconds(waits.total_ns)} for the GIL"
    holder = _holder(facts, pid, waits)
    if holder:
        frame, share, stack, proof = holder
        evidence.append(proof)
        text += f"; {label(frame)} held it {share:.0f} % of that time"
    else:
        text += "; who held it is unknown (no Python samples)"
    return Finding(
        RULE,
        f"GIL contention: {text}",
        Severity.INFO,
        where(facts, waits, stack),
        tuple(evidence),
        round(gain, 1),
        "run that function in a process pool or in one worker process per core (several server processes instead of "
        "threads), use a tokenizer or numeric library that releases the GIL, or batch the calls so that fewer threads "
        "run Python at once",
        flame(facts, "off-cpu", [thread_name(facts, t) for t in main_threads(waits)]),
    )


def _holder(facts: Facts, pid: int, waits: Intervals) -> tuple[Frame, float, int, Evidence] | None:
    """(frame, share of the holding %, stack, evidence) of the function that held the GIL most while others waited.

    py-spy's --gil samples see the holder itself; without enough of them, what the process's threads ran on a CPU
    during the waits stands for it, which native code that has released the GIL can share in.
    """
    samples = facts.rows("samples", source="pyspy-gil", pid=pid, torn=False)
    counts = samples["count"].to_numpy()
    if counts.sum() >= _ENOUGH_GIL_SAMPLES:
        stacks, weights, by = samples["stack_id"].to_numpy(), counts, "samples (py-spy --gil, counts)"
    else:
        running, stacks = facts.slices([RUNNING], facts.threads_of(pid))
        weights = overlap_ns(running.start_ns, running.end_ns, union(waits.start_ns, waits.end_ns))
        by = "Python samples of threads on a CPU (sched) during the waits"
    functions = by_function(facts, stacks, np.asarray(weights, np.int64), "python")
    if not functions:
        return None
    frame, weight, stack = functions[0]
    share = 100 * weight / sum(w for _, w, _ in functions)
    return frame, share, stack, observed(f"held the GIL: {label(frame)}", share, "% of the holding", by)

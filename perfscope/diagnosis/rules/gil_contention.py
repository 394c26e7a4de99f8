"""gil-contention: Python threads wait for the global interpreter lock.

Lost time is the slices in state gil, one process at a time: the futex waits of its threads on the GIL's own address,
while some thread of the process ran. Where none did, the GIL's holder had no CPU itself (see cpu-oversubscription).
gives_back: Facts.ceiling_pct with the work staying: waits vanish, the bytecode still has to run on the cores there are.

Which function held the GIL most is told from samples, so each share is given with its 95 % confidence interval
(Wilson's, see diagnosis.shares). Functions whose interval overlaps the first one's may have held it most as well, and
are named, too.
"""

from __future__ import annotations

from dataclasses import dataclass

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
from perfscope.diagnosis.intervals import Intervals, union, union_ns
from perfscope.diagnosis.shares import wilson
from perfscope.diagnosis.thresholds import Limits
from perfscope.merge.slices import GIL, RUNNING
from perfscope.model.finding import Evidence, Finding, Severity, Verdict
from perfscope.model.stacks import ROOT, Frame

RULE = "gil-contention"
NEEDS = ("ebpf",)
MEASURED = "waits (eBPF futex, exact) while a thread of the process ran"
_ENOUGH_GIL_SAMPLES = 30
_NAMED = 3


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
    holders, looks, by = _holders(facts, pid)
    if holders:
        stack = holders[0].stack
        evidence += [e for holder in holders for e in holder.evidence(by)]
        evidence.append(observed("looks that say who held the GIL", looks, "samples", by))
        names = " or ".join(label(h.frame) for h in holders)
        shares = " or ".join(f"{h.share:.0f} % ({h.low:.0f}-{h.high:.0f} %)" for h in holders)
        text += f"; {names} held it{' most:' if len(holders) > 1 else ''} {shares} of that time"
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


@dataclass(frozen=True)
class _Holder:
    """A function that held the GIL: its share of the holding, and the ends of its 95 % interval, in percent."""

    frame: Frame
    stack: int
    share: float
    low: float
    high: float

    def evidence(self, by: str) -> list[Evidence]:
        what = f"held the GIL: {label(self.frame)}"
        return [
            observed(what, self.share, "% of the holding", by),
            observed(f"{what}, lower end of the 95 % interval", self.low, "% of the holding", by),
            observed(f"{what}, upper end of the 95 % interval", self.high, "% of the holding", by),
        ]


def _holders(facts: Facts, pid: int) -> tuple[list[_Holder], float, str]:
    """The function that held the GIL most and those that may have as well; of how many looks; measured by what.

    Samples of who held the GIL see the holder itself; without enough of them, looks at the process's threads on a CPU
    stand for it, which native code that has released the GIL can share in.
    """
    samples = facts.rows("samples", source="pyspy-gil", pid=pid, torn=False)
    stacks, counts = samples["stack_id"].to_numpy(), samples["count"].to_numpy()
    by = "samples of who held the GIL"
    if counts.sum() < _ENOUGH_GIL_SAMPLES:
        _, stacks, counts = facts.looks_on_cpu(pid)
        by = "Python samples of threads on a CPU (sched)"
    functions = by_function(facts, stacks, counts, "python")
    looks = float(sum(count for _, count, _ in functions))
    if not looks:
        return [], 0.0, by
    holders = []
    for frame, count, stack in functions[:_NAMED]:
        low, high = wilson(count / looks, looks)
        holders.append(_Holder(frame, stack, 100 * count / looks, 100 * low, 100 * high))
    return [h for h in holders if h.high >= holders[0].low], looks, by

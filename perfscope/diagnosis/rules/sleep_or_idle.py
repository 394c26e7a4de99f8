"""sleep-or-idle: nothing is wrong; the target waits for work most of the time.

Busy is the time in which at least one thread ran, wanted a CPU or waited for a resource (disk, lock, GIL, GC).
gives_back is null: no change of the program makes work arrive sooner.
"""

from __future__ import annotations

from perfscope.diagnosis.describe import against, flame, not_evaluable, observed, ok
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.thresholds import Limits
from perfscope.merge.slices import RUNNING, SLEEP
from perfscope.model.finding import Finding, Severity, Verdict, Where

RULE = "sleep-or-idle"
NEEDS = ("ebpf",)
MEASURED = "sched (eBPF, exact)"


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    if gap := facts.collector_gap("ebpf"):
        return not_evaluable(RULE, f"no sched events: {gap[0]}", gap[1])
    if facts.unknown_pct is None or facts.unknown_pct > 50 or facts.elapsed_ns <= 0:
        return not_evaluable(RULE, "most threads' time has no sched events", "perfscope record as root")
    busy = 100 * facts.busy_ns / facts.elapsed_ns
    why = f"at least one thread was busy in {busy:.1f} % of the recording"
    if busy >= limits["busy_pct"].value:
        return ok(RULE, why)
    finding = Finding(
        RULE,
        f"Idle: the target waits for work; {why}",
        Severity.INFO,
        Where(window_ns=(facts.info.start_ns, facts.info.stop_ns)),
        (
            against("at least one thread busy", busy, limits["busy_pct"], MEASURED),
            observed("CPUs used on average", facts.total_ns([RUNNING]) / facts.elapsed_ns, "CPUs", MEASURED),
            observed("time waited for work, all threads", facts.total_ns([SLEEP]) / 1e9, "s", MEASURED),
            observed("threads", len(facts.threads), "threads", "threads"),
        ),
        None,
        "nothing to mend here: record while requests arrive, or put more load on the service to find its limit",
        flame(facts, "off-cpu"),
    )
    return Verdict(RULE, "flagged", why, (finding,))

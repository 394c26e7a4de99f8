"""cpu-oversubscription: threads are ready to run and get no CPU.

Lost time is the slices in state runnable, without the threads on which a JVM compiles, records and cleans up beside its
program. gives_back: Facts.ceiling_pct without the cores' bound: it is what enough
cores, or fewer threads that contend, would give.
"""

from __future__ import annotations

import numpy as np

from perfscope.diagnosis.describe import against, flame, not_evaluable, observed, ok, seconds, threads_text, where
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.intervals import overlap_ns, union
from perfscope.diagnosis.thresholds import Limits
from perfscope.merge.slices import RUNNABLE, RUNNING
from perfscope.model.finding import Finding, Severity, Verdict

RULE = "cpu-oversubscription"
NEEDS = ("ebpf",)
MEASURED = "sched (eBPF, exact)"


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    if gap := facts.collector_gap("ebpf"):
        return not_evaluable(RULE, f"no sched events: {gap[0]}", gap[1])
    if facts.unknown_pct is None or facts.unknown_pct > 50:
        return not_evaluable(RULE, "most threads' time has no sched events", "perfscope record as root")
    program = _program(facts)
    waited, ran = (facts.total_ns([state], program) for state in (RUNNABLE, RUNNING))
    wanted = waited + ran
    if wanted == 0:
        return ok(RULE, "no thread wanted a CPU")
    share, gain = 100 * waited / wanted, facts.ceiling_of_state_pct(RUNNABLE, program, work_stays=False)
    why = f"threads wanted a CPU for {seconds(wanted)} and had none for {share:.1f} % of it"
    if not waited or share < limits["runnable_pct"].value or gain < limits["gives_back_pct"].value:
        return ok(RULE, why)
    waiting = facts.spent([RUNNABLE], program)
    during = union(waiting.start_ns, waiting.end_ns)
    at_least_one = int((during[1] - during[0]).sum())
    used = 0.0
    for running in (facts.spent([RUNNING], [thread]) for thread in program):
        used += overlap_ns(running.start_ns, running.end_ns, during).sum() / at_least_one
    evidence = [
        against("runnable without a CPU, of the time wanted on one", share, limits["runnable_pct"], MEASURED),
        against("ceiling of elapsed time saved", gain, limits["gives_back_pct"], MEASURED),
        observed("runnable threads while at least one waited", wanted / at_least_one, "threads", MEASURED),
        observed("CPUs used on average", ran / facts.elapsed_ns, "CPUs", MEASURED),
    ]
    if facts.cores:
        evidence.append(observed("CPUs of the host", facts.cores, "CPUs", "session.json (host)"))
    own = own_share_pct(facts)
    evidence.append(observed("CPUs that its own threads used while at least one waited", used, "CPUs", MEASURED))
    if own is None:
        taker, advice = "", _OWN + "; if other programs hold the CPUs, move them away or use a larger host"
    elif _own_fault(own, None if facts.cores_allowed is None else used / facts.cores_allowed):
        taker, advice = "; its own threads had them", _OWN
    elif facts.cores_allowed:
        share = 100 * min(1.0, used / facts.cores_allowed)
        taker, advice = f"; its own threads had {share:.0f} % of them then, other processes the rest", _OTHERS
    else:
        taker, advice = "; other processes had them", _OTHERS
    if own is not None:
        evidence.append(observed("waits ended by a CPU given up by the target's own threads", own, "%", MEASURED))
    finding = Finding(
        RULE,
        f"CPU oversubscription: {threads_text(facts, waiting)} waited {seconds(waited)} for a CPU{taker}",
        Severity.INFO,
        where(facts, waiting),
        tuple(evidence),
        round(gain, 1),
        advice,
        flame(facts, "off-cpu"),
    )
    return Verdict(RULE, "flagged", why, (finding,))


_OWN = (
    "run no more busy threads than CPUs: set OMP_NUM_THREADS, MKL_NUM_THREADS, torch.set_num_threads or the size of "
    "the worker pool to CPUs / server processes, or give the service more CPUs"
)
_OTHERS = (
    "give the service CPUs of its own (cpuset, taskset, a Kubernetes CPU request with the static policy), or move the "
    "other programs elsewhere"
)


_BESIDE = (
    "C1 CompilerThre",
    "C2 CompilerThre",
    "Attach Listener",
    "JFR ",
    "Service Thread",
    "Sweeper thread",
    "Notification Th",
    "Monitor Deflati",
    "VM Periodic Tas",
    "Signal Dispatch",
    "Common-Cleaner",
    "Reference Handl",
    "Finalizer",
)
"""How the names of such threads begin in the first 15 characters, which is all that the kernel keeps of a name."""


def _program(facts: Facts) -> list[int]:
    """Indices of the threads without those."""
    java = set(facts.pids("java"))
    return [i for i, t in enumerate(facts.threads) if not (t.pid in java and (t.name or "").startswith(_BESIDE))]


_MOST = 0.6
"""Own threads are in their own way if they hold most CPUs; a single one that is waited for on its own CPU, while the
others are taken, is not."""

_NEARLY_ALL = 0.9
"""Who holds that much of the CPUs can't be kept from them by others. A thread that runs for a moment now and then, as a
sampler does, ends many a wait for a CPU that it never had for long."""


def _own_fault(own_pct: float, used: float | None) -> bool:
    """Whether the target's threads had the CPUs: by the share of waits that its own threads ended, and by the share of
    the CPUs allowed that they used meanwhile."""
    if used is None:
        return own_pct >= 50
    return used >= _NEARLY_ALL or (own_pct >= 50 and used >= _MOST)


def own_share_pct(facts: Facts) -> float | None:
    """Of the time waited for a CPU, the share that ended on a CPU which a thread of the target had just given up.

    The idle thread (0) as predecessor says nothing about who was in the way and is left out; None if nothing is known.
    """
    tids = np.asarray([t.tid for t in facts.threads], np.int64)
    own = total = 0
    for piece in facts.session.batches("sched", ["wake_ns", "on_ns", "prev_tid"]):
        wake, on, previous = (column.to_numpy() for column in piece.drop_null().columns)
        counts = (previous > 0) & (on > wake)
        waited = (on - wake)[counts]
        total += int(waited.sum())
        own += int(waited[np.isin(previous[counts], tids)].sum())
    return 100 * own / total if total else None

"""disk-wait: threads sleep until a device has read or written.

Lost time is the slices in state disk. gives_back: Facts.ceiling_pct with the work staying.
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
from perfscope.diagnosis.intervals import union_ns
from perfscope.diagnosis.thresholds import Limits
from perfscope.merge.slices import DISK
from perfscope.model.finding import Evidence, Finding, Severity, Verdict
from perfscope.model.stacks import ROOT

RULE = "disk-wait"
NEEDS = ("ebpf",)
MEASURED = "sched and block_io (eBPF, exact)"


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    if gap := facts.collector_gap("ebpf"):
        return not_evaluable(RULE, f"no sched and block events: {gap[0]}", gap[1])
    if facts.unknown_pct is None or facts.unknown_pct > 50:
        return not_evaluable(RULE, "most threads' time has no sched events", "perfscope record as root")
    waits = facts.spent([DISK])
    share = 100 * union_ns(waits) / facts.elapsed_ns if facts.elapsed_ns else 0.0
    gain = facts.ceiling_of_state_pct(DISK, range(len(facts.threads)), work_stays=True)
    why = f"at least one thread waited for a disk in {share:.1f} % of the recording"
    if not len(waits) or share < limits["waiting_pct"].value or gain < limits["gives_back_pct"].value:
        return ok(RULE, why)
    stack, code = _code(facts)
    finding = Finding(
        RULE,
        f"Disk wait: {threads_text(facts, waits)} waited {seconds(waits.total_ns)} for a disk{code}",
        Severity.INFO,
        where(facts, waits, stack, _layer(facts, stack)),
        (
            against("at least one thread waiting for a disk", share, limits["waiting_pct"], MEASURED),
            against("ceiling of elapsed time saved", gain, limits["gives_back_pct"], MEASURED),
            observed("waited for a disk, all threads", waits.total_ns / 1e9, "s", MEASURED),
            *_requests(facts),
        ),
        round(gain, 1),
        "keep it off the request's path: load weights and vocabularies once and keep them (mmap with MAP_POPULATE, "
        "page cache), read ahead or in a thread of its own, write logs and caches without fsync or in the "
        "background, or use a faster device",
        flame(facts, "off-cpu", [thread_name(facts, t) for t in main_threads(waits)]),
    )
    return Verdict(RULE, "flagged", why, (finding,))


def _layer(facts: Facts, stack: int) -> str:
    return "java" if stack != ROOT and facts.code_frame(stack, "python") is None else "python"


def _code(facts: Facts) -> tuple[int, str]:
    """(stack, text) of the code that waited most."""
    waits, stacks = facts.slices([DISK])
    for layer in ("python", "java"):
        functions = by_function(facts, stacks, waits.end_ns - waits.start_ns, layer)
        if functions:
            frame, _, stack = functions[0]
            return stack, f" in {label(frame)}"
    return ROOT, ""


def _requests(facts: Facts) -> list[Evidence]:
    """What the target's own requests asked, and how long they took from submission to completion."""
    by = "block_io (eBPF, exact)"
    found = []
    own = facts.rows("block_io", in_target=True)
    for operation in sorted(set(own["operation"].to_pylist())):
        rows = facts.rows("block_io", in_target=True, operation=operation)
        found.append(observed(f"{operation} requests of the target", rows.num_rows, "requests", by))
        found.append(observed(f"{operation} size", sum(rows["bytes"].to_pylist()) / 1e6, "MB", by))
        for what, until in (("latency", "complete_ns"), ("time in queue", "issue_ns")):
            known = rows.filter(rows[until].is_valid())
            if known.num_rows:
                spans = known[until].to_numpy() - known["start_ns"].to_numpy()
                found.append(observed(f"{operation} {what}, median", float(np.median(spans)) / 1e6, "ms", by))
    return found

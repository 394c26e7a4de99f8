"""gc-pause: the JVM stops its threads to collect garbage.

Lost time is the union of a JVM's stop-the-world pauses. gives_back: their share of the recording, which is the most
that any critical path through this JVM can have spent in them.
"""

from __future__ import annotations

import numpy as np

from perfscope.diagnosis.describe import against, flame, not_evaluable, observed, ok
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.intervals import Int64, union
from perfscope.diagnosis.thresholds import Limits
from perfscope.merge.sources import gc_pauses
from perfscope.model.finding import Finding, Severity, Verdict, Where

RULE = "gc-pause"
NEEDS = ("jfr",)
MEASURED = "jvm_events (JFR GC pauses)"


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    pids = facts.pids("java")
    if not pids:
        return not_evaluable(RULE, "no Java process in this session")
    if gap := facts.collector_gap("jfr"):
        return not_evaluable(RULE, gap[0], gap[1])
    findings, seen, missing = [], [], []
    for pid in pids:
        paused = pauses(facts, pid)
        if paused is None:
            missing.append(f"pid {pid}: a concurrent collector ran and none of its pauses was recorded")
            continue
        start, end = paused
        share = 100 * int((end - start).sum()) / facts.elapsed_ns if facts.elapsed_ns else 0.0
        longest = float((end - start).max()) / 1e6 if len(start) else 0.0
        seen.append(f"pid {pid}: {len(start)} pauses, {share:.1f} % of the recording, longest {longest:.1f} ms")
        if len(start) and (share >= limits["paused_pct"].value or longest >= limits["longest_ms"].value):
            findings.append(_finding(facts, limits, pid, start, end, share, longest))
    if findings:
        return Verdict(RULE, "flagged", "; ".join(seen), tuple(findings))
    if missing:
        return not_evaluable(RULE, "; ".join(missing), "a JFR recording with jdk.GCPhasePause enabled")
    return ok(RULE, "; ".join(seen))


def pauses(facts: Facts, pid: int) -> tuple[Int64, Int64] | None:
    """Stop-the-world pauses of a JVM within the recording: disjoint intervals, in order.

    None if it collected, but with a concurrent collector of which no pause was recorded.
    """
    found = gc_pauses(facts.session).get(pid)
    if found is None:
        none = np.empty(0, np.int64)
        return None if facts.rows("jvm_events", pid=pid, type="GarbageCollection").num_rows else (none, none)
    start, end = (np.clip(t, facts.info.start_ns, facts.info.stop_ns) for t in (found.start, found.end))
    return union(start, end)


def _finding(facts: Facts, limits: Limits, pid: int, start: Int64, end: Int64, share: float, longest: float) -> Finding:
    collections = facts.rows("jvm_events", pid=pid, type="GarbageCollection")
    causes: dict[str, int] = {}
    for cause in collections["cause"].to_pylist():
        causes[cause or "unknown cause"] = causes.get(cause or "unknown cause", 0) + 1
    evidence = [
        against("stopped for garbage collection, of the recording", share, limits["paused_pct"], MEASURED),
        against("longest pause", longest, limits["longest_ms"], MEASURED),
        observed("pauses", len(start), "pauses", MEASURED),
        observed("median pause", float(np.median(end - start)) / 1e6, "ms", MEASURED),
    ]
    ranked = sorted(causes.items(), key=lambda item: -item[1])
    evidence += [observed(f"collections: {cause}", n, "collections", "jvm_events (JFR)") for cause, n in ranked[:3]]
    process = next((t.process for t in facts.threads if t.pid == pid), None)
    main = f", mostly {ranked[0][0]}" if ranked else ""
    return Finding(
        RULE,
        f"GC pauses: {process or 'java'} (pid {pid}) stood still in {share:.1f} % of the recording, "
        f"up to {longest:.0f} ms at once{main}",
        Severity.INFO,
        Where(process=process, pid=pid, window_ns=(int(start[0]), int(end[-1]))),
        tuple(evidence),
        round(share, 1),
        "give the heap room for what lives (-Xmx well above the live set, -Xms equal to it), keep caches bounded or "
        "off the heap, allocate less (see jvm-allocation), or use a concurrent collector (-XX:+UseZGC, "
        "-XX:+UseShenandoahGC)",
        flame(facts, "off-cpu"),
    )

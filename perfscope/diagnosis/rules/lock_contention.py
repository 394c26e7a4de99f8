"""lock-contention: threads wait for a lock that another thread holds, in Python or in Java.

Python: futex waits on addresses other than the GIL's. A futex is also how a thread waits for work, so a wait counts as
contention only if the merge calls it a lock wait (its code is none of the standard library's waits for an event), and
its address behaves like a lock: some thread both waited there and woke others there, so it acquired and released. Where
only the second is missing and the wait matters, the rule is not evaluable and says so.
Java: JavaMonitorEnter events (which name the previous owner), and ThreadPark where the merge calls it a lock wait.
gives_back: Facts.ceiling_pct with the work staying.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

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
from perfscope.diagnosis.intervals import Intervals
from perfscope.diagnosis.thresholds import Limits
from perfscope.merge.slices import LOCK
from perfscope.merge.waits import futex_state, park_state
from perfscope.model.finding import Evidence, Finding, Severity, Verdict
from perfscope.model.stacks import ROOT

RULE = "lock-contention"
NEEDS = ("ebpf", "jfr")


@dataclass(frozen=True)
class _Lock:
    """Waits for one lock. holders: for each wait the index of the thread that had it, or None.

    certain: false if it may as well be a hand-over of work.
    """

    layer: str
    pid: int
    name: str
    waits: Intervals
    holders: list[int | None]
    stacks: list[int]
    measured_by: str
    certain: bool = True


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    gaps, locks, looked = [], [], []
    for runtime, collector, find in (("python", "ebpf", _python_locks), ("java", "jfr", _java_locks)):
        pids = facts.pids(runtime)
        if not pids:
            continue
        if gap := facts.collector_gap(collector):
            gaps.append((f"{runtime}: {gap[0]}", gap[1]))
        else:
            looked.append(runtime)
            for pid in pids:
                locks += list(find(facts, pid))
    if not looked and not gaps:
        return not_evaluable(RULE, "no Python or Java process in this session")
    findings: list[Finding] = []
    doubtful: list[Finding] = []
    worst = 0.0
    # A wait gives back no more than its own length, so locks with little waiting need no closer look.
    enough_ns = limits["gives_back_pct"].value / 100 * facts.elapsed_ns
    waited = [lock for lock in locks if lock.waits.total_ns >= enough_ns]
    for lock in waited:
        lost, gain = facts.lost_pct(lock.waits), facts.ceiling_pct(lock.waits, work_stays=True)
        worst = max(worst, lost)
        if lost >= limits["lost_pct"].value and gain >= limits["gives_back_pct"].value:
            (findings if lock.certain else doubtful).append(_finding(facts, limits, lock, lost, gain))
    why = f"{len(waited)} of {len(locks)} contended locks were waited for at length"
    if waited:
        why += f"; the worst cost its waiters {worst:.1f} % of their working time"
    if findings:
        return Verdict(RULE, "flagged", why, tuple(findings))
    if doubtful:
        titles = "; ".join(f.title for f in doubtful)
        return not_evaluable(
            RULE, f"{titles}: this may be a lock or a hand-over of work, no thread both waited and released there"
        )
    if gaps:
        return not_evaluable(RULE, "; ".join(text for text, _ in gaps), gaps[0][1])
    return ok(RULE, why if locks else "no contended lock")


def _finding(facts: Facts, limits: Limits, lock: _Lock, lost: float, gain: float) -> Finding:
    waits = lock.waits
    lengths = waits.end_ns - waits.start_ns
    evidence = [
        against("waiting for the lock, of the waiters' working time", lost, limits["lost_pct"], lock.measured_by),
        against("ceiling of elapsed time saved", gain, limits["gives_back_pct"], lock.measured_by),
        observed("waited for the lock, all threads", waits.total_ns / 1e9, "s", lock.measured_by),
        observed("waits", len(waits), "waits", lock.measured_by),
        observed("longest wait", float(lengths.max()) / 1e6, "ms", lock.measured_by),
    ]
    text = f"{threads_text(facts, waits)} waited {seconds(waits.total_ns)} for {lock.name}"
    waiting = by_function(facts, np.asarray(lock.stacks, np.int32), lengths, lock.layer)
    stack = ROOT
    if waiting:
        frame, _, stack = waiting[0]
        text += f" at {label(frame)}"
    held = _held(facts, lock)
    if held:
        text += f"; held by {held[0]}"
        evidence.append(held[1])
    else:
        text += "; its holder is unknown"
    return Finding(
        RULE,
        f"Lock contention: {text}",
        Severity.INFO,
        where(facts, waits, stack, lock.layer),
        tuple(evidence),
        round(gain, 1),
        "hold the lock only around the shared data, never around I/O, a model call or logging; split it by key or use "
        "one copy a thread (sharded cache, thread-local tokenizer), or a structure made for concurrent use",
        flame(facts, "off-cpu", [thread_name(facts, t) for t in main_threads(waits)]),
    )


def _held(facts: Facts, lock: _Lock) -> tuple[str, Evidence] | None:
    """(text, evidence) of the thread and code that held the lock while others waited."""
    threads: dict[int, int] = defaultdict(int)
    looked: dict[int, int] = defaultdict(int)  # stacks seen while it was held; without any, those in force
    stacks: dict[int, int] = defaultdict(int)
    own_ends = {t: np.sort(lock.waits.end_ns[lock.waits.thread == t]) for t in lock.waits.by_thread()}
    spans = zip(lock.waits.start_ns.tolist(), lock.waits.end_ns.tolist(), lock.holders, strict=True)
    for start, end, holder in spans:
        if holder is None:
            continue
        # Who waited there itself has held it since its own last wait ended.
        ends = own_ends.get(holder, np.empty(0, np.int64))
        before = int(np.searchsorted(ends, end, side="left")) - 1
        since = max(start, int(ends[before])) if before >= 0 else start
        threads[holder] += end - since
        look = facts.look_within(holder, since, end)
        if look is not None:
            looked[look] += end - since
        slices = facts.threads[holder]
        first = max(int(np.searchsorted(slices.start_ns, since, side="right")) - 1, 0)
        last = int(np.searchsorted(slices.start_ns, end, side="left"))
        for i in range(first, last):
            stacks[int(slices.stack_id[i])] += int(min(slices.end_ns[i], end) - max(slices.start_ns[i], since))
    if not threads:
        return None
    thread = max(threads, key=lambda t: threads[t])
    share = 100 * threads[thread] / lock.waits.total_ns
    text = thread_name(facts, thread) if len(threads) == 1 else f"{len(threads)} threads in turn"
    stacks = looked or stacks
    stacks.pop(ROOT, None)
    code = by_function(
        facts, np.asarray(list(stacks), np.int32), np.asarray(list(stacks.values()), np.int64), lock.layer
    )
    if code:
        text += f" at {label(code[0][0])}"
    what = f"held by {thread_name(facts, thread)}" + (f" at {label(code[0][0])}" if code else "")
    return text, observed(what, share, "% of the waiting", lock.measured_by)


def _python_locks(facts: Facts, pid: int) -> Iterator[_Lock]:
    """Contended locks of a Python process, by futex address."""
    table = facts.rows("waits", pid=pid, kind="futex")
    waiters = {(pid, tid): facts.index.get((pid, tid)) for tid in set(table["tid"].to_pylist())}
    columns = [table[c].to_pylist() for c in ("address", "tid", "start_ns", "end_ns", "waker_tid")]
    by_address: dict[int, list[tuple[int, int, int, int | None]]] = defaultdict(list)
    for address, tid, start, end, waker in zip(*columns, strict=True):
        thread = waiters[pid, tid]
        if thread is not None and address is not None:
            by_address[address].append((thread, start, facts.info.stop_ns if end is None else end, waker))
    for address, rows in by_address.items():
        used_by = {facts.threads[thread].tid for thread, *_ in rows}
        certain = bool(used_by & {waker for *_, waker in rows if waker is not None})
        kept, holders, stacks = [], [], []
        for_work = for_lock = 0
        for thread, start, end, waker in rows:
            state, stack = facts.at(thread, start + (end - start) // 2)
            look = facts.look_within(thread, start, end)
            if look is not None:
                stack, state = look, futex_state(facts.stacks, look)
                for_lock += state == LOCK
                for_work += state != LOCK
            if state == LOCK:
                kept.append((start, end, thread))
                holders.append(None if waker is None else facts.index.get((pid, waker)))
                stacks.append(stack)
        if for_work > for_lock:
            continue  # when looked at during the wait, it was for work; other stacks are of a look too early or late
        if kept:
            yield _Lock(
                "python",
                pid,
                f"the lock at {address:#x}",
                Intervals.of(kept),
                holders,
                stacks,
                "waits (eBPF futex, exact)",
                certain,
            )


def _java_locks(facts: Facts, pid: int) -> Iterator[_Lock]:
    """Contended monitors and owned synchronizers of a JVM, by class and waiting place."""
    table = facts.rows("jvm_events", pid=pid, type=["JavaMonitorEnter", "ThreadPark"])
    columns = [
        table[c].to_pylist() for c in ("type", "tid", "time_ns", "duration_ns", "subject", "other_tid", "stack_id")
    ]
    groups: dict[tuple[str, str], list[tuple[int, int, int, int | None, int]]] = defaultdict(list)
    for kind, tid, start, duration, subject, other, stack in zip(*columns, strict=True):
        thread = None if tid is None else facts.index.get((pid, tid))
        if thread is None or duration <= 0 or (kind == "ThreadPark" and park_state(subject) != LOCK):
            continue
        groups[kind, subject or "unknown class"].append(
            (thread, start, start + duration, other, ROOT if stack is None else stack)
        )
    for (kind, subject), rows in groups.items():
        name = f"a monitor of {subject}" if kind == "JavaMonitorEnter" else f"a {subject}"
        yield _Lock(
            "java",
            pid,
            name,
            Intervals.of([(start, end, thread) for thread, start, end, *_ in rows]),
            [_owner(facts, pid, *row[:4]) for row in rows],
            [stack for *_, stack in rows],
            "jvm_events (JFR; waits above its threshold only)",
        )


def _owner(facts: Facts, pid: int, thread: int, start_ns: int, end_ns: int, owner_tid: int | None) -> int | None:
    """The thread that held the lock: the event's own word, else who woke the waiter at the end of its wait."""
    if owner_tid is not None:
        return facts.index.get((pid, owner_tid))
    waker = facts.woken_by(thread, start_ns, end_ns)
    return None if waker is None else facts.index.get((pid, waker))

"""lock-contention: threads wait for a lock that another thread holds, in Python or in Java.

Python: futex waits on addresses other than the GIL's. A futex is also how a thread waits for work, so a wait counts as
contention only if the merge calls it a lock wait (its code is none of the standard library's waits for an event), and
its address behaves like a lock: some thread both waited there and woke others there, so it acquired and released. Where
only the second is missing and the wait matters, the rule is not evaluable and says so.
Java: JavaMonitorEnter events (which name the previous owner), and ThreadPark where the merge calls it a lock wait.
gives_back: Facts.ceiling_pct with the work staying.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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
from perfscope.diagnosis.intervals import Growth, Int64, Intervals, depth, groups
from perfscope.diagnosis.thresholds import Limits
from perfscope.merge.intervals import FAR, bounded
from perfscope.merge.slices import LOCK, SLEEP
from perfscope.merge.tables import codes, filled, thread_keys
from perfscope.merge.waits import futex_state, park_state
from perfscope.model.finding import Evidence, Finding, Severity, Verdict
from perfscope.model.stacks import ROOT

RULE = "lock-contention"
NEEDS = ("ebpf", "jfr")


@dataclass(frozen=True)
class _Waits:
    """Contended waits. holders: for each the index of the thread that had the lock, or -1; stacks: the waiter's."""

    waits: Intervals
    holders: npt.NDArray[np.int32]
    stacks: npt.NDArray[np.int32]

    def where(self, rows: npt.NDArray[np.intp] | slice) -> _Waits:
        return _Waits(self.waits.where(rows), self.holders[rows], self.stacks[rows])


@dataclass(frozen=True)
class _Lock:
    """A lock and the waits for it. certain: false if it may as well be a hand-over of work."""

    name: str
    contended: _Waits
    layer: str
    measured_by: str
    certain: bool = True

    @property
    def waits(self) -> Intervals:
        return self.contended.waits


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
        lost = facts.lost_pct(lock.waits)
        worst = max(worst, lost)
        if lost < limits["lost_pct"].value:
            continue
        gain = facts.ceiling_pct(lock.waits, work_stays=True)
        if gain >= limits["gives_back_pct"].value:
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
    waiting = by_function(facts, lock.contended.stacks, lengths, lock.layer)
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
    known = lock.contended.where(np.flatnonzero(lock.contended.holders >= 0))
    if not len(known.holders):
        return None
    holders, until = known.holders, known.waits.end_ns
    # Who let it go at the end of a wait has had it since it was let go before: another one's wait ended then.
    releases = np.concatenate(([-FAR], np.unique(until)))
    since = np.maximum(known.waits.start_ns, releases[np.searchsorted(releases, until) - 1])
    held = np.bincount(holders, until - since)
    thread = int(np.argmax(held))
    threads = np.count_nonzero(np.bincount(holders))
    text = thread_name(facts, thread) if threads == 1 else f"{threads} threads in turn"
    looks: npt.NDArray[np.int32] = facts.look_within(holders, since, until)
    seen, unseen = np.flatnonzero(looks != ROOT), np.flatnonzero(looks == ROOT)
    # A holder that slept from before the wait on has its one look there: the stack in force tells, as it can't change.
    stacks, weights = _in_force(facts, holders[unseen], since[unseen], until[unseen])
    stacks, weights = np.append(stacks, looks[seen]), np.append(weights, (until - since)[seen])
    code = by_function(facts, stacks, weights, lock.layer)
    at = f" at {label(code[0][0])}" if code else ""
    share = 100 * float(held[thread]) / float(held.sum())
    by = f"who let it go: {lock.measured_by}; where: samples"
    proof = observed(f"held by {thread_name(facts, thread)}{at}", share, "% of the holding that is known", by)
    return text + at, proof


def _in_force(
    facts: Facts, threads: npt.NDArray[np.int32], start_ns: Int64, end_ns: Int64
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """Stacks in force in these threads in [start_ns, end_ns), and for how long each was, in ns."""
    stacks, weights = [np.empty(0, np.int32)], [np.empty(0)]
    for thread, rows in groups(threads):
        slices = facts.threads[thread]
        stacks.append(slices.stack_id)
        weights.append(Growth(*depth(start_ns[rows], end_ns[rows])).within(slices.start_ns, slices.end_ns))
    return np.concatenate(stacks), np.concatenate(weights)


def _python_locks(facts: Facts, pid: int) -> Iterator[_Lock]:
    """Contended locks of a Python process, by futex address."""
    rows = facts.rows("waits", pid=pid, kind="futex")
    rows = rows.filter(pa.array(facts.numbers(pid, rows["tid"].to_numpy()) >= 0))
    tids, wakers = rows["tid"].to_numpy(), filled(rows["waker_tid"], -1)
    start, end = bounded(rows["start_ns"].to_numpy()), bounded(filled(rows["end_ns"], facts.info.stop_ns))
    threads = facts.numbers(pid, tids)
    addresses, first, lock = np.unique(rows["address"].to_numpy(), return_index=True, return_inverse=True)
    state, stacks = facts.at(threads, start + (end - start) // 2)
    looks = facts.look_within(threads, start, end)
    seen = looks != ROOT
    stacks[seen] = looks[seen]
    distinct, which = np.unique(stacks[seen], return_inverse=True)
    state[seen] = np.asarray([futex_state(facts.stacks, stack) for stack in distinct.tolist()], np.uint8)[which]
    for_lock = np.bincount(lock[seen & (state == LOCK)], minlength=len(addresses))
    for_work = np.bincount(lock[seen & (state != LOCK)], minlength=len(addresses))
    # When looked at during the wait, it was for work; other stacks are of a look too early or late.
    kept = np.flatnonzero((state == LOCK) & (for_work <= for_lock)[lock])
    used = np.isin(thread_keys(lock, wakers), thread_keys(lock, tids))
    certain = np.bincount(lock[used], minlength=len(addresses)) > 0
    waits = _Waits(Intervals(start, end, threads), facts.numbers(pid, wakers), stacks).where(kept)
    for number, mine in sorted(groups(lock[kept]), key=lambda group: first[group[0]]):
        name = f"the lock at {addresses[number]:#x}"
        yield _Lock(name, waits.where(mine), "python", "waits (eBPF futex, exact)", bool(certain[number]))


def _java_locks(facts: Facts, pid: int) -> Iterator[_Lock]:
    """Contended monitors and owned synchronizers of a JVM, by class and waiting place."""
    rows = facts.rows("jvm_events", pid=pid, type=["JavaMonitorEnter", "ThreadPark"])
    monitor = codes(rows["type"], lambda kind: kind == "JavaMonitorEnter") == 1
    locked = monitor | (codes(rows["subject"], park_state, SLEEP) == LOCK)
    threads = facts.numbers(pid, filled(rows["tid"], -1))
    kept = np.flatnonzero((threads >= 0) & (rows["duration_ns"].to_numpy() > 0) & locked)
    rows, monitor, threads = rows.take(pa.array(kept)), monitor[kept], threads[kept]
    start = bounded(rows["time_ns"].to_numpy())
    waits = Intervals(start, bounded(start + bounded(rows["duration_ns"].to_numpy())), threads)
    # The lock's owner: the event's own word, else who woke the waiter at the end of its wait.
    owners = facts.numbers(pid, filled(rows["other_tid"], -1))
    silent = np.flatnonzero(rows["other_tid"].is_null().to_numpy())
    owners[silent] = facts.numbers(pid, facts.woken_by(threads[silent], start[silent], waits.end_ns[silent]))
    contended = _Waits(waits, owners, filled(rows["stack_id"], ROOT))
    subject = pc.fill_null(rows["subject"].cast(pa.string()), "unknown class")
    prefix = pa.array(np.where(monitor, "a monitor of ", "a "), pa.string())
    names = pc.dictionary_encode(pc.binary_join_element_wise(prefix, subject, "")).combine_chunks()
    for number, mine in groups(names.indices.to_numpy()):
        name = names.dictionary[number].as_py()
        yield _Lock(name, contended.where(mine), "java", "jvm_events (JFR; waits above its threshold only)")

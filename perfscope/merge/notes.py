"""Sentences that belong beside a call tree: how good its clocks are, what is missing from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from perfscope.merge.facts import NOBODY, Facts
from perfscope.merge.tables import ThreadInfo
from perfscope.model.session import Session
from perfscope.model.stacks import ROOT

_NAMED_THREADS = 5


def notes_on(session: Session, facts: Facts, threads: Sequence[ThreadInfo], rows: npt.NDArray[np.int64]) -> list[str]:
    """Notes on a tree of these threads, made of these rows of the facts' times."""
    notes = []
    for name, report in sorted(session.info.collectors.items()):
        if report.lost_events:
            notes.append(f"{name}: {report.lost_events:,} events lost")
        if report.status in ("partial", "failed") and report.why:
            notes.append(f"{name}: {report.status}: {report.why}")
    timed = [t for t in threads if t.tid != NOBODY and t.end_ns > t.start_ns]
    unclear = [t for t in timed if not t.sched_complete]
    if unclear and len(unclear) == len(timed):
        notes.append("no complete scheduler records: on-CPU and off-CPU time is not known, only wall time")
    elif unclear:
        names = ", ".join(f"{t.name} ({t.tid})" for t in unclear[:_NAMED_THREADS])
        more = f" and {len(unclear) - _NAMED_THREADS} more" if len(unclear) > _NAMED_THREADS else ""
        notes.append(f"no complete scheduler records of {names}{more}: their time counts in wall alone")
    if facts.unlisted_sched_rows:
        notes.append(f"{facts.unlisted_sched_rows} scheduler records are of threads not listed: not shown")
    total = int(facts.ns[rows].sum())
    unsampled = int(facts.ns[rows][facts.stack[rows] == ROOT].sum())
    if unsampled:
        share = _share(unsampled, total)
        notes.append(f"unsampled: {share} of thread time has no stack, whatever the thread did then, asleep or running")
    if facts.torn_looks:
        notes.append(f"torn: {_share(facts.torn_looks, facts.all_looks)} of samples, kept out of stacks")
    untimed = int(facts.sample_count[facts.sample_window < 0].sum())
    if untimed:
        notes.append(f"{untimed} samples carry no time: they count in the samples weight alone")
    return notes


def _share(part: int, whole: int) -> str:
    """A percentage that never rounds something to nothing, nor a part to the whole."""
    share = 100 * part / whole
    return "< 0.1 %" if share < 0.1 else "> 99.9 %" if 99.9 < share < 100 else f"{share:.1f} %"

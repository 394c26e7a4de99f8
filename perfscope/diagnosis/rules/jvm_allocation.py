"""jvm-allocation: one place in a Java program allocates most of a high rate of garbage.

Measured on JFR's allocation samples, whose weights (column bytes) add up to the bytes allocated. The share of a place
is given with Wilson's interval over the samples. gives_back: the time in which that function was on the CPU, by Java
samples, as Facts.ceiling_pct with the work gone, plus the GC pauses: no more can come from allocating less there. It is
null where nothing says what was on a CPU.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perfscope.diagnosis.describe import against, by_function, flame, label, not_evaluable, observed, ok, path
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.rules.gc_pause import pauses
from perfscope.diagnosis.shares import wilson
from perfscope.diagnosis.thresholds import Limits
from perfscope.merge.slices import RUNNING
from perfscope.model.finding import Evidence, Finding, Severity, Verdict, Where
from perfscope.model.stacks import ROOT, Frame

RULE = "jvm-allocation"
NEEDS = ("ebpf", "jfr")
MEASURED = "jvm_events (JFR allocation samples)"
EVENTS = ["ObjectAllocationSample", "ObjectAllocationInNewTLAB", "ObjectAllocationOutsideTLAB"]


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    pids = facts.pids("java")
    if not pids:
        return not_evaluable(RULE, "no Java process in this session")
    if gap := facts.collector_gap("jfr"):
        return not_evaluable(RULE, gap[0], gap[1])
    findings, seen, missing = [], [], []
    for pid in pids:
        result = _process(facts, limits, pid)
        if isinstance(result, Finding):
            findings.append(result)
        elif result is None:
            missing.append(f"pid {pid}: no allocation samples")
        else:
            seen.append(result)
    if findings:
        return Verdict(RULE, "flagged", "; ".join(f.title for f in findings), tuple(findings))
    if missing and not seen:
        return not_evaluable(
            RULE, "; ".join(missing), "a longer recording on JDK 16 or newer, which has jdk.ObjectAllocationSample"
        )
    return ok(RULE, "; ".join(seen))


def _process(facts: Facts, limits: Limits, pid: int) -> Finding | str | None:
    rows = facts.rows("jvm_events", pid=pid, type=EVENTS)
    rows = rows.filter(rows["bytes"].is_valid())
    if not rows.num_rows or facts.elapsed_ns <= 0:
        return None
    weights = rows["bytes"].to_numpy()
    times = rows["time_ns"].to_numpy()
    # The first sample carries what was allocated before the recording began, so its weight is not counted.
    weights = np.where(times == times.min(), 0, weights)
    stacks = np.asarray([ROOT if s is None else s for s in rows["stack_id"].to_pylist()], np.int32)
    total = int(weights.sum())
    rate = total / 1e6 / (facts.elapsed_ns / 1e9)
    places = by_function(facts, stacks, weights, "java")
    if not places or total == 0:
        return f"pid {pid}: {rate:.0f} MB/s"
    frame, size, stack = places[0]
    share = size / total
    low, high = wilson(share, len(weights))
    text = f"{label(frame)} allocates {100 * share:.0f} % of {rate:.0f} MB/s"
    gain = _gain(facts, pid, frame)
    if (
        rate < limits["rate_mb_s"].value
        or len(weights) < limits["samples"].value
        or 100 * low < limits["site_share_pct"].value
        or (gain is not None and gain < limits["gives_back_pct"].value)
    ):
        return f"pid {pid}: {text}: below the thresholds"
    subjects = _classes(rows["subject"].to_pylist(), weights.tolist())
    process = next((t.process for t in facts.threads if t.pid == pid), None)
    return Finding(
        RULE,
        f"JVM allocation: {text}" + (f", mostly {subjects[0][0]}" if subjects else ""),
        Severity.INFO,
        Where(
            process=process,
            pid=pid,
            stack=path(facts, stack),
            file=frame.file,
            line=frame.line,
            function=frame.function,
            window_ns=(int(times.min()), int(times.max())),
        ),
        (
            against("allocated", rate, limits["rate_mb_s"], MEASURED),
            against(
                "share of the place, lower end of the 95 % interval", 100 * low, limits["site_share_pct"], MEASURED
            ),
            observed("upper end of the 95 % interval", 100 * high, "%", MEASURED),
            against("allocation samples", len(weights), limits["samples"], MEASURED),
            *_ceiling(gain, limits),
            *(observed(f"of class {name}", 100 * n / total, "% of bytes", MEASURED) for name, n in subjects[:3]),
        ),
        None if gain is None else round(gain, 1),
        "reuse what this place makes on each call (buffers, StringBuilder, ByteBuffer, token arrays), size collections "
        "beforehand, avoid boxing and copies between String and byte[], or parse and write streams directly",
        flame(facts, "cpu"),
    )


def _gain(facts: Facts, pid: int, frame: Frame) -> float | None:
    """Ceiling in percent; None without scheduler records, since then no one knows what was on a CPU."""
    if facts.collector_gap("ebpf"):
        return None
    running, stacks = facts.slices([RUNNING], facts.threads_of(pid))
    inside = running.where(_on_stack(facts, frame)[stacks])
    gain = facts.ceiling_pct(inside, work_stays=False)
    if (paused := pauses(facts, pid)) is not None:
        gain += 100 * int((paused[1] - paused[0]).sum()) / facts.elapsed_ns
    return min(100.0, gain)


def _ceiling(gain: float | None, limits: Limits) -> list[Evidence]:
    if gain is None:
        return []
    by = "samples (JFR) on a CPU (sched), GC pauses"
    return [against("ceiling of elapsed time saved", gain, limits["gives_back_pct"], by)]


def _on_stack(facts: Facts, frame: Frame) -> npt.NDArray[np.bool_]:
    """bool[stacks + 1]: whether the function is anywhere on each stack (the last stands for the empty stack)."""
    stacks = facts.stacks
    wanted = frame._replace(line=None)
    found = np.zeros(len(stacks.parents) + 1, bool)
    for stack, (parent, f) in enumerate(zip(stacks.parents, stacks.stack_frames, strict=True)):
        found[stack] = found[parent] or stacks.frames[f]._replace(line=None) == wanted
    return found


def _classes(subjects: list[str | None], weights: list[int]) -> list[tuple[str, int]]:
    sums: dict[str, int] = {}
    for subject, weight in zip(subjects, weights, strict=True):
        if subject:
            sums[subject] = sums.get(subject, 0) + weight
    return sorted(sums.items(), key=lambda item: -item[1])

"""sync-in-loop: the same code waits for the GPU again and again, which then stands idle until the next launch.

What a synchronisation takes itself is mostly work that it waited for: it costs only the gap that follows it. Lost time
is these gaps, less the time in which the thread waited for work. Without a wait the thread could be ahead by as long as
the wait took, and no further: so much of the gap after it can be saved; the rest is launch-bound's.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from perfscope.diagnosis.describe import against, flame, label, observed, seconds
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.gpu_timeline import MEASURED, Gpu, after_sync, host_parts
from perfscope.diagnosis.gpu_verdict import gives_back, gpu_name, verdict, where
from perfscope.diagnosis.thresholds import Limits
from perfscope.model.finding import Finding, Severity, Verdict
from perfscope.model.stacks import ROOT

RULE = "sync-in-loop"
NEEDS = ("cuda",)


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    return verdict(RULE, facts, limits, _judge)


def _judge(facts: Facts, limits: Limits, gpu: Gpu) -> Finding | str:
    calls, gaps = facts.gpu_waits, gpu.gaps
    by_call = after_sync(facts, gpu)
    held = np.flatnonzero(by_call >= 0)
    parts = host_parts(facts, gpu.pid, gpu.rows.tid[gaps.next[held]], gaps.start[held], gaps.launch[held])
    lost = (gaps.end - gaps.launch)[held]
    busy = parts.busy(1e6 * limits["unseen_gap_ms"].value)
    np.add.at(lost, parts.index[busy], parts.ns[busy])
    sites: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    owner = facts.own_code["python"]
    for place, call in enumerate(by_call[held].tolist()):
        sites[int(calls.tid[call]), int(owner[int(calls.stack[call])])].append(place)
    name = gpu_name(gpu)
    if not sites:
        return f"{name}: no wait of the host left it idle"
    (tid, stack), places = max(sites.items(), key=lambda site: int(lost[site[1]].sum()))
    count, after = len(places), int(lost[places].sum())
    waits = (calls.end - calls.start)[by_call[held[places]]]
    saved = int(np.minimum(lost[places], waits).sum())
    share, gain = gpu.pct(after), gives_back(facts, saved)
    text = f"{count} waits left {name} idle for {seconds(after)}, {share:.0f} % of the steady part"
    repeats = limits["repeats"].value
    if count < repeats or share < limits["idle_pct"].value or gain < limits["gives_back_pct"].value:
        return f"{text}; at most {gain:.1f} % of the recording could be saved, as the waits were no longer"
    frame = None if stack == ROOT else facts.stacks.frames[facts.stacks.stack_frames[stack]]
    return Finding(
        RULE,
        f"Synchronisation in a loop: {text}" + (f", in {label(frame)}" if frame else ""),
        Severity.INFO,
        where(facts, gpu, frame, stack, tid),
        (
            against("GPU idle after these waits", share, limits["idle_pct"], MEASURED),
            against(
                "ceiling of elapsed time saved",
                gain,
                limits["gives_back_pct"],
                "the less of each wait and the idle time after it, summed",
            ),
            observed("idle after these waits", after / 1e9, "s", MEASURED),
            observed("these waits themselves", float(waits.sum()) / 1e9, "s", "cuda_api (CUPTI, exact)"),
            against("waits from this place", count, limits["repeats"], "cuda_api (CUPTI, exact)"),
        ),
        round(gain, 1),
        "let the host run ahead: read results a step late or every n steps, keep counters and stopping tests on the "
        "GPU, copy with non_blocking=True into pinned memory and wait for an event only when the value is needed "
        f"(.item(), .cpu(), .tolist(), print and bool of a tensor all wait). {gpu.left_out}",
        flame(facts, "gpu"),
    )

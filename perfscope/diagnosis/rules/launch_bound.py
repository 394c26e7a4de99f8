"""launch-bound: the GPU runs dry because the host hasn't launched the next kernel yet.

Lost time is the gaps in the steady part whose next launch was called only after they began, less the time in which the
launching thread waited for work itself. Of a gap that followed a blocking call of that thread, as much as the call took
is sync-in-loop's: so far ahead could the thread have been without it.
gives_back: that time's share of the recording; a host that launched at once could save no more.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perfscope.diagnosis.describe import against, by_function, flame, label, observed, seconds
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.gpu_timeline import MEASURED, Gpu, HostParts, after_sync, host_parts
from perfscope.diagnosis.gpu_verdict import gives_back, gpu_name, verdict, where
from perfscope.diagnosis.intervals import Int64
from perfscope.diagnosis.thresholds import Limits
from perfscope.merge.gpu_activity import KERNEL
from perfscope.merge.tables import NEVER
from perfscope.model.finding import Evidence, Finding, Severity, Verdict
from perfscope.model.stacks import ROOT, Frame

RULE = "launch-bound"
NEEDS = ("cuda",)


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    return verdict(RULE, facts, limits, _judge)


def late_launches(facts: Facts, gpu: Gpu, unseen_gap_ns: float) -> tuple[Int64, HostParts]:
    """ns lost in each gap to the host's launching late, and what the host did before these launches."""
    gaps = gpu.gaps
    late = (gpu.rows.launch[gaps.next] > gaps.start) & (gpu.rows.launch[gaps.next] != NEVER)
    until = np.where(late, gaps.launch, gaps.start)
    parts = host_parts(facts, gpu.pid, gpu.rows.tid[gaps.next], gaps.start, until)
    lost = np.where(late, gaps.end - gaps.launch, 0)
    busy = parts.busy(unseen_gap_ns)
    np.add.at(lost, parts.index[busy], parts.ns[busy])
    call = after_sync(facts, gpu)
    calls = facts.gpu_waits
    held = np.flatnonzero(call >= 0)
    lost[held] -= np.minimum(lost[held], (calls.end - calls.start)[call[held]])
    return lost, parts


def _judge(facts: Facts, limits: Limits, gpu: Gpu) -> Finding | str:
    kernels = gpu.rows.kind == KERNEL
    if np.count_nonzero(kernels) < limits["kernels"].value:
        return f"{gpu_name(gpu)}: fewer than {limits['kernels'].value:g} kernels in the steady part"
    unseen_gap_ns = 1e6 * limits["unseen_gap_ms"].value
    lost, parts = late_launches(facts, gpu, unseen_gap_ns)
    total = int(lost.sum())
    share, gain = gpu.pct(total), gives_back(facts, total)
    text = f"{gpu_name(gpu)} stood idle {share:.0f} % of the steady part while the host launched"
    if share < limits["idle_pct"].value or gain < limits["gives_back_pct"].value:
        return f"{text} ({gpu.busy_pct:.0f} % busy)"
    frame, stack, holds, by = _hot_line(facts, gpu, lost, parts, parts.busy(unseen_gap_ns))
    length = (gpu.rows.end - gpu.rows.start)[kernels]
    launches = np.unique(gpu.rows.launch[kernels])
    launches = launches[(launches >= gpu.start_ns) & (launches < gpu.end_ns)]
    evidence: list[Evidence] = [
        against("GPU idle while the host launched", share, limits["idle_pct"], MEASURED),
        against("ceiling of elapsed time saved", gain, limits["gives_back_pct"], MEASURED),
        observed("GPU busy in the steady part", gpu.busy_pct, "%", MEASURED),
        observed("kernels", 1e9 * int(kernels.sum()) / gpu.length_ns, "kernels/s", MEASURED),
        observed("kernel duration, median", float(np.median(length)) / 1e3, "us", MEASURED),
    ]
    if len(launches) > 1:
        interval = float(np.median(np.diff(launches))) / 1e3
        evidence.append(observed("from one launch to the next, median", interval, "us", MEASURED))
    if frame is not None:
        evidence.append(observed(f"of that idle time, {label(frame)}", holds, "%", by))
    line = f", most in {label(frame)}" if frame is not None else ""
    tid = _main_thread(gpu, lost)
    return Finding(
        RULE,
        f"Launch-bound: {text}{line}",
        Severity.INFO,
        where(facts, gpu, frame, stack, tid),
        tuple(evidence),
        round(gain, 1),
        f"the host needs longer to launch kernels than the GPU to run them ({seconds(total)} of idle time; "
        f"{gpu.left_out}): launch fewer and larger ones: capture the step in a CUDA graph "
        "(torch.compile(mode='reduce-overhead'), torch.cuda.CUDAGraph), fuse kernels, raise the batch size, and take "
        "Python work out of the step",
        flame(facts, "gpu"),
    )


def _main_thread(gpu: Gpu, lost: Int64) -> int:
    """The thread whose launches ended the gaps of which most was lost; known, as no gap counts without its launch."""
    tids, index = np.unique(gpu.rows.tid[gpu.gaps.next], return_inverse=True)
    return int(tids[np.argmax(np.bincount(index, lost))])


def _hot_line(
    facts: Facts, gpu: Gpu, lost: Int64, parts: HostParts, busy: npt.NDArray[np.bool_]
) -> tuple[Frame | None, int, float, str]:
    """The line that holds most of the idle time, a stack in it, its share, and what says so.

    Samples of the host in the gaps, where they cover at least half of them; else the launches that ended them.
    """
    stack, ns, by = parts.stack[busy], parts.ns[busy].astype(float), "Python samples in the gaps"
    if ns[stack != ROOT].sum() < ns.sum() / 2 or not ns.sum():
        stack, ns = gpu.rows.stack[gpu.gaps.next].astype(np.int32), lost.astype(float)
        by = "stacks of the launches that ended the gaps (CUPTI, exact)"
    ranked = by_function(facts, stack, ns, "python")
    if not ranked or not ns.sum():
        return None, ROOT, 0.0, by
    frame, weight, best = ranked[0]
    return frame, best, 100 * weight / float(ns.sum()), by

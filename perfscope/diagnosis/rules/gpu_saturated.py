"""gpu-saturated: a GPU always has something to run; the host isn't what holds the target up.

Busy means that at least one kernel ran, not that the GPU's units were all used: the evidence says how far they were.
gives_back is null: information about where to look, no fault.
"""

from __future__ import annotations

import numpy as np

from perfscope.diagnosis.describe import against, not_evaluable, observed, ok, seconds
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.gpu_counters import Counters, Series, missing, see
from perfscope.diagnosis.thresholds import Limits
from perfscope.model.finding import Finding, Severity, Verdict, Where

RULE = "gpu-saturated"
NEEDS = ("nvml",)
_USE = {
    "gpu_sm_active_pct": "SMs active",
    "gpu_sm_occupancy_pct": "warps resident",
    "gpu_tensor_active_pct": "tensor cores active",
    "gpu_dram_active_pct": "memory bandwidth used",
}


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    counters = Counters(facts, ["gpu_busy_pct", "gpu_utilization_pct", *_USE])
    wanted = max(2, int(limits["samples"].value))
    findings, said = [], []
    for device in counters.devices:
        found = counters.busy(device)
        if found is None or len(found[0].value) < wanted:
            continue
        busy, by = found
        full = busy.value >= limits["busy_pct"].value
        runs = [run for run in busy.runs(full) if run[1] - run[0] + 1 >= wanted]
        mean = float(np.average(busy.value, weights=busy.lengths_ns()))
        said.append(f"{device} was busy {mean:.1f} % of the time")
        if runs:
            findings.append(_finding(facts, limits, counters, device, busy, by, runs))
    if not said:
        why, get = missing(facts, f"GPU busy time in at least {wanted} samples")
        return not_evaluable(RULE, why, get)
    why = "; ".join(said)
    return Verdict(RULE, "flagged", why, tuple(findings)) if findings else ok(RULE, why)


def _finding(
    facts: Facts,
    limits: Limits,
    counters: Counters,
    device: str,
    busy: Series,
    by: str,
    runs: list[tuple[int, int]],
) -> Finding:
    inside = np.zeros(len(busy.value), bool)
    for first, last in runs:
        inside[first : last + 1] = True
    lengths = busy.lengths_ns()
    first, last = max(runs, key=lambda run: float(lengths[run[0] : run[1] + 1].sum()))
    longest = float(lengths[first : last + 1].sum())
    share = 100 * float(lengths[inside].sum()) / facts.elapsed_ns
    evidence = [
        against(
            f"least busy of {last - first + 1} samples in a row",
            float(busy.value[first : last + 1].min()),
            limits["busy_pct"],
            by,
        ),
        against("samples in a row", last - first + 1, limits["samples"], by),
        observed("saturated, share of the recording", min(share, 100.0), "%", by),
    ]
    for name, what in _USE.items():
        series = counters.series(device, name)
        if series is not None:
            near = series.near(busy.time_ns[inside], 2 * busy.step_ns)
            if np.isfinite(near).any():
                evidence.append(observed(f"{what} meanwhile, mean", float(np.nanmean(near)), "%", by))
    return Finding(
        RULE,
        f"GPU saturated: {device} had work all the time, at longest for {seconds(longest)}",
        Severity.INFO,
        Where(
            device=device,
            window_ns=(
                int(busy.time_ns[first] - busy.error_ns[first]),
                int(busy.time_ns[last] + busy.error_ns[last]),
            ),
        ),
        tuple(evidence),
        None,
        "the GPU is the limit while this lasts: make its kernels faster (perfscope record --ncu says how), send less "
        "work (lower precision, a smaller model, a cache), or use more GPUs; changes on the host gain nothing then",
        see(facts),
    )

"""What the rules on measured kernels have in common: one root cause a kernel, and how it is told.

A kernel shows many signs of one cause: a grid of one block also has a low occupancy and reaches no ceiling. So each
kernel counts for the first rule of PRECEDENCE that holds for it: causes in the launch and the code, then what is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from perfscope.diagnosis import kernels
from perfscope.diagnosis.describe import flame, not_evaluable, observed, ok
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.kernels import Kernel, MissingMetric
from perfscope.diagnosis.thresholds import Thresholds
from perfscope.model.finding import Evidence, Finding, Severity, Verdict, Where

PRECEDENCE = (
    "small-grid",
    "uncoalesced-access",
    "bank-conflict",
    "divergence",
    "tensor-core-unused",
    "memory-bound",
    "compute-bound",
    "low-occupancy",
    "l2-misses",
    "low-sol",
)
"""Rules on one kernel: the first that holds is its cause. The bare signs stand last; memory-bound and compute-bound
say that nothing is wrong, and so come after what can make a ceiling look reached (divergence, conflicts)."""

MEASURED = "gpu_kernels (Nsight Compute)"
GET = "perfscope record --ncu -- CMD"


@dataclass(frozen=True)
class Sign:
    """A rule holds for a kernel. saves_pct: no more than this share of the kernel's time can be saved by mending it."""

    what: str
    evidence: tuple[Evidence, ...]
    saves_pct: float | None
    advice: str


def idle_pct(kernel: Kernel) -> float:
    """What is left of the kernel's time at best, if it reached the ceiling that it is nearest to: 0..100 %."""
    return max(0.0, 100 - max(kernel.need(kernels.COMPUTE), kernel.need(kernels.MEMORY)))


def cause(kernel: Kernel, thresholds: Thresholds) -> tuple[str | None, Sign | None, dict[str, str]]:
    """The rule that holds for a kernel, its sign, and the rules before it that couldn't be judged -> missing metric."""
    unjudged: dict[str, str] = {}
    for rule in PRECEDENCE:
        module: Any = import_module(f"perfscope.diagnosis.rules.{rule.replace('-', '_')}")
        try:
            sign: Sign | None = module.judge(kernel, thresholds[rule])
        except MissingMetric as missing:
            unjudged[rule] = str(missing)
            continue
        if sign:
            return rule, sign, unjudged
    return None, None, unjudged


def verdict(rule: str, facts: Facts) -> Verdict:
    """The verdict of one of these rules on all measured kernels."""
    if gap := facts.collector_gap("ncu"):
        return not_evaluable(rule, f"no measured kernels: {gap[0]}", gap[1] if "ncu" in facts.info.collectors else GET)
    if not facts.kernels:
        return not_evaluable(rule, "no measured kernels in this session", GET)
    findings = []
    missing: dict[str, int] = {}
    for kernel in facts.kernels:
        held, sign, unjudged = cause(kernel, facts.thresholds)
        if held == rule and sign:
            findings.append(_finding(rule, facts, kernel, sign, unjudged))
        elif rule in unjudged:
            missing[unjudged[rule]] = missing.get(unjudged[rule], 0) + 1
    without = sum(missing.values())
    lacking = ", ".join(missing)
    judged = len(facts.kernels) - without
    if not findings and without:
        return not_evaluable(rule, f"{without} of {len(facts.kernels)} kernels were measured without {lacking}", GET)
    why = f"{len(findings)} of {judged} kernels" if findings else f"none of {judged} measured kernels"
    if without:
        why += f"; {without} more could not be judged without {lacking}"
    return Verdict(rule, "flagged", why, tuple(findings)) if findings else ok(rule, why)


def _finding(rule: str, facts: Facts, kernel: Kernel, sign: Sign, unjudged: dict[str, str]) -> Finding:
    gain = None if kernel.elapsed_pct is None or sign.saves_pct is None else kernel.elapsed_pct * sign.saves_pct / 100
    advice = sign.advice
    if sign.saves_pct is not None and gain is None:
        advice += (
            f"; what that gives back is unknown: the session has no GPU timeline with this kernel (get it with: {GET})"
        )
    if unjudged:
        advice += "; not judged for it: " + ", ".join(f"{r} (needs {metric})" for r, metric in unjudged.items())
    return Finding(
        rule,
        f"{kernel.title}: {sign.what}",
        Severity.INFO,
        Where(kernel=kernel.name, device=kernel.device),
        sign.evidence + _always(kernel),
        gain,
        advice,
        flame(facts, "gpu") if kernel.elapsed_pct is not None else "",
    )


def _always(kernel: Kernel) -> tuple[Evidence, ...]:
    """Speed of light, occupancy and weight, for any finding on a kernel."""
    rows = [
        ("compute throughput, of its ceiling", kernel.get(kernels.COMPUTE), "%", MEASURED),
        ("memory throughput, of its ceiling", kernel.get(kernels.MEMORY), "%", MEASURED),
        ("achieved occupancy, of the device's maximum", kernel.get(kernels.OCCUPANCY), "%", MEASURED),
        ("duration of a launch, replayed alone", _us(kernel.get(kernels.DURATION)), "us", MEASURED),
        ("launches measured", float(kernel.launches), "launches", MEASURED),
        ("share of all kernels' time", kernel.gpu_pct, "%", "gpu_activity (CUPTI, exact)"),
        ("share of elapsed time", kernel.elapsed_pct, "%", "gpu_activity (CUPTI, exact)"),
    ]
    return tuple(observed(what, value, unit, by) for what, value, unit, by in rows if value is not None)


def _us(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e3

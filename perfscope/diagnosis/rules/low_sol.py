"""low-sol: a kernel reaches neither the compute nor the memory ceiling: it waits for latencies."""

from __future__ import annotations

from perfscope.diagnosis import kernels
from perfscope.diagnosis.describe import against, observed
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.kernel_rules import MEASURED, Sign, idle_pct, verdict
from perfscope.diagnosis.kernels import Kernel
from perfscope.diagnosis.thresholds import Limits
from perfscope.model.finding import Verdict

RULE = "low-sol"
NEEDS = ("ncu",)


def judge(kernel: Kernel, limits: Limits) -> Sign | None:
    compute, memory = kernel.need(kernels.COMPUTE), kernel.need(kernels.MEMORY)
    if max(compute, memory) >= limits["ceiling_pct"].value:
        return None
    evidence = [
        against("compute throughput, of its ceiling", compute, limits["ceiling_pct"], MEASURED),
        against("memory throughput, of its ceiling", memory, limits["ceiling_pct"], MEASURED),
    ]
    waits = {reason: pct for reason, pct in kernel.stalls.items() if reason != "selected"}
    if waits:
        reason = max(waits, key=lambda r: waits[r])
        evidence.append(
            observed(f"of a warp's cycles it waits: {reason.replace('_', ' ')}", waits[reason], "%", MEASURED)
        )
    return Sign(
        f"reaches {compute:.0f} % of the compute and {memory:.0f} % of the memory ceiling: it waits for latencies",
        tuple(evidence),
        idle_pct(kernel),
        "give each thread more independent work (unrolling, several loads in flight), more warps, or longer launches",
    )


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    return verdict(RULE, facts)

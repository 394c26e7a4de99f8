"""l2-misses: warps wait for DRAM because L2 rarely holds what they ask for, and DRAM itself is far from its ceiling."""

from __future__ import annotations

from perfscope.diagnosis import kernels
from perfscope.diagnosis.describe import against
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.kernel_rules import MEASURED, Sign, idle_pct, verdict
from perfscope.diagnosis.kernels import Kernel, MissingMetric
from perfscope.diagnosis.thresholds import Limits
from perfscope.model.finding import Verdict

RULE = "l2-misses"
NEEDS = ("ncu",)


def judge(kernel: Kernel, limits: Limits) -> Sign | None:
    hits, dram = kernel.need(kernels.L2_HIT), kernel.need(kernels.DRAM)
    if hits >= limits["hits_pct"].value or dram < limits["dram_pct"].value:
        return None
    idle = idle_pct(kernel)
    if idle <= 100 - limits["ceiling_pct"].value:
        return None
    if not kernel.stalls:
        raise MissingMetric("smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio")
    waits = kernel.stalls.get("long_scoreboard", 0.0)
    if waits < limits["waits_pct"].value:
        return None
    return Sign(
        f"{hits:.0f} % of its requests hit L2, and its warps wait for memory {waits:.0f} % of the time",
        (
            against("requests that hit L2", hits, limits["hits_pct"], MEASURED),
            against("DRAM throughput, of its ceiling", dram, limits["dram_pct"], MEASURED),
            against("of a warp's cycles it waits for loads", waits, limits["waits_pct"], MEASURED),
        ),
        idle,
        "make the data it reads again fit L2: smaller types, blocking, an order of blocks that reuses it (or "
        "persisting L2 access); else have more loads in flight a thread",
    )


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    return verdict(RULE, facts)

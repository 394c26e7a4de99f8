"""divergence: most lanes of a warp are switched off while it executes, because its threads took other branches."""

from __future__ import annotations

from perfscope.diagnosis import kernels
from perfscope.diagnosis.describe import against
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.kernel_rules import MEASURED, Sign, verdict
from perfscope.diagnosis.kernels import Kernel
from perfscope.diagnosis.thresholds import Limits
from perfscope.model.finding import Verdict

RULE = "divergence"
NEEDS = ("ncu",)
_WARP = 32


def judge(kernel: Kernel, limits: Limits) -> Sign | None:
    lanes, busy = kernel.need(kernels.LANES), kernel.need(kernels.COMPUTE)
    if lanes >= limits["lanes"].value or busy < limits["compute_pct"].value:
        return None
    return Sign(
        f"on average {lanes:.1f} of a warp's 32 threads work",
        (
            against("threads that execute an instruction, of 32", lanes, limits["lanes"], MEASURED),
            against("compute throughput, of its ceiling", busy, limits["compute_pct"], MEASURED),
        ),
        100 * (1 - lanes / _WARP),
        "let the threads of one warp take one branch: sort or group the work by branch, replace branches by "
        "arithmetic, or give a whole warp to one item",
    )


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    return verdict(RULE, facts)

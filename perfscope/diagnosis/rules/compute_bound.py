"""compute-bound: a kernel reaches the ceiling of the multiprocessors. Information: it computes as fast as they can."""

from __future__ import annotations

from perfscope.diagnosis import kernels
from perfscope.diagnosis.describe import against, observed
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.kernel_rules import MEASURED, Sign, verdict
from perfscope.diagnosis.kernels import Kernel
from perfscope.diagnosis.thresholds import Limits
from perfscope.model.finding import Verdict

RULE = "compute-bound"
NEEDS = ("ncu",)


def judge(kernel: Kernel, limits: Limits) -> Sign | None:
    compute = kernel.need(kernels.COMPUTE)
    if compute < limits["compute_pct"].value:
        return None
    lanes = kernel.need(kernels.LANES)  # a divergent kernel looks as busy: without it, the two can't be told apart
    return Sign(
        f"limited by the multiprocessors, at {compute:.0f} % of their ceiling",
        (
            against("compute throughput, of its ceiling", compute, limits["compute_pct"], MEASURED),
            observed("threads that execute an instruction, of 32", lanes, "threads", MEASURED),
        ),
        None,
        "its instructions are issued as fast as the device can; what is left is fewer of them: a better algorithm, "
        "smaller types, or tensor cores where it multiplies matrices",
    )


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    return verdict(RULE, facts)

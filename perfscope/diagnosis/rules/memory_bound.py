"""memory-bound: a kernel reaches the ceiling of DRAM, L2 or L1. Information: it is as fast as its traffic allows."""

from __future__ import annotations

from perfscope.diagnosis import kernels
from perfscope.diagnosis.describe import against
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.kernel_rules import MEASURED, Sign, verdict
from perfscope.diagnosis.kernels import Kernel
from perfscope.diagnosis.rules.bank_conflict import PIPE
from perfscope.diagnosis.thresholds import Limits
from perfscope.model.finding import Verdict

RULE = "memory-bound"
NEEDS = ("ncu",)


def judge(kernel: Kernel, limits: Limits) -> Sign | None:
    ceiling = limits["memory_pct"]
    memory = kernel.need(kernels.MEMORY)
    if memory < ceiling.value:
        return None
    levels = {"DRAM": kernel.get(kernels.DRAM), "L2": kernel.get(kernels.L2)}
    reached = {level: value for level, value in levels.items() if value is not None and value >= ceiling.value}
    if not reached:
        kernel.need(PIPE)  # bank conflicts fill L1's pipe, too: without it they can't be told from useful traffic
        reached = {"L1 or shared memory": memory}
    level = next(iter(reached))
    return Sign(
        f"limited by {level}, at {reached[level]:.0f} % of its ceiling",
        tuple(
            against(f"{name} throughput, of its ceiling", value, ceiling, MEASURED) for name, value in reached.items()
        ),
        None,
        "its memory traffic is as fast as the device allows; what is left is less traffic: fuse it with its "
        "neighbours, use smaller types, or keep data in registers, shared memory or L2",
    )


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    return verdict(RULE, facts)

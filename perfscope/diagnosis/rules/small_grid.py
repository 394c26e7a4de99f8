"""small-grid: a kernel has fewer blocks than the device has multiprocessors, so that some of them stand idle."""

from __future__ import annotations

from perfscope.diagnosis import kernels
from perfscope.diagnosis.describe import against, observed
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.kernel_rules import MEASURED, Sign, idle_pct, verdict
from perfscope.diagnosis.kernels import Kernel
from perfscope.diagnosis.thresholds import Limits
from perfscope.model.finding import Verdict

RULE = "small-grid"
NEEDS = ("ncu",)


def judge(kernel: Kernel, limits: Limits) -> Sign | None:
    blocks, multiprocessors = kernel.need(kernels.GRID), kernel.need(kernels.SMS)
    if multiprocessors <= 0 or blocks / multiprocessors >= limits["blocks_per_sm"].value:
        return None
    idle = idle_pct(kernel)
    if idle <= 100 - limits["ceiling_pct"].value:
        return None  # it reaches a ceiling of the whole device all the same
    return Sign(
        f"{blocks:.0f} blocks for {multiprocessors:.0f} multiprocessors",
        (
            against("blocks a multiprocessor", blocks / multiprocessors, limits["blocks_per_sm"], MEASURED),
            observed("blocks in the grid", blocks, "blocks", MEASURED),
        ),
        idle,
        "launch more, smaller blocks, split the work along another dimension (split-K), give more work to one launch "
        "(batch requests, fuse small kernels), or run it beside others on streams or in a CUDA graph",
    )


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    return verdict(RULE, facts)

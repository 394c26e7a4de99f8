"""low-occupancy: too few warps are in flight to hide latency, and the kernel reaches no ceiling."""

from __future__ import annotations

from perfscope.diagnosis import kernels
from perfscope.diagnosis.describe import against, observed
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.kernel_rules import MEASURED, Sign, idle_pct, verdict
from perfscope.diagnosis.kernels import Kernel
from perfscope.diagnosis.thresholds import Limits
from perfscope.model.finding import Verdict

RULE = "low-occupancy"
NEEDS = ("ncu",)

_LIMITERS = {
    "shared_mem": ("shared memory", "use less shared memory a block"),
    "registers": ("registers", "use fewer registers a thread: __launch_bounds__, -maxrregcount, or a split kernel"),
    "warps": ("the block size", "choose a block size that divides the warps of a multiprocessor"),
    "blocks": ("the block size", "use larger blocks: the device allows no more of them on a multiprocessor"),
    "barriers": ("barriers", "use fewer named barriers a block"),
}


def judge(kernel: Kernel, limits: Limits) -> Sign | None:
    achieved = kernel.need(kernels.OCCUPANCY)
    idle = idle_pct(kernel)
    # At 70 % of a ceiling or above there is nothing left for more warps to win.
    if achieved >= limits["achieved_pct"].value or idle <= 100 - limits["ceiling_pct"].value:
        return None
    possible = kernel.need(kernels.OCCUPANCY_LIMIT)
    evidence = [
        against("achieved occupancy, of the device's maximum", achieved, limits["achieved_pct"], MEASURED),
        observed("occupancy that its launch allows", possible, "%", MEASURED),
    ]
    if possible >= limits["achieved_pct"].value:
        limiter, advice = "uneven work", "make blocks and warps alike in work, and launch enough of them at a time"
    else:
        name, blocks = _limiter(kernel)
        limiter, advice = _LIMITERS[name]
        evidence.append(observed(f"blocks a multiprocessor that {limiter} allows", blocks, "blocks", MEASURED))
    return Sign(f"{achieved:.0f} % occupancy, limited by {limiter}", tuple(evidence), idle, advice)


def _limiter(kernel: Kernel) -> tuple[str, float]:
    allowed = {
        name: kernel.need(f"launch__occupancy_limit_{name}") for name in ("shared_mem", "registers", "warps", "blocks")
    }
    if (barriers := kernel.get("launch__occupancy_limit_barriers")) is not None:
        allowed["barriers"] = barriers
    name = min(allowed, key=lambda n: allowed[n])
    return name, allowed[name]


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    return verdict(RULE, facts)

"""bank-conflict: lanes of a warp want different words of one shared memory bank, and take turns.

Told by the conflicts that were counted among shared memory's wavefronts, where they were; else by the wavefronts that
a request takes in the L1 data pipe (4 are what 16 bytes a thread need without any conflict), where the warps wait for
shared memory.
"""

from __future__ import annotations

from perfscope.diagnosis.describe import against
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.kernel_rules import MEASURED, Sign, verdict
from perfscope.diagnosis.kernels import Kernel, MissingMetric
from perfscope.diagnosis.thresholds import Limits
from perfscope.model.finding import Verdict

RULE = "bank-conflict"
NEEDS = ("ncu",)

PIPE = "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
_REQUESTS = "l1tex__lsuin_requests.avg.pct_of_peak_sustained_elapsed"
_SHARED = ("short_scoreboard", "mio_throttle")


def judge(kernel: Kernel, limits: Limits) -> Sign | None:
    busy = kernel.need(PIPE)
    if busy < limits["pipe_pct"].value:
        return None
    pipe = against("L1 data pipe, of its ceiling", busy, limits["pipe_pct"], MEASURED)
    conflicts, wavefronts = kernel.get(CONFLICTS), kernel.get(WAVEFRONTS)
    if conflicts is not None and wavefronts is not None:
        share = 100 * conflicts / wavefronts if wavefronts > 0 else 0.0
        if share < limits["conflicts_pct"].value:
            return None
        return Sign(
            f"{share:.0f} % of its shared memory transfers are repeats because of bank conflicts",
            (against("conflicts among shared memory's wavefronts", share, limits["conflicts_pct"], MEASURED), pipe),
            share,
            _ADVICE,
        )
    if not kernel.stalls:
        raise MissingMetric("smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio")
    requests = kernel.need(_REQUESTS)
    each = busy / requests if requests > 0 else 0.0
    waits = sum(kernel.stalls.get(reason, 0.0) for reason in _SHARED)
    if each <= limits["wavefronts"].value or waits < limits["waits_pct"].value:
        return None
    return Sign(
        f"a shared memory request takes {each:.1f} turns",
        (
            against("wavefronts a request", each, limits["wavefronts"], MEASURED),
            against("of a warp's cycles it waits for shared memory", waits, limits["waits_pct"], MEASURED),
            pipe,
        ),
        100 * (1 - 1 / each),
        _ADVICE,
    )


_ADVICE = (
    "pad the shared array (a row of 33 words instead of 32), or swizzle the index, so that lanes hit different banks"
)


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    return verdict(RULE, facts)

"""uncoalesced-access: the threads of a warp touch memory so far apart that most of each transfer is not used.

Told by the share of a 32-byte sector that loads or stores use, where it was measured; else by how many of the four
sectors of a 128-byte line a request to L2 asks for (L2's tag stage serves one line, four sectors, at a time).
"""

from __future__ import annotations

from perfscope.diagnosis import kernels
from perfscope.diagnosis.describe import against
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.kernel_rules import MEASURED, Sign, verdict
from perfscope.diagnosis.kernels import Kernel
from perfscope.diagnosis.thresholds import Limits
from perfscope.model.finding import Verdict

RULE = "uncoalesced-access"
NEEDS = ("ncu",)

USED = {
    "loads": "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "stores": "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
}
_SECTORS = "lts__t_sectors.avg.pct_of_peak_sustained_elapsed"
_LINES = "lts__t_tag_requests.avg.pct_of_peak_sustained_elapsed"
_SECTORS_A_LINE = 4


def judge(kernel: Kernel, limits: Limits) -> Sign | None:
    exact = {what: value for what, metric in USED.items() if (value := kernel.get(metric)) is not None}
    if exact:
        return _by_sectors(kernel, exact, limits)
    sectors, lines = kernel.need(_SECTORS), kernel.need(_LINES)
    if lines < limits["lines_pct"].value:
        return None
    asked = _SECTORS_A_LINE * sectors / lines
    if asked >= limits["sectors_of_4"].value:
        return None
    return Sign(
        f"uses {asked:.1f} of the 4 sectors of each line it asks L2 for",
        (
            against("sectors asked for a line of 4", asked, limits["sectors_of_4"], MEASURED),
            against("L2's line look-ups, of their ceiling", lines, limits["lines_pct"], MEASURED),
        ),
        100 * (1 - asked / _SECTORS_A_LINE),
        _ADVICE,
    )


def _by_sectors(kernel: Kernel, used: dict[str, float], limits: Limits) -> Sign | None:
    # A kernel without stores (or loads) has 0 there; an access that happens uses at least one byte of 32.
    happens = {what: value for what, value in used.items() if value > 0}
    if not happens or kernel.need(kernels.MEMORY) < limits["memory_pct"].value:
        return None
    what = min(happens, key=lambda w: happens[w])
    if happens[what] >= limits["used_pct"].value:
        return None
    return Sign(
        f"its {what} use {happens[what]:.0f} % of each 32-byte sector they move",
        (
            *(against(f"used of a sector by {w}", v, limits["used_pct"], MEASURED) for w, v in happens.items()),
            against("memory throughput, of its ceiling", kernel.need(kernels.MEMORY), limits["memory_pct"], MEASURED),
        ),
        100 - happens[what],
        _ADVICE,
    )


_ADVICE = (
    "let neighbouring threads touch neighbouring addresses: swap loops or indices, turn arrays of structs into structs "
    "of arrays, or move tiles through shared memory"
)


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    return verdict(RULE, facts)

"""pcie-saturated: the link between a GPU and the host is full.

Usable maximum of a link: transfers a second and lane of its generation x lanes x what its encoding leaves of them / 8.
The counters hold header and payload (so NVIDIA's DCGM documents them), so no share for headers is taken off.
gives_back: the share of elapsed time in which the link was full, as if its transfers took none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perfscope.diagnosis.describe import against, not_evaluable, observed, ok, seconds
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.gpu_counters import MEASURED, Counters, Series, missing, see
from perfscope.diagnosis.intervals import union
from perfscope.diagnosis.thresholds import Limits
from perfscope.model.finding import Evidence, Finding, Severity, Verdict, Where

RULE = "pcie-saturated"
NEEDS = ("nvml",)

_LANE: dict[int, tuple[float, float]] = {
    1: (2.5e9, 8 / 10),
    2: (5e9, 8 / 10),
    3: (8e9, 128 / 130),
    4: (16e9, 128 / 130),
    5: (32e9, 128 / 130),
    6: (64e9, 236 / 256),
}
"""Generation -> (transfers a second and lane, share that carries packets): 8b/10b, 128b/130b, and 236 of the 256 bytes
of a flit. PCI Express Base Specification."""

_LINK_NS = 2_000_000_000
"""A link lowers its generation when idle and is looked at once a second: the highest seen this near counts."""

_DIRECTIONS = {"tx": "from the GPU", "rx": "to the GPU"}


def link_bytes_per_s(generation: float, lanes: float) -> float:
    """Bytes a second that a link can carry one way, header and payload; NaN for a generation that isn't known."""
    transfers, share = _LANE.get(int(generation) if np.isfinite(generation) else 0, (np.nan, np.nan))
    return transfers * share * lanes / 8


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    counters = Counters(
        facts,
        [
            "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s", "pcie_link_generation", "pcie_link_width_lanes",
            "pcie_link_generation_max", "pcie_link_width_max_lanes",
        ],
    )  # fmt: skip
    findings, said = [], []
    for device in counters.devices:
        for direction, text in _DIRECTIONS.items():
            rate = counters.series(device, f"pcie_{direction}_bytes_per_s")
            if rate is None:
                continue
            full = _maximum(counters, counters.parent(device), rate.time_ns)
            if full is None:
                continue
            used = 100 * rate.value / full
            if not np.isfinite(used).any():
                continue
            said.append(f"{device} used up to {np.nanmax(used):.1f} % of its link {text}")
            found = _finding(facts, limits, counters, device, text, rate, used)
            if found:
                findings.append(found)
    if not said:
        why, get = missing(facts, "PCIe traffic beside the link's generation and width")
        return not_evaluable(RULE, why, get)
    why = "; ".join(said)
    return Verdict(RULE, "flagged", why, tuple(findings)) if findings else ok(RULE, why)


def _maximum(counters: Counters, gpu: str, times: npt.NDArray[np.int64]) -> npt.NDArray[np.float64] | None:
    generation, lanes = counters.series(gpu, "pcie_link_generation"), counters.series(gpu, "pcie_link_width_lanes")
    if generation is None or lanes is None:
        return None
    pairs = zip(generation.highest(times, _LINK_NS).tolist(), lanes.highest(times, _LINK_NS).tolist(), strict=True)
    return np.asarray([link_bytes_per_s(g, n) for g, n in pairs], np.float64)


def _finding(
    facts: Facts,
    limits: Limits,
    counters: Counters,
    device: str,
    direction: str,
    rate: Series,
    used: npt.NDArray[np.float64],
) -> Finding | None:
    full = used > limits["link_pct"].value
    runs = [run for run in rate.runs(full) if run[1] - run[0] + 1 >= limits["samples"].value]
    lengths = rate.lengths_ns()
    gain = min(100.0, 100 * float(lengths[full].sum()) / facts.elapsed_ns) if facts.elapsed_ns else 0.0
    if not runs or gain < limits["gives_back_pct"].value:
        return None
    first, last = max(runs, key=lambda run: run[1] - run[0])
    evidence = [
        against(f"link {direction} used, mean while full", float(used[full].mean()), limits["link_pct"], MEASURED),
        against("samples in a row", last - first + 1, limits["samples"], MEASURED),
        against("ceiling of elapsed time saved", gain, limits["gives_back_pct"], MEASURED),
        observed(f"traffic {direction}, mean while full", float(rate.value[full].mean()) / 1e9, "GB/s", MEASURED),
    ]
    slower = _below_maximum(counters, counters.parent(device), rate.time_ns[full], evidence)
    writes = _writes(facts, limits, rate, full)
    both = writes is not None and writes.value > limits["write_us"].value
    if writes is not None:
        evidence.append(writes)
    beside = f", while block writes took {writes.value:.0f} us" if writes is not None and both else ""
    return Finding(
        RULE,
        f"PCIe saturated: the link {direction} of {device} was full for {seconds(float(lengths[full].sum()))}{beside}",
        Severity.INFO,
        Where(
            device=device,
            window_ns=(int(rate.time_ns[first] - rate.error_ns[first]), int(rate.time_ns[last] + rate.error_ns[last])),
        ),
        tuple(evidence),
        round(gain, 1),
        (_SLOWER if slower else "") + _ADVICE + (_BESIDE if both else ""),
        see(facts),
    )


_SLOWER = "the link runs below what GPU and slot can do: check the slot, riser and BIOS settings first; "
_ADVICE = (
    "move less: keep tensors (and the KV cache) on the GPU, convert to the smaller type before the copy, copy once and "
    "reuse"
)
_BESIDE = "; disk and GPU share the way to memory: don't offload or checkpoint meanwhile"


def _below_maximum(counters: Counters, gpu: str, times: npt.NDArray[np.int64], evidence: list[Evidence]) -> bool:
    """Adds what the link is and could be; true if it runs below that."""
    below = False
    for what, now, most, unit in (
        ("PCIe generation", "pcie_link_generation", "pcie_link_generation_max", "generation"),
        ("PCIe width", "pcie_link_width_lanes", "pcie_link_width_max_lanes", "lanes"),
    ):
        current, highest = counters.series(gpu, now), counters.series(gpu, most)
        if current is None:
            continue
        seen = float(np.nanmax(current.highest(times, _LINK_NS)))
        evidence.append(observed(what, seen, unit, MEASURED))
        if highest is not None:
            evidence.append(observed(f"{what}, maximum of GPU and slot", float(highest.value.max()), unit, MEASURED))
            below |= seen < highest.value.max()
    return below


def _writes(facts: Facts, limits: Limits, rate: Series, full: npt.NDArray[np.bool_]) -> Evidence | None:
    """Median time at the device of the block writes begun while the link was full; None if none was recorded."""
    rows = facts.rows("block_io", operation="write").select(["issue_ns", "complete_ns"]).drop_null()
    issue, complete = rows["issue_ns"].to_numpy(), rows["complete_ns"].to_numpy()
    step = int(rate.step_ns / 2)
    reach = np.maximum(rate.error_ns[full], step)
    starts, ends = union(rate.time_ns[full] - reach, rate.time_ns[full] + reach)
    at = np.searchsorted(starts, issue, side="right") - 1
    inside = (at >= 0) & (issue < ends[np.maximum(at, 0)])
    if not inside.any():
        return None
    median = float(np.median((complete - issue)[inside])) / 1e3
    return against("block writes meanwhile, device time, median", median, limits["write_us"], "block_io (eBPF, exact)")

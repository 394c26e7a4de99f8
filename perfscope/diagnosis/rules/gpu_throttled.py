"""gpu-throttled: a GPU runs below its clock while it works, because of power, heat or a hardware slowdown.

Busy time is the integral of how busy the GPU was. gives_back: the busy time below the highest clock times
(1 - clock / highest clock), as if all work sped up with the SM clock; work bound by memory does not.

A board that is held at its power limit is not throttled by that, unless somebody set that limit below the board's own
default: dense matrix multiplies reach the power that a board is built for below its highest clock, every time, and
nothing is to be mended (NVIDIA's name for it, SW power cap, is no slowdown).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perfscope.diagnosis.describe import against, not_evaluable, observed, ok
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.gpu_counters import MEASURED, Counters, Series, missing, see
from perfscope.diagnosis.thresholds import Limits
from perfscope.model.finding import Evidence, Finding, Severity, Verdict, Where

RULE = "gpu-throttled"
NEEDS = ("nvml",)
_PREFIX = "gpu_clock_event_"
REASONS = {
    "sw_power_cap": ("lowered power limit", "raise the power limit to the board's default (nvidia-smi -pl WATTS)"),
    "hw_power_brake_slowdown": ("power brake", "check the power supply of the machine: it asks the GPU to slow down"),
    "sw_thermal_slowdown": ("heat", "cool it better: airflow, fans, dust, temperature of the room"),
    "hw_thermal_slowdown": ("heat, in hardware", "cool it better at once: airflow, fans, mounting of the cooler"),
    "hw_slowdown": ("hardware slowdown", "check cooling and power supply (nvidia-smi -q -d PERFORMANCE)"),
}
"""Clock event -> its name for people, and what mends it. Other events (idle, chosen clocks) are no throttling."""
_CAP = "sw_power_cap"


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    names = [_PREFIX + reason for reason in REASONS]
    counters = Counters(
        facts,
        [
            *names, "gpu_busy_pct", "gpu_utilization_pct", "gpu_sm_clock_mhz", "gpu_sm_clock_max_mhz", "gpu_power_w",
            "gpu_power_limit_w", "gpu_power_limit_default_w", "gpu_temperature_c",
        ],
    )  # fmt: skip
    findings, said = [], []
    for device in counters.devices:
        events = {r: s for r in REASONS if (s := counters.series(counters.parent(device), _PREFIX + r)) is not None}
        busy = counters.busy(device)
        if not events or busy is None:
            continue
        clock_times = next(iter(events.values()))
        level = busy[0].near(clock_times.time_ns, 3 * max(busy[0].step_ns, clock_times.step_ns))
        weights = np.nan_to_num(level) / 100 * clock_times.lengths_ns()
        if not weights.sum():
            said.append(f"{device} was never busy")
            continue
        active = {r: s.near(clock_times.time_ns, 0) > 0 for r, s in events.items()}
        if _CAP in active and not _lowered(counters, device):
            capped = weights * active.pop(_CAP)
            share = 100 * float(capped.sum() / weights.sum())
            around = _at_power_limit(facts, counters, device, clock_times, capped)
            said.append(f"{device} was at its power limit in {share:.1f} % of its busy time{around}")
        slowed = np.any([np.zeros(len(weights), bool), *active.values()], axis=0)
        share = 100 * float(weights[slowed].sum() / weights.sum())
        said.append(f"{device} was slowed down in {share:.1f} % of its busy time")
        found = _finding(facts, limits, counters, device, clock_times, weights, active, slowed, share)
        if found:
            findings.append(found)
    if not said:
        why, get = missing(facts, "clock event reasons beside GPU busy time")
        return not_evaluable(RULE, why, get)
    why = "; ".join(said)
    return Verdict(RULE, "flagged", why, tuple(findings)) if findings else ok(RULE, why)


def _finding(
    facts: Facts,
    limits: Limits,
    counters: Counters,
    device: str,
    times: Series,
    weights: npt.NDArray[np.float64],
    active: dict[str, npt.NDArray[np.bool_]],
    slowed: npt.NDArray[np.bool_],
    share: float,
) -> Finding | None:
    if share < limits["throttled_pct"].value:
        return None
    evidence = [against("busy time at a lowered clock", share, limits["throttled_pct"], MEASURED)]
    gain, clocks = _clocks(facts, counters, device, times, weights * slowed)
    if gain is not None:
        if gain < limits["gives_back_pct"].value:
            return None
        evidence.append(against("ceiling of elapsed time saved", gain, limits["gives_back_pct"], MEASURED))
    shares = {r: 100 * float(weights[on].sum() / weights.sum()) for r, on in active.items()}
    causes = [r for r, part in sorted(shares.items(), key=lambda item: -item[1]) if part > 0]
    evidence += clocks
    evidence += [observed(f"busy time with clock event {r}", shares[r], "%", MEASURED) for r in causes]
    evidence += _surroundings(counters, device, times.time_ns[slowed])
    first, last = np.flatnonzero(slowed)[[0, -1]]
    return Finding(
        RULE,
        f"GPU throttled: {device} ran below its clock in {share:.0f} % of its busy time ({REASONS[causes[0]][0]})",
        Severity.INFO,
        Where(device=device, window_ns=(int(times.time_ns[first]), int(times.time_ns[last]))),
        tuple(evidence),
        None if gain is None else round(gain, 1),
        "; ".join(dict.fromkeys(REASONS[r][1] for r in causes[:2])),
        see(facts),
    )


def _lowered(counters: Counters, device: str) -> bool:
    """Whether the power limit in force was ever below the board's default; False where one of them isn't known."""
    gpu = counters.parent(device)
    limit, default = counters.series(gpu, "gpu_power_limit_w"), counters.series(gpu, "gpu_power_limit_default_w")
    return limit is not None and default is not None and bool(limit.value.min() < default.value.max())


def _at_power_limit(
    facts: Facts, counters: Counters, device: str, times: Series, weights: npt.NDArray[np.float64]
) -> str:
    """What is known of the busy time (weights: only that) at a power limit that nobody is known to have lowered."""
    held = weights > 0
    known = [
        *_clocks(facts, counters, device, times, weights)[1],
        *_surroundings(counters, device, times.time_ns[held]),
    ]
    return " (" + ", ".join(f"{e.what} {e.value:.0f} {e.unit}" for e in known) + ")" if known else ""


def _clocks(
    facts: Facts, counters: Counters, device: str, times: Series, weights: npt.NDArray[np.float64]
) -> tuple[float | None, list[Evidence]]:
    """(ceiling in % of elapsed time, evidence); (None, nothing) if the clock or its maximum isn't known."""
    gpu = counters.parent(device)
    clock, highest = counters.series(gpu, "gpu_sm_clock_mhz"), counters.series(gpu, "gpu_sm_clock_max_mhz")
    if clock is None or highest is None or facts.elapsed_ns <= 0:
        return None, []
    top = float(highest.value.max())
    now = clock.near(times.time_ns, 3 * max(times.step_ns, clock.step_ns))
    known = np.isfinite(now) & (weights > 0)
    if not known.any() or top <= 0:
        return None, []
    lost = float((weights[known] * np.clip(1 - now[known] / top, 0, 1)).sum())
    return min(100.0, 100 * lost / facts.elapsed_ns), [
        observed("SM clock meanwhile, mean", float(np.average(now[known], weights=weights[known])), "MHz", MEASURED),
        observed("SM clock, maximum", top, "MHz", MEASURED),
    ]


def _surroundings(counters: Counters, device: str, times: npt.NDArray[np.int64]) -> list[Evidence]:
    found = []
    for name, what, unit in (
        ("gpu_power_w", "power meanwhile, mean", "W"),
        ("gpu_power_limit_w", "power limit", "W"),
        ("gpu_temperature_c", "temperature meanwhile, mean", "°C"),
    ):
        series = counters.series(counters.parent(device), name)
        near = series.near(times, 3 * max(series.step_ns, 1e9)) if series else np.empty(0)
        if np.isfinite(near).any():
            found.append(observed(what, float(np.nanmean(near)), unit, MEASURED))
    return found

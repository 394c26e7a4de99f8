"""The kernels that Nsight Compute measured, each with what it carried of the recording's GPU time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow.compute as pc

from perfscope.diagnosis.intervals import Intervals, union_ns
from perfscope.model.kernels import kernel_key, same_kernels
from perfscope.model.session import Session

Config = tuple[int | None, ...]
"""Grid x, y, z and block x, y, z."""

_CONFIG = tuple(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz")
_E = ".avg.pct_of_peak_sustained_elapsed"

COMPUTE = "sm__throughput" + _E
MEMORY = "gpu__compute_memory_throughput" + _E
DRAM = "gpu__dram_throughput" + _E
L2 = "lts__throughput" + _E
L2_HIT = "lts__t_sector_hit_rate.pct"
DURATION = "gpu__time_duration.sum"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
OCCUPANCY_LIMIT = "sm__maximum_warps_per_active_cycle_pct"
GRID = "launch__grid_size"
SMS = "launch__sm_count"
LANES = "smsp__thread_inst_executed_per_inst_executed.ratio"


class MissingMetric(Exception):
    """A kernel can't be judged: the named metric wasn't measured."""


@dataclass(frozen=True)
class Kernel:
    """One kernel in one launch configuration.

    metrics: Nsight Compute's name -> median over its measured launches, in its base unit. gpu_pct: its share of the
    recording's summed kernel time; elapsed_pct: share of elapsed time in which it ran; null without gpu_activity.
    """

    name: str
    grid: tuple[int | None, ...]
    block: tuple[int | None, ...]
    device: str | None
    launches: int
    metrics: dict[str, float]
    gpu_pct: float | None = None
    elapsed_pct: float | None = None

    def get(self, metric: str) -> float | None:
        return self.metrics.get(metric)

    def need(self, metric: str) -> float:
        """A metric's value. Raises MissingMetric if it wasn't measured: that is never 0."""
        value = self.metrics.get(metric)
        if value is None:
            raise MissingMetric(metric)
        return value

    @cached_property
    def stalls(self) -> dict[str, float]:
        """Why a warp waits between two instructions it issues: reason -> % of its cycles. Empty if not measured."""
        prefix, suffix = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"
        found = {n[len(prefix) : -len(suffix)]: v for n, v in self.metrics.items() if n.startswith(prefix)}
        total = sum(found.values())
        return {reason: 100 * value / total for reason, value in found.items()} if total > 0 else {}

    @property
    def title(self) -> str:
        """Its name for people: without namespaces and parameter list, cut at 60 characters, and its grid."""
        name = kernel_key(self.name)
        name = name if len(name) <= 60 else name[:59] + "…"
        known = [x for x in self.grid if x is not None]
        return f"{name} (grid {' x '.join(map(str, known))})" if len(known) == 3 else name


def measured(session: Session, elapsed_ns: int) -> list[Kernel]:
    """All kernels of gpu_kernels, what carried most GPU time first."""
    table = session.table("gpu_kernels")
    groups: dict[tuple[str, Config, str | None], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    launches: dict[tuple[str, Config, str | None], set[int]] = defaultdict(set)
    columns = [table[c].to_pylist() for c in ("launch", "name", "device", "metric", "value", *_CONFIG)]
    for launch, name, device, metric, value, *dimensions in zip(*columns, strict=True):
        key = (name, tuple(dimensions), device)
        groups[key][metric].append(value)
        launches[key].add(launch)
    carried = _carried(session, {name for name, _, _ in groups}, elapsed_ns)
    kernels = []
    for (name, config, device), metrics in groups.items():
        share = carried.get((name, config), (None, None))
        medians = {metric: float(np.median(values)) for metric, values in metrics.items()}
        count = len(launches[name, config, device])
        kernels.append(Kernel(name, config[:3], config[3:], device, count, medians, *share))
    return sorted(kernels, key=lambda k: -(k.gpu_pct or 0.0))


def _carried(
    session: Session, names: set[str], elapsed_ns: int
) -> dict[tuple[str, Config], tuple[float | None, float | None]]:
    """(measured name, configuration) -> (% of kernel time, % of elapsed time), for those that gpu_activity has."""
    activity = session.table("gpu_activity").select(["start_ns", "end_ns", "kind", "name", "device", *_CONFIG])
    activity = activity.filter(pc.equal(activity["kind"], "kernel"))
    if activity.num_rows == 0:
        return {}
    spent = pc.subtract(activity["end_ns"], activity["start_ns"]).to_numpy()
    total = int(spent.sum())
    same = same_kernels(names, activity["name"].unique().to_pylist())
    found: dict[tuple[str, Config], tuple[float | None, float | None]] = {}
    for name, other in same.items():
        rows = np.flatnonzero(pc.equal(activity["name"], other).to_numpy(zero_copy_only=False))
        part = activity.take(rows)
        by_config: dict[Config, list[int]] = defaultdict(list)
        for row, config in zip(rows.tolist(), zip(*(part[c].to_pylist() for c in _CONFIG), strict=True), strict=True):
            by_config[config].append(row)
        starts, ends = activity["start_ns"].to_numpy(), activity["end_ns"].to_numpy()
        for config, mine in by_config.items():
            ran = union_ns(Intervals(starts[mine], ends[mine], np.arange(len(mine))))
            found[name, config] = (
                100 * float(spent[mine].sum()) / total if total else None,
                min(100.0, 100 * ran / elapsed_ns) if elapsed_ns > 0 else None,
            )
    return found

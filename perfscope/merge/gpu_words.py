"""What is said about GPU time in a call tree: the frames below a stack, tooltips of kernels, and notes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from perfscope.merge.calltree import TreeFrame
from perfscope.merge.gpu import GPU_IDLE, IDLE, GpuTime
from perfscope.merge.gpu_activity import KERNEL, activity_of
from perfscope.merge.kernel_groups import Rules, group_of
from perfscope.merge.slices import STATE_LABELS
from perfscope.model.kernels import same_kernels
from perfscope.model.session import Session

_MEASURED = {
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "compute (SM) {:.1f} % of peak",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "memory {:.1f} % of peak",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy achieved {:.1f} %",
    "sm__maximum_warps_per_active_cycle_pct": "occupancy possible {:.1f} %",
}
"""Nsight Compute's metric -> how it is said."""


def chain(gpu: GpuTime, device: int, what: int, state: int, rules: Rules) -> list[TreeFrame]:
    """Frames below the stack: the device where there are several, then kernel group and kernel, or state and idle."""
    frames = []
    if len(gpu.devices) > 1:
        frames.append(TreeFrame("gpu", f"GPU {gpu.devices[device][1]}"))
    if what == IDLE:
        if state in STATE_LABELS:
            frames.append(TreeFrame("state", STATE_LABELS[state]))
        return [*frames, TreeFrame("state", GPU_IDLE)]
    name = gpu.names[what]
    return [*frames, TreeFrame("gpu", f"[{group_of(name, rules)}]"), TreeFrame("gpu", name)]


def details(session: Session, names: Iterable[str]) -> dict[str, list[str]]:
    """Kernel or copy -> lines about it: how often, how long, how large, and what Nsight Compute measured."""
    activity = activity_of(session)
    count = np.bincount(activity.name, minlength=len(activity.names))
    length = activity.end - activity.start
    total = np.bincount(activity.name, length, len(activity.names))
    order = np.lexsort((length, activity.name))
    first = np.searchsorted(activity.name[order], np.arange(len(activity.names)))
    median = length[order][np.minimum(first + count // 2, len(order) - 1)]
    grids = _usual(activity.name, activity.blocks, activity.kind == KERNEL)
    moved = np.zeros(len(activity.names), np.int64)
    np.add.at(moved, activity.name[activity.bytes > 0], activity.bytes[activity.bytes > 0])
    measured = _measured(session, activity.names)
    index = {name: number for number, name in enumerate(activity.names)}
    found = {}
    for name in names:
        n = index[name]
        if not count[n]:
            continue
        lines = [f"{count[n]:,} times, mean {_us(total[n] / count[n])}, median {_us(median[n])}"]
        if n in grids:
            lines.append(f"mostly {grids[n]:,} block{'' if grids[n] == 1 else 's'}")
        if moved[n]:
            size = f"{moved[n] / 1e6:,.1f} MB" if moved[n] >= 1e5 else f"{moved[n]:,} bytes"
            lines.append(f"{size}, {moved[n] / max(total[n], 1):.3g} GB/s")
        found[name] = lines + measured.get(name, [])
    return found


def _us(ns: float) -> str:
    return f"{ns / 1e3:.2f} us" if ns < 1e6 else f"{ns / 1e6:.2f} ms"


def _usual(name: npt.NDArray[np.int64], blocks: npt.NDArray[np.int64], kernel: npt.NDArray[np.bool_]) -> dict[int, int]:
    """Each kernel's most frequent number of blocks."""
    known = kernel & (blocks > 0)
    pairs, count = np.unique(np.stack([name[known], blocks[known]]), axis=1, return_counts=True)
    order = np.argsort(count, kind="stable")
    return {int(pairs[0, i]): int(pairs[1, i]) for i in order}


def _measured(session: Session, names: list[str]) -> dict[str, list[str]]:
    """Kernel -> what Nsight Compute measured, as the range over the launches it measured."""
    table = session.table("gpu_kernels")
    if not table.num_rows:
        return {}
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    launches: dict[str, set[int]] = defaultdict(set)
    columns = (table.column(c).to_pylist() for c in ("name", "launch", "metric", "value"))
    for name, launch, metric, value in zip(*columns, strict=True):
        launches[name].add(launch)
        if metric in _MEASURED:
            values[name][metric].append(value)
    found = {}
    for name, other in same_kernels(names, launches).items():
        lines = [
            text.format(sum(values[other][metric]) / len(values[other][metric]))
            for metric, text in _MEASURED.items()
            if values[other][metric]
        ]
        if lines:
            number = len(launches[other])
            found[name] = [*lines, f"(Nsight Compute, mean of {number} launch{'' if number == 1 else 'es'})"]
    return found


def notes(gpu: GpuTime) -> list[str]:
    """How GPU time got its stacks, and what is not in it."""
    shares = gpu.shares
    busy = shares.exact + shares.statistical + shares.none
    idle = shares.idle_seen + shares.idle_launch + shares.idle_none
    found = []
    several = f" of each of {len(gpu.devices)} GPUs" if len(gpu.devices) > 1 else ""
    if busy + idle:
        found.append(f"gpu: all time{several} in the part shown; busy {_share(busy, busy + idle)} (copies and kernels)")
    if busy:
        ways = [f"{_share(shares.exact, busy)} by the exact stack of its launch"] if shares.exact else []
        if shares.statistical:
            error = 98 / max(shares.looks, 1) ** 0.5  # half of a 95 % interval at its widest: 1.96 * sqrt(1/4 / n)
            ways.append(
                f"{_share(shares.statistical, busy)} by {shares.looks} samples that fell into launch calls "
                f"(shares good to ±{error:.0f} points)"
            )
        if shares.none:
            ways.append(f"{_share(shares.none, busy)} by none, under the thread that launched it where that is known")
        found.append("gpu: launch stacks of busy time: " + ", ".join(ways))
    if idle:
        places = (
            (shares.idle_seen, "where samples saw it"),
            (shares.idle_launch, "where that launch is"),
            (shares.idle_none, "where isn't known"),
        )
        words = ", ".join(f"{_share(ns, idle)} {where}" for ns, where in places if ns)
        found.append(f"gpu: idle time is with the thread that launched next: {words}")
    pids = {pid for pid, _ in gpu.devices}
    if len(pids) > 1:
        found.append("gpu: several processes used GPUs: busy and idle are each process's own, not the device's")
    if gpu.left_out:
        found.append(f"gpu: {gpu.left_out} records without a usable time are not in it")
    return found


def _share(part: int, whole: int) -> str:
    share = 100 * part / whole
    return "< 0.1 %" if 0 < share < 0.1 else "> 99.9 %" if 99.9 < share < 100 else f"{share:.1f} %"

"""Reads what `ncu --csv` prints: the raw page (a column a metric) and the details page (a row a metric).

Columns differ by version and are found by name. Before the header ncu prints banner lines; numbers carry thousands
separators; `n/a`, an empty cell and a `(!) n/a` are no measurement and leave no metric.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from perfscope.collectors.ncu.launches import Launch, dimensions, to_base
from perfscope.demangle import demangle
from perfscope.errors import InputError

_IDENTITY = {
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream", "Block Size",
    "Grid Size", "Device", "CC",
}  # fmt: skip
_LIMIT_BYTES = 256 << 20

LABELS: dict[tuple[str, str], str] = {
    ("GPU Speed Of Light Throughput", "Duration"): "gpu__time_duration.sum",
    (
        "GPU Speed Of Light Throughput",
        "Memory Throughput",
    ): "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    ("GPU Speed Of Light Throughput", "Compute (SM) Throughput"): "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    ("GPU Speed Of Light Throughput", "DRAM Throughput"): "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    ("GPU Speed Of Light Throughput", "L1/TEX Cache Throughput"): "l1tex__throughput.avg.pct_of_peak_sustained_active",
    ("GPU Speed Of Light Throughput", "L2 Cache Throughput"): "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    ("Memory Workload Analysis", "L2 Hit Rate"): "lts__t_sector_hit_rate.pct",
    ("Memory Workload Analysis", "L1/TEX Hit Rate"): "l1tex__t_sector_hit_rate.pct",
    ("Memory Workload Analysis", "Mem Busy"): "gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed",
    ("Memory Workload Analysis", "Memory Throughput"): "dram__bytes.sum.per_second",
    ("Occupancy", "Achieved Occupancy"): "sm__warps_active.avg.pct_of_peak_sustained_active",
    ("Occupancy", "Theoretical Occupancy"): "sm__maximum_warps_per_active_cycle_pct",
    ("Occupancy", "Block Limit Registers"): "launch__occupancy_limit_registers",
    ("Occupancy", "Block Limit Shared Mem"): "launch__occupancy_limit_shared_mem",
    ("Occupancy", "Block Limit Warps"): "launch__occupancy_limit_warps",
    ("Occupancy", "Block Limit SM"): "launch__occupancy_limit_blocks",
    ("Occupancy", "Block Limit Barriers"): "launch__occupancy_limit_barriers",
    ("Launch Statistics", "Grid Size"): "launch__grid_size",
    ("Launch Statistics", "Block Size"): "launch__block_size",
    ("Launch Statistics", "Threads"): "launch__thread_count",
    ("Launch Statistics", "Waves Per SM"): "launch__waves_per_multiprocessor",
    ("Launch Statistics", "# SMs"): "launch__sm_count",
    ("Launch Statistics", "Registers Per Thread"): "launch__registers_per_thread",
    ("Warp State Statistics", "Avg. Active Threads Per Warp"): "smsp__thread_inst_executed_per_inst_executed.ratio",
    ("Warp State Statistics", "Avg. Not Predicated Off Threads Per Warp"): (
        "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio"
    ),
    ("Scheduler Statistics", "Issued Warp Per Scheduler"): "smsp__issue_active.avg.per_cycle_active",
    ("Scheduler Statistics", "Eligible Warps Per Scheduler"): "smsp__warps_eligible.avg.per_cycle_active",
}
"""(section, label) on the details page -> the metric behind it, for those that rules read."""


def sniff(head: bytes) -> bool:
    """True if the first bytes of a file hold the header of ncu's CSV."""
    return b'"Kernel Name"' in head and b'"Block Size"' in head


def read(path: Path) -> tuple[list[Launch], int]:
    """Launches of an ncu CSV, and the number of rows that couldn't be read. Raises InputError naming file and line."""
    try:
        if path.stat().st_size > _LIMIT_BYTES:
            raise InputError(f"{path}: larger than 256 MiB, some 30,000 launches")
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}") from None
    lines = text.splitlines(keepends=True)
    start = next((i for i, line in enumerate(lines) if sniff(line.encode())), None)
    if start is None:
        raise InputError(
            f"{path}: no header line of ncu's CSV in it", hint="make it with: ncu --csv --page raw --import FILE"
        )
    rows = csv.reader(io.StringIO("".join(lines[start:])))
    try:
        header = next(rows)
        body = list(rows)
    except csv.Error as error:
        raise InputError(f"{path}: line {start + rows.line_num}: {error}") from None
    return _details(header, body) if "Metric Name" in header else _raw(header, body)


def number(text: str) -> float | None:
    """ "8,400,907" -> 8400907.0; None for n/a, an empty cell and any text."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None


def _launch(cell: dict[str, str]) -> Launch | None:
    name = cell.get("Kernel Name", "")
    if not name:
        return None
    pid = cell.get("Process ID", "")
    return Launch(
        demangle(name),
        int(pid) if re.fullmatch(r"[0-9]{1,9}", pid) else None,
        cell.get("Device") or None,
        dimensions(cell.get("Grid Size", "")),
        dimensions(cell.get("Block Size", "")),
    )


def _raw(header: list[str], rows: list[list[str]]) -> tuple[list[Launch], int]:
    # The row under the header holds units and no ID.
    units: dict[str, str] = {}
    if rows and rows[0] and rows[0][0] == "":
        units, rows = dict(zip(header, rows[0], strict=False)), rows[1:]
    launches, unread = [], 0
    for row in rows:
        cell = dict(zip(header, row, strict=False))
        launch = _launch(cell) if len(row) == len(header) else None
        if launch is None:
            unread += 1
            continue
        for name, text in cell.items():
            if name not in _IDENTITY and (value := number(text)) is not None:
                launch.metrics[name] = to_base(value, units.get(name, ""))
        launches.append(launch)
    return launches, unread


def _details(header: list[str], rows: list[list[str]]) -> tuple[list[Launch], int]:
    launches: dict[str, Launch] = {}
    unread, needed = 0, header.index("Metric Value") if "Metric Value" in header else len(header)
    for row in rows:
        cell = dict(zip(header, row, strict=False))
        launch = _launch(cell) if len(row) > needed else None
        if launch is None:
            unread += 1
            continue
        launch = launches.setdefault(cell.get("ID", ""), launch)
        label = (cell.get("Section Name", ""), cell.get("Metric Name", ""))
        value = number(cell.get("Metric Value", ""))
        if label[1] and value is not None:
            launch.metrics[LABELS.get(label, f"{label[0]}: {label[1]}")] = to_base(value, cell.get("Metric Unit", ""))
    return list(launches.values()), unread

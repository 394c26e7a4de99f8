"""The ncu command: where it is, and how it is called."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from perfscope.collectors.base import Check
from perfscope.collectors.ncu import binaryreport
from perfscope.collectors.ncu.messages import PERMISSION
from perfscope.collectors.ncu.selection import LAUNCHES, Selection
from perfscope.errors import CollectorError

SECTIONS = (
    "SpeedOfLight",
    "SpeedOfLight_RooflineChart",
    "Occupancy",
    "LaunchStats",
    "MemoryWorkloadAnalysis",
    "WarpStateStats",
    "SchedulerStats",
    "ComputeWorkloadAnalysis",
)
"""What the rules and the roofline read; about 23 replays a launch, against 38 and more of --set full."""
METRICS = (
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
)
"""What no section holds: use of memory sectors and bank conflicts (uncoalesced-access, bank-conflict)."""
_GET = (
    "install Nsight Compute: apt-get install nsight-compute (NVIDIA's repository), or the CUDA toolkit; add it to PATH"
)
_PARAMETERS = Path("/proc/driver/nvidia/params")
_CAP_SYS_ADMIN = 21
_ALONE = 1
"""Launches of each kernel and configuration that are measured where there was no first run to choose from."""


def find() -> Path:
    """The ncu executable: in PATH, else the newest below /opt/nvidia/nsight-compute, else the toolkit's."""
    if found := shutil.which("ncu"):
        return Path(found)
    installed = [p for p in Path("/opt/nvidia/nsight-compute").glob("*/ncu") if os.access(p, os.X_OK)]
    if installed:
        return max(installed, key=lambda p: [int(n) for n in re.findall(r"\d+", p.parent.name)])
    toolkit = Path("/usr/local/cuda/bin/ncu")
    if os.access(toolkit, os.X_OK):
        return toolkit
    raise CollectorError("Nsight Compute (ncu) is not installed", hint=_GET)


def permitted(uid: int | None = None) -> bool:
    """False if the driver is known to refuse performance counters to this process (or to a user without its rights)."""
    try:
        restricted = "RmProfilingAdminOnly: 1" in _PARAMETERS.read_text()
        effective = int(Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0], 16)
    except OSError:
        return True
    return not restricted or (uid in (None, 0) and bool(effective >> _CAP_SYS_ADMIN & 1))


def check() -> Iterable[Check]:
    """Rows for the doctor: whether a run under ncu can work here. Has no side effect."""
    try:
        ncu = find()
    except CollectorError as error:
        yield Check("ncu", "Nsight Compute", "unavailable", str(error), error.hint or "")
        return
    if not _PARAMETERS.exists():
        yield Check(
            "ncu", "Nsight Compute", "unavailable", "no NVIDIA driver on this host", "install the NVIDIA driver"
        )
    elif not permitted():
        yield Check("ncu", "Nsight Compute", "unavailable", "the driver lets only administrators count", PERMISSION)
    elif not binaryreport.available():
        why = "ncu-report isn't installed: reports are read through ncu's own export"
        yield Check("ncu", "Nsight Compute", "degraded", why, 'pip install "perfscope-cli[ncu]"')
    else:
        yield Check("ncu", "Nsight Compute", "ok", str(ncu))


def command_line(
    ncu: Path,
    command: Sequence[str],
    *,
    report: Path,
    log: Path,
    selection: Selection | None,
    clocks: str = "none",
) -> list[str]:
    """The whole command. selection None: one launch of every kernel in every configuration."""
    line = [str(ncu), "--export", str(report), "--force-overwrite", "--log-file", str(log)]
    line += ["--target-processes", "all", "--clock-control", clocks]
    for section in SECTIONS:
        line += ["--section", section]
    line += ["--metrics", ",".join(METRICS)]
    # Counts the launches of each kernel in each configuration. (--kernel-id's invocation numbers count those of a
    # function in all its configurations together, and by the name base "function", the default, all instances of a
    # template are one kernel: measured with ncu 2025.3.1.)
    skip, names = (0, None) if selection is None else (selection.skip, "|".join(sorted(selection.functions)))
    line += ["--filter-mode", "per-launch-config", "--launch-skip", str(skip)]
    line += ["--launch-count", str(LAUNCHES if names else _ALONE)]
    line += ["--kernel-name-base", "demangled"]
    if names:
        line += ["--kernel-name", f"regex:(^|[ :])({names})($|[<(])"]
    return [*line, *command]

"""Reads .ncu-rep files through NVIDIA's own reader, the ncu-report package (or the one in Nsight Compute)."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from typing import Any

from perfscope.collectors.ncu.launches import Launch, to_base
from perfscope.errors import InputError

_HINT = 'pip install "perfscope-cli[ncu]"   (or export it: ncu --import FILE --csv --page raw > FILE.csv)'


def sniff(head: bytes) -> bool:
    """True for the first bytes of an .ncu-rep file."""
    return head.startswith(b"NVR\0")


def library() -> Any:
    """The ncu_report module. Raises InputError saying how to get it."""
    try:
        return importlib.import_module("ncu_report")
    except ImportError:
        pass
    for place in sorted(Path("/opt/nvidia/nsight-compute").glob("*/extras/python"), reverse=True):
        sys.path.append(str(place))
        try:
            return importlib.import_module("ncu_report")
        except ImportError:
            sys.path.remove(str(place))
    raise InputError("reading an .ncu-rep file needs NVIDIA's ncu-report", hint=_HINT)


def read(path: Path) -> list[Launch]:
    """All launches of a report. A metric without a value stays missing. Raises InputError for a damaged file."""
    reader = library()
    try:
        report = reader.load_report(str(path))
    except Exception as error:  # noqa: BLE001 (the binding raises bare RuntimeError and ValueError alike)
        raise InputError(f"{path}: ncu-report can't read it: {str(error).splitlines()[0]}", hint=_HINT) from None
    launches = []
    for range_index in range(len(report)):
        part = report.range_by_idx(range_index)
        launches += [_launch(part.action_by_idx(i)) for i in range(part.num_actions())]
    return launches


def _launch(action: Any) -> Launch:
    launch = Launch(action.name(action.NameBase_DEMANGLED) or action.name())
    for name in action.metric_names():
        metric = action.metric_by_name(name)
        if metric is None or not metric.has_value():
            continue
        value = metric.value()
        if name == "device__attribute_display_name":
            launch.device = str(value)
        if isinstance(value, (int, float)) and math.isfinite(value):
            launch.metrics[name] = to_base(float(value), metric.unit())
    launch.grid = _dims(launch, "launch__grid_dim_")
    launch.block = _dims(launch, "launch__block_dim_")
    return launch


def _dims(launch: Launch, prefix: str) -> tuple[int, int, int] | None:
    values = [launch.metrics.get(prefix + axis) for axis in "xyz"]
    x, y, z = (None if value is None else int(value[0]) for value in values)
    return None if x is None or y is None or z is None else (x, y, z)

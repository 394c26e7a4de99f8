"""Dumps an .ncu-rep file as JSON through NVIDIA's own reader: python -P reader.py REPORT OUT [PLACE...]

PLACEs are searched for the reader where it isn't installed. This program imports nothing but the standard library and
that reader: the C++ runtime linked into ncu-report 2025.3.1 mixes with any that was loaded before it (pyarrow brings
one), and then it crashes at the first metric.
"""

import importlib
import json
import math
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

REFUSED = 3
"""Exit status if it has said on stderr, for people, why it can't read the file."""
MISSING = 4
"""Exit status if there is no reader."""


def _library(places: list[str]) -> Any:
    """The ncu_report module; None if it is nowhere."""
    for place in [None, *places]:
        if place is not None:
            sys.path.append(place)
        with suppress(ImportError):
            return importlib.import_module("ncu_report")
        if place is not None:
            sys.path.remove(place)
    return None


def _launch(action: Any) -> dict[str, Any] | None:
    """One launch; None where the file has lost its name."""
    names = [action.name(base) for base in (action.NameBase_MANGLED, action.NameBase_DEMANGLED)]
    known = next((name for name in names if name), None)
    if known is None:
        return None
    metrics: dict[str, tuple[float, str]] = {}
    device = None
    for name in action.metric_names():
        metric = action.metric_by_name(name) if isinstance(name, str) else None
        if metric is None or not metric.has_value():
            continue
        value, unit = metric.value(), metric.unit()
        if name == "device__attribute_display_name":
            device = str(value)
        if isinstance(value, (int, float)) and math.isfinite(value):
            metrics[name] = (float(value), unit if isinstance(unit, str) else "")
    return {"name": known, "device": device, "metrics": metrics}


def main(path: str, out: str, *places: str) -> int:
    library = _library(list(places))
    if library is None:
        return MISSING
    try:
        report = library.load_report(path)
    except Exception as error:  # noqa: BLE001 (the binding raises bare RuntimeError and ValueError alike)
        sys.stderr.write(" ".join(str(error).split()))
        return REFUSED
    launches = []
    for range_index in range(len(report)):
        part = report.range_by_idx(range_index)
        for i in range(part.num_actions()):
            with suppress(TypeError, ValueError, RuntimeError, OverflowError):  # as the binding puts damage: lost
                if launch := _launch(part.action_by_idx(i)):
                    launches.append(launch)
    # Damaged names may hold what is no text: that becomes a question mark.
    Path(out).write_bytes(json.dumps(launches, ensure_ascii=False).encode(errors="replace"))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

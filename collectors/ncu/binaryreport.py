"""Reads .ncu-rep files through NVIDIA's own reader, the ncu-report package (or the one in Nsight Compute).

It is native code that trusts its input (2 of 414 randomly damaged reports aborted it), so it runs in a process of its
own with bounded memory and time: whatever a damaged file does to it costs that file only.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import resource
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from perfscope.collectors.ncu import container
from perfscope.collectors.ncu.launches import Launch, to_base
from perfscope.demangle import demangle
from perfscope.errors import InputError

_HINT = 'pip install "perfscope-cli[ncu]"   (or export it: ncu --import FILE --csv --page raw > FILE.csv)'
_MEMORY_BYTES = 4 << 30
"""Address space for the reader, beside the file itself; 100 MB reports take well below 1 GB."""
_TIME_S = 120.0
LARGEST_BYTES = 2 << 30
"""Largest report that is read; such come from profiling every launch with --set full."""


def sniff(head: bytes) -> bool:
    """True for the first bytes of an .ncu-rep file."""
    return head.startswith(container.MAGIC)


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


def available() -> bool:
    """True if there is a reader for .ncu-rep files, without loading it."""
    places = Path("/opt/nvidia/nsight-compute").glob("*/extras/python/ncu_report.py")
    return importlib.util.find_spec("ncu_report") is not None or any(places)


def read(path: Path) -> tuple[list[Launch], str | None]:
    """All launches of a report, and what of it couldn't be read. A metric without a value stays missing.

    Raises InputError for a file that holds no sound launch, and where the reader is missing.
    """
    try:
        size = path.stat().st_size
        if size > LARGEST_BYTES:
            raise InputError(
                f"{path}: {size / 1e9:.1f} GB, more than perfscope reads",
                hint="measure fewer launches and no --set full: perfscope record --ncu -- CMD",
            )
        found = container.examine(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: can't be read: {error}") from None
    launches = _isolated(path, size)
    if not launches:
        where = "" if found.damaged_at is None else f"; it is damaged or cut off at offset {found.damaged_at}"
        raise InputError(f"{path}: no measured launch in it{where}", hint="record it again")
    if found.damaged_at is not None:
        return launches, f"damaged or cut off at offset {found.damaged_at}: only {len(launches)} launches before it"
    if len(launches) != found.results:
        return launches, f"{len(launches)} of its {found.results} launches could be read"
    return launches, None


def _isolated(path: Path, size: int) -> list[Launch]:
    with tempfile.NamedTemporaryFile(prefix="perfscope-ncu-", suffix=".json") as out:
        command = [sys.executable, "-m", "perfscope.collectors.ncu.binaryreport", str(path.absolute()), out.name]

        def bound() -> None:
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES + 2 * size,) * 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIME_S, preexec_fn=bound, check=False
            )
        except subprocess.TimeoutExpired:
            raise InputError(f"{path}: NVIDIA's reader hangs on it; it is damaged", hint="record it again") from None
        if done.returncode == _REFUSED:
            why, _, hint = done.stderr.decode(errors="replace").strip().partition("\n")
            raise InputError(f"{path}: {why}", hint=hint or None)
        try:
            data = json.loads(Path(out.name).read_bytes()) if done.returncode == 0 else None
        except ValueError:
            data = None
        if data is None:
            raise InputError(
                f"{path}: NVIDIA's reader failed on it (exit status {done.returncode}); it is damaged",
                hint="record it again",
            )
    return [Launch.from_json(one) for one in data]


_REFUSED = 3
"""Exit status of the reading process if it has said on stderr, for people, why it can't read the file."""


def _child(path: str, out: str) -> int:
    try:
        report = library().load_report(path)
    except InputError as error:
        sys.stderr.write(f"{error}\n{error.hint or ''}")
        return _REFUSED
    except Exception as error:  # noqa: BLE001 (the binding raises bare RuntimeError and ValueError alike)
        sys.stderr.write(f"ncu-report can't read it: {' '.join(str(error).split())}")
        return _REFUSED
    launches = []
    for range_index in range(len(report)):
        part = report.range_by_idx(range_index)
        for i in range(part.num_actions()):
            with suppress(TypeError, ValueError, RuntimeError, OverflowError):  # as the binding puts damage: lost
                if launch := _launch(part.action_by_idx(i)):
                    launches.append(launch.to_json())
    # Damaged names may hold what is no text: that becomes a question mark.
    Path(out).write_bytes(json.dumps(launches, ensure_ascii=False).encode(errors="replace"))
    return 0


def _launch(action: Any) -> Launch | None:
    """One launch; None where the file has lost its name."""
    names = [action.name(base) for base in (action.NameBase_MANGLED, action.NameBase_DEMANGLED)]
    known = next((name for name in names if name), None)
    if known is None:
        return None
    launch = Launch(demangle(known))
    for name in action.metric_names():
        metric = action.metric_by_name(name) if isinstance(name, str) else None
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
    return None if x is None or y is None or z is None or not all(0 <= n < 1 << 31 for n in (x, y, z)) else (x, y, z)


if __name__ == "__main__":
    sys.exit(_child(*sys.argv[1:]))

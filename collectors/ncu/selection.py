"""Which kernels Nsight Compute should measure, and which of their launches, from the GPU timeline of a first run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from perfscope.model.kernels import function_name

COVERED_PCT = 90.0
"""Kernels are taken, heaviest first, until they carried this share of the steady part's kernel time."""
LAUNCHES = 2
"""Launches measured of each kernel and configuration: one can be an outlier, two show it."""
_LONGEST_SKIP = 100
_WARM_UP_PART = 0.25
"""Only what never runs again after this first part of the launches can be warm-up or autotuning."""
_FEW = 32
"""An autotuner tries each candidate some times; what was launched more often was used."""

_CONFIG = tuple(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz")


@dataclass(frozen=True)
class Chosen:
    """One kernel in one launch configuration. spent_ns: its summed time in the first run."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    launches: int
    spent_ns: int


@dataclass(frozen=True)
class Selection:
    """What to measure.

    functions: bare names of the chosen kernels, by which ncu filters. skip: launches of each configuration passed over.
    expected: launches that ncu should measure: of the chosen ones, and of all others with their functions' names.
    covers_pct: share of the first run's whole kernel time that the chosen carried. notes: what was left out, and why.
    """

    chosen: tuple[Chosen, ...]
    functions: tuple[str, ...]
    skip: int
    expected: int
    covers_pct: float
    total_ns: int
    notes: tuple[str, ...]


def select(activity: pa.Table) -> Selection | None:
    """Chooses from a gpu_activity table; None if it has no kernels."""
    rows = activity.filter(pc.equal(activity["kind"], "kernel"))
    rows = rows.filter(pc.and_(*(pc.is_valid(rows[c]) for c in ("grid_x", "block_x")))).sort_by("start_ns")
    if rows.num_rows == 0:
        return None
    group, keys = _groups(rows)
    spent = pc.subtract(rows["end_ns"], rows["start_ns"]).to_numpy()
    per_group = np.bincount(group, spent, len(keys)).astype(np.float64)
    count = np.bincount(group, minlength=len(keys))
    total = int(spent.sum())
    warm_up = _warm_up(group, len(keys), count)
    named = np.array([function_name(key[0]) is not None for key in keys])
    steady = per_group * ~warm_up
    enough = COVERED_PCT / 100 * steady.sum()
    order = [i for i in np.argsort(-steady, kind="stable").tolist() if named[i] and steady[i] > 0]
    reached = np.cumsum(steady[order])
    picked = order[: int(np.searchsorted(reached, enough)) + 1]
    skip = _skip(group, picked, warm_up, count, per_group)
    kept = [i for i in picked if count[i] > skip]
    chosen = tuple(Chosen(*_parts(keys[i]), int(count[i]), int(per_group[i])) for i in kept)
    functions = tuple(dict.fromkeys(name for c in chosen if (name := function_name(c.name))))
    measured = [number for number, key in zip(count.tolist(), keys, strict=True) if function_name(key[0]) in functions]
    expected = sum(min(LAUNCHES, max(0, number - skip)) for number in measured)
    notes = _notes(per_group, warm_up, named, picked, kept, count, skip, total)
    covered = 100 * float(per_group[kept].sum()) / total if total else 0.0
    return Selection(chosen, functions, skip, expected, covered, total, notes)


def _groups(rows: pa.Table) -> tuple[npt.NDArray[np.int64], list[tuple[Any, ...]]]:
    """Group number of each launch, and each group's (name, grid, block)."""
    columns = [rows["name"].cast(pa.string()), *(rows[c] for c in _CONFIG)]
    encoded = [pc.dictionary_encode(c.combine_chunks()) for c in columns]
    codes = np.stack([np.asarray(e.indices) for e in encoded], axis=1)
    distinct, group = np.unique(codes, axis=0, return_inverse=True)
    values = [e.dictionary.to_pylist() for e in encoded]
    keys = [tuple(v[code] for v, code in zip(values, row, strict=True)) for row in distinct.tolist()]
    return group.reshape(-1).astype(np.int64), keys


def _parts(key: tuple[Any, ...]) -> tuple[str, tuple[int, int, int], tuple[int, int, int]]:
    name, gx, gy, gz, bx, by, bz = key
    return name, (gx, gy, gz), (bx, by, bz)


def _warm_up(group: npt.NDArray[np.int64], groups: int, count: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Groups that ran a few times in the first part of the launches and never again; none if that would be most."""
    last = np.zeros(groups, np.int64)
    last[group] = np.arange(len(group))  # the last launch wins
    found = (last < _WARM_UP_PART * len(group)) & (count <= _FEW)
    return found if count[found].sum() < 0.5 * len(group) else np.zeros(groups, bool)


def _skip(
    group: npt.NDArray[np.int64],
    picked: list[int],
    warm_up: npt.NDArray[np.bool_],
    count: npt.NDArray[np.int64],
    spent: npt.NDArray[np.float64],
) -> int:
    """Launches of each configuration to pass over. ncu has one number for all of them.

    Wanted: each one's launches while others still warmed up, and its first (lazily loaded code, cold caches), but not
    so many that those with few launches fall out: together they may carry 1 % of what was picked.
    """
    ends = np.flatnonzero(warm_up[group])
    until = int(ends[-1]) if len(ends) else 0
    early = np.bincount(group[:until], minlength=len(count))
    wanted = min(_LONGEST_SKIP, max((int(early[i]) for i in picked), default=0) or 1)
    rare = sorted(picked, key=lambda i: int(count[i]))
    lost, skip = 0.0, wanted
    for i in rare:
        if count[i] > wanted:
            break
        lost += float(spent[i])
        if lost > 0.01 * float(spent[picked].sum()):
            skip = int(count[i]) - 1
            break
    return max(0, skip)


def _notes(
    spent: npt.NDArray[np.float64],
    warm_up: npt.NDArray[np.bool_],
    named: npt.NDArray[np.bool_],
    picked: list[int],
    kept: list[int],
    count: npt.NDArray[np.int64],
    skip: int,
    total: int,
) -> tuple[str, ...]:
    notes = []
    if warm_up.any():
        notes.append(
            f"{int(warm_up.sum())} kernels with {100 * spent[warm_up].sum() / total:.1f}% of kernel time ran only at "
            "the start, a few times each (warm-up or autotuning), and are left out"
        )
    if not named.all():
        notes.append(f"{int((~named).sum())} kernels have names that ncu can't filter by, and are left out")
    rest = spent.sum() - spent[warm_up].sum() - spent[picked].sum()
    if rest > 0:
        notes.append(f"kernels with {100 * rest / total:.1f}% of kernel time are too small each, and are left out")
    if len(kept) < len(picked):
        notes.append(f"{len(picked) - len(kept)} kernels were launched no more than {skip} times, and are left out")
    short = sum(count[i] < skip + LAUNCHES for i in kept)
    if short:
        notes.append(f"of {short} kernels fewer than {LAUNCHES} launches are left to measure")
    if skip:
        notes.append(f"the first {skip} launches of each kernel are passed over")
    return tuple(notes)

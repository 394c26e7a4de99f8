"""Cuts a session to a short part of it that is a whole session again, small enough to keep beside tests.

    python scripts/gpu/trim_session.py SESSION OUT [--from S] [--seconds S] [--max-kb N] [--force]

Kept is what overlaps the part; threads end at its edges. Figures of whole threads (CPU time by schedstat) don't hold
for a part and become unknown. Without --from the part is around the middle of the GPU's activity (of the recording, if
it has none). If the result is larger than --max-kb, the part is halved until it isn't.
"""

from __future__ import annotations

import argparse
import copy
import shutil
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from perfscope.model.schema import TABLES
from perfscope.model.session import Session, SessionWriter
from perfscope.model.stacks import ROOT

SPANS = {  # first and last moment of a row
    "sched": ("off_ns", "on_ns"),
    "waits": ("start_ns", "end_ns"),
    "block_io": ("start_ns", "complete_ns"),
    "drm_jobs": ("run_ns", "done_ns"),
    "gpu_activity": ("start_ns", "end_ns"),
    "cuda_api": ("start_ns", "end_ns"),
    "spans": ("start_ns", "end_ns"),
    "counters": ("time_ns", "time_ns"),
    "gpu_memory": ("time_ns", "time_ns"),
}
LENGTHS = {"samples": ("time_ns", "duration_ns"), "jvm_events": ("time_ns", "duration_ns")}
FOREVER = 1 << 62


def overlapping(name: str, table: pa.Table, start: int, end: int) -> pa.Table:
    """Rows of a table that overlap [start, end); those that carry no times, all."""
    if name in SPANS:
        first, last = SPANS[name]
        begin, until = table[first], pc.fill_null(table[last], FOREVER)
    elif name in LENGTHS:
        first, length = LENGTHS[name]
        begin, until = table[first], pc.add(table[first], pc.fill_null(table[length], 0))
    else:
        return table
    inside = pc.and_(pc.less(begin, end), pc.greater_equal(until, start))
    return table.filter(pc.fill_null(inside, name == "samples"))


def stacks_kept(session: Session, writer: SessionWriter, tables: dict[str, pa.Table]) -> npt.NDArray[np.int64]:
    """New stack_id by old one, for the stacks that these tables name; the last stands for ROOT."""
    ids = np.full(len(session.stacks.parents) + 1, ROOT, np.int64)
    used = {i for t in tables.values() if "stack_id" in t.column_names for i in pc.unique(t["stack_id"]).to_pylist()}
    for stack in sorted(i for i in used if i is not None and i >= 0):
        ids[stack] = writer.stacks.stack(session.stacks.path(stack))
    return ids


def cut(session: Session, out: Path, start: int, end: int, *, force: bool) -> Path:
    """Writes the part [start, end) of a session, in ns on its clock."""
    writer = SessionWriter(out, force=force)
    tables = {
        name: overlapping(name, session.table(name), start, end)
        for name in TABLES
        if name not in ("threads", "processes", "frames", "stacks")
    }
    ids = stacks_kept(session, writer, tables)
    for name, table in tables.items():
        columns = {c: table[c] for c in table.column_names}
        if "stack_id" in columns:
            old = columns["stack_id"]
            known = pc.and_(old.is_valid(), pc.greater_equal(pc.fill_null(old, ROOT), 0)).to_numpy()
            new = ids[pc.fill_null(old, ROOT).to_numpy()]
            columns["stack_id"] = pa.array(new, pa.int32(), mask=~known if old.null_count else None)
        writer.append(name, columns)
    pids = set()
    for row in session.table("threads").to_pylist():
        if row["start_ns"] < end and row["end_ns"] > start:
            pids.add(row["pid"])
            writer.note_thread(
                row["pid"], row["tid"], name=row["name"], start_ns=max(row["start_ns"], start),
                end_ns=min(row["end_ns"], end), sched_complete=row["sched_complete"],
            )  # fmt: skip
    for row in session.table("processes").to_pylist():
        if row["pid"] in pids:
            writer.note_process(
                **{k: row[k] for k in ("pid", "ppid", "name", "command", "runtime", "start_ns", "end_ns")}
            )
    info = copy.deepcopy(session.info)
    length = f"{(start - info.start_ns) / 1e9:.3f} s to {(end - info.start_ns) / 1e9:.3f} s"
    info.start_ns, info.stop_ns = start, end
    for report in info.collectors.values():
        report.covered_ns = [(max(a, start), min(b, end)) for a, b in report.covered_ns if a < end and b > start]
        if report.status in ("ok", "partial"):
            report.notes.append(f"cut from a longer recording: {length} of it; figures in these notes are of all of it")
    return writer.finish(info, keep_raw=False)


def middle(session: Session) -> int:
    times = session.table("gpu_activity").select(["start_ns", "end_ns"])
    if not times.num_rows:
        return (session.info.start_ns + session.info.stop_ns) // 2
    return (pc.min(times["start_ns"]).as_py() + pc.max(times["end_ns"]).as_py()) // 2


def size_kb(directory: Path) -> float:
    return sum(f.stat().st_size for f in directory.rglob("*") if f.is_file()) / 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("session", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--from", dest="from_s", type=float)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--max-kb", type=float, default=300)
    parser.add_argument("--force", action="store_true")
    options = parser.parse_args()
    session = Session.open(options.session)
    length = round(options.seconds * 1e9)
    while True:
        first = middle(session) - length // 2
        if options.from_s is not None:
            first = session.info.start_ns + round(options.from_s * 1e9)
        first = max(first, session.info.start_ns)
        cut(session, options.out, first, min(first + length, session.info.stop_ns), force=options.force)
        size = size_kb(options.out)
        if size <= options.max_kb or length < 1_000_000:
            break
        shutil.rmtree(options.out)
        length //= 2
    print(f"{options.out}: {length / 1e9:.3f} s, {size:.0f} kB")
    return 0 if size <= options.max_kb else 1


if __name__ == "__main__":
    sys.exit(main())

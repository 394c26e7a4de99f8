"""Cuts a session to a short part of it that is a whole session again, small enough to keep beside tests.

    python scripts/gpu/trim_session.py SESSION OUT [--from S] [--seconds S] [--max-kb N] [--rename OLD=NEW]... [--force]

Kept is what is known to overlap the part, and what a counter said all along; threads end at its edges. Figures of the
whole recording (CPU time by schedstat, own cost) don't hold for a part and become unknown; counts of events and
losses stay, and a note says whose they are. Without --from the part is around the middle of the GPU's activity (of
the recording, if it has none). If the result is larger than --max-kb, the part is halved until it isn't.

--rename OLD=NEW writes NEW for OLD in every text of the session (paths, command lines, host), in the order given. The
GPU's serial identity (UUID) is left out, as are the tools' own files.
"""

from __future__ import annotations

import argparse
import copy
import shutil
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from perfscope.model.info import SessionInfo
from perfscope.model.schema import TABLES
from perfscope.model.session import Session
from perfscope.model.session_writer import SessionWriter
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
Rename = Callable[[str], str]


def renamer(pairs: Sequence[str]) -> Rename:
    """A function that writes NEW for OLD for each OLD=NEW. Raises SystemExit for a pair that is none."""
    parts = [pair.partition("=") for pair in pairs]
    for old, equals, _ in parts:
        if not old or not equals:
            raise SystemExit("--rename takes OLD=NEW")

    def rename(text: str) -> str:
        for old, _, new in parts:
            text = text.replace(old, new)
        return text

    return rename


def everywhere(value: Any, rename: Rename) -> Any:
    """The same JSON value with every text in it renamed."""
    if isinstance(value, str):
        return rename(value)
    if isinstance(value, list | tuple):
        return [everywhere(item, rename) for item in value]
    if isinstance(value, dict):
        return {rename(key): everywhere(item, rename) for key, item in value.items()}
    return value


def renamed(column: pa.ChunkedArray, rename: Rename) -> pa.ChunkedArray | pa.Array:
    """A text column with every text in it renamed; other columns as they are."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.string())
    if not pa.types.is_string(column.type):
        return column
    known = pc.dictionary_encode(column.combine_chunks())
    words = pa.array([rename(word) for word in known.dictionary.to_pylist()], pa.string())
    return words.take(known.indices)


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
    return table.filter(pc.fill_null(inside, False))


def said_before(counters: pa.Table, start: int, end: int) -> pa.Table:
    """A row at `start` for each counter that had one value all along (a maximum) but no row in the part."""
    rows: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in counters.to_pylist():
        rows.setdefault((row["source"], row["device"], row["pid"], row["name"]), []).append(row)
    kept = []
    for same in rows.values():
        early = start - same[0]["time_ns"]
        if early > 0 and len({r["value"] for r in same}) == 1 and not any(start <= r["time_ns"] < end for r in same):
            kept.append({**same[0], "time_ns": start, "error_ns": same[0]["error_ns"] + early})
    return pa.Table.from_pylist(kept, counters.schema)


def stacks_kept(
    session: Session, writer: SessionWriter, tables: dict[str, pa.Table], rename: Rename
) -> npt.NDArray[np.int64]:
    """New stack_id by old one, for the stacks that these tables name; the last stands for ROOT."""
    ids = np.full(len(session.stacks.parents) + 1, ROOT, np.int64)
    used = {i for t in tables.values() if "stack_id" in t.column_names for i in pc.unique(t["stack_id"]).to_pylist()}
    for stack in sorted(i for i in used if i is not None and i >= 0):
        frames = session.stacks.path(stack)
        ids[stack] = writer.stacks.stack([f._replace(file=f.file and rename(f.file)) for f in frames])
    return ids


def part_info(whole: SessionInfo, start: int, end: int, rename: Rename) -> SessionInfo:
    """What session.json says of the part [start, end): nothing that holds for the whole recording only."""
    info = copy.deepcopy(whole)
    length = (whole.stop_ns - whole.start_ns) / 1e9
    first, last = ((time - whole.start_ns) / 1e9 for time in (start, end))
    info.start_ns, info.stop_ns = start, end
    info.stopped_by, info.exit_status, info.own_cpu_ns = "cut from a longer recording", None, None
    if info.started_at:
        info.started_at = (datetime.fromisoformat(info.started_at) + timedelta(seconds=first)).isoformat("T", "seconds")
    for report in info.collectors.values():
        report.covered_ns = [(max(a, start), min(b, end)) for a, b in report.covered_ns if a < end and b > start]
        report.cpu_ns = None
        if report.status in ("ok", "partial"):
            report.notes.append(
                f"cut from a longer recording: {first:.3f} s to {last:.3f} s of {length:.3f} s; counts of events and "
                "losses, and these notes, are of all of it"
            )
        for device in report.details.get("devices", {}).values():
            device.pop("uuid", None)
    data = info.to_json()
    clocks, data["clocks"] = data["clocks"], {}
    return SessionInfo.from_json({**everywhere(data, rename), "clocks": clocks}, str(start))


def cut(session: Session, out: Path, start: int, end: int, *, force: bool, rename: Rename) -> Path:
    """Writes the part [start, end) of a session, in ns on its clock."""
    writer = SessionWriter(out, force=force)
    tables = {
        name: overlapping(name, session.table(name), start, end)
        for name in TABLES
        if name not in ("threads", "processes", "frames", "stacks")
    }
    tables["counters"] = pa.concat_tables([tables["counters"], said_before(session.table("counters"), start, end)])
    ids = stacks_kept(session, writer, tables, rename)
    for name, table in tables.items():
        columns = {c: renamed(table[c], rename) for c in table.column_names}
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
                row["pid"], row["tid"], name=row["name"] and rename(row["name"]), start_ns=max(row["start_ns"], start),
                end_ns=min(row["end_ns"], end), sched_complete=row["sched_complete"],
            )  # fmt: skip
    for row in session.table("processes").to_pylist():
        if row["pid"] in pids:
            row |= {key: row[key] and rename(row[key]) for key in ("name", "command")}
            writer.note_process(
                **{k: row[k] for k in ("pid", "ppid", "name", "command", "runtime", "start_ns", "end_ns")}
            )
    info = part_info(session.info, start, end, rename)
    return writer.finish(info, keep_raw=False)


def middle(session: Session) -> int:
    times = session.table("gpu_activity").select(["start_ns", "end_ns"])
    if not times.num_rows:
        return (session.info.start_ns + session.info.stop_ns) // 2
    first, last = (int(time.as_py()) for time in (pc.min(times["start_ns"]), pc.max(times["end_ns"])))
    return (first + last) // 2


def size_kb(directory: Path) -> float:
    return sum(f.stat().st_size for f in directory.rglob("*") if f.is_file()) / 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("session", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--from", dest="from_s", type=float)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--max-kb", type=float, default=300)
    parser.add_argument("--rename", action="append", default=[], metavar="OLD=NEW")
    parser.add_argument("--force", action="store_true")
    options = parser.parse_args()
    session = Session.open(options.session)
    length = round(options.seconds * 1e9)
    while True:
        first = middle(session) - length // 2
        if options.from_s is not None:
            first = session.info.start_ns + round(options.from_s * 1e9)
        first = max(first, session.info.start_ns)
        last = min(first + length, session.info.stop_ns)
        cut(session, options.out, first, last, force=options.force, rename=renamer(options.rename))
        size = size_kb(options.out)
        if size <= options.max_kb or length < 1_000_000:
            break
        shutil.rmtree(options.out)
        length //= 2
    print(f"{options.out}: {length / 1e9:.3f} s, {size:.0f} kB")
    return 0 if size <= options.max_kb else 1


if __name__ == "__main__":
    sys.exit(main())

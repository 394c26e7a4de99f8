"""GPU time on what the CUDA probe recorded of scripts/gpu/truth.py on a real GPU; its launches are known by number."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow.compute as pc
import pytest

from perfscope.collectors.cuda import spool as records
from perfscope.collectors.cuda import tables
from perfscope.merge import build_tree
from perfscope.model.info import SessionInfo
from perfscope.model.session import Session
from perfscope.model.session_writer import SessionWriter

SPOOL = Path(__file__).parents[1] / "data" / "gpu" / "truth.spool.gz"
MARGIN = 10_000_000


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    place = tmp_path_factory.mktemp("truth")
    spool = place / "1-1.spool"
    spool.write_bytes(gzip.decompress(SPOOL.read_bytes()))
    writer = SessionWriter(place / "truth.perfscope")
    tables.write(records.read(spool), 1, {}, writer)
    writer.note_process(1, name="python", runtime="python")
    made = Session.open(writer.finish(SessionInfo()))
    activity = made.table("gpu_activity")
    made.info.start_ns = pc.min(activity["start_ns"]).as_py() - MARGIN
    made.info.stop_ns = pc.max(activity["end_ns"]).as_py() + MARGIN
    return made


def test_busy_and_idle_are_the_window_and_busy_is_the_union(session: Session) -> None:
    tree = build_tree(session)
    idle = sum(
        int(ns)
        for ns, frame in zip(tree.weights["gpu"], tree.frame, strict=True)
        if frame >= 0 and tree.frames[frame].label == "[GPU idle]"
    )
    window = session.info.stop_ns - session.info.start_ns
    assert int(tree.weights["gpu"].sum()) == window
    rows = session.table("gpu_activity")
    union, reach = 0, 0
    for start, end in sorted(zip(rows["start_ns"].to_pylist(), rows["end_ns"].to_pylist(), strict=True)):
        union += max(0, end - max(start, reach))
        reach = max(reach, end)
    assert window - idle == union


def test_kernels_are_as_many_as_were_launched_and_below_the_threads_that_did(session: Session) -> None:
    tree = build_tree(session)
    threads: dict[str, set[str]] = {}
    for node in range(1, len(tree.parent)):
        label = tree.frames[tree.frame[node]].label
        for kernel in ("sigmoid", "tanh", "launch_clamp"):
            if kernel in label:
                at = node
                while tree.frames[tree.frame[at]].layer != "thread":
                    at = int(tree.parent[at])
                threads.setdefault(kernel, set()).add(tree.frames[tree.frame[at]].label)
    assert {kernel: len(found) for kernel, found in threads.items()} == {"sigmoid": 1, "tanh": 1, "launch_clamp": 1}
    assert threads["tanh"] == threads["launch_clamp"] != threads["sigmoid"]
    times = {tree.frames[frame].label: lines[0].split()[0] for frame, lines in tree.details.items()}
    counts = {k: next(n for name, n in times.items() if k in name) for k in ("sigmoid", "tanh", "launch_clamp")}
    assert counts == {"sigmoid": "100", "tanh": "60", "launch_clamp": "400"}

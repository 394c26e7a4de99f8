"""What the viewer gets of GPU time, and sessions cut short."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from merge_helpers import Sessions

from perfscope.merge import build_tree
from perfscope.model.session import Session
from perfscope.reports.flame import pack

TRIM = Path(__file__).parents[2] / "scripts" / "gpu" / "trim_session.py"
MS = 1_000_000


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    with Sessions() as made:
        yield made


def recorded(sessions: Sessions) -> Session:
    def kernel(start: int) -> dict[str, Any]:
        row = {"start_ns": start, "end_ns": start + MS, "kind": "kernel", "device": 0, "context": 1, "stream": 7}
        return {**row, "name": "k", "correlation": start, "launch_tid": 1, "launch_ns": start - 1000, "stack_id": 0}

    def sync(start: int) -> dict[str, Any]:
        row = {"tid": 1, "start_ns": start, "end_ns": start + MS, "name": "cudaDeviceSynchronize", "result": 0}
        return {**row, "correlation": start, "waited_for": "context", "stack_id": 1}

    def look(time: int) -> dict[str, Any]:
        return {"tid": 1, "time_ns": time, "duration_ns": 2 * MS, "stack_id": 0}

    times = range(2 * MS, 98 * MS, 4 * MS)
    return sessions.make(
        {
            "gpu_activity": [kernel(t) for t in times],
            "cuda_api": [sync(t + MS // 2) for t in times],
            "samples": [look(t) for t in times],
        },
        [{"tid": 1, "name": "main", "start_ns": 0, "end_ns": 100 * MS, "sched_complete": True}],
    )


def test_the_viewer_gets_weight_states_and_details(sessions: Sessions) -> None:
    tree = build_tree(recorded(sessions))
    data = zlib.decompress(pack(tree))
    (size,) = struct.unpack_from("<I", data)
    header = json.loads(data[4 : 4 + size])
    assert header["weights"] == ["wall", "cpu", "off-cpu", "gpu", "samples"]
    assert header["states"]["[spinning: GPU sync for k]"] == "gpu-sync"
    assert header["states"]["[GPU idle]"] == "gpu-idle"
    (at,) = [str(i) for i, frame in enumerate(header["frames"]) if frame[:2] == ["gpu", "k"]]
    assert header["details"] == {at: ["24 times, mean 1.00 ms, median 1.00 ms"]}


def test_a_session_cut_short_is_a_session(sessions: Sessions, tmp_path: Path) -> None:
    whole = recorded(sessions)
    out = tmp_path / "short.perfscope"
    command = [sys.executable, str(TRIM), str(whole.path), str(out), "--from", "0.021", "--seconds", "0.02"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    short = Session.open(out)
    assert (short.info.start_ns, short.info.stop_ns) == (21 * MS, 41 * MS)
    assert short.table("gpu_activity")["start_ns"].to_pylist() == [t * MS for t in (22, 26, 30, 34, 38)]
    assert short.table("samples")["time_ns"].to_pylist() == [t * MS for t in (22, 26, 30, 34, 38)]
    tree, before = build_tree(short), build_tree(whole, from_s=0.021, to_s=0.041)
    assert int(tree.weights["gpu"].sum()) == int(before.weights["gpu"].sum()) == 20 * MS
    assert int(tree.weights["wall"].sum()) == 20 * MS
    assert sum(f.stat().st_size for f in out.rglob("*") if f.is_file()) < 300_000
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode != 0
    assert "exists already" in again.stderr

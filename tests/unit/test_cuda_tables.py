"""A spool recorded on an H200 from scripts/gpu/truth.py, whose launches are known by number, function and thread."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

from perfscope.collectors.cuda import spool as records
from perfscope.collectors.cuda import tables
from perfscope.demangle import demangle
from perfscope.model.info import SessionInfo
from perfscope.model.session import Session
from perfscope.model.session_writer import SessionWriter

DATA = Path(__file__).parents[1] / "data" / "gpu" / "truth.spool.gz"
HOST_TID = 4242


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Session, tables.Counts, records.Spool]:
    place = tmp_path_factory.mktemp("truth")
    file = place / "1-1.spool"
    file.write_bytes(gzip.decompress(DATA.read_bytes()))
    spool = records.read(file)
    writer = SessionWriter(place / "truth.perfscope")
    counts = tables.write(spool, spool.pid, {spool.pid: HOST_TID}, writer)
    return Session.open(writer.finish(SessionInfo(start_ns=0, stop_ns=1))), counts, spool


def launchers(session: Session) -> Counter[tuple[str, str]]:
    """(kind, function of truth.py nearest to the launch) -> how many."""
    found: Counter[tuple[str, str]] = Counter()
    for row in session.table("gpu_activity").select(["kind", "stack_id"]).to_pylist():
        path = [] if row["stack_id"] is None else session.stacks.path(row["stack_id"])
        own = [f.function for f in path if f.file and f.file.endswith("truth.py")]
        found[row["kind"], own[-1] if own else ""] += 1
    return found


def test_every_kernel_hangs_under_the_function_that_launched_it(
    recorded: tuple[Session, tables.Counts, records.Spool],
) -> None:
    session, counts, spool = recorded
    found = launchers(session)
    assert (found["kernel", "rectify"], found["kernel", "squash"], found["kernel", "nested.<locals>.inner"]) == (
        400,
        100,
        60,
    )
    assert found["kernel", "graph"] == 50 * 3 + 2 + 2  # replays, warm-up, and what capturing itself launches
    assert found["copy", "copies"] == 20
    assert counts.activities == sum(found.values()) == 800
    assert (spool.lost, spool.cupti_lost, spool.damaged, spool.complete) == (0, 0, 0, True)
    assert counts.launches_unseen == 3  # the captured ones
    assert counts.with_stack_ns / counts.device_ns > 0.95


def test_lines_and_threads_of_launches(recorded: tuple[Session, tables.Counts, records.Spool]) -> None:
    session, _, _ = recorded
    rows = session.table("gpu_activity").select(["launch_tid", "stack_id", "start_ns", "launch_ns"]).to_pylist()
    by_function: dict[str, set[int]] = {}
    for row in rows:
        if row["stack_id"] is not None:
            leaf = session.stacks.path(row["stack_id"])[-1]
            by_function.setdefault(leaf.function, set()).add(row["launch_tid"])
        assert row["launch_ns"] is None or row["launch_ns"] <= row["start_ns"]
    assert by_function["rectify"] == {HOST_TID}  # the main thread's id, as the host knows it
    assert len(by_function["squash"]) == 1 and HOST_TID not in by_function["squash"]


def test_copies_say_their_memory_and_bytes(recorded: tuple[Session, tables.Counts, records.Spool]) -> None:
    session, _, _ = recorded
    rows = [r for r in session.table("gpu_activity").to_pylist() if r["kind"] == "copy"]
    assert Counter((r["source_memory"], r["target_memory"], r["bytes"], r["name"]) for r in rows) == {
        ("pageable", "device", 4 << 20, "copy HtoD pageable"): 10,
        ("pinned", "device", 4 << 20, "copy HtoD"): 10,
    }
    assert all(r["grid_x"] is None and r["registers"] is None for r in rows)


def test_graph_kernels_know_their_node(recorded: tuple[Session, tables.Counts, records.Spool]) -> None:
    session, _, _ = recorded
    nodes = Counter(n for n in session.table("gpu_activity")["graph_node"].to_pylist() if n is not None)
    assert sorted(nodes.values()) == [50, 50, 50]


def test_the_range_encloses_what_ran_in_it(recorded: tuple[Session, tables.Counts, records.Spool]) -> None:
    session, _, _ = recorded
    (span,) = session.table("spans").to_pylist()
    assert (span["name"], span["source"], span["tid"]) == ("phase-A", "nvtx", HOST_TID)
    launched = [t for t in session.table("gpu_activity")["launch_ns"].to_pylist() if t is not None]
    assert sum(span["start_ns"] <= t < span["end_ns"] for t in launched) == 200


def test_calls_and_waits(recorded: tuple[Session, tables.Counts, records.Spool]) -> None:
    session, counts, _ = recorded
    calls = Counter(session.table("cuda_api")["name"].to_pylist())
    assert (calls["cudaGraphLaunch"], calls["cudaMemcpyAsync"], calls["cudaDeviceSynchronize"]) == (50, 20, 2)
    assert sum(calls.values()) == counts.calls
    waits = Counter(w for w in session.table("cuda_api")["waited_for"].to_pylist() if w)
    assert waits == {"stream": 10, "context": 2}  # ten pageable copies wait for their stream


def test_cuptis_own_overhead_is_told(recorded: tuple[Session, tables.Counts, records.Spool]) -> None:
    _, counts, spool = recorded
    rows = spool.fixed[records.OVERHEAD]
    assert sum(counts.overhead_ns.values()) == int((rows["end"] - rows["start"]).sum())
    assert "loading functions" in counts.overhead_ns and "other" not in counts.overhead_ns


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_ZN2at6native9relu_implEPKfPfi", "at::native::relu_impl(float const*, float*, int)"),
        ("nvjet_tst_64x8", "nvjet_tst_64x8"),
        ("_Znot a name", "_Znot a name"),
        ("", ""),
    ],
)
def test_names_as_people_know_them(mangled: str, name: str) -> None:
    assert demangle(mangled) == name

"""Rules on what was recorded of scripts/gpu/planted on a real GPU (scripts/gpu/record_planted.sh, its small sessions).

Each program plants one bottleneck (sync_and_late_host: two); the others are healthy in that respect.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.diagnosis.engine import diagnose
from perfscope.diagnosis.facts import Facts
from perfscope.merge import build_tree
from perfscope.merge.timeline import slices_of
from perfscope.model.session import Session

RECORDED = Path(__file__).parents[1] / "data" / "gpu" / "planted"
SESSIONS = sorted(RECORDED.glob("*.perfscope"))
RULES = {
    "launch-bound", "sync-in-loop", "pageable-copy", "copy-not-overlapped", "single-stream", "gpu-throttled",
    "pcie-saturated",
}  # fmt: skip
EXPECTED: dict[str, tuple[set[str], set[str]]] = {
    "launch_bound": ({"launch-bound"}, {"plan_next_token"}),
    "sync_in_loop": ({"sync-in-loop"}, {"train_step"}),
    "sync_and_late_host": ({"sync-in-loop", "launch-bound"}, {"train_step"}),
    "pageable_copy": ({"pageable-copy"}, {"load"}),
    "copy_not_overlapped": ({"copy-not-overlapped"}, {"load"}),
    "single_stream": ({"single-stream"}, {"main"}),
    "saturated": (set(), set()),
    "pcie_full": (set(), set()),  # the part kept has two means of the link's traffic, of the three that are needed
    "healthy_gpu": (set(), set()),
    "llm": ({"launch-bound"}, {"Norm.forward"}),
}
"""Program -> the rules on GPUs, beyond information, that must flag it, and the functions that they must name."""


def test_the_recordings_are_there() -> None:
    assert len(SESSIONS) >= 10
    assert {path.stem for path in SESSIONS} <= set(EXPECTED)


@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: path.stem)
def test_each_recorded_program_gets_its_own_verdict_and_no_other(path: Path) -> None:
    verdicts = [v for v in diagnose(Session.open(path)).verdicts if v.rule in RULES and v.verdict == "flagged"]
    functions = {f.where.function for v in verdicts for f in v.findings}
    assert ({v.rule for v in verdicts}, functions) == EXPECTED[path.stem], [v.why for v in verdicts]


@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: path.stem)
def test_each_recorded_gpu_has_exactly_its_window(path: Path) -> None:
    tree = build_tree(Session.open(path))
    assert tree.timeline is not None
    edges = tree.timeline.edges_ns
    assert int(tree.weights["gpu"].sum()) == int(edges[-1] - edges[0])


def test_spinning_for_the_gpu_is_no_hotspot() -> None:
    """The main thread of pcie_full is on a CPU nearly all the time, in cudaEventSynchronize; the writer works."""
    session = Session.open(RECORDED / "pcie_full.perfscope")
    (verdict,) = [v for v in diagnose(session).verdicts if v.rule == "python-hotspot"]
    assert [f.where.function for f in verdict.findings] == ["write"]
    facts = Facts(session, list(slices_of(session)))
    for thread in range(len(facts.threads)):
        begin, end = facts.working(thread)
        assert facts.working_ns(thread) == int((end - begin).sum())


def test_a_wait_is_counted_once_however_many_kernels_it_waited_for() -> None:
    """A step of sync_and_late_host reads one loss: as many waits as steps, so as many as its one reduction kernel."""
    session = Session.open(RECORDED / "sync_and_late_host.perfscope")
    (verdict,) = [v for v in diagnose(session).verdicts if v.rule == "sync-in-loop"]
    (waits,) = [e.value for f in verdict.findings for e in f.evidence if e.what == "waits from this place"]
    reductions = sum("reduce_kernel" in (name or "") for name in session.table("gpu_activity")["name"].to_pylist())
    assert abs(waits - reductions) <= 2


def test_pcie_counters_are_the_bytes_copied_and_a_header_each_256_of_them() -> None:
    """Two sources on one clock: what CUPTI saw copied to the GPU, and GPM's mean of the interval around it."""
    session = Session.open(RECORDED / "copy_not_overlapped.perfscope")
    rows = session.table("counters").to_pylist()
    copies = [r for r in session.table("gpu_activity").to_pylist() if r["kind"] == "copy"]
    ratios: dict[str, list[float]] = {"pcie_rx_bytes_per_s": [], "pcie_tx_bytes_per_s": []}
    for row in rows:
        start, end = row["time_ns"] - row["error_ns"], row["time_ns"] + row["error_ns"]
        if row["name"] in ratios and session.info.start_ns <= start and end <= session.info.stop_ns:
            moved = sum(
                c["bytes"] * max(0, min(end, c["end_ns"]) - max(start, c["start_ns"])) / (c["end_ns"] - c["start_ns"])
                for c in copies
            )
            ratios[row["name"]].append(row["value"] * (end - start) / 1e9 / moved)
    assert all(1 + 12 / 256 <= ratio <= 1 + 24 / 256 for ratio in ratios["pcie_rx_bytes_per_s"])
    assert all(12 / 256 <= ratio <= 24 / 256 for ratio in ratios["pcie_tx_bytes_per_s"])  # the requests for them
    assert ratios["pcie_rx_bytes_per_s"] and ratios["pcie_tx_bytes_per_s"]

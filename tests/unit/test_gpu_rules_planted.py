"""Rules on what was recorded of scripts/gpu/planted on a real GPU (scripts/gpu/record_planted.sh, its small sessions).

Each program plants one bottleneck; the others are healthy in that respect.
"""

from __future__ import annotations

from pathlib import Path

from perfscope.diagnosis.engine import diagnose
from perfscope.merge import build_tree
from perfscope.model.session import Session

RECORDED = Path(__file__).parents[1] / "data" / "gpu" / "planted"
TIMELINE = {"launch-bound", "sync-in-loop", "pageable-copy", "copy-not-overlapped", "single-stream"}
EXPECTED: dict[str, tuple[set[str], str | None]] = {
    "launch_bound": ({"launch-bound"}, "plan_next_token"),
    "sync_in_loop": ({"sync-in-loop"}, "train_step"),
    "pageable_copy": ({"pageable-copy"}, "load"),
    "copy_not_overlapped": ({"copy-not-overlapped"}, "load"),
    "single_stream": ({"single-stream"}, "main"),
    "saturated": (set(), None),
    "healthy_gpu": (set(), None),
    "llm": ({"launch-bound"}, None),
}
"""Program -> the timeline rules it must be flagged by, and the function that the first finding must name."""


def test_each_recorded_program_gets_its_own_verdict_and_no_other() -> None:
    wrong = {}
    for path in sorted(RECORDED.glob("*.perfscope")):
        session = Session.open(path)
        verdicts = [v for v in diagnose(session).verdicts if v.rule in TIMELINE and v.verdict == "flagged"]
        functions = [f.where.function for v in verdicts for f in v.findings]
        flagged, function = EXPECTED[path.stem]
        if {v.rule for v in verdicts} != flagged or (function is not None and functions != [function]):
            wrong[path.stem] = [(v.rule, v.why) for v in verdicts]
    assert wrong == {}


def test_each_recorded_gpu_has_exactly_its_window() -> None:
    for path in RECORDED.glob("*.perfscope"):
        tree = build_tree(Session.open(path))
        assert tree.timeline is not None
        edges = tree.timeline.edges_ns
        assert int(tree.weights["gpu"].sum()) == int(edges[-1] - edges[0])

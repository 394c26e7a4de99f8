"""build_tree and thread_time: the right paths, conserved for every weight, thread and window."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from merge_helpers import PID, STACKS, Row, Sessions, tree_lines

from perfscope.merge import CallTree, build_tree, hot_spot, slices_of, thread_time
from perfscope.merge.slices import RUNNING, UNKNOWN
from perfscope.model.info import SessionInfo
from perfscope.model.session import Session
from perfscope.model.session_writer import SessionWriter
from perfscope.model.stacks import ROOT, Frame

US = 1000
PROCESS = f"python /srv/serve.py --port 1 ({PID})"


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    with Sessions() as made:
        yield made


@pytest.fixture(scope="module")
def busy(sessions: Sessions) -> Session:
    """MainThread: looks at 0, 10, 20 see work (off 10..20 waiting for the GIL, wants a CPU until 22), at 30, 40, 50
    guarded, at 60, 70, 80 a torn stack, then nothing from 90 on; worker: no scheduler records, 0..50 waits for work.
    In microseconds."""
    threads = [
        {"tid": 1, "name": "MainThread", "start_ns": 0, "end_ns": 100 * US, "sched_complete": True},
        {"tid": 2, "name": "worker-0", "start_ns": 0, "end_ns": 80 * US, "sched_complete": False},
    ]
    samples = [
        {"tid": 1, "time_ns": 0, "duration_ns": 30 * US, "stack_id": 0, "count": 3},
        {"tid": 1, "time_ns": 30 * US, "duration_ns": 30 * US, "stack_id": 1, "count": 3},
        {"tid": 1, "time_ns": 60 * US, "duration_ns": 30 * US, "stack_id": 0, "count": 3, "torn": True},
        {"tid": 2, "time_ns": 0, "duration_ns": 50 * US, "stack_id": 2, "count": 5},
        {"tid": 2, "source": "pyspy-gil", "stack_id": 2, "count": 50},
    ]
    sched = [{"tid": 1, "off_ns": 10 * US, "wake_ns": 20 * US, "on_ns": 22 * US, "state": "S"}]
    waits = [{"tid": 1, "start_ns": 9 * US, "end_ns": 23 * US, "kind": "gil"}]
    return sessions.make({"samples": samples, "sched": sched, "waits": waits}, threads, clocks={"pyspy": 10 * US})


MAIN = f"{PROCESS};MainThread (1)"
WORKER = f"{PROCESS};worker-0 (2)"


def test_weights_and_paths(busy: Session) -> None:
    tree = build_tree(busy)
    assert tree_lines(tree, "cpu") == {
        f"{MAIN};main;work": 13 * US,
        f"{MAIN};main;guarded": 30 * US,
        f"{MAIN};[torn stack]": 35 * US,
        f"{MAIN};[unsampled]": 10 * US,
    }
    assert tree_lines(tree, "off-cpu") == {
        f"{MAIN};main;work;[waiting: GIL]": 10 * US,
        f"{MAIN};main;work;[runnable, no CPU]": 2 * US,
    }
    worker = {f"{WORKER};run;get;wait": 50 * US, f"{WORKER};[unsampled]": 30 * US}
    assert tree_lines(tree, "wall") == tree_lines(tree, "cpu") | tree_lines(tree, "off-cpu") | worker
    assert tree_lines(tree, "samples") == {
        f"{MAIN};main;work": 3,
        f"{MAIN};main;guarded": 3,
        f"{WORKER};run;get;wait": 5,
    }


def test_what_must_be_said_is_said(busy: Session) -> None:
    notes = " | ".join(build_tree(busy).notes)
    assert "no complete scheduler records of worker-0 (2): their time counts in wall alone" in notes
    assert "torn: 21.4 % of samples" in notes  # 3 of 14
    assert "unsampled: 22.2 %" in notes  # (10 + 30) of 180


def test_frames_keep_the_heaviest_line(busy: Session) -> None:
    tree = build_tree(busy)
    lines = {
        tree.frames[f].label: line for f, line in zip(tree.frame.tolist(), tree.line.tolist(), strict=True) if f >= 0
    }
    assert lines["main"] == 2  # 25 us at line 1, 30 us at line 2
    assert (lines["work"], lines["guarded"], lines["MainThread (1)"]) == (5, 9, -1)
    later = build_tree(busy, from_s=20e-6)
    lines = {tree.frames[f].label: n for f, n in zip(later.frame.tolist(), later.line.tolist(), strict=True) if f >= 0}
    assert lines["main"] == 2


def test_a_part_is_cut_to_the_nanosecond(busy: Session) -> None:
    tree = build_tree(busy, from_s=15.001e-6, to_s=21e-6)
    assert tree_lines(tree, "off-cpu") == {
        f"{MAIN};main;work;[waiting: GIL]": 4_999,
        f"{MAIN};main;work;[runnable, no CPU]": 1_000,
    }
    assert int(tree.weights["cpu"].sum()) == 0
    assert int(tree.weights["wall"].sum()) == 2 * 5_999
    # looks at 0, 10, 20 us and every 10 us of the worker
    assert tree_lines(tree, "samples") == {f"{MAIN};main;work": 1, f"{WORKER};run;get;wait": 1}


def test_parts_add_up_to_the_whole(busy: Session) -> None:
    whole = build_tree(busy)
    cuts = [0.0, 1e-6, 12.345e-6, 50e-6, 99.999e-6, 1.0]
    parts = [build_tree(busy, from_s=a, to_s=b) for a, b in pairwise(cuts)]
    for weight in whole.weights:
        assert sum(int(p.weights[weight].sum()) for p in parts) == int(whole.weights[weight].sum())


def test_a_part_where_nothing_is(busy: Session) -> None:
    tree = build_tree(busy, from_s=5.0, to_s=6.0)
    assert all(int(w.sum()) == 0 for w in tree.weights.values())
    assert len(tree.parent) == 1


def test_thread_pattern(busy: Session) -> None:
    for pattern in ("worker-*", "WORKER-0", "2"):
        assert list(tree_lines(build_tree(busy, thread=pattern), "wall")) == [
            f"{WORKER};run;get;wait",
            f"{WORKER};[unsampled]",
        ]
    assert len(build_tree(busy, thread="x").parent) == 1


def test_thread_time(busy: Session) -> None:
    times = thread_time(busy)
    assert times is thread_time(busy)
    assert times.schema.names == ["pid", "tid", "name", "process", "state", "stack_id", "total_ns"]
    by_state = {
        (r["tid"], r["state"]): r["total_ns_sum"]
        for r in times.group_by(["tid", "state"]).aggregate([("total_ns", "sum")]).to_pylist()
    }
    assert by_state == {
        (1, "running"): 88 * US,
        (1, "runnable"): 2 * US,
        (1, "gil"): 10 * US,
        (2, "unknown"): 80 * US,
    }


def test_hot_spot_leaves_torn_and_unsampled_time_out(busy: Session) -> None:
    times = thread_time(busy)
    spot = hot_spot(busy, times.filter(pc.equal(times["tid"], 1)))
    assert spot is not None
    assert (spot.frame.function, spot.frame.line) == ("guarded", 9)
    assert (spot.self_ns, spot.sampled_ns) == (30 * US, 55 * US)
    assert [f.function for f in spot.stack] == ["main", "guarded"]
    assert hot_spot(busy, times.filter(pc.equal(times["stack_id"], ROOT))) is None


def test_counts_without_times_or_threads(sessions: Sessions) -> None:
    samples = [{"pid": None, "tid": None, "source": "import", "stack_id": 0, "count": 7}]
    tree = build_tree(sessions.make({"samples": samples}, []))
    assert list(tree.weights) == ["samples"]
    assert tree.timeline is None
    assert tree_lines(tree, "samples") == {"(process unknown);(thread unknown);main;work": 7}
    assert "7 samples carry no time" in " ".join(tree.notes)


def test_no_scheduler_records_no_cpu_weight(sessions: Sessions) -> None:
    session = sessions.make({}, [{"tid": 1, "start_ns": 0, "end_ns": 9}])
    tree = build_tree(session)
    assert list(tree.weights) == ["wall"]
    assert "not known, only wall time" in " ".join(tree.notes)


def test_scheduler_records_of_unlisted_threads_are_said(sessions: Sessions) -> None:
    row = {"tid": 5, "off_ns": 1, "wake_ns": 2, "on_ns": 3, "state": "S"}
    tree = build_tree(sessions.make({"sched": [row, row]}, [{"tid": 1, "start_ns": 0, "end_ns": 9}]))
    assert "2 scheduler records are of threads not listed: not shown" in tree.notes


def test_an_empty_session(sessions: Sessions) -> None:
    session = sessions.make({}, [])
    tree = build_tree(session)
    assert (len(tree.parent), tree.weights, thread_time(session).num_rows) == (1, {}, 0)


ODD = [
    "a;b",
    "x y 12",
    "std::vector<int, std::a<int> >",
    "λ→é",
    "a\x00b\n\x1b[1m",
    "</script>",
    "Foo$$Lambda/0x7f.run",
    "",
]


def test_odd_names_survive_and_layers_never_merge(sessions: Sessions) -> None:
    stacks = [[Frame(layer, name, None, 1)] for name in ODD for layer in ("python", "java", "native", "kernel")]
    samples = [{"tid": 1, "time_ns": 10 * i, "duration_ns": 10, "stack_id": i} for i in range(len(stacks))]
    threads = [{"tid": 1, "start_ns": 0, "end_ns": 10 * len(stacks)}]
    tree = build_tree(sessions.make({"samples": samples}, threads, stacks=stacks))
    shown = [tree.frames[f] for f in tree.frame.tolist()[3:]]
    assert [(f.layer, f.label) for f in shown] == [(s[0].layer, s[0].function) for s in stacks]
    assert tree.weights["wall"].tolist()[3:] == [10] * len(stacks)


def check_shape(tree: CallTree) -> None:
    """A tree, each node once, parents first, and the timeline the same weights."""
    nodes = np.arange(len(tree.parent))
    assert tree.parent[0] == -1
    assert tree.frame[0] == -1
    assert (tree.parent[1:] < nodes[1:]).all()
    assert (tree.parent[1:] >= 0).all()
    keys = set(
        zip(tree.parent.tolist(), (tree.frames[f] if f >= 0 else None for f in tree.frame.tolist()), strict=True)
    )
    assert len(keys) == len(nodes)
    if tree.timeline is not None:
        for name, weight in tree.weights.items():
            again = np.zeros_like(weight)
            np.add.at(again, tree.timeline.node, tree.timeline.weights[name])
            if name != "samples":
                assert (again == weight).all()
            else:
                assert (again <= weight).all()
        assert (np.diff(tree.timeline.edges_ns) > 0).all()
        assert (tree.timeline.bucket < len(tree.timeline.edges_ns) - 1).all()


instant = st.integers(-100, 1500)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    threads=st.lists(st.tuples(instant, instant, st.booleans()), min_size=1, max_size=3),
    sched=st.lists(
        st.fixed_dictionaries(
            {
                "tid": st.integers(1, 3),
                "off_ns": instant,
                "wake_ns": st.one_of(st.none(), instant),
                "on_ns": st.one_of(st.none(), instant),
                "state": st.sampled_from("RSDT"),
            }
        ),
        max_size=12,
    ),
    samples=st.lists(
        st.fixed_dictionaries(
            {
                "tid": st.one_of(st.none(), st.integers(1, 4)),
                "time_ns": st.one_of(st.none(), instant),
                "duration_ns": st.one_of(st.none(), st.integers(-5, 700)),
                "stack_id": st.integers(0, len(STACKS) - 1),
                "count": st.integers(0, 40),
                "torn": st.booleans(),
            }
        ),
        max_size=12,
    ),
    part=st.tuples(instant, instant),
)
def test_tree_conserves_every_weight(
    sessions: Sessions,
    threads: list[tuple[int, int, bool]],
    sched: list[Row],
    samples: list[Row],
    part: tuple[int, int],
) -> None:
    rows = [
        {"tid": tid, "start_ns": start, "end_ns": end, "sched_complete": complete}
        for tid, (start, end, complete) in enumerate(threads, 1)
    ]
    session = sessions.make({"sched": sched, "samples": samples}, rows)
    slices = list(slices_of(session))
    complete = {r["tid"] for r in rows if r["sched_complete"]}

    def expected(low: int, high: int) -> dict[str, int]:
        sums = {"wall": 0, "cpu": 0, "off-cpu": 0}
        for s in slices:
            inside = np.maximum(0, np.minimum(s.end_ns, high) - np.maximum(s.start_ns, low))
            sums["wall"] += int(inside.sum())
            if s.tid in complete:
                sums["cpu"] += int(inside[s.state == RUNNING].sum())
                sums["off-cpu"] += int(inside[(s.state != RUNNING) & (s.state != UNKNOWN)].sum())
        return sums

    tree = build_tree(session)
    check_shape(tree)
    sums = expected(-(2**60), 2**60)
    for weight, total in sums.items():
        assert int(tree.weights[weight].sum() if weight in tree.weights else 0) == total
    if len(complete) == len(slices):
        assert sums["wall"] == sums["cpu"] + sums["off-cpu"]
    if "samples" in tree.weights:
        assert int(tree.weights["samples"].sum()) == sum(s["count"] for s in samples if not s["torn"])
    assert pc.sum(thread_time(session)["total_ns"]).as_py() in (sums["wall"], None)

    low, high = min(part), max(part)
    cut = build_tree(session, from_s=low / 1e9, to_s=high / 1e9)
    check_shape(cut)
    for weight, total in expected(low, high).items():
        assert int(cut.weights[weight].sum() if weight in cut.weights else 0) == total
    for s in slices:
        alone = build_tree(session, thread=str(s.tid))
        assert sum(tree_lines(alone, "wall").values()) == int((s.end_ns - s.start_ns).sum())


def test_looks_of_a_part_add_up(sessions: Sessions) -> None:
    """A row of 1000 looks over 1 ms: any cut splits them, none is lost or counted twice."""
    sample = {"tid": 1, "time_ns": 0, "duration_ns": 1_000_000, "stack_id": 0, "count": 1000}
    session = sessions.make({"samples": [sample]}, [{"tid": 1, "start_ns": 0, "end_ns": 1_000_000}])
    first, second = build_tree(session, to_s=250e-6), build_tree(session, from_s=250e-6)
    assert (int(first.weights["samples"].sum()), int(second.weights["samples"].sum())) == (250, 750)


def test_command_lines_make_short_process_names(tmp_path_factory: pytest.TempPathFactory) -> None:
    writer = SessionWriter(tmp_path_factory.mktemp("names") / "s.perfscope")
    for pid, command in ((1, "/usr/lib/jvm/bin/java -Xmx1g " + "x" * 99), (2, None)):
        writer.note_process(pid, name="comm", command=command)
        writer.note_thread(pid, pid, start_ns=0, end_ns=5)
    tree = build_tree(Session.open(writer.finish(SessionInfo())))
    labels = [f.label for f in tree.frames if f.layer == "process"]
    assert labels == [f"java -Xmx1g {'x' * 47}… (1)", "comm (2)"]

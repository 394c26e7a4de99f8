"""GPU time in the call tree, against a division of every nanosecond done by hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from merge_helpers import Sessions

from perfscope.errors import SessionError
from perfscope.merge import CallTree, build_tree, slices_of, thread_time
from perfscope.merge.slices import GPU_SYNC, RUNNING
from perfscope.model.session import Session

Row = dict[str, Any]
GEMM, ADD, COPY = "ampere_sgemm_128x64_tn", "void add_kernel<4>(int)", "copy HtoD pinned"


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    with Sessions() as made:
        yield made


def kernel(start: int, end: int, **more: Any) -> Row:
    row = {"start_ns": start, "end_ns": end, "kind": "kernel", "device": 0, "context": 1, "stream": 7, "name": GEMM}
    return {**row, "correlation": start, **more}


def thread(tid: int, end: int, **more: Any) -> Row:
    return {"tid": tid, "name": f"t{tid}", "start_ns": 0, "end_ns": end, "sched_complete": True, **more}


def leaves(tree: CallTree, weight: str = "gpu") -> dict[tuple[str, ...], int]:
    """Labels below the process -> self weight."""
    found: dict[tuple[str, ...], int] = defaultdict(int)
    for node, value in enumerate(tree.weights[weight].tolist()):
        if value:
            path = []
            while tree.frame[node] >= 0:
                path.append(tree.frames[tree.frame[node]].label)
                node = int(tree.parent[node])
            found[tuple(reversed(path[:-1]))] += value
    return found


def test_kernels_hang_below_their_launch_and_gaps_below_what_the_host_did(sessions: Sessions) -> None:
    session = sessions.make(
        {
            "gpu_activity": [
                kernel(300, 400, launch_tid=1, launch_ns=250, stack_id=0),
                kernel(400, 500, launch_tid=1, launch_ns=260, stack_id=1, name=ADD),
                kernel(700, 800, launch_tid=1, launch_ns=650, stack_id=1, kind="copy", name=COPY),
            ],
            "samples": [
                {"tid": 1, "time_ns": 0, "duration_ns": 600, "stack_id": 0},
                {"tid": 1, "time_ns": 600, "duration_ns": 400, "stack_id": 1},
            ],
        },
        [thread(1, 1000, sched_complete=False)],
    )
    main_work, main_guarded = ("t1 (1)", "main", "work"), ("t1 (1)", "main", "guarded")
    tree = build_tree(session)
    assert leaves(tree) == {
        (*main_work, "[GPU idle]"): 250 + 50 + 100,  # before the first launch, in its call, and up to 600
        (*main_work, "[matrix multiply]", GEMM): 100,
        (*main_guarded, "[elementwise]", ADD): 100,
        (*main_guarded, "[GPU idle]"): 50 + 50 + 200,  # 600..650, in the launch call, and the end
        (*main_guarded, "[copy]", COPY): 100,
    }
    assert sum(leaves(tree, "wall").values()) == 1000
    assert any("100.0 % by the exact stack of its launch" in note for note in tree.notes)


def test_hover_says_how_often_how_long_and_what_was_measured(sessions: Sessions) -> None:
    sol = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
    session = sessions.make(
        {
            "gpu_activity": [kernel(10 * i, 10 * i + 5 + i, name="void add_kernel<(int)4>(int)", grid_x=2, grid_y=3,
                                    grid_z=1, launch_tid=1, launch_ns=1) for i in range(1, 4)],
            "gpu_kernels": [
                {"launch": n, "name": "void add_kernel<4>(T1)", "metric": sol, "value": v, "unit": "%"}
                for n, v in enumerate((40.0, 50.0))
            ],
        },
        [thread(1, 100)],
    )  # fmt: skip
    tree = build_tree(session)
    (lines,) = tree.details.values()
    assert lines == [
        "3 times, mean 0.01 us, median 0.01 us",
        "mostly 6 blocks",
        "memory 45.0 % of peak",
        "(Nsight Compute, mean of 2 launches)",
    ]


def test_launches_without_a_stack_take_those_of_samples_in_their_calls(sessions: Sessions) -> None:
    us = 1_000_000
    starts = [us * i for i in range(1, 9)]
    launches = [kernel(t + us // 10, t + us // 5, launch_tid=1, launch_ns=t) for t in starts]
    call = {"tid": 1, "name": "cudaLaunchKernel", "result": 0}
    calls = [{**call, "start_ns": t, "end_ns": t + us // 20, "correlation": t + us // 10} for t in starts]
    looks = [{"tid": 1, "time_ns": t + 10, "stack_id": i > 2} for i, t in enumerate(starts[:4])]
    looks.append({"tid": 1, "time_ns": 5_500_000, "stack_id": 3})  # in no launch call
    looks = [{**look, "duration_ns": 20, "stack_id": int(look["stack_id"])} for look in looks]
    tables = {"gpu_activity": launches, "cuda_api": calls, "samples": looks}
    tree = build_tree(sessions.make(tables, [thread(1, 10 * us)]))
    busy = {path[2]: ns for path, ns in leaves(tree).items() if path[-1] == GEMM}
    assert sum(busy.values()) == 8 * us // 10
    assert busy["work"] == pytest.approx(0.75 * 8 * us / 10, abs=200)  # whole ns in each of 200 windows
    assert any("100.0 % by 4 samples that fell into launch calls (shares good to ±49 points)" in n for n in tree.notes)


def test_launches_that_nothing_is_known_of_are_said_to_be(sessions: Sessions) -> None:
    rows = [kernel(10, 20), kernel(30, 40, launch_tid=5, launch_ns=25)]
    tree = build_tree(sessions.make({"gpu_activity": rows}, [thread(1, 50)]))
    assert {path: ns for path, ns in leaves(tree).items() if path[-1] == GEMM} == {
        ("(thread unknown)", "[no launch stack]", "[matrix multiply]", GEMM): 10,
        ("thread (5)", "[no launch stack]", "[matrix multiply]", GEMM): 10,
    }
    assert sum(leaves(tree).values()) == 50


SPANS = st.lists(
    st.tuples(
        st.integers(1, 90),
        st.integers(0, 30),
        st.integers(0, 1),  # device
        st.sampled_from([None, 1, 2, 3]),  # thread, the last of which isn't listed
        st.integers(0, 20),  # how long before its start it was launched
        st.sampled_from([None, 0, 1, 3]),
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=60)
@given(
    SPANS,
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 30), st.integers(0, 4), st.integers(1, 2)), max_size=6),
    st.tuples(st.integers(0, 60), st.integers(1, 60)),
)
def test_each_device_has_exactly_the_window(spans: list[Any], looks: list[Any], part: tuple[int, int]) -> None:
    with Sessions() as made:
        session = made.make(
            {
                "gpu_activity": [
                    kernel(s, s + n, device=d, launch_tid=t, launch_ns=None if t is None else s - back, stack_id=stack)
                    for s, n, d, t, back, stack in spans
                ],
                "samples": [
                    {"tid": t, "time_ns": s, "duration_ns": n, "stack_id": stack} for s, n, stack, t in looks
                ],
            },
            [thread(1, 100), thread(2, 100)],
        )  # fmt: skip
        low, high = part[0], min(100, part[0] + part[1])
        for tree, window in (
            (build_tree(session), range(100)),
            (build_tree(session, from_s=low / 1e9, to_s=high / 1e9), range(low, high)),
        ):
            devices = sorted({d for _, _, d, *_ in spans})
            found: dict[tuple[str, bool], int] = defaultdict(int)
            for path, ns in leaves(tree).items():
                label = next((p for p in path if p.startswith("GPU ")), f"GPU {devices[0]}")
                found[label, path[-1] == "[GPU idle]"] += ns
            for device in devices:
                busy = sum(any(s <= t < s + n for s, n, d, *_ in spans if d == device) for t in window)
                assert found[f"GPU {device}", False] == busy
                assert found[f"GPU {device}", True] == len(window) - busy
            assert tree.timeline is not None
            assert int(tree.timeline.weights["gpu"].sum()) == len(window) * len(devices)


def sync(start: int, end: int, **more: Any) -> Row:
    row = {"tid": 1, "start_ns": start, "end_ns": end, "name": "cudaStreamSynchronize", "result": 0, "stream": 7}
    return {**row, "correlation": start, "waited_for": "stream", **more}


def sync_session(sessions: Sessions, sched: list[Row], calls: list[Row], **more: Any) -> Session:
    activity = [
        kernel(100, 450, name="void ns::big<4>(int)", launch_tid=1, launch_ns=50, stack_id=0),
        kernel(120, 480, name=ADD, stream=8, launch_tid=1, launch_ns=60, stack_id=0),
    ]
    samples = [{"tid": 1, "time_ns": 0, "duration_ns": 1000, "stack_id": 0}]
    tables = {"gpu_activity": activity, "sched": sched, "cuda_api": calls, "samples": samples}
    return sessions.make(tables, [thread(1, 1000, **more)])


def test_a_thread_asleep_in_a_sync_waits_for_the_kernel_that_ended_it(sessions: Sessions) -> None:
    off = {"tid": 1, "off_ns": 210, "wake_ns": 460, "on_ns": 470, "state": "S"}
    session = sync_session(sessions, [off], [sync(200, 500)])
    work = ("t1 (1)", "main", "work")
    tree = build_tree(session)
    assert leaves(tree, "off-cpu") == {
        (*work, "[waiting: GPU sync for big]"): 250,
        (*work, "[runnable, no CPU]"): 10,
    }
    assert leaves(tree, "cpu") == {work: 200 + 500, (*work, "[spinning: GPU sync for big]"): 10 + 30}
    assert sum(leaves(tree, "wall").values()) == 1000
    states = dict(zip(*thread_time(session).select(["state", "total_ns"]).to_pydict().values(), strict=True))
    assert states["gpu-sync"] == 250


def test_a_context_wide_sync_waits_for_the_last_kernel_of_any_stream(sessions: Sessions) -> None:
    off = {"tid": 1, "off_ns": 210, "wake_ns": 490, "on_ns": 490, "state": "S"}
    session = sync_session(sessions, [off], [sync(200, 500, stream=None, waited_for="context")])
    assert ("t1 (1)", "main", "work", "[waiting: GPU sync for add_kernel]") in leaves(build_tree(session), "off-cpu")


@pytest.mark.parametrize(
    "call",
    [
        sync(200, 500, waited_for="stream-event", name="cudaStreamWaitEvent"),  # makes the device wait, not the host
        sync(200, 500, result=700),
        sync(200, 500, waited_for=None, name="cudaMemcpyAsync"),
        sync(200, 500, waited_for=None, name="cudaLaunchKernel"),
    ],
)
def test_calls_that_wait_for_no_device_are_none(sessions: Sessions, call: Row) -> None:
    off = {"tid": 1, "off_ns": 210, "wake_ns": 490, "on_ns": 490, "state": "S"}
    (slices,) = slices_of(sync_session(sessions, [off], [call]))
    assert GPU_SYNC not in slices.state


def test_a_synchronous_copy_waits(sessions: Sessions) -> None:
    off = {"tid": 1, "off_ns": 210, "wake_ns": 490, "on_ns": 490, "state": "S"}
    call = sync(200, 500, waited_for=None, stream=None, name="cudaMemcpy")
    (slices,) = slices_of(sync_session(sessions, [off], [call]))
    assert GPU_SYNC in slices.state


def test_spinning_stays_on_the_cpu_and_without_scheduler_records_only_wall_is_known(sessions: Sessions) -> None:
    work = ("t1 (1)", "main", "work")
    spinning = build_tree(sync_session(sessions, [], [sync(200, 500)]))
    assert leaves(spinning, "cpu")[(*work, "[spinning: GPU sync for big]")] == 300
    assert leaves(spinning, "off-cpu") == {}
    unknown = build_tree(sync_session(sessions, [], [sync(200, 500)], sched_complete=False))
    assert set(unknown.weights) == {"wall", "gpu", "samples"}
    assert leaves(unknown, "wall")[(*work, "[waiting: GPU sync for big]")] == 300


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 30)), max_size=5),
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 30), st.integers(0, 10)), max_size=5),
)
def test_syncs_neither_add_nor_lose_thread_time(calls: list[Any], offs: list[Any]) -> None:
    def made_with(some: list[Row]) -> list[tuple[int, int, int, int]]:
        with Sessions() as made:
            sched = [{"tid": 1, "off_ns": s, "wake_ns": s + n, "on_ns": s + n + m, "state": "S"} for s, n, m in offs]
            tables = {"gpu_activity": [kernel(20, 60)], "sched": sched, "cuda_api": some}
            (slices,) = slices_of(made.make(tables, [thread(1, 100)]))
            columns = (slices.start_ns, slices.end_ns, slices.state, slices.stack_id)
            return list(zip(*(c.tolist() for c in columns), strict=True))

    plain = made_with([])
    cut = made_with([sync(s, s + n) for s, n in calls])
    assert [a for a, *_ in cut[1:]] == [b for _, b, *_ in cut[:-1]]
    assert (cut[0][0], cut[-1][1]) == (0, 100)
    for start, end, state, stack in cut:
        (was,) = [s for a, b, s, _ in plain if a <= start and end <= b]
        assert (state == RUNNING) == (was == RUNNING)
        asleep = state == GPU_SYNC
        in_call = any(s <= start and end <= s + n for s, n in calls)
        assert (stack >= 0) == (asleep or (in_call and state == RUNNING))


def test_two_devices_stand_apart(sessions: Sessions) -> None:
    rows = [kernel(10, 20, launch_tid=1, launch_ns=5, stack_id=0), kernel(30, 60, device=1, launch_tid=1, launch_ns=6,
                                                                         stack_id=0)]  # fmt: skip
    tree = build_tree(sessions.make({"gpu_activity": rows}, [thread(1, 100)]))
    busy = {path[3]: ns for path, ns in leaves(tree).items() if path[-1] == GEMM}
    assert busy == {"GPU 0": 10, "GPU 1": 30}
    assert sum(leaves(tree).values()) == 200


@pytest.mark.parametrize("table", ["gpu_activity", "cuda_api"])
def test_a_stack_that_does_not_exist_is_damage(sessions: Sessions, table: str) -> None:
    made = sessions.make({"gpu_activity": [kernel(10, 20)], "cuda_api": [sync(5, 15, stack_id=0)]}, [thread(1, 100)])
    rows = made.table(table)
    column = rows.schema.get_field_index("stack_id")
    pq.write_table(
        rows.set_column(column, rows.schema.field(column), pa.array([10_000], pa.int32())),
        made.path / "tables" / f"{table}.parquet",
    )
    with pytest.raises(SessionError, match=f"{table}.parquet: damaged"):
        build_tree(Session.open(made.path))

"""Rules on a GPU's timeline, on timelines made by hand, whose gains are worked out in the comments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from merge_helpers import Sessions

from perfscope.diagnosis.engine import diagnose
from perfscope.model.finding import Evidence, Finding, Verdict
from perfscope.model.session import Session
from perfscope.model.stacks import Frame

Row = dict[str, Any]
US = 1_000
STEP = 1_000 * US
STEPS = 200

STACKS = [
    [Frame("python", "main", "run.py", 3), Frame("python", "step", "run.py", 10)],
    [Frame("python", "main", "run.py", 3), Frame("python", "prepare", "run.py", 20)],
    [Frame("python", "main", "run.py", 3), Frame("python", "read", "run.py", 30)],
]
LAUNCH, PREPARE, READ = range(3)
RULES = ("launch-bound", "sync-in-loop", "pageable-copy", "copy-not-overlapped", "single-stream")


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    with Sessions() as made:
        yield made


class Program:
    """One host thread and one GPU, written down as they go; times in ns."""

    def __init__(self) -> None:
        self.activity: list[Row] = []
        self.calls: list[Row] = []
        self.samples: list[Row] = []
        self.sched: list[Row] = []

    def run(self, start: int, length: int, launch: int, stack: int = LAUNCH, **more: Any) -> None:
        row = {"kind": "kernel", "name": "k", "device": 0, "context": 1, "stream": 7, "grid_x": 512}
        row |= {"grid_y": 1, "grid_z": 1, "start_ns": start, "end_ns": start + length}
        row |= {"launch_tid": 1, "launch_ns": launch, "stack_id": stack}
        self.activity.append({**row, "correlation": len(self.activity), **more})

    def copy(self, start: int, length: int, launch: int, memory: str, **more: Any) -> None:
        self.run(
            start, length, launch, kind="copy", name=f"copy HtoD {memory}", source_memory=memory,
            target_memory="device", bytes=50 * length, grid_x=None, grid_y=None, grid_z=None, **more,
        )  # fmt: skip

    def sync(self, start: int, end: int, stack: int = READ) -> None:
        self.calls.append(
            {"start_ns": start, "end_ns": end, "tid": 1, "name": "cudaStreamSynchronize", "correlation": start,
             "stack_id": stack, "result": 0, "waited_for": "stream", "stream": 7}
        )  # fmt: skip

    def look(self, start: int, end: int, stack: int) -> None:
        self.samples.append({"tid": 1, "time_ns": start, "duration_ns": end - start, "stack_id": stack})

    def session(self, sessions: Sessions, *, complete: bool = False) -> Session:
        end = STEPS * STEP
        host = [{"tid": 1, "name": "main", "start_ns": 0, "end_ns": end, "sched_complete": complete}]
        tables = {
            "gpu_activity": self.activity, "cuda_api": self.calls, "samples": self.samples, "sched": self.sched,
        }  # fmt: skip
        return sessions.make(tables, host, stacks=STACKS)


def verdicts(session: Session) -> dict[str, Verdict]:
    return {v.rule: v for v in diagnose(session).verdicts if v.rule in RULES}


def flagged(session: Session) -> set[str]:
    return {rule for rule, v in verdicts(session).items() if v.verdict == "flagged"}


def finding(session: Session, rule: str) -> Finding:
    (found,) = verdicts(session)[rule].findings
    return found


def value(found: Finding, what: str) -> float:
    (evidence,) = [e for e in found.evidence if what in e.what]
    assert isinstance(evidence, Evidence)
    return evidence.value


def launch_bound() -> Program:
    """Each ms: 300 us of Python, a launch, 10 us on its way, a kernel of 190 us; then again from 500 us on."""
    program = Program()
    for step in range(STEPS):
        for half in (0, STEP // 2):
            now = 1 + step * STEP + half
            program.look(now, now + 300 * US, PREPARE)
            program.look(now + 300 * US, now + 500 * US, LAUNCH)
            program.run(now + 310 * US, 190 * US, now + 300 * US)
    return program


def test_launch_bound_names_the_line_and_says_why(sessions: Sessions) -> None:
    session = launch_bound().session(sessions)
    assert flagged(session) == {"launch-bound"}
    found = finding(session, "launch-bound")
    assert (found.where.function, found.where.file, found.where.line) == ("prepare", "run.py", 20)
    assert (found.where.thread, found.where.device) == ("main", "GPU 0")
    # from the first kernel's start on: 310 us of every 500 are idle
    assert value(found, "GPU idle while") == pytest.approx(62, abs=0.5)
    assert found.gives_back_pct == pytest.approx(62, abs=0.5)
    assert value(found, "GPU busy") == pytest.approx(38, abs=0.5)
    assert value(found, "kernels") == pytest.approx(2000, rel=0.01)
    assert value(found, "kernel duration") == 190
    assert value(found, "from one launch to the next") == 500
    # 10 us of each gap are the launch on its way: they count as lost, but not for a line
    assert value(found, "of that idle time, prepare") == 100


def test_without_samples_the_launches_name_the_line(sessions: Sessions) -> None:
    program = launch_bound()
    program.samples.clear()
    found = finding(program.session(sessions), "launch-bound")
    assert found.where.function == "step"
    assert "exact" in found.evidence[-1].measured_by


def test_a_host_that_waits_for_work_is_not_bound_by_launches(sessions: Sessions) -> None:
    program = launch_bound()
    for step in range(2 * STEPS):  # asleep in 280 of the 310 us: 30 us of 500 are left to blame
        off = 1 + step * STEP // 2
        program.sched.append(
            {"tid": 1, "off_ns": off, "wake_ns": off + 280 * US, "on_ns": off + 280 * US, "state": "S"}
        )
    session = program.session(sessions, complete=True)
    assert flagged(session) == set()
    assert "6 % of the steady part" in verdicts(session)["launch-bound"].why


@pytest.mark.parametrize(("period_us", "is_flagged"), [(1000, True), (50_000, False)])
def test_what_the_host_did_in_long_gaps_is_not_guessed(sessions: Sessions, period_us: int, is_flagged: bool) -> None:
    """No scheduler records. Bursts of kernels, queued but for the first; then the GPU is idle for half of a period."""
    program = Program()
    for start in range(1, STEPS * STEP - period_us * US, period_us * US):
        for number in range(50):
            length = period_us * US // 100
            program.run(start + number * length, length, start - US)
    assert ("launch-bound" in flagged(program.session(sessions))) is is_flagged


def test_gaps_between_kernels_that_were_queued_are_not_the_hosts(sessions: Sessions) -> None:
    program = Program()
    for step in range(STEPS):
        program.run(1 + step * STEP, 600 * US, 1)  # all launched at once, each gap 400 us
    session = program.session(sessions)
    assert flagged(session) == set()
    assert "60 % busy" in verdicts(session)["launch-bound"].why


def sync_loop(host: int) -> Program:
    """Each step: `host` us of Python, a launch, a kernel of 400 us, and a wait until it has ended."""
    program, now = Program(), 1
    while now + 1000 * US < STEPS * STEP:
        program.look(now, now + host * US, PREPARE)
        start = now + host * US
        program.run(start + 10 * US, 400 * US, start)
        program.sync(start + 5 * US, start + 420 * US)
        program.look(start, start + 420 * US, READ)
        now = start + 420 * US
    return program


def test_sync_in_loop_costs_the_idle_time_after_it_and_no_more_than_was_waited(sessions: Sessions) -> None:
    session = sync_loop(580).session(sessions)
    assert flagged(session) == {"sync-in-loop"}
    found = finding(session, "sync-in-loop")
    assert (found.where.function, found.where.line) == ("read", 30)
    # a step of 1000 us: 600 idle after the wait; but waits are 415, so no more can be saved
    assert value(found, "GPU idle after") == pytest.approx(60, abs=0.5)
    assert found.gives_back_pct == pytest.approx(41.5, abs=0.5)


def test_waits_of_a_program_whose_host_is_the_bottleneck_are_not_to_blame(sessions: Sessions) -> None:
    program = launch_bound()
    for step in range(STEPS):  # one short wait a step, as for a token
        program.sync(step * STEP + 480 * US, step * STEP + 505 * US)
    session = program.session(sessions)
    assert flagged(session) == {"launch-bound"}
    assert "at most 2.5 % of the recording could be saved" in verdicts(session)["sync-in-loop"].why
    # each ms 620 us idle, of which the wait of 25 us could have hidden as much
    assert finding(session, "launch-bound").gives_back_pct == pytest.approx(59.5, abs=0.5)


def test_a_few_waits_are_no_loop(sessions: Sessions) -> None:
    program = sync_loop(100_000)
    assert "sync-in-loop" not in flagged(program.session(sessions))


def test_pageable_copies_cost_the_time_in_which_nothing_else_ran(sessions: Sessions) -> None:
    program = Program()
    for step in range(STEPS):
        now = 1 + step * STEP
        program.run(now, 500 * US, now - 1)
        program.copy(now + 500 * US, 500 * US, now, "pageable", stack=READ)
    session = program.session(sessions)
    assert flagged(session) == {"pageable-copy"}
    found = finding(session, "pageable-copy")
    assert found.gives_back_pct == pytest.approx(50, abs=0.5)
    assert found.where.function == "read"
    assert value(found, "while they ran") == 50  # GB/s: 50 bytes a ns
    small = Program()
    for row in program.activity:
        small.activity.append({**row, "bytes": None if row["kind"] == "kernel" else 60_000})
    assert flagged(small.session(sessions)) == set()


@pytest.mark.parametrize(
    ("kernel_us", "copy_us", "gain"),
    [(500, 500, 50), (800, 200, 20), (200, 800, 20)],  # the shorter of both can be hidden
)
def test_copies_serial_with_kernels_could_hide_behind_them(
    sessions: Sessions, kernel_us: int, copy_us: int, gain: int
) -> None:
    program = Program()
    for step in range(STEPS):
        now = 1 + step * STEP
        program.run(now, kernel_us * US, now - 1)
        program.copy(now + kernel_us * US, copy_us * US, now, "pinned", stack=READ)
    session = program.session(sessions)
    assert flagged(session) == {"copy-not-overlapped"}
    assert finding(session, "copy-not-overlapped").gives_back_pct == pytest.approx(gain, abs=0.5)


def test_copies_beside_kernels_are_healthy(sessions: Sessions) -> None:
    program = Program()
    for step in range(STEPS):
        now = 1 + step * STEP
        program.run(now, 990 * US, now - 10 * US)
        program.copy(now + 100 * US, 700 * US, now, "pinned", stream=8)
    assert flagged(program.session(sessions)) == set()


def test_small_kernels_in_a_row_leave_room_if_they_are_independent(sessions: Sessions) -> None:
    program = Program()
    for step in range(STEPS):
        program.run(1 + step * STEP, STEP, 1 + max(0, step - 2) * STEP, grid_x=16)
    session = program.session(sessions)
    assert flagged(session) == {"single-stream"}
    found = finding(session, "single-stream")
    assert found.gives_back_pct == pytest.approx(75, abs=0.5)  # 16 of 64 blocks
    assert "can't tell" in found.advice
    for blocks, stream in ((512, 7), (16, None)):
        other = Program()
        for number, row in enumerate(program.activity):
            spread = number % 2 + 7 if stream is None else stream
            other.activity.append({**row, "grid_x": blocks, "stream": spread})
        assert flagged(other.session(sessions)) == set()


def test_warm_up_is_left_out_and_said(sessions: Sessions) -> None:
    program = Program()
    for step in range(STEPS):
        now = 1 + step * STEP
        if step < 60:  # trying kernels out, with much idle time, each a new one
            program.run(now + 900 * US, 100 * US, now + 890 * US, name=f"tried{step}")
        else:
            program.run(now, STEP, now - STEP)
    session = program.session(sessions)
    assert flagged(session) == set()
    program.activity = [row for row in program.activity if row["start_ns"] > 70 * STEP]
    for row in program.activity:
        row["start_ns"] += 500 * US
        row["launch_ns"] = row["start_ns"] - 10 * US
    found = finding(program.session(sessions), "launch-bound")
    assert "of warm-up left out" in found.advice


def test_without_a_gpu_nothing_is_judged(sessions: Sessions) -> None:
    for verdict in verdicts(Program().session(sessions)).values():
        assert verdict.verdict == "not_evaluable"
        assert "cuda was not recorded" in verdict.why

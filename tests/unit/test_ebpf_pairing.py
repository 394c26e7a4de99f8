"""Pairing with numpy, against a reference that walks the records one by one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.collectors.ebpf import pairing
from perfscope.collectors.ebpf.backend import Thread
from perfscope.collectors.ebpf.pairing import pair_blocks
from perfscope.collectors.ebpf.records import (
    ALIVE,
    BLOCK,
    EVENT,
    FUTEX_IN,
    FUTEX_OUT,
    NO_RESULT,
    SCHED,
    SWITCH,
    WAIT,
    WAKE,
    WAKING,
    Records,
    chunks,
)

TIDS = (1, 2, 3)
Row = tuple[int, ...]


@st.composite
def histories(draw: st.DrawFn) -> list[Row]:
    """What three threads of process 9 may do on one CPU (0 is its idle thread), as unpaired records."""
    rows: list[Row] = []
    running, now = 0, 100
    asleep: dict[int, bool] = dict.fromkeys(TIDS, True)
    waiting: dict[int, bool] = dict.fromkeys(TIDS, False)
    for _ in range(draw(st.integers(0, 60))):
        # Seconds at times: what is drained in one piece then ends in another.
        now += draw(st.one_of(st.integers(1, 50), st.just(1_500_000_000)))
        ready = [tid for tid in TIDS if not asleep[tid] and tid != running]
        sleepers = [tid for tid in TIDS if asleep[tid]]
        does = draw(st.sampled_from(("switch", "wake", "futex")))
        if does == "wake" and sleepers:
            tid = draw(st.sampled_from(sleepers))
            asleep[tid] = False
            rows.append((now, 0, 0, 9, tid, running, 0, 0, 0, WAKING, 0))
            rows.append((now + draw(st.integers(0, 1)), 0, 0, 9, tid, running, 0, 0, 0, WAKE, 0))
            now += 2
        elif does == "futex" and running:
            kind = FUTEX_OUT if waiting[running] else FUTEX_IN
            waiting[running] = not waiting[running]
            value = draw(st.sampled_from((0, -110))) if kind == FUTEX_OUT else 0
            rows.append((now, 137, 0x7000 + running, 9, running, 0, value, 0, 0, kind, 0))
        elif does == "switch" and (running or ready):
            to = draw(st.sampled_from([*ready, 0] if running else ready))
            state = 0x100 if running == 0 else draw(st.sampled_from((0x100, 1, 2)))
            if running:
                asleep[running] = state != 0x100
            rows.append((now, 0, 0, 9, running, to, state, 0, 0, SWITCH, 0))
            running = to
    return rows


def reference(rows: list[Row]) -> tuple[set[Row], set[Row]]:
    """(thread, off, runnable, on, state, waker, previous) and (thread, off, on, address, result, waker)."""
    off: dict[int, tuple[int, int]] = dict.fromkeys(TIDS, (0, 1))
    wake: dict[int, int] = {}
    waker: dict[int, int] = {}
    call: dict[int, int] = {}
    slept: dict[int, Row] = {}
    sched, waits = set(), set()

    def decide(tid: int, woken: bool) -> None:
        if tid in slept:
            *wait, by = slept.pop(tid)
            woken &= by != 0
            waits.add((*wait, 0 if woken else NO_RESULT, by if woken else 0))

    for time, _, b, _, tid, other, value, _, _, kind, _ in rows:
        if kind == SWITCH:
            if tid:
                state = 0 if value == 0x100 else value
                if state:
                    decide(tid, False)
                off[tid] = (time, state)
                wake[tid] = time if state == 0 else 0
                waker[tid] = 0
            if other:
                since, state = off[other]
                by = waker.get(other, 0) if state else 0
                sched.add((other, since, wake.get(other, 0), time, state, by, tid))
                wake[other] = 0
                if state and other in call:
                    slept[other] = (other, since, time, call[other], by)
        elif kind == WAKING:
            waker[tid] = other
        elif kind == WAKE:
            wake[tid] = time
        elif kind == FUTEX_IN:
            call[tid] = b
        elif kind == FUTEX_OUT:
            del call[tid]
            decide(tid, value == 0)
    for tid in TIDS:
        decide(tid, False)
    return sched, waits


def paired(rows: list[Row]) -> Records:
    with tempfile.TemporaryDirectory() as directory:
        source, target = Path(directory) / "in", Path(directory) / "out"
        source.write_bytes(np.array(rows, EVENT).tobytes())
        followed = [(50, Thread(9, tid, 1)) for tid in TIDS]
        assert pairing.pair(source, target, followed) == set()
        return np.concatenate([np.empty(0, EVENT), *chunks(target, EVENT)])


@settings(max_examples=60)
@given(histories())
def test_pairing_is_what_walking_record_by_record_gives(rows: list[Row]) -> None:
    out = paired(rows)
    sched = {
        tuple(int(r[name]) for name in ("tid", "a", "b", "time", "value", "other", "extra"))
        for r in out[out["kind"] == SCHED]
    }
    done = out[(out["kind"] == WAIT) & (out["time"] != 0)]
    waits = {tuple(int(r[name]) for name in ("tid", "a", "time", "b", "value", "other")) for r in done}
    assert (sched, waits) == reference(rows)
    assert sorted(out["tid"][out["kind"] == ALIVE].tolist()) == list(TIDS)


@settings(max_examples=60)
@given(histories(), st.data())
def test_a_switch_left_out_is_noticed_or_changes_nothing_but_itself(rows: list[Row], data: st.DataObject) -> None:
    """Without one of its switches a thread either counts as broken, or the switch was its first or its last."""
    switches = [i for i, row in enumerate(rows) if row[9] == SWITCH]
    if not switches:
        return
    left_out = data.draw(st.sampled_from(switches))
    with tempfile.TemporaryDirectory() as directory:
        source, target = Path(directory) / "in", Path(directory) / "out"
        source.write_bytes(np.array(rows[:left_out] + rows[left_out + 1 :], EVENT).tobytes())
        broken = pairing.pair(source, target, [(50, Thread(9, tid, 1)) for tid in TIDS])
    gone = rows[left_out]
    for tid in {gone[4], gone[5]} - {0}:
        mine = [i for i in switches if tid in rows[i][4:6]]
        if left_out not in (mine[0], mine[-1]):
            assert tid in broken


def test_a_request_whose_completion_went_unseen_is_no_less_a_request(tmp_path: Path) -> None:
    """Of four for one place the second's completion is missing; the third is requeued, the fourth waits behind it."""
    moments = [
        ("start", 1), ("issue", 2), ("complete", 3),
        ("start", 4), ("issue", 5),
        ("start", 6), ("issue", 7), ("issue", 8), ("start", 9), ("complete", 10), ("issue", 11), ("complete", 12),
    ]  # fmt: skip
    rows = np.zeros(len(moments), BLOCK)
    for row, (name, time) in zip(rows, moments, strict=True):
        row[name], row["sector"], row["dev"] = time, 64, 1
    source, target = tmp_path / "raw", tmp_path / "paired"
    source.write_bytes(rows.tobytes())
    pair_blocks(source, target)
    paired = np.sort(np.frombuffer(target.read_bytes(), BLOCK), order="start")
    told = [(int(r["start"]), int(r["issue"]), int(r["complete"])) for r in paired]
    assert told[:2] == [(1, 2, 3), (4, 5, 0)]
    assert [(issue, complete) for _, issue, complete in told[2:]] == [(8, 10), (11, 12)]

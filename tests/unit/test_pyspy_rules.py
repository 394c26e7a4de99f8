"""py-spy's small rules: torn stacks, sharing out looks, the CPU budget, the clock anchor, what its words mean."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.clock import ClockMap
from perfscope.collectors.base import Context
from perfscope.collectors.pyspy import PySpyCollector, checks
from perfscope.collectors.pyspy.anchor import STAMP_NS, measure
from perfscope.collectors.pyspy.budget import SHARE, Budget
from perfscope.collectors.pyspy.frames import make_frame
from perfscope.collectors.pyspy.instance import explain
from perfscope.collectors.pyspy.lane import MAX_SOURCE, Target
from perfscope.collectors.pyspy.naming import Naming
from perfscope.collectors.pyspy.reading import Reading
from perfscope.collectors.pyspy.rows import share_out
from perfscope.collectors.pyspy.torn import TornJudge
from perfscope.errors import CollectorError
from perfscope.model.session_writer import SessionWriter
from perfscope.model.stacks import Frame, StackTable
from perfscope.options import Options
from perfscope.procfs import Process

SOURCE = """\
import time
from functools import partial
def leaf_a(n):
    return n + 1
def leaf_b(n):
    return n - 1
def numbers():
    yield leaf_a(1)
@partial
def wrapped(n):
    return leaf_a(n)
class Model:
    def step(self, n):
        self.norm(n)
        for i in range(n):
            x = i
        for x in numbers():
            pass
        return self.hook(n)
    def norm(self, n):
        return (leaf_a(n)
                + len(str(n)))
    def _get_gauge(self):
        return 1
    gauge = property(_get_gauge)
def main(callback, model):
    leaf_a(1); leaf_b(2)
    callback(3)
    model.step(4)
    wrapped(5)
    time.sleep(6)
    while True:
        x = 1 + 2
        y = x.value
        x.gauge
    try:
        leaf_a(7)
    except check():
        pass
    alias = leaf_b
    z = [leaf_a(i) for i in alias]
    return lambda: leaf_b(8)
"""
LINES = SOURCE.splitlines()


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(LINES, 1) if text in line)


@pytest.mark.parametrize(
    ("caller", "text", "callee", "file", "torn"),
    [
        ("Model.step", "self.norm(n)", "Model.norm", "/m.py", False),
        ("Model.step", "self.norm(n)", "leaf_b", "/m.py", True),
        ("Model.step", "self.norm(n)", "Model.__getattr__", "/m.py", False),
        ("Model.step", "for i in range(n)", "leaf_a", "/m.py", True),
        ("Model.step", "x = i", "leaf_a", "/m.py", True),
        ("Model.step", "for x in numbers()", "anything", "/o.py", False),
        ("Model.step", "self.hook(n)", "leaf_b", "/m.py", False),
        ("Model.step", "def step(self, n)", "leaf_b", "/m.py", True),
        ("Model.norm", "return (leaf_a(n)", "leaf_a", "/m.py", False),
        ("Model.norm", "+ len(str(n))", "leaf_a", "/m.py", False),
        ("Model.norm", "return (leaf_a(n)", "leaf_b", "/m.py", True),
        ("main", "leaf_a(1); leaf_b(2)", "leaf_b", "/m.py", False),
        ("main", "leaf_a(1); leaf_b(2)", "main", "/m.py", True),
        ("main", "callback(3)", "leaf_b", "/m.py", False),
        ("main", "model.step(4)", "Model.step", "/m.py", False),
        ("main", "model.step(4)", "leaf_b", "/m.py", True),
        ("main", "model.step(4)", "wrapper", "/torch/nn.py", False),
        ("main", "wrapped(5)", "leaf_b", "/m.py", False),
        ("main", "time.sleep(6)", "leaf_a", "/m.py", True),
        ("main", "while True", "leaf_a", "/m.py", True),
        ("main", "x = 1 + 2", "Number.__add__", "/o.py", False),
        ("main", "y = x.value", "Thing.value", "/o.py", False),
        ("main", "y = x.value", "leaf_a", "/m.py", True),
        ("main", "y = x.value", "_get_value", "/o.py", False),
        ("main", "x.gauge", "_get_gauge", "/m.py", False),
        ("main", "except check()", "check", "/o.py", False),
        ("main", "z = [leaf_a(i)", "<listcomp>", "/m.py", False),
        ("other", "callback(3)", "leaf_b", "/m.py", False),
    ],
)
def test_torn_only_where_the_line_cannot_call_it(caller: str, text: str, callee: str, file: str, torn: bool) -> None:
    stacks = StackTable()
    stack = stacks.stack([Frame("python", caller, "/m.py", line_of(text)), Frame("python", callee, file, 4)])
    judge = TornJudge(stacks, lambda name: SOURCE if name == "/m.py" else None)
    assert judge.judge(np.array([stack], np.int32))[0].tolist() == [torn]


def test_a_torn_edge_taints_what_is_above_it_and_missing_sources_judge_nothing() -> None:
    stacks = StackTable()
    base = [Frame("python", "Model.step", "/m.py", line_of("self.norm(n)")), Frame("python", "leaf_b", "/m.py", 6)]
    deep = stacks.stack([*base, Frame("python", "x", "/unknown.py", 1)])
    short = stacks.stack(base[:1])
    stack_ids = np.array([deep, short, -1], np.int32)
    torn, judged = TornJudge(stacks, lambda name: SOURCE).judge(stack_ids)
    assert torn.tolist() == [True, False, False]
    for source in (None, "def broken(:", "\0", "(" * 5000):
        torn, judged = TornJudge(stacks, lambda name, s=source: s).judge(stack_ids)  # type: ignore[misc]  # bound now
        assert not torn.any() and judged.tolist() == [False, True, True]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 10**9)), min_size=1, max_size=50), st.integers(0, 5000))
def test_looks_are_shared_out_to_the_last_one(slices: list[tuple[int, int]], total: int) -> None:
    thread, durations = np.array([t for t, _ in slices], np.int32), np.array([d for _, d in slices], np.int64)
    counts = share_out(total, thread, durations)
    assert counts.min() >= 1
    spare = [total * durations[thread == t].sum() / durations.sum() >= (thread == t).sum() + 1 for t in set(thread)]
    if all(spare):
        assert counts.sum() == total


def test_budget_lowers_the_rate_once_it_is_over_and_not_for_a_start() -> None:
    budget = Budget(100)
    assert [budget.judge(t, cpu) for t, cpu in ((0, 0), (1.1, 0.2), (2.2, 0.4), (3.3, 0.6))] == [None] * 4
    assert budget.judge(4.4, 0.95) is None  # one window of 32 %
    lower = budget.judge(5.5, 1.3)  # a second one
    assert lower is not None and lower == pytest.approx(100 * 0.2 / (0.35 / 1.1), abs=1)
    assert budget.rate_hz == lower
    heavy = Budget(1000)
    heavy.judge(0, 0)
    assert heavy.judge(1, 1) == 200
    assert SHARE == 0.25


def test_the_clock_anchor_survives_a_step_of_the_wall_clock() -> None:
    offset, step, began = 1_700_000_000 * 10**9, 30 * 10**9, 5_000_000_000
    zero = began + 5_000_000

    def anchored(first_step: int, second_step: int) -> ClockMap:
        walls = (zero - 400_000 + offset + first_step, zero + 600_000 + offset + second_step)
        offsets = ((offset, 50), (offset + step, 60))
        return measure(2**22 + 1, walls, offsets, (began, began + 20_000_000), 10_000_000)  # no such process

    for both in (0, step):
        clock = anchored(both, both)
        assert abs(clock.offset_ns - zero) <= clock.error_ns < 600_000
    between = anchored(0, step)
    assert abs(between.offset_ns - zero) <= between.error_ns == 10_000_001 + STAMP_NS
    assert "stepped" in between.method


def test_only_a_single_instant_in_the_bracket_is_taken_for_the_zero() -> None:
    second, first, other = 123_456, 400_000_123, 400_500_000
    keeper = subprocess.Popen(
        [sys.executable, "-c", "import struct, sys; made = bytearray(struct.pack('<qiiqiiqii', "
         f"{second}, {first}, 7, {second}, {other}, 0, {second}, 2000000000, 0)); print(flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert keeper.stdout is not None
        keeper.stdout.readline()
        base = second * 10**9

        def found(start: int, end: int) -> ClockMap:
            return measure(keeper.pid, (start, end), ((0, 10), (0, 10)), (0, 2 * base), 1)

        exact = found(base + 400_000_000, base + 400_400_000)
        assert exact.offset_ns == base + first and exact.error_ns == STAMP_NS and "memory" in exact.method
        two = found(base + 400_000_000, base + 400_600_000)
        assert two.offset_ns == base + 400_300_000 and two.error_ns >= 300_000
    finally:
        keeper.communicate(b"\n")


@pytest.mark.parametrize(
    ("output", "expected", "final"),
    [
        ("Permission Denied: Try running again with elevated permissions by going 'sudo env ...'", "permission", True),
        ("Error: Failed to suspend process\nCaused by: EPERM: Operation not permitted", "stopped", False),
        ("Error: Failed to find python version from target process", "no Python", False),
        ("Error: Failed to get process executable name. Check that the process is running.\n"
         "Caused by:\n    0: No such file or directory (os error 2)", "gone", True),
        ("Error: Failed to get process executable name. Check that the process is running.\n"
         "Caused by:\n    0: Permission denied (os error 13)", "permission", True),
        ("Error: No space left on device (os error 28)", "no space", True),
        ("Error: No such file or directory (os error 2)", "can't be written", True),
    ],
)  # fmt: skip
def test_py_spys_words_are_explained(output: str, expected: str, final: bool) -> None:
    failure = explain(output)
    assert failure is not None and expected in failure.why and failure.final is final


def test_frames_are_told_apart_by_their_file() -> None:
    assert make_frame("f", "/opt/app/script", 3).layer == "python"
    assert make_frame("f", "<string>", 1).layer == "python"
    assert make_frame("f", "lib.c", 3) == Frame("native", "f", "lib.c", 3)
    assert make_frame("f", "/usr/lib/libfoo.so.1", 0) == Frame("native", "f", None, None, "/usr/lib/libfoo.so.1")
    assert make_frame("0x7f01", "/usr/lib/libfoo.so.1", 0).function == "[libfoo.so.1]"


def test_check_says_what_is_missing_and_how_to_mend_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = list(PySpyCollector.check(Options()))
    assert rows[0].state == "ok" and re.search(r"version \d", rows[0].why)
    old = tmp_path / "py-spy"
    old.write_text("#!/bin/sh\necho py-spy 0.3.14\n")
    old.chmod(0o755)
    with pytest.raises(CollectorError, match=r"0\.3\.14 is too old"):
        checks.version(str(old))
    monkeypatch.setattr(checks, "_effective_capabilities", lambda: 0)
    monkeypatch.setattr(checks, "_has_file_capability", lambda path: False)
    for scope, state in ((0, "degraded"), (1, "unavailable"), (3, "unavailable")):
        monkeypatch.setattr(checks, "_ptrace_scope", lambda scope=scope: scope)
        row = list(PySpyCollector.check(Options()))[1]
        assert row.state == state and "sudo" in row.fix


@pytest.mark.parametrize(("late", "status"), [(49, "ok"), (87, "partial")])
def test_most_looks_missing_is_partial(tmp_path: Path, late: int, status: str) -> None:
    reading = Reading(SessionWriter(tmp_path / "s.perfscope"), 0, 10**9)
    reading.looks, reading.late, reading._expected = 100 - late, late, 100.0
    collector = PySpyCollector(Context(tmp_path / "raw", Options(), lambda key, argv: None))
    collector._targets = [cast(Target, SimpleNamespace(attached=True))]
    collector._conclude(reading)
    assert collector.report.status == status
    assert f"{late} % of the looks" in " ".join([collector.report.why or "", *collector.report.notes])


def test_too_few_files_names_the_limit_and_how_to_raise_it() -> None:
    failure = explain("Error: Too many open files (os error 24)")
    assert failure is not None and failure.hint == "ulimit -n $(ulimit -Hn)"
    assert str(resource.getrlimit(resource.RLIMIT_NOFILE)[0]) in failure.why


@pytest.mark.timeout(10)
def test_a_source_that_is_no_source_file_is_not_read(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("wörd = 1\n")
    written = program.stat().st_mtime
    target = Target(cast(Process, SimpleNamespace(pid=os.getpid())), [], cast(Naming, None), written + 1, True, 0)
    assert target.source(str(program)) == "wörd = 1\n"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", MAX_SOURCE + 1)
    for name in (str(tmp_path / "pipe"), str(tmp_path / "large"), str(tmp_path), "/dev/zero", "<string>", "/no\0name"):
        assert target.source(name) is None, name
    target.started_wall = written - 1
    assert target.source(str(program)) is None  # written since it was loaded

"""Each rule on made-up sessions whose right answer follows by hand."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.clock import ClockMap
from perfscope.diagnosis.engine import diagnose, judge
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.intervals import Intervals
from perfscope.diagnosis.rules import RULES, load
from perfscope.diagnosis.shares import wilson
from perfscope.diagnosis.thresholds import defaults
from perfscope.merge.slices import STATES, ThreadSlices
from perfscope.model.finding import Severity
from perfscope.model.info import CollectorReport, SessionInfo
from perfscope.model.session import Session
from perfscope.model.session_writer import SessionWriter
from perfscope.model.stacks import ROOT, Frame

MS = 1_000_000
PID = 100
START = 5_000 * MS
REENTRANT = "java.util.concurrent.locks.ReentrantLock$NonfairSync"


class Made:
    """A session in the making: threads given as runs of (state, milliseconds, stack)."""

    def __init__(self, path, *, runtime="python", cpus=2, collectors=("ebpf", "pyspy", "jfr")):
        self.writer = SessionWriter(path / "made.perfscope")
        self.writer.note_process(PID, name="serve", runtime=runtime)
        self.slices = []
        self.cpus = cpus
        self.collectors = {name: CollectorReport() for name in collectors}

    def stack(self, *functions, layer="python", file="serve.py", line=7):
        return self.writer.stacks.stack([Frame(layer, f, file, line + i) for i, f in enumerate(functions)])

    def thread(self, tid, name, runs, pid=PID):
        ends = START + np.cumsum([ms for _, ms, _ in runs]) * MS
        starts = np.concatenate(([START], ends[:-1]))
        self.slices.append(
            ThreadSlices(
                pid, tid, name, "serve", starts.astype(np.int64), ends.astype(np.int64),
                np.asarray([s for *_, s in runs], np.int32),
                np.asarray([STATES.index(s) for s, *_ in runs], np.uint8),
            )
        )  # fmt: skip
        self.writer.note_thread(pid, tid, name=name, sched_complete=True)

    def session(self):
        stop = max((int(t.end_ns[-1]) for t in self.slices if len(t.end_ns)), default=START + 1000 * MS)
        info = SessionInfo(
            command=["python", "serve.py"], pids=[PID], start_ns=START, stop_ns=stop,
            host={"cpus_online": self.cpus}, collectors=self.collectors,
            clocks={"pyspy": ClockMap("pyspy-instant", 0, 500_000, resolution_ns=10 * MS)},
        )  # fmt: skip
        return Session.open(self.writer.finish(info))

    def verdict(self, rule, **limits):
        thresholds = defaults()
        for name, value in limits.items():
            thresholds[rule][name] = SimpleNamespace(value=value, unit="", source="test")
        diagnosis = judge(self.session(), self.slices, thresholds)
        return next(v for v in diagnosis.verdicts if v.rule == rule)

    def samples(self, tid, stack, looks, source="pyspy", at_ms=0, period_ms=10):
        self.writer.append("samples", [
            {"source": source, "pid": PID, "tid": tid, "time_ns": START + at_ms * MS,
             "duration_ns": looks * period_ms * MS,
             "stack_id": stack, "count": looks, "torn": False}
        ])  # fmt: skip


@pytest.fixture
def made(tmp_path):
    return Made(tmp_path)


def value(finding, what):
    return next(e.value for e in finding.evidence if what in e.what)


# What a wait can give back


def ceiling(made, lost, *, work_stays=True):
    return Facts(made.session(), made.slices).ceiling_pct(Intervals.of(lost), work_stays=work_stays)


def test_ceiling_of_taking_turns_is_bounded_by_the_cores(made):
    # Three threads take turns: one runs, two wait. Without the lock two cores need half of the time, many a third.
    for n in range(3):
        made.thread(n + 1, f"w{n}", [("running" if slot % 3 == n else "gil", 10, ROOT) for slot in range(300)])
    lost = [
        (START + slot * 10 * MS, START + (slot + 1) * 10 * MS, n)
        for n in range(3) for slot in range(300) if slot % 3 != n
    ]  # fmt: skip
    assert ceiling(made, lost) == pytest.approx(50)
    made.cpus = 64
    facts = Facts(
        SimpleNamespace(info=SimpleNamespace(start_ns=START, stop_ns=START + 3000 * MS, host={})), made.slices
    )
    assert facts.ceiling_pct(Intervals.of(lost), work_stays=True) == pytest.approx(200 / 3)


def test_ceiling_of_a_single_wait_is_that_wait(made):
    made.thread(1, "holder", [("running", 1000, ROOT), ("sleep", 1000, ROOT)])
    made.thread(2, "waiter", [("lock", 1000, ROOT), ("running", 1000, ROOT)])
    assert ceiling(made, [(START, START + 1000 * MS, 1)]) == pytest.approx(50)


def test_ceiling_of_many_threads_that_rarely_wait_is_not_their_union(made):
    # 20 threads, each waits in its own twentieth: some thread always waits, but each loses 5 %.
    made.cpus = 64
    for n in range(20):
        made.thread(n + 1, f"w{n}", [("disk" if slot == n else "running", 100, ROOT) for slot in range(20)])
    lost = [(START + n * 100 * MS, START + (n + 1) * 100 * MS, n) for n in range(20)]
    assert ceiling(made, lost) == pytest.approx(5)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.sampled_from("lwbs"), min_size=12, max_size=12), min_size=1, max_size=4))
def test_lost_time_shares_each_instant_with_all_that_are_active_or_lose_it(instants):
    """Instants of a thread: lost (l, b) or not (w, s), active (l, w) or not (b, s): counted one by one."""
    threads = [
        ThreadSlices(
            PID, n + 1, f"w{n}", "serve", np.arange(12), np.arange(1, 13), np.full(12, ROOT, np.int32),
            np.asarray([STATES.index("running" if c in "lw" else "sleep") for c in line], np.uint8),
        ) for n, line in enumerate(instants)
    ]  # fmt: skip
    facts = Facts(SimpleNamespace(info=SimpleNamespace(start_ns=0, stop_ns=12, host={})), threads)
    lost = Intervals.of([(t, t + 1, n) for n, line in enumerate(instants) for t, c in enumerate(line) if c in "lb"])
    columns = [(sum(c in "lb" for c in at), sum(c in "lwb" for c in at)) for at in zip(*instants, strict=True)]
    most = max(sum(c in "lb" for c in line) for line in instants)
    saved = min(max(sum(mine / all_ for mine, all_ in columns if all_), most), sum(mine > 0 for mine, _ in columns))
    assert facts.ceiling_pct(lost, work_stays=True) == pytest.approx(100 * saved / 12)
    working = sum(c in "lwb" for line in instants if {"l", "b"} & set(line) for c in line)
    assert facts.lost_pct(lost) == pytest.approx(100 * len(lost) / working if working else 0)
    assert facts.busy_ns == sum(any(c in "lw" for c in at) for at in zip(*instants, strict=True))


def test_ceiling_is_nothing_where_nothing_is_lost(made):
    made.thread(1, "main", [("running", 1000, ROOT)])
    assert ceiling(made, []) == 0


# GIL


def taking_turns(made, functions=("encode",), count=3, slots=300):
    stacks = [made.stack("work", f) for f in functions]
    for n in range(count):
        made.thread(
            n + 1, f"worker-{n}",
            [("running", 10, stacks[slot // count % len(stacks)]) if slot % count == n else ("gil", 10, ROOT)
             for slot in range(slots)],
        )  # fmt: skip
    for slot in range(slots):
        made.samples(slot % count + 1, stacks[slot // count % len(stacks)], 1, at_ms=10 * slot)
    return stacks


def test_gil_contention_names_waiters_holder_and_ceiling(made):
    taking_turns(made, ("encode", "encode", "decode"))
    verdict = made.verdict("gil-contention")
    assert verdict.verdict == "flagged"
    (finding,) = verdict.findings
    assert finding.gives_back_pct == 50
    assert value(finding, "waiters' working time") == pytest.approx(200 / 3, abs=0.01)
    assert value(finding, "all threads") == pytest.approx(6)
    assert (finding.where.function, finding.where.file, finding.where.line) == ("encode", "serve.py", 8)
    assert finding.where.thread == "worker-*"
    assert value(finding, "held the GIL: encode") == pytest.approx(200 / 3, abs=0.5)
    assert value(finding, "looks that say who held the GIL") == 300
    assert finding.severity is Severity.HIGH
    assert "--weight off-cpu --thread 'worker-*'" in finding.see


def test_samples_of_the_gils_holder_beat_what_was_on_a_cpu(made):
    taking_turns(made, ("compress_without_gil",))
    made.samples(1, made.stack("work", "tokenize"), 90, "pyspy-gil")
    made.samples(1, made.stack("work", "log"), 10, "pyspy-gil")
    (finding,) = made.verdict("gil-contention").findings
    assert finding.where.function == "tokenize"
    assert "tokenize (serve.py:8) held it 90 % (83-94 %) of that time" in finding.title
    assert value(finding, "held the GIL: tokenize") == 90
    low, high = wilson(0.9, 100)
    assert value(finding, "lower end") == pytest.approx(100 * low, abs=0.001)
    assert value(finding, "upper end") == pytest.approx(100 * high, abs=0.001)
    assert value(finding, "looks that say who held the GIL") == 100


def test_who_held_the_gil_most_is_left_open_where_the_samples_do(made):
    """Intervals of 42 and 37 of 100 looks overlap; that of 21 of 100 ends below the first one's."""
    taking_turns(made)
    for function, looks in (("detokenize", 42), ("tokenize", 37), ("route", 21)):
        made.samples(1, made.stack("work", function), looks, "pyspy-gil")
    (finding,) = made.verdict("gil-contention").findings
    assert wilson(0.21, 100)[1] < wilson(0.42, 100)[0] < wilson(0.37, 100)[1]
    said = (
        "detokenize (serve.py:8) or tokenize (serve.py:8) held it most: 42 % (33-52 %) or 37 % (28-47 %) of that time"
    )
    assert said in finding.title
    assert finding.where.function == "detokenize"
    assert value(finding, "held the GIL: tokenize") == 37


def test_short_meetings_at_the_gil_are_fine(made):
    made.thread(1, "main", [("running", 95, ROOT), ("gil", 5, ROOT)] * 10)
    made.thread(2, "other", [("sleep", 95, ROOT), ("running", 5, ROOT)] * 10)
    verdict = made.verdict("gil-contention")
    assert verdict.verdict == "ok"
    assert "5.0 %" in verdict.why


def test_waiting_for_a_holder_without_a_cpu_is_not_the_gils_fault(made):
    made.thread(1, "holder", [("running", 200, ROOT), ("runnable", 800, ROOT)])
    made.thread(2, "waiter", [("gil", 800, ROOT), ("running", 200, ROOT)])
    (finding,) = made.verdict("gil-contention").findings
    assert value(finding, "all threads") == pytest.approx(0.2)


def test_gil_rule_needs_futex_waits(tmp_path):
    made = Made(tmp_path, collectors=("pyspy",))
    made.collectors["ebpf"] = CollectorReport(status="unavailable", why="no CAP_BPF", hint="sudo perfscope record ...")
    taking_turns(made)
    verdict = made.verdict("gil-contention")
    assert verdict.verdict == "not_evaluable"
    assert "no CAP_BPF" in verdict.why
    assert "sudo perfscope record" in verdict.why


def test_gil_contention_through_the_merge(tmp_path):
    """From scheduler records, futex waits and samples, as collectors write them."""
    made = Made(tmp_path)
    stack = made.stack("work", "encode")
    turn, count = 10 * MS, 30
    for n in range(3):
        tid = n + 1
        mine = [START + slot * turn for slot in range(count * 3) if slot % 3 == n]
        offs = [(START, mine[0])] if n else []
        offs += [(start + turn, start + 3 * turn) for start in mine]
        rows = [(off, on) for off, on in offs if on <= START + count * 3 * turn]
        made.writer.append("sched", [
            {"pid": PID, "tid": tid, "off_ns": off, "wake_ns": on, "on_ns": on, "state": "S", "waker_tid": 1,
             "cpu": 0, "prev_tid": 0} for off, on in rows
        ])  # fmt: skip
        made.writer.append("waits", [
            {"pid": PID, "tid": tid, "start_ns": off, "end_ns": on, "kind": "gil", "address": 64, "waker_tid": 1,
             "result": 0} for off, on in rows
        ])  # fmt: skip
        made.writer.append("samples", [
            {"source": "pyspy", "pid": PID, "tid": tid, "time_ns": start, "duration_ns": 3 * turn, "stack_id": stack,
             "count": 3, "torn": False} for start in mine
        ])  # fmt: skip
        made.writer.note_thread(PID, tid, name=f"worker-{n}", start_ns=START, end_ns=START + count * 3 * turn,
                                sched_complete=True)  # fmt: skip
    made.slices = [SimpleNamespace(end_ns=[START + count * 3 * turn])]
    diagnosis = diagnose(made.session())
    (finding,) = [f for f in diagnosis.findings if f.rule == "gil-contention"]
    assert finding.where.function == "encode"
    assert finding.gives_back_pct == pytest.approx(50, abs=2)


# The others


def test_hotspot_is_flagged_only_when_sure(tmp_path):
    for looks, expected in ((1000, "flagged"), (40, "ok"), (20, "not_evaluable")):
        made = Made(tmp_path / str(looks))
        hot, cool = made.stack("main", "score"), made.stack("main", "render")
        ms = looks * 10
        made.thread(1, "main", [("running", ms * 6 // 10, hot), ("running", ms * 4 // 10, cool)])
        made.samples(1, hot, looks * 6 // 10)
        made.samples(1, cool, looks * 4 // 10, at_ms=ms * 6 // 10)
        assert made.verdict("python-hotspot").verdict == expected


def test_hotspot_says_where_and_how_sure(made):
    hot, cool = made.stack("main", "score"), made.stack("main", "render")
    made.thread(1, "main", [("running", 8000, hot), ("running", 2000, cool)])
    made.samples(1, hot, 800)
    made.samples(1, cool, 200, at_ms=8000)
    (finding,) = made.verdict("python-hotspot").findings
    assert (finding.where.function, finding.where.line) == ("score", 8)
    assert finding.where.stack == ("main (serve.py:7)", "score (serve.py:8)")
    assert finding.gives_back_pct == pytest.approx(80)
    low, high = wilson(0.8, 1000)
    assert value(finding, "lower end") == pytest.approx(100 * low, abs=0.01)
    assert 77 < 100 * low < 78 < 82 < 100 * high < 83


def test_time_in_the_standard_library_counts_for_its_caller(made):
    inner = Frame("python", "iterencode", "/usr/lib/python3.11/json/encoder.py", 200)
    stack = made.writer.stacks.stack([Frame("python", "answer", "serve.py", 40), inner])
    made.thread(1, "main", [("running", 9000, stack), ("running", 1000, made.stack("other"))])
    made.samples(1, stack, 1000)
    (finding,) = made.verdict("python-hotspot").findings
    assert (finding.where.function, finding.where.line) == ("answer", 40)


def test_a_look_at_a_sleeping_thread_is_no_cpu_time(made):
    """A worker that waits most of the time is seen waiting most of the time; its short work must not go to the wait."""
    wait, work = made.stack("main", "get"), made.stack("main", "answer")
    made.thread(1, "main", [("running", 5, work), ("sleep", 20, wait)] * 100)
    for n in range(100):
        made.samples(1, work, 1, at_ms=25 * n + 2, period_ms=5)
        made.samples(1, wait, 3, at_ms=25 * n + 9, period_ms=7)
    (finding,) = made.verdict("python-hotspot").findings
    assert finding.where.function == "answer"
    assert value(finding, "upper end") == 100
    assert finding.gives_back_pct == 20


def test_a_thread_never_seen_on_a_cpu_has_no_part_in_a_hotspot(made):
    hot = made.stack("main", "score")
    made.thread(1, "main", [("running", 1000, hot)])
    made.thread(2, "asleep", [("running", 1, ROOT), ("sleep", 999, hot)])
    made.samples(1, hot, 100)
    for n in range(10):
        made.samples(2, hot, 1, at_ms=100 * n + 50)
    (finding,) = made.verdict("python-hotspot").findings
    assert finding.gives_back_pct == 100
    assert finding.where.thread == "main"


def test_a_hot_function_of_an_idle_program_is_no_hotspot(made):
    hot = made.stack("main", "score")
    made.thread(1, "main", [("running", 500, hot), ("sleep", 9500, hot)])
    made.samples(1, hot, 1000)
    assert made.verdict("python-hotspot").verdict == "ok"


def test_hotspot_without_stacks_is_not_evaluable(made):
    made.thread(1, "main", [("running", 9000, ROOT), ("running", 1000, made.stack("main"))])
    made.samples(1, made.stack("main"), 100, at_ms=9000)
    assert made.verdict("python-hotspot").verdict == "not_evaluable"


def held_gil(made, tid, stack, looks):
    made.writer.append("samples", [
        {"source": "pyspy-gil", "pid": PID, "tid": tid, "stack_id": stack, "count": looks, "torn": False}
        | {"duration_ns": looks * 40 * MS}
    ])  # fmt: skip


def test_hotspot_by_gil_holders_where_there_is_no_ebpf(tmp_path):
    """Two threads in ten seconds: one waits, one holds the GIL for half of the time, most of that in one function."""
    for held, expected in ((1.0, "flagged"), (0.05, "ok")):
        made = Made(tmp_path / str(held), collectors=("pyspy",))
        made.collectors["ebpf"] = CollectorReport("unavailable", "needs root", "sudo perfscope")
        hot, cool, wait = made.stack("main", "score"), made.stack("main", "render"), made.stack("get")
        made.thread(1, "main", [("unknown", 10_000, ROOT)])
        made.thread(2, "idle", [("unknown", 10_000, ROOT)])
        made.samples(1, hot, 1000)
        made.samples(2, wait, 1000)
        held_gil(made, 1, hot, int(100 * held))
        held_gil(made, 1, cool, int(25 * held))
        verdict = made.verdict("python-hotspot")
        assert verdict.verdict == expected
        if expected == "flagged":
            (finding,) = verdict.findings
            assert (finding.where.function, finding.where.thread) == ("score", "main")
            assert finding.gives_back_pct == 40
            low, _ = wilson(0.8, 125)
            assert value(finding, "lower end") == pytest.approx(100 * low, abs=0.01)
            assert "not counted" in finding.advice


def test_hotspot_with_neither_ebpf_nor_gil_holders_says_both(made):
    made.collectors["ebpf"] = CollectorReport("unavailable", "needs root", "sudo perfscope")
    made.thread(1, "main", [("unknown", 10_000, ROOT)])
    made.samples(1, made.stack("main"), 1000)
    verdict = made.verdict("python-hotspot")
    assert verdict.verdict == "not_evaluable"
    assert "needs root" in verdict.why
    assert "who held the GIL" in verdict.why
    assert "sudo perfscope" in verdict.why


def test_wilson_against_published_values():
    # Newcombe 1998, Statistics in Medicine 17:857, table I, method 3.
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15 / 148, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0 / 20, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(1 / 29, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)


@pytest.mark.parametrize(
    ("others_ms", "previous", "words"),
    [
        (0, 2, "its own threads"),
        (0, 999, "its own threads"),  # they had all of the CPU, whoever was on it for a moment before
        (5, 2, "its own threads"),
        (5, 999, "other processes"),
    ],
)
def test_oversubscription_says_who_had_the_cpu(made, others_ms, previous, words):
    """Two threads take turns of 10 ms on one CPU, then others have it."""
    made.cpus = 1
    made.thread(1, "a", [("running", 10, ROOT), ("runnable", 10 + others_ms, ROOT)] * 50)
    made.thread(2, "b", [("runnable", 10, ROOT), ("running", 10, ROOT), ("runnable", others_ms, ROOT)] * 50)
    made.writer.append("sched", [
        {"pid": PID, "tid": 1, "off_ns": START, "wake_ns": START, "on_ns": START + 10 * MS, "state": "R",
         "waker_tid": None, "cpu": 0, "prev_tid": previous},
        {"pid": PID, "tid": 1, "off_ns": START, "wake_ns": START, "on_ns": START + 99 * MS, "state": "R",
         "waker_tid": None, "cpu": 0, "prev_tid": 0},
    ])  # fmt: skip
    verdict = made.verdict("cpu-oversubscription")
    (finding,) = verdict.findings
    assert words in finding.title
    cycle = 20 + others_ms
    assert value(finding, "runnable without a CPU") == 100 * (cycle - 10) / cycle
    assert value(finding, "runnable threads while") == 2
    assert value(finding, "CPUs that its own threads used") == 20 / cycle
    assert finding.gives_back_pct == 100 * (10 + others_ms) / cycle  # one of two waits, or both do


def test_a_thread_in_the_way_on_one_cpu_of_many_is_not_all_of_them(made):
    made.cpus = 4
    made.thread(1, "a", [("running", 10, ROOT), ("runnable", 10, ROOT)] * 50)
    made.thread(2, "b", [("runnable", 10, ROOT), ("running", 10, ROOT)] * 50)
    made.writer.append("sched", [
        {"pid": PID, "tid": 1, "off_ns": START, "wake_ns": START, "on_ns": START + 10 * MS, "state": "R",
         "waker_tid": None, "cpu": 0, "prev_tid": 2},
    ])  # fmt: skip
    (finding,) = made.verdict("cpu-oversubscription").findings
    assert "other processes" in finding.title
    assert value(finding, "CPUs that its own threads used") == 1


def test_threads_beside_a_javas_program_are_not_its_own_want_of_cpus(tmp_path):
    made = jvm(tmp_path)
    made.thread(1, "main", [("running", 1000, ROOT)])
    made.thread(2, "C2 CompilerThread0", [("runnable", 900, ROOT), ("running", 100, ROOT)])
    assert made.verdict("cpu-oversubscription").verdict == "ok"


def test_disk_wait_names_code_and_requests(made):
    stack = made.stack("handle", "append")
    made.thread(1, "main", [("running", 400, made.stack("handle")), ("disk", 600, stack)])
    made.writer.append("block_io", [
        {"start_ns": START, "issue_ns": START + MS, "complete_ns": START + (3 + n) * MS, "pid": PID, "tid": 1,
         "comm": "serve", "device": "vda", "sector": 8, "bytes": 4096, "operation": "write", "flags": "WS", "error": 0,
         "in_target": True} for n in range(3)
    ])  # fmt: skip
    (finding,) = made.verdict("disk-wait").findings
    assert (finding.where.function, finding.where.line) == ("append", 8)
    assert finding.gives_back_pct == 60
    assert value(finding, "write latency, median") == 4
    assert value(finding, "write time in queue, median") == 1
    assert value(finding, "write requests") == 3


def contended(made, waiting_file="serve.py", wakers=(1, 2)):
    """Two threads take turns at a lock, 10 ms each."""
    waiting, holding = made.stack("lookup", file=waiting_file), made.stack("lookup", "fetch")
    for n in (0, 1):
        runs = [("running", 10, holding) if slot % 2 == n else ("lock", 10, waiting) for slot in range(100)]
        made.thread(n + 1, f"request-{n}", runs)
        made.writer.append("waits", [
            {"pid": PID, "tid": n + 1, "start_ns": START + slot * 10 * MS, "end_ns": START + (slot + 1) * 10 * MS,
             "kind": "futex", "address": 0xABC, "waker_tid": wakers[1 - n], "result": 0}
            for slot in range(100) if slot % 2 != n
        ])  # fmt: skip


def test_what_the_holder_ran_before_it_had_the_lock_is_not_held_against_it(made):
    """In each 30 ms: flush holds for 12, then hold takes the lock without waiting for 6, then evict has it for 6."""
    made.cpus = 8
    wait, parse = made.stack("wait"), made.stack("parse")
    flush, hold, evict = (made.stack("wait", name) for name in ("flush", "hold", "evict"))
    turns = 40
    made.thread(1, "first", [("running", 2, ROOT), ("lock", 12, wait), ("running", 16, ROOT)] * turns)
    made.thread(2, "second", [("lock", 20, wait), ("running", 8, evict), ("running", 2, ROOT)] * turns)
    made.thread(3, "third", [("running", 14, parse), ("running", 6, hold), ("running", 10, parse)] * turns)
    made.thread(
        4, "fourth", [("running", 14, flush), ("sleep", 8, ROOT), ("lock", 6, wait), ("sleep", 2, ROOT)] * turns
    )
    made.writer.append("waits", [
        {"pid": PID, "tid": tid, "start_ns": START + (30 * turn + begin) * MS, "end_ns": START + (30 * turn + end) * MS,
         "kind": "futex", "address": 0xABC, "waker_tid": waker, "result": 0}
        for turn in range(turns) for tid, begin, end, waker in ((1, 2, 14, 4), (2, 0, 20, 3), (4, 22, 28, 2))
    ])  # fmt: skip
    (finding,) = made.verdict("lock-contention").findings
    assert "held by 3 threads in turn at flush" in finding.title
    assert value(finding, "held by fourth at flush") == pytest.approx(100 * 12 / (12 + 6 + 6))


def test_a_holder_that_slept_from_before_the_wait_on_is_named_by_where_it_slept(made):
    """In each 60 ms: second holds for 50, asleep all the while, and first for 4. Only the latter is looked at there."""
    wait, reload, request = made.stack("wait"), made.stack("wait", "reload"), made.stack("wait", "request")
    turns = 40
    made.thread(1, "first", [("sleep", 5, ROOT), ("lock", 45, wait), ("sleep", 4, request), ("sleep", 6, ROOT)] * turns)
    made.thread(2, "second", [("sleep", 50, reload), ("lock", 4, wait), ("running", 6, ROOT)] * turns)
    made.writer.append("waits", [
        {"pid": PID, "tid": tid, "start_ns": START + (60 * turn + begin) * MS, "end_ns": START + (60 * turn + end) * MS,
         "kind": "futex", "address": 0xABC, "waker_tid": waker, "result": 0}
        for turn in range(turns) for tid, begin, end, waker in ((1, 5, 50, 2), (2, 50, 54, 1))
    ])  # fmt: skip
    for turn in range(turns):
        made.samples(2, reload, 5, at_ms=60 * turn)
        made.samples(1, request, 1, at_ms=60 * turn + 52, period_ms=2)
    (finding,) = made.verdict("lock-contention").findings
    assert "held by 2 threads in turn at reload" in finding.title


def test_python_lock_names_waiter_holder_and_address(made):
    contended(made)
    (finding,) = made.verdict("lock-contention").findings
    assert "0xabc" in finding.title
    assert (finding.where.function, finding.where.line) == ("lookup", 7)
    assert "held by 2 threads in turn at fetch (serve.py:8)" in finding.title
    assert finding.gives_back_pct == 50


def test_waits_of_a_thread_without_observed_time_count_for_nothing(made):
    contended(made)
    made.thread(3, "brief", [("lock", 0, ROOT)])
    none = made.slices[-1]
    made.slices[-1] = replace(none, **{n: getattr(none, n)[:0] for n in ("start_ns", "end_ns", "stack_id", "state")})
    made.writer.append("waits", [
        {"pid": PID, "tid": 3, "start_ns": START, "end_ns": START + 10 * MS, "kind": "futex", "address": 0xABC,
         "waker_tid": 1, "result": 0}
    ])  # fmt: skip
    (finding,) = made.verdict("lock-contention").findings
    assert value(finding, "waited for the lock, all threads") == 1
    assert finding.gives_back_pct == 50


def test_waits_whose_wakers_never_wait_may_be_for_work(made):
    contended(made, wakers=(77, 78))
    verdict = made.verdict("lock-contention")
    assert verdict.verdict == "not_evaluable"
    assert "lookup (serve.py:7)" in verdict.why


def test_waits_for_work_are_known_by_the_looks_at_them(made):
    """The stack in force may be of an earlier look; what was seen during waits at an address decides."""
    contended(made)
    get = Frame("python", "Queue.get", "/usr/lib/python3.11/queue.py", 171)
    wait = Frame("python", "Condition.wait", "/usr/lib/python3.11/threading.py", 327)
    stack = made.writer.stacks.stack([Frame("python", "main", "serve.py", 3), get, wait])
    for n in range(20):
        made.samples(1, stack, 1, at_ms=50 * n + 15)
    assert made.verdict("lock-contention").verdict == "ok"


def jvm(tmp_path):
    return Made(tmp_path, runtime="java")


def event(kind, at_ms, ms, **more):
    return {"time_ns": START + int(at_ms * MS), "duration_ns": int(ms * MS), "pid": PID, "type": kind, **more}


def test_java_monitor_names_class_owner_and_line(tmp_path):
    made = jvm(tmp_path)
    waiting = made.stack("Cache.lookup", layer="java", file="Cache.java", line=12)
    holding = made.stack("Cache.fetch", layer="java", file="Cache.java", line=30)
    made.thread(1, "http-1", [("running", 1000, holding)])
    made.thread(2, "http-2", [("lock", 900, waiting), ("running", 100, waiting)])
    made.writer.append("jvm_events", [
        event("JavaMonitorEnter", 0, 900, tid=2, stack_id=waiting, subject="demo.Cache", other_tid=1),
        event("ThreadPark", 900, 90, tid=2, stack_id=waiting, subject="java.util.concurrent.CountDownLatch$Sync"),
    ])  # fmt: skip
    (finding,) = made.verdict("lock-contention").findings
    assert "a monitor of demo.Cache at Cache.lookup (Cache.java:12)" in finding.title
    assert "held by http-1 at Cache.fetch (Cache.java:30)" in finding.title
    assert finding.where.thread == "http-2"
    assert finding.where.line == 12


def test_the_holder_of_a_java_lock_without_owner_is_who_woke_the_waiter(tmp_path):
    made = jvm(tmp_path)
    park = Frame("java", "java.util.concurrent.locks.LockSupport.park", None, 211)
    waiting = made.writer.stacks.stack([Frame("java", "Cache.lookup", None, 12), park])
    holding = made.writer.stacks.stack([Frame("java", "Cache.fetch", None, 30)])
    made.thread(1, "http-1", [("running", 1000, holding)])
    made.thread(2, "http-2", [("lock", 900, waiting), ("running", 100, waiting)])
    made.writer.append("jvm_events", [
        event("ThreadPark", 0, 900, tid=2, stack_id=waiting, subject=REENTRANT)
    ])  # fmt: skip
    made.writer.append("sched", [
        {"pid": PID, "tid": 2, "off_ns": START, "wake_ns": START + 899 * MS, "on_ns": START + 900 * MS, "state": "S",
         "waker_tid": 1, "cpu": 0, "prev_tid": 0}
    ])  # fmt: skip
    (finding,) = made.verdict("lock-contention").findings
    assert "at Cache.lookup:12; held by http-1 at Cache.fetch:30" in finding.title


def test_a_java_lock_without_scheduler_records_has_no_known_holder(tmp_path):
    made = Made(tmp_path, runtime="java", collectors=("jfr",))
    waiting = made.stack("Cache.lookup", layer="java", file=None, line=12)
    made.thread(1, "http-1", [("lock", 900, waiting), ("unknown", 100, waiting)])
    made.writer.append("jvm_events", [event("ThreadPark", 0, 900, tid=1, stack_id=waiting, subject=REENTRANT)])
    (finding,) = made.verdict("lock-contention").findings
    assert "its holder is unknown" in finding.title


def test_gc_pauses(tmp_path):
    made = jvm(tmp_path)
    made.thread(1, "main", [("running", 1000, ROOT)])
    made.writer.append("jvm_events", [
        *(event("GarbageCollection", 100 * n, 30, subject="G1New", cause="Allocation Failure") for n in range(5)),
        *(event("GCPhasePause", 100 * n, 20) for n in range(5)),
    ])  # fmt: skip
    (finding,) = made.verdict("gc-pause").findings
    assert finding.gives_back_pct == 10
    assert value(finding, "longest pause") == 20
    assert value(finding, "Allocation Failure") == 5


def test_gc_within_its_goals_is_fine(tmp_path):
    made = jvm(tmp_path)
    made.thread(1, "main", [("running", 1000, ROOT)])
    made.writer.append("jvm_events", [event("GCPhasePause", 100, 20)])
    assert made.verdict("gc-pause").verdict == "ok"


def test_a_concurrent_collector_without_pauses_is_not_evaluable(tmp_path):
    made = jvm(tmp_path)
    made.thread(1, "main", [("running", 1000, ROOT)])
    made.writer.append("jvm_events", [event("GarbageCollection", 100, 900, subject="ZGC", cause="Proactive")])
    assert made.verdict("gc-pause").verdict == "not_evaluable"


@pytest.mark.parametrize(("collectors", "gain"), [(("jfr", "ebpf"), 60), (("jfr",), None)])
def test_jvm_allocation_names_the_place(tmp_path, collectors, gain):
    made = Made(tmp_path, runtime="java", collectors=collectors)
    parse = made.stack("Parser.parse", layer="java", file="Parser.java", line=9)
    other = made.stack("Other.run", layer="java", file="Other.java", line=3)
    made.thread(1, "main", [("running", 600, parse), ("running", 400, other)])
    made.writer.append("jvm_events", [
        event("ObjectAllocationSample", 0, 0, tid=1, stack_id=other, subject="byte[]", bytes=10**12),
        *(event("ObjectAllocationSample", 1 + n, 0, tid=1, stack_id=parse if n % 10 else other, subject="byte[]",
                bytes=10_000_000) for n in range(100)),
    ])  # fmt: skip
    (finding,) = made.verdict("jvm-allocation").findings
    assert (finding.where.file, finding.where.line) == ("Parser.java", 9)
    assert value(finding, "allocated") == 1000
    assert finding.gives_back_pct == gain
    assert value(finding, "of class byte[]") == 100
    assert f"--weight {'cpu' if 'ebpf' in collectors else 'samples'}" in finding.see  # what the session has


def test_a_jvm_without_allocation_samples_is_not_evaluable(tmp_path):
    made = jvm(tmp_path)
    made.thread(1, "main", [("running", 1000, ROOT)])
    assert made.verdict("jvm-allocation").verdict == "not_evaluable"


def test_idle_is_information(made):
    made.thread(1, "main", [("sleep", 950, ROOT), ("running", 50, ROOT)])
    (finding,) = made.verdict("sleep-or-idle").findings
    assert finding.severity is Severity.INFO
    assert finding.gives_back_pct is None
    assert value(finding, "at least one thread busy") == 5


# The engine


@pytest.mark.parametrize("rule", RULES)
def test_nothing_recorded_is_never_a_pass(tmp_path, rule):
    made = Made(tmp_path, collectors=())
    made.thread(1, "main", [("unknown", 1000, ROOT)])
    assert made.verdict(rule).verdict == "not_evaluable"


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_one_module_that_names_itself(rule):
    from importlib import import_module

    assert rule == import_module(RULES[rule]).RULE
    assert callable(load(rule))


@pytest.mark.parametrize(
    ("rule", "limits"),
    [
        ("gil-contention", ("lost_pct", "gives_back_pct")),
        ("cpu-oversubscription", ("runnable_pct", "gives_back_pct")),
        ("disk-wait", ("waiting_pct", "gives_back_pct")),
        ("lock-contention", ("lost_pct", "gives_back_pct")),
    ],
)
def test_thresholds_of_zero_flag_nothing_where_nothing_is_lost(made, rule, limits):
    made.thread(1, "main", [("running", 1000, ROOT)])
    assert made.verdict(rule, **dict.fromkeys(limits, 0)).verdict == "ok"


def test_no_pause_reaches_thresholds_of_zero(tmp_path):
    made = jvm(tmp_path)
    made.thread(1, "main", [("running", 1000, ROOT)])
    assert made.verdict("gc-pause", paused_pct=0, longest_ms=0).verdict == "ok"


def test_losses_turn_a_pass_into_not_evaluable(made):
    made.collectors["ebpf"] = CollectorReport(status="partial", events=900, lost_events=100)
    made.thread(1, "main", [("running", 1000, ROOT)])
    verdict = made.verdict("disk-wait")
    assert verdict.verdict == "not_evaluable"
    assert "ebpf lost 10.0 %" in verdict.why


def test_findings_are_ranked_by_what_they_give_back(made):
    hot = made.stack("main", "score")
    made.thread(1, "main", [("running", 700, hot), ("disk", 300, hot)])
    made.samples(1, hot, 1000, period_ms=1)
    diagnosis = judge(made.session(), made.slices, defaults())
    gains = [f.gives_back_pct for f in diagnosis.findings]
    assert [f.rule for f in diagnosis.findings] == ["python-hotspot", "disk-wait"]
    assert gains == sorted(gains, reverse=True)


def test_json_form_and_fail_on(made, monkeypatch):
    from perfscope.cli.diagnose_command import command

    taking_turns(made)
    session = made.session()
    monkeypatch.setattr("perfscope.merge.timeline.slices_of", lambda _: iter(made.slices))
    runner = CliRunner()
    result = runner.invoke(command, [str(session.path), "--format", "json"], standalone_mode=False)
    data = json.loads(result.output)
    assert result.return_value == 0
    assert data["schema"] == 1
    assert {v["rule"] for v in data["verdicts"]} == set(RULES)
    assert all(v["why"] for v in data["verdicts"])
    top = next(f for f in data["findings"] if f["rule"] == "gil-contention")
    assert top["severity"] == "high"
    assert top["where"]["file"] == "serve.py"
    assert all(e["measured_by"] for e in top["evidence"])
    for level, status in (("critical", 0), ("high", 1), ("info", 1)):
        args = [str(session.path), "--format", "json", "--fail-on", level]
        assert runner.invoke(command, args, standalone_mode=False).return_value == status

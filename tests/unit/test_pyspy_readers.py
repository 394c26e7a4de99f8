"""Reading py-spy's files: right values, odd names, and damage of every kind."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.collectors.base import ImportResult
from perfscope.collectors.pyspy import import_file, sniff
from perfscope.errors import InputError
from perfscope.model.info import SessionInfo
from perfscope.model.session import Session
from perfscope.model.session_writer import SessionWriter

DATA = Path(__file__).parent.parent / "data" / "pyspy"
FIXTURES = sorted(DATA.iterdir())


def read(path: Path) -> tuple[ImportResult, Session]:
    """Imports one file into a session of its own and opens that."""
    with tempfile.TemporaryDirectory() as folder:
        writer = SessionWriter(Path(folder) / "s.perfscope")
        result = import_file(path, writer)
        info = SessionInfo(start_ns=result.start_ns, stop_ns=result.stop_ns, collectors={"import": result.report})
        session = Session.open(writer.finish(info))
        for table in ("samples", "threads", "processes", "frames", "stacks"):
            session.table(table)
        assert session.stacks is not None
        return result, session


def rows(session: Session) -> list[dict[str, Any]]:
    found = session.table("samples").to_pylist()
    for row in found:
        row["path"] = [f.function for f in session.stacks.path(row["stack_id"])]
    return found


def seconds(session: Session, *, tid: int, leaf: str | None = None) -> float:
    return sum(r["duration_ns"] / 1e9 for r in rows(session) if r["tid"] == tid and leaf in (None, r["path"][-1]))


def write(path: Path, content: bytes | str | Any) -> Path:
    if not isinstance(content, bytes | str):
        content = json.dumps(content)
    path.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
    return path


def event(phase: str, name: str, ts: int, *, line: int = 1, file: str = "/a.py", pid: int = 7, tid: int = 99) -> Any:
    return {"args": {"filename": file, "line": line}, "cat": "py-spy", "name": name, "ph": phase, "pid": pid} | {
        "tid": tid,
        "ts": ts,
    }


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.name)
def test_every_fixture_is_recognised_and_read(path: Path) -> None:
    assert sniff(path.read_bytes()[:4096], path)
    _, session = read(path)
    assert session.table("samples").num_rows > 0
    assert not any(f.function.startswith("thread (") for f in session.stacks.frames)


def test_chrometrace_gives_each_thread_its_os_tid_name_and_whole_time() -> None:
    result, session = read(DATA / "idle_threads.json")
    names = {t["tid"]: t["name"] for t in session.table("threads").to_pylist()}
    assert names == {
        8831: "MainThread", 8838: "T-sleepspin", 8839: "T-hash", 8840: "T-lock", 8841: "T-cond", 8842: "T-sock",
    }  # fmt: skip
    assert {r["pid"] for r in rows(session)} == {8831}
    # The program spins 100 ms and sleeps 180 ms in turn.
    spin, total = seconds(session, tid=8838, leaf="busy_part"), seconds(session, tid=8838)
    assert total == pytest.approx(0.9926, abs=0.001)
    assert spin / total == pytest.approx(100 / 280, abs=0.03)
    assert result.report.status == "ok"
    assert result.stop_ns - result.start_ns == pytest.approx(992_600_000, abs=100_000)


def test_raw_and_speedscope_hold_the_same_counts() -> None:
    _, raw = read(DATA / "idle_threads.raw.txt")
    _, scope = read(DATA / "idle_threads.speedscope.json")

    def counts(session: Session) -> dict[tuple[int, tuple[str, ...]], int]:
        found: dict[tuple[int, tuple[str, ...]], int] = defaultdict(int)
        for row in rows(session):
            assert row["time_ns"] is None and row["duration_ns"] is None
            found[row["tid"], tuple(row["path"])] += row["count"]
        return dict(found)

    assert (
        counts(raw)[8838, ("Thread._bootstrap", "Thread._bootstrap_inner", "Thread.run", "w_sleepspin", "busy_part")]
        == 34
    )
    assert sum(counts(raw).values()) == 6 * 99
    assert sum(counts(scope).values()) == 6 * 99
    assert {tid for tid, _ in counts(scope)} == {tid for tid, _ in counts(raw)}


def test_a_dead_threads_stack_is_cut() -> None:
    result, session = read(DATA / "dead_thread.json")
    assert seconds(session, tid=19316) == pytest.approx(3.988, abs=0.001)
    assert seconds(session, tid=19318) < 0.1
    assert any("dead" in note for note in result.report.notes)


def test_a_forks_mixed_up_threads_are_told_apart_and_said() -> None:
    result, session = read(DATA / "fork_corrupt.json")
    leaves = {(r["pid"], r["tid"], tuple(r["path"])) for r in rows(session)}
    assert leaves == {(19304, 19304, ("<module>", "in_parent")), (19306, 19306, ("<module>", "in_child"))}
    assert result.report.status == "partial"
    assert "fork" in (result.report.why or "")


def test_native_frames_are_native_and_addresses_collapse_to_their_library() -> None:
    _, session = read(DATA / "native.json")
    frames = {f.function: f for f in session.stacks.frames}
    assert frames["w_hash"].layer == "python"
    assert frames["_hashlib_openssl_sha256"].layer == "native"
    assert frames["[libcrypto.so.3]"].module == "/usr/lib/x86_64-linux-gnu/libcrypto.so.3"
    assert not any(name.startswith("0x") for name in frames)
    share = seconds(session, tid=12906, leaf="[libcrypto.so.3]") / seconds(session, tid=12906)
    assert share > 0.95  # the thread does nothing but hash


@given(data=st.data(), threads=st.integers(1, 4), looks=st.integers(2, 25))
@settings(max_examples=30, deadline=None)
def test_what_py_spy_saw_is_what_is_read(data: st.DataObject, threads: int, looks: int) -> None:
    """Stacks written as py-spy writes them (changes only) come back as they were, to the microsecond."""
    frame = st.tuples(st.sampled_from(["f", "g;h", "a b 1", "</script>", "λ"]), st.integers(1, 3))
    stack = st.lists(frame, min_size=1, max_size=4)
    shown: dict[int, list[tuple[str, int]]] = {}
    truth: dict[int, list[tuple[int, list[tuple[str, int]]]]] = {}
    events: list[Any] = []
    now = 1000

    def look(thread: int, new: list[tuple[str, int]]) -> None:
        root = [(f"thread ({100 + thread}): T", 0)] if new else []
        new = [*root, *new]
        old = shown.get(thread, [])
        same = len(list(itertools.takewhile(lambda p: p[0] == p[1], zip(old, new, strict=False))))
        for phase, frames in (("E", old[: same - 1 if same else None : -1]), ("B", new[same:])):
            events.extend(
                event(phase, name, now, line=line, file="/a.py" if line else "", tid=10**6 + thread)
                for name, line in frames
            )
        shown[thread] = new

    for _ in range(looks):
        for thread in range(threads):
            chosen = data.draw(stack)
            look(thread, chosen)
            seen = truth.setdefault(thread, [])
            if not seen or seen[-1][1] != chosen:
                seen.append((now, chosen))
            now += data.draw(st.integers(1, 50))
    for thread in range(threads):
        look(thread, [])
    with tempfile.TemporaryDirectory() as folder:
        result, session = read(write(Path(folder) / "x.json", events))
    assert result.report.status == "ok" and result.report.lost_events == 0
    for thread, seen in truth.items():
        ends = [start for start, _ in seen[1:]] + [now]
        expected = [(s * 1000, (e - s) * 1000, chosen) for (s, chosen), e in zip(seen, ends, strict=True) if e > s]
        found = sorted(
            (r["time_ns"], r["duration_ns"], [(f.function, f.line) for f in session.stacks.path(r["stack_id"])])
            for r in session.table("samples").to_pylist()
            if r["tid"] == 100 + thread
        )
        assert found == expected


def test_trace_events_object_empty_list_and_gzip(tmp_path: Path) -> None:
    events = [event("B", "f", 10), event("E", "f", 30)]
    for number, content in enumerate((events, {"x": 1, "traceEvents": events})):
        _, session = read(write(tmp_path / f"{number}.json", content))
        assert [(r["time_ns"], r["duration_ns"]) for r in rows(session)] == [(10_000, 20_000)]
    _, session = read(write(tmp_path / "z.json.gz", gzip.compress(json.dumps(events).encode())))
    assert len(rows(session)) == 1
    with pytest.raises(InputError, match="no stack"):
        read(write(tmp_path / "empty.json", "[]"))


def test_an_end_that_fits_no_begin_costs_that_thread_only_from_there_on(tmp_path: Path) -> None:
    other = {"tid": 5}
    events = [
        event("B", "f", 10), event("B", "g", 10), event("B", "o", 10, **other), event("E", "g", 20),
        event("E", "WRONG", 30), event("B", "made_up", 30), event("E", "o", 40, **other),
    ]  # fmt: skip
    result, session = read(write(tmp_path / "x.json", events))
    assert result.report.status == "partial" and result.report.lost_events == 2
    assert sorted((r["time_ns"], r["duration_ns"], r["path"]) for r in rows(session)) == [
        (10_000, 10_000, ["f", "g"]), (10_000, 30_000, ["o"]), (20_000, 10_000, ["f"]),
    ]  # fmt: skip


def test_a_cut_file_is_read_up_to_there_and_named(tmp_path: Path) -> None:
    whole = (DATA / "native.json").read_bytes()
    result, session = read(write(tmp_path / "cut.json", whole[: len(whole) // 2]))
    assert result.report.status == "partial"
    assert "byte" in (result.report.why or "")
    _, everything = read(DATA / "native.json")
    assert 0 < seconds(session, tid=12906) < seconds(everything, tid=12906)


def test_a_cut_gzip_is_read_up_to_there(tmp_path: Path) -> None:
    whole = (DATA / "no_threads.json.gz").read_bytes()
    result, session = read(write(tmp_path / "cut.json.gz", whole[: len(whole) * 2 // 3]))
    assert result.report.status == "partial" and "byte" in (result.report.why or "")
    assert 10 < len(rows(session)) < 113


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000 + b'"ph"',
        b'[{"ph":"B","name":"f","pid":1,"tid":2,"ts":1e400,"args":{}}]',
        b'[{"ph":"B","name":"f","pid":1,"tid":2,"ts":' + b"9" * 5000 + b',"args":{}}]',
        b'[{"ph":"B","name":"f","pid":-1,"tid":2,"ts":5,"args":[]}]',
        b'{"traceEvents"',
        b'{"shared":{"frames":[]},"profiles":[1]}',
        b'{"shared":{"frames":[{}]},"profiles":[{"type":"sampled","unit":"seconds","samples":[[0]],"weights":[1]}]}',
        b'{"shared":{"frames":[{"name":"f"}]},"profiles":[{"type":"sampled","unit":"seconds","samples":[[0]],'
        b'"weights":[1e300]}]}',
        b"\x1f\x8b\x08\x00garbage",
        b"not a profile 12x\n",
    ],
)
def test_hostile_files_are_refused_with_a_message(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InputError, match=r"x\.json"):
        read(write(tmp_path / "x.json", content))


def test_speedscope_of_other_tools_keeps_its_times(tmp_path: Path) -> None:
    calls = (("O", 0, 5), ("O", 1, 6), ("C", 1, 8), ("C", 0, 9))
    document = {
        "shared": {"frames": [{"name": "main", "file": "m.py", "line": 3}, {"name": "std::sort<int; 2>"}]},
        "profiles": [
            {"type": "evented", "name": "cpu 1", "unit": "milliseconds", "startValue": 5, "endValue": 9}
            | {"events": [{"type": t, "frame": f, "at": a} for t, f, a in calls]},
            {"type": "sampled", "name": "cpu 2", "unit": "nanoseconds", "startValue": 100, "endValue": 150}
            | {"samples": [[0], [0, 1]], "weights": [20, 30]},
            {"type": "sampled", "name": "heap", "unit": "bytes", "startValue": 0, "endValue": 1}
            | {"samples": [[0]], "weights": [1]},
        ],
    }  # fmt: skip
    result, session = read(write(tmp_path / "x.json", document))
    assert sorted((r["time_ns"], r["duration_ns"], r["path"][-1]) for r in rows(session)) == [
        (100, 20, "main"), (120, 30, "std::sort<int; 2>"),
        (5_000_000, 1_000_000, "main"), (6_000_000, 2_000_000, "std::sort<int; 2>"), (8_000_000, 1_000_000, "main"),
    ]  # fmt: skip
    assert result.report.status == "partial" and "bytes" in (result.report.why or "")
    assert {t["name"] for t in session.table("threads").to_pylist()} == {"cpu 1", "cpu 2"}


def test_raw_names_with_separators_survive(tmp_path: Path) -> None:
    text = "thread (12): a; b 3;main (m.py:1);operator; (x.py:2) 7\nmain 3 4\nbroken\n"
    result, session = read(write(tmp_path / "x.txt", text))
    assert [(r["tid"], r["path"], r["count"]) for r in rows(session)][1] == (None, ["main 3"], 4)
    first = rows(session)[0]
    assert (first["tid"], first["path"][0], first["count"]) == (12, "main", 7)
    assert result.report.lost_events == 1


BOMBS = {
    "spaces": b'[{"ph":1},' + b" " * (64 << 20),
    "numbers": b'[{"ph":"M"}' + b",1" * (4 << 20),
    "lines": b"f 1\n" + b"junk\n" * (8 << 20),
    "one-line": b"f 1\n" + b"x" * (64 << 20),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_ends_early(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "bomb.gz", gzip.compress(BOMBS[name], 1))
    try:
        result, _ = read(path)
    except InputError as error:
        assert str(path) in str(error)
    else:
        assert result.report.status == "partial"


def mutated(data: bytes, seed: int) -> bytes:
    rng = random.Random(seed)
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8, 40))):
        at = rng.randrange(len(content) or 1)
        match rng.randrange(5):
            case 0:
                content[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del content[at:]
            case 2:
                del content[at : at + rng.randrange(1, 300)]
            case 3:
                content[at:at] = content[at : at + rng.randrange(1, 300)]
            case _:
                content[at:at] = rng.choice((b"9" * 400, b"[" * 300, b"\0", b'"', b"\xff\xfe", b"-1", b"1e999"))
    return bytes(content)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.name)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_damaged_files_give_an_error_or_a_sound_part(path: Path, seed: int) -> None:
    whole = path.read_bytes()
    content = mutated(gzip.decompress(whole) if path.suffix == ".gz" and seed % 2 else whole, seed)
    with tempfile.TemporaryDirectory() as folder:
        try:
            result, session = read(write(Path(folder) / "x", content))
        except InputError as error:
            assert str(Path(folder) / "x") in str(error)
            return
    assert result.report.status in ("ok", "partial")
    known = 4 * len(whole) if path.suffix != ".gz" else 1 << 20
    assert session.table("samples").num_rows < known and len(session.stacks.frames) < known
    reach: dict[tuple[int, int], int] = {}
    for row in sorted(rows(session), key=lambda r: r["time_ns"] or 0):
        assert row["path"] and row["count"] > 0
        if row["time_ns"] is not None and "speedscope" not in path.name:
            key = row["pid"], row["tid"]
            assert row["duration_ns"] > 0 and row["time_ns"] >= reach.get(key, 0)
            reach[key] = row["time_ns"] + row["duration_ns"]

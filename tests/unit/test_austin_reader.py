"""Reading austin's text: right values, odd names, and damage of every kind."""

from __future__ import annotations

import gzip
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.collectors.pyspy import import_file, sniff
from perfscope.collectors.pyspy.austinfile import AustinFile, Piece, read_austin, slices
from perfscope.collectors.pyspy.slices import Slices
from perfscope.errors import InputError, PerfscopeError
from perfscope.model.info import SessionInfo
from perfscope.model.session import Session
from perfscope.model.session_writer import SessionWriter
from perfscope.model.stacks import StackTable

THREADS = Path(__file__).parent.parent / "data" / "pyspy" / "threads.austin.txt.gz"
HEAD = "# austin: 3.7.0\n# interval: 10000\n# mode: wall\n\n"


def text(*looks: tuple[int, list[tuple[int, str]]], pid: int = 7, duration: int | None = 10**6) -> str:
    """A file as austin writes it, of looks (delta, [(tid, frames)])."""
    body = "".join(
        f"P{pid};T0:{tid}{';' if frames else ''}{frames} {delta}\n"
        for delta, threads in looks
        for tid, frames in threads
    )
    return HEAD + body + ("" if duration is None else f"\n# duration: {duration}\n")


def read(content: str | bytes) -> tuple[AustinFile, StackTable]:
    stacks = StackTable()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.austin.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_austin(path, stacks), stacks


def whole(file: AustinFile, pid: int = 7) -> Slices:
    return slices(file, pid, [Piece(0, len(file.looks[pid].elapsed), 0)], 0)


def shown(found: Slices, stacks: StackTable) -> list[tuple[int, int, int, list[str], int]]:
    """(tid, start, end, functions, looks) of each slice."""
    assert found.looks is not None
    return [
        (found.threads[t][1], int(s), int(e), [f.function for f in stacks.path(int(k))], int(n))
        for t, s, e, k, n in zip(found.thread, found.start, found.end, found.stack, found.looks, strict=True)
    ]


A, B = "/a.py:<module>:9;/a.py:f:1", "/a.py:<module>:9;/a.py:g:2"


def test_slices_last_from_the_look_that_saw_the_stack_first_to_the_one_that_saw_another() -> None:
    file, stacks = read(text((5, [(7, A)]), (10, [(7, A)]), (11, [(7, B)]), (12, [(7, B)]), (13, [(7, A)])))
    assert shown(whole(file), stacks) == [(7, 5, 26, ["<module>", "f"], 2), (7, 26, 51, ["<module>", "g"], 2)]
    assert file.duration_us == 10**6 and file.cut_at is None and file.lost_lines == 0


def test_threads_that_come_and_go_end_at_the_look_that_no_longer_saw_them() -> None:
    file, stacks = read(
        text((5, [(7, A)]), (10, [(8, B), (7, A)]), (11, [(8, B), (7, A)]), (12, [(7, A)]), (13, [(7, A)]))
    )
    assert shown(whole(file), stacks) == [(7, 5, 51, ["<module>", "f"], 5), (8, 15, 38, ["<module>", "g"], 2)]


def test_looks_with_the_same_number_are_told_apart_by_the_oldest_thread() -> None:
    # A new thread stands before the others: it is the second look's.
    file, stacks = read(
        text((5, [(7, A)]), (10, [(7, A)]), (10, [(8, B), (7, A)]), (10, [(8, B), (7, A)]), (9, [(7, A)]))
    )
    assert list(file.looks[7].elapsed) == [5, 15, 25, 35, 44]
    assert (8, 25, 44, ["<module>", "g"], 2) in shown(whole(file), stacks)


def test_a_thread_that_comes_twice_in_one_look_is_one_look() -> None:
    # The list of threads changed under austin, which then walked the rest of it again.
    twice = [(9, A), (8, A), (9, A), (8, B), (7, A)]
    file, stacks = read(text((5, [(8, A), (7, A)]), (10, [(8, A), (7, A)]), (11, twice), (12, [(8, B), (7, A)])))
    assert list(file.looks[7].elapsed) == [5, 15, 26, 38]
    assert (8, 26, 38, ["<module>", "g"], 2) in shown(whole(file), stacks)


def test_a_thread_without_frames_is_no_look_at_it() -> None:
    # One that only just begins, under the id of its creator.
    file, stacks = read(text((5, [(7, A)]), (10, [(7, ""), (7, A)]), (11, [(7, ""), (7, A)]), (12, [(7, A)])))
    assert list(file.looks[7].elapsed) == [5, 15, 26, 38]
    assert shown(whole(file), stacks) == [(7, 5, 38, ["<module>", "f"], 4)]


def test_a_stack_that_could_not_be_read_is_counted_and_belongs_to_no_slice() -> None:
    garbage = (140126313192784, ":INVALID:")
    unread = [(7, "/a.py:f:1;:INVALID:")]
    file, stacks = read(text((5, [(7, A)]), (10, [(7, A), garbage]), (11, unread), (12, [(7, A)]), (13, [(7, A)])))
    assert file.invalid == 2
    assert shown(whole(file), stacks) == [(7, 5, 26, ["<module>", "f"], 2), (7, 38, 51, ["<module>", "f"], 2)]
    assert whole(file).errors == 2


def test_odd_names_survive() -> None:
    odd = "/tmp/a;b c.py:<module>:1;C:\\x.py:f:2;<frozen importlib._bootstrap>:_call:3;/a.py:<lambda>:4"
    odd += ";/a 5:C.<locals>.g:5"
    file, stacks = read(text((5, [(7, odd)]), (10, [(7, odd)])))
    ((_, _, _, functions, _),) = shown(whole(file), stacks)
    assert functions == ["<module>", "f", "_call", "<lambda>", "C.<locals>.g"]
    files = [frame.file for frame in stacks.frames]
    assert files == ["/tmp/a;b c.py", "C:\\x.py", "<frozen importlib._bootstrap>", "/a.py", "/a 5"]
    assert {frame.layer for frame in stacks.frames} == {"python"}


def test_looks_outside_all_pieces_are_lost_and_pieces_keep_their_own_zero() -> None:
    file, stacks = read(text(*((10, [(7, A)]), (11, [(7, A)])) * 3))
    found = slices(file, 7, [Piece(0, 2, 1000), Piece(3, 6, 1500)], 1000)
    assert shown(found, stacks) == [(7, 10, 21, ["<module>", "f"], 2), (7, 542, 563, ["<module>", "f"], 3)]
    assert found.lost_events == 1 and found.events == 5


def test_a_file_cut_short_is_read_up_to_its_last_whole_line() -> None:
    content = text((5, [(7, A)]), (10, [(7, A)]), (11, [(7, B)]), duration=None)
    file, stacks = read(content[:-4])
    assert file.cut_at is not None and content[: file.cut_at].endswith(" 10\n")
    assert shown(whole(file), stacks) == [(7, 5, 15, ["<module>", "f"], 2)]


@given(data=st.data(), threads=st.integers(1, 4), looks=st.integers(2, 25))
@settings(max_examples=50, deadline=None)
def test_what_austin_saw_is_what_is_read(data: st.DataObject, threads: int, looks: int) -> None:
    """Stacks of threads that come and go, written as austin writes them, come back look by look."""
    written, truth, now = [], [], 0
    alive = {7}
    for _ in range(looks):
        alive |= {tid for tid in range(8, 7 + threads) if data.draw(st.booleans())}
        alive -= {tid for tid in alive - {7} if data.draw(st.booleans())}
        rows = [(tid, data.draw(st.sampled_from([A, B]))) for tid in sorted(alive, reverse=True)]
        delta = data.draw(st.integers(9, 12))
        now += delta
        written.append((delta, rows))
        truth.append((now, dict(rows)))
    file, stacks = read(text(*written))
    first = written[0][0]
    if all(delta != first for delta, _ in written[1:2]):  # the first look alone is told by its number only
        found = {
            (tid, time): functions[-1]
            for tid, start, end, functions, _ in shown(whole(file), stacks)
            for time, _ in truth
            if start <= time < end
        }
        wanted = {(tid, time): stack[-3] for time, rows in truth[:-1] for tid, stack in rows.items()}
        assert found == wanted


def imported(path: Path) -> Session | None:
    """A session of that file; None where it is refused."""
    with tempfile.TemporaryDirectory() as folder:
        writer = SessionWriter(Path(folder) / "s.perfscope")
        try:
            result = import_file(path, writer)
        except InputError:
            return None
        info = SessionInfo(start_ns=result.start_ns, stop_ns=result.stop_ns, collectors={"import": result.report})
        session = Session.open(writer.finish(info))
        for table in ("samples", "threads", "processes", "frames", "stacks"):
            session.table(table)
        return session


def test_mutations_of_a_real_file_are_read_as_far_as_sound_or_refused(tmp_path: Path) -> None:
    data = gzip.decompress(THREADS.read_bytes())[:30_000]
    chance = random.Random(7)
    path = tmp_path / "x.austin.txt"
    for _ in range(60):
        changed = bytearray(data)
        for _ in range(chance.choice([1, 3, 50])):
            kind = chance.randrange(4)
            at = chance.randrange(len(changed) or 1)
            if kind == 0 and changed:
                changed[at] ^= 1 << chance.randrange(8)
            elif kind == 1:
                del changed[at : at + chance.randrange(1, 300)]
            elif kind == 2:
                changed[at:at] = chance.randbytes(chance.randrange(1, 100))
            else:
                changed = changed[: max(at, 200)]
        path.write_bytes(bytes(changed))
        try:
            imported(path)
        except PerfscopeError as error:  # the session can say no, too, but nothing else may escape
            pytest.fail(str(error))


def test_a_real_file_of_threads_that_come_and_go() -> None:
    """Recorded every 2 ms from a program with one lasting worker, and one of 0.3 s after the other."""
    path = THREADS
    assert sniff(path.read_bytes()[:4096], path)
    stacks = StackTable()
    file = read_austin(path, stacks)
    (pid,) = file.looks
    elapsed = np.frombuffer(file.looks[pid].elapsed, np.int64)
    assert file.cut_at is None and file.duration_us is not None
    # The sum of all looks' times is the whole of it, but for a look or two at its end.
    assert 0 <= file.duration_us - elapsed[-1] < 5000
    found = shown(whole(file, pid), stacks)
    time: dict[int, int] = {}
    for tid, start, end, _, _ in found:
        time[tid] = time.get(tid, 0) + end - start
    lasting = [tid for tid, us in time.items() if us == elapsed[-1] - elapsed[0]]
    assert (
        len(lasting) == 2 and pid in lasting
    )  # the main thread and the lasting worker; the first and the last brief one are cut by the file's ends
    brief = sorted(us for tid, us in time.items() if tid not in lasting)
    assert len(brief) >= 2 and all(us == pytest.approx(300_000, abs=15_000) for us in brief[2:])
    session = imported(path)
    assert session is not None and session.table("samples").num_rows == len(found)

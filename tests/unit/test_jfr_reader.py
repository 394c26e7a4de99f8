"""The JFR reader on sound, cut, damaged and hostile files: an error or a partial read, in bounded time and memory."""

from __future__ import annotations

import mmap
import resource
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscope.collectors.jfr import chunk as chunk_module
from perfscope.collectors.jfr import import_file, sniff
from perfscope.collectors.jfr.chunk import LOSSES_LIMIT, JfrFile
from perfscope.collectors.jfr.columns import Layout
from perfscope.collectors.jfr.compiler import compile_reader
from perfscope.collectors.jfr.frames import class_name
from perfscope.collectors.jfr.integers import LONGEST, Bytes
from perfscope.collectors.jfr.jfrclock import measure
from perfscope.collectors.jfr.jvm import major_version, parse_perf_data
from perfscope.collectors.jfr.kinds import CONSTANTS, WANTED
from perfscope.collectors.jfr.metadata import Field, Metadata, Type
from perfscope.collectors.jfr.recording import Anchor
from perfscope.collectors.jfr.recording import settings as jfc
from perfscope.collectors.jfr.varint import Buffer, MalformedError, signed32, signed64, string, unsigned
from perfscope.collectors.jfr.walk import walk
from perfscope.errors import InputError
from perfscope.model.session_writer import SessionWriter

DATA = Path(__file__).parent.parent / "data" / "jfr"
PHASES = (DATA / "phases.jfr").read_bytes()
KILLED = (DATA / "killed.jfr").read_bytes()
HEADER = struct.Struct(">4sHHqqqqqqqI")


def varint(value: int) -> bytes:
    """The format's own compressed integer, written down independently of the reader."""
    value &= (1 << 64) - 1
    out = bytearray()
    for _ in range(8):
        if value < 128:
            return bytes([*out, value])
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def chunk_starts(data: bytes) -> list[int]:
    """By the sizes in the headers; the same bytes stand within chunks too, as a constant."""
    starts = [0]
    while (following := starts[-1] + HEADER.unpack_from(data, starts[-1])[3]) < len(data):
        starts.append(following)
    return starts


def count(path: Path) -> tuple[int, JfrFile]:
    file = JfrFile(path, WANTED, CONSTANTS)
    rows = 0
    for chunk in file:
        for name in chunk.event_names():
            rows += sum(1 for _ in chunk.rows(name, chunk.field_names(name)))
    return rows, file


def load(data: bytes) -> str:
    """Imports a file; what became of it. Anything but a result or an InputError is a fault."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.jfr"
        path.write_bytes(data)
        writer = SessionWriter(Path(folder) / "s.perfscope")
        try:
            report = import_file(path, writer).report
        except InputError as error:
            assert str(path) in str(error)
            return "error"
        finally:
            writer.discard()
        assert report.status == "ok" or report.why
        return report.status


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_integers_survive_their_compression(value: int) -> None:
    data = varint(value)
    assert signed64(data, 0) == (value, len(data))
    assert unsigned(data, 0) == (value & (1 << 64) - 1, len(data))
    narrow = (value + (1 << 31)) % (1 << 32) - (1 << 31)
    assert signed32(varint(narrow), 0)[0] == narrow


@given(st.text())
def test_strings_of_every_encoding(text: str) -> None:
    utf8 = text.encode("utf-8", "replace")
    units = text.encode("utf-16-le", "replace")
    chars = struct.unpack(f"<{len(units) // 2}H", units)
    expected = utf8.decode()
    assert string(b"\3" + varint(len(utf8)) + utf8, 0)[0] == expected
    assert string(b"\4" + varint(len(chars)) + b"".join(map(varint, chars)), 0)[0] == expected
    assert string(b"\0", 0)[0] is None and string(b"\1", 0)[0] == ""
    assert string(b"\5\1\xe9", 0)[0] == "é"


def test_sound_files_are_read_whole_and_without_loss(tmp_path: Path) -> None:
    assert load(PHASES) == "ok"
    rows, file = count(DATA / "phases.jfr")
    assert rows > 600 and file.losses == [] and file.damaged_events == 0
    assert sniff(PHASES[:16], tmp_path) and not sniff(b"PK\3\4", tmp_path)


def test_files_behind_one_another_are_one_recording(tmp_path: Path) -> None:
    path = tmp_path / "two.jfr"
    path.write_bytes(PHASES + KILLED)
    assert count(path)[0] == count(DATA / "phases.jfr")[0] + count(DATA / "killed.jfr")[0]


@pytest.mark.parametrize("size", [0, 1])
def test_a_chunk_that_was_never_finished_is_read_as_far_as_it_goes(tmp_path: Path, size: int) -> None:
    """The header still says 0, or the size at an earlier flush: all events that are there count."""
    last = chunk_starts(KILLED)[-1]
    fields = list(HEADER.unpack_from(KILLED, last))
    fields[3] = 0 if size == 0 else fields[3] - 20_000
    path = tmp_path / "unfinished.jfr"
    path.write_bytes(KILLED[:last] + HEADER.pack(*fields) + KILLED[last + HEADER.size :])
    rows, file = count(path)
    assert rows == count(DATA / "killed.jfr")[0]
    assert len(file.losses) == 1 and "never finished" in file.losses[0]


def test_a_cut_file_keeps_what_is_before_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "cut.jfr"
    second = chunk_starts(PHASES)[1]
    path.write_bytes(PHASES[: second + 50_000])
    rows, file = count(path)
    whole = next(iter(JfrFile(DATA / "phases.jfr", WANTED, CONSTANTS)))
    assert rows >= sum(whole.count(n) for n in whole.event_names())
    assert any("cut off" in loss for loss in file.losses)


@pytest.mark.parametrize("data", [b"", b"FLR\0", b"not a recording at all" * 10, b"FLR\0" + bytes(64)])
def test_what_is_no_recording_is_refused(data: bytes) -> None:
    assert load(data) == "error"


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(4, HEADER.size - 1), st.integers(0, 255))
def test_any_header_gives_an_error_or_a_read(at: int, value: int) -> None:
    """Its times too: those that no 64 bits hold once they are nanoseconds."""
    load(PHASES[:at] + bytes([value]) + PHASES[at + 1 :])


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([PHASES, KILLED]), st.integers(0, 600_000))
def test_any_cut_gives_an_error_or_a_partial_read(data: bytes, at: int) -> None:
    at %= len(data)
    expected = {"error"} if at < HEADER.size else {"ok"} if at in chunk_starts(data) else {"partial", "failed"}
    assert load(data[:at]) in expected


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([PHASES, KILLED]), st.lists(st.tuples(st.integers(0, 600_000), st.integers(0, 255)), max_size=30)
)
def test_any_changed_bytes_give_an_error_or_a_read(data: bytes, changes: list[tuple[int, int]]) -> None:
    changed = bytearray(data)
    for at, value in changes:
        changed[at % len(data)] = value
    load(bytes(changed))


class CountedMap(mmap.mmap):
    """A mapped file that counts how many of its bytes are copied or searched."""

    touched = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        CountedMap.touched += len(found) if isinstance(at, slice) else 1
        return found

    def find(self, sub: Any, start: int | None = 0, stop: int | None = None) -> int:
        found = super().find(sub, start)
        CountedMap.touched += (found if found >= 0 else len(self)) - (start or 0)
        return found


SMALL = {
    "header says 68": (HEADER.size, b""),
    "header says 0": (0, b""),
    "header says too much": (1 << 40, b""),
    "with an event": (0, b"\x05\x63abc"),
    "with an event and noise": (0, b"\x05\x63abc\0noise"),
    "with a size past the end": (0, b"\xff\xff\xff\xff\x7f"),
}


def small_chunks(path: Path, name: str, number: int) -> Path:
    """A file of many chunks with a header of a real one, and hardly anything else."""
    fields = list(HEADER.unpack_from(PHASES))
    fields[3:6] = SMALL[name][0], 0, 0
    path.write_bytes((HEADER.pack(*fields) + SMALL[name][1]) * number)
    return path


@pytest.mark.parametrize("name", SMALL)
def test_a_file_of_many_small_chunks_is_gone_through_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = small_chunks(tmp_path / "small.jfr", name, 2000)
    walked: list[int] = []

    def extent(b: Buffer, start: int, end: int) -> int:
        stop = real_extent(b, start, end)
        walked.append(stop - start)
        return stop

    real_extent = chunk_module.extent
    monkeypatch.setattr(chunk_module, "extent", extent)
    monkeypatch.setattr(chunk_module.mmap, "mmap", CountedMap)
    monkeypatch.setattr(CountedMap, "touched", 0)
    monkeypatch.setattr(chunk_module, "LOSSES_LIMIT", 1 << 30)
    assert sum(1 for _ in JfrFile(path)) == 2000
    assert CountedMap.touched + sum(walked) <= 3 * path.stat().st_size


@pytest.mark.parametrize("name", SMALL)
def test_the_rest_of_a_file_that_is_damaged_throughout_is_left_out(tmp_path: Path, name: str) -> None:
    path = small_chunks(tmp_path / "small.jfr", name, 5000)
    file = JfrFile(path)
    chunks = sum(1 for _ in file)
    left = path.stat().st_size // 5000 * (5000 - chunks)
    assert chunks <= LOSSES_LIMIT and len(file.losses) <= LOSSES_LIMIT + 10
    assert file.losses[0].endswith(f"; {left} bytes left out")
    assert load(path.read_bytes()) == "failed"


@pytest.mark.parametrize(("type_", "payload"), [(0, b"\0\0\0\5"), (1, b"\0\0\0\0\1\x80\x80\x40\0")])
def test_a_chunk_full_of_damaged_types_or_constants_keeps_a_bounded_number_of_losses(
    tmp_path: Path, type_: int, payload: bytes
) -> None:
    """Metadata that names more strings than it holds; constants of type 2^20, which no JVM has."""
    second = chunk_starts(PHASES)[1]
    fields = list(HEADER.unpack_from(PHASES))
    added = event(type_, payload) * 5000
    fields[3] = second + len(added)
    path = tmp_path / "full.jfr"
    path.write_bytes(HEADER.pack(*fields) + PHASES[HEADER.size : second] + added + PHASES[second:])
    chunks = list(file := JfrFile(path, WANTED, CONSTANTS))
    assert LOSSES_LIMIT <= len(file.losses) <= LOSSES_LIMIT + 10
    assert len(chunks) == 1 and "left out" in file.losses[0]


def all_rows(path: Path, few: int) -> list[object]:
    """Every event, with types of `few` events and more read as columns, and how many were damaged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_module, "FEW", few)
        found: list[object] = []
        for chunk in JfrFile(path, None, None):
            for name in chunk.event_names():
                names = chunk.field_names(name)
                for wanted in (names, [*names[1::2], "nothing", "startTime"], ["nothing"]):
                    found += [(name, repr(row)) for row in chunk.rows(name, wanted)]  # no number that is none is alike
            found.append(chunk.damaged_events)
        return found


@pytest.mark.parametrize("name", ["phases.jfr", "killed.jfr"])
@pytest.mark.parametrize("copied", [0, 1 << 30])
def test_events_read_together_are_those_read_one_by_one(
    monkeypatch: pytest.MonkeyPatch, name: str, copied: int
) -> None:
    monkeypatch.setattr(chunk_module, "COPY_LIMIT", copied)
    rows = all_rows(DATA / name, 1)
    assert rows == all_rows(DATA / name, 1 << 30)
    assert len(rows) > 1_000


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([PHASES, KILLED]), st.lists(st.tuples(st.integers(0, 600_000), st.integers(0, 255)), max_size=300)
)
def test_damaged_events_read_together_are_those_read_one_by_one(data: bytes, changes: list[tuple[int, int]]) -> None:
    changed = bytearray(data)
    for at, value in changes:
        changed[HEADER.size + at % (len(data) - HEADER.size)] = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.jfr"
        path.write_bytes(changed)
        assert all_rows(path, 1) == all_rows(path, 1 << 30)


def text_bytes(text: str | None) -> bytes:
    """Short texts of ASCII as UTF-16 units, as a JVM writes those of Java code, others as UTF-8."""
    if not text:
        return b"\0" if text is None else b"\1"
    if len(text) < 16 and text.isascii():
        return b"\4" + varint(len(text)) + text.encode()
    return b"\3" + varint(len(text.encode())) + text.encode()


LONG = st.integers(-(1 << 63), (1 << 63) - 1)
KINDS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], bytes]]] = {
    "long": (LONG, varint),
    "int": (st.integers(-(1 << 31), (1 << 31) - 1), lambda v: varint(v & (1 << 32) - 1)),
    "short": (st.integers(-(1 << 15), (1 << 15) - 1), lambda v: varint(v & (1 << 16) - 1)),
    "char": (st.integers(0, (1 << 16) - 1), varint),
    "boolean": (st.booleans(), lambda v: bytes([v])),
    "byte": (st.integers(-128, 127), lambda v: struct.pack("b", v)),
    "float": (st.floats(width=32, allow_nan=False), lambda v: struct.pack(">f", v)),
    "double": (st.floats(allow_nan=False), lambda v: struct.pack(">d", v)),
    "java.lang.String": (st.none() | st.text(st.characters(codec="utf-8")), lambda v: text_bytes(v)),
}


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_columns_of_every_kind_and_width(data: st.DataObject) -> None:
    """Random fields and values, written down by the format's rules and read as columns; one of them a structure."""
    names = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=6))
    metadata = Metadata({i: Type(i, name, ()) for i, name in enumerate(KINDS)})
    ids = {type_.name: type_.id for type_ in metadata.types.values()}
    metadata.types[50] = Type(50, "test.Pair", (Field("a", ids["long"], False, False), Field("b", 50, True, False)))
    fields = [Field(f"f{i}", ids[name], False, False) for i, name in enumerate(names)]
    type_ = Type(9, "test.Event", (*fields, Field("pair", 50, False, False)))
    pair = st.tuples(LONG, st.integers(0, (1 << 64) - 1))
    rows = data.draw(st.lists(st.tuples(*(KINDS[name][0] for name in names), pair), min_size=1, max_size=20))
    made = [
        event(9, b"".join(KINDS[n][1](v) for n, v in zip(names, row, strict=False)) + b"".join(map(varint, row[-1])))
        for row in rows
    ]
    buffer = Bytes(b"".join(made) + bytes(LONGEST))
    events, stop = walk(buffer, 0, len(buffer.raw) - LONGEST)
    wanted = ["pair", *data.draw(st.permutations([f.name for f in fields])), "nothing"]
    layout = Layout(metadata, type_)
    assert list(events) == [9] and stop == len(buffer.raw) - LONGEST and layout.together
    number = {f"f{i}": i for i in range(len(names))}
    expected = [(row[-1], *(row[number[name]] for name in wanted[1:-1]), None) for row in rows]
    assert layout.read(buffer, events[9], wanted).rows() == expected
    read = compile_reader(metadata, type_, wanted)
    assert [read(buffer.raw, start)[0] for start, _ in events[9].spans()] == expected


def test_units_of_several_bytes_are_left_to_the_reader() -> None:
    """A text of as many bytes as units can be told by its length alone; "\u00e9" takes two bytes and is one unit."""
    metadata = Metadata({1: Type(1, "java.lang.String", ())})
    type_ = Type(9, "test.Event", (Field("text", 1, False, False),))
    buffer = Bytes(event(9, b"\4\2" + varint(0xE9) + b"t") + bytes(LONGEST))
    events = walk(buffer, 0, len(buffer.raw) - LONGEST)[0][9]
    for wanted in (["text"], []):
        with pytest.raises(MalformedError, match="several bytes"):
            Layout(metadata, type_).read(buffer, events, wanted)
    assert compile_reader(metadata, type_, ["text"])(buffer.raw, int(events.start[0]))[0] == ("\u00e9t",)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 110_000), st.binary(min_size=1, max_size=40))
def test_any_damage_to_the_types_gives_an_error_or_a_read(at: int, noise: bytes) -> None:
    """Aimed at the metadata of the only chunk, where counts, depths and type numbers stand."""
    chunk = PHASES[: chunk_starts(PHASES)[1]]
    metadata_at = HEADER.unpack_from(chunk)[5]
    at = metadata_at + at % (len(chunk) - metadata_at)
    load(chunk[:at] + noise + chunk[at + len(noise) :])


def chunk_of(*events: bytes) -> bytes:
    body = b"".join(events)
    return HEADER.pack(b"FLR\0", 2, 1, HEADER.size + len(body), 0, 0, 10**18, 1, 5, 10**9, 0) + body


def event(type_: int, payload: bytes) -> bytes:
    rest = varint(type_) + payload
    size = len(rest) + 4  # the JVM pads sizes to four bytes
    return bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14 & 127 | 128, size >> 21 & 127]) + rest


@given(st.lists(st.tuples(st.integers(0, 300), st.binary(max_size=160)) | st.binary(max_size=6)))
def test_events_are_found_where_their_sizes_lead(parts: list[tuple[int, bytes] | bytes]) -> None:
    """Sizes of one byte and of four, types of one and two, and noise; walked here step by step."""
    made = [p if isinstance(p, bytes) else event(*p) if p[0] % 2 else _short_event(*p) for p in parts]
    data = b"".join(made)
    expected: dict[int, list[tuple[int, int]]] = {}
    p = 0
    with suppress(IndexError):
        while p < len(data):
            size, behind = unsigned(data, p)
            type_, behind = unsigned(data, behind)
            if size < 2 or size > len(data) - p or data[p : p + 4] == b"FLR\0":
                break
            expected.setdefault(type_, []).append((behind, p + size))
            p += size
    events, stop = walk(Bytes(data), 0, len(data))
    assert stop == p
    assert [(type_, list(found.spans())) for type_, found in events.items()] == list(expected.items())


def _short_event(type_: int, payload: bytes) -> bytes:
    rest = varint(type_) + payload[:100]
    return bytes([len(rest) + 1]) + rest


HOSTILE = {
    "strings": event(0, varint(0) * 3 + varint(1 << 40)),
    "elements": event(0, varint(0) * 3 + varint(0) + varint(0) + varint(1 << 50)),
    "nesting": event(0, varint(0) * 3 + varint(0) + b"\0\0\1" * 100_000),
    "constants": event(0, varint(0) * 3 + varint(0) * 4)
    + event(1, varint(0) * 4 + varint(1) + varint(9) + varint(1 << 60)),
    "zero size": b"\0" * 1000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_giant_counts_and_depths_are_refused_in_bounded_memory(tmp_path: Path, name: str) -> None:
    path = tmp_path / "hostile.jfr"
    path.write_bytes(chunk_of(HOSTILE[name]))
    code = (
        "import sys; from pathlib import Path\n"
        "from perfscope.collectors.jfr.chunk import JfrFile\n"
        "file = JfrFile(Path(sys.argv[1])); print(len(list(file)), file.losses)"
    )
    limit = 300 << 20
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 ['")


def test_types_that_hold_themselves_are_refused() -> None:
    types = Metadata({1: Type(1, "A", (Field("a", 1, False, False),))})
    with pytest.raises(MalformedError, match="nested"):
        compile_reader(types, types.types[1], None)
    wide = {i: Type(i, f"T{i}", tuple(Field(f"f{k}", i + 1, False, False) for k in range(10))) for i in range(7)}
    wide[7] = Type(7, "int", ())
    with pytest.raises(MalformedError, match="more than"):
        compile_reader(Metadata(wide), wide[0], None)


def test_names_are_as_in_source() -> None:
    assert class_name("java/lang/String") == "java.lang.String"
    assert class_name("[[B") == "byte[][]"
    assert class_name("[Ljava/util/Map$Entry;") == "java.util.Map$Entry[]"
    assert class_name("Load$$Lambda$93+0x00007f0718009a20/331418503") == "Load$$Lambda$93"
    assert class_name("Load$$Lambda/0x00007f0718009a20") == "Load$$Lambda"


def clock_file(path: Path, chunks: list[tuple[int, int]], ticks_per_second: int) -> Path:
    """Empty chunks with these (wall ns, ticks) at their beginning."""
    path.write_bytes(
        b"".join(
            HEADER.pack(b"FLR\0", 2, 1, HEADER.size + 4, 0, 0, wall, 1, ticks, ticks_per_second, 0) + event(0, b"")[:4]
            for wall, ticks in chunks
        )
    )
    return path


def test_ticks_of_any_frequency_are_placed(tmp_path: Path) -> None:
    """2.5 GHz ticks that began at monotonic 7 s, on a host whose wall clock is 10^18 ahead."""
    at = [10 * 10**9, 10 * 10**9 + 300]
    path = clock_file(tmp_path / "c.jfr", [(10**18 + t, (t - 7 * 10**9) * 5 // 2) for t in at], 2_500_000_000)
    clock = measure(path, [Anchor(at[0] - 1000, at[1] + 1000, 10**18, 40)], 10_000_000)
    assert abs(clock.to_mono(25 * 10**8) - 8 * 10**9) <= 1
    assert clock.error_ns <= 42 and clock.resolution_ns == 10_000_000


def test_a_step_of_the_wall_clock_moves_nothing(tmp_path: Path) -> None:
    """Two chunks at the start, then the wall clock jumps by 30 s, a chunk by rotation, and one at the stop."""
    step = 30 * 10**9
    start, later, stop = 10**10, 2 * 10**10, 3 * 10**10
    chunks = [(10**18 + start, start), (10**18 + start + 50, start + 48), (10**18 + step + later, later),
              (10**18 + step + stop, stop - 5)]  # fmt: skip
    path = clock_file(tmp_path / "c.jfr", chunks, 10**9)
    anchors = [Anchor(start - 10, start + 90, 10**18, 7), Anchor(stop - 10, stop + 90, 10**18 + step, 9)]
    clock = measure(path, anchors, 0)
    assert clock.offset_ns == 1  # median of 0 and 2
    assert clock.error_ns == 4 + 9  # the reading at the stop lies 5 off 0; and the offset's own error


def test_one_reading_is_no_better_than_its_bracket(tmp_path: Path) -> None:
    path = clock_file(tmp_path / "c.jfr", [(10**18 + 5000, 0)], 10**9)
    assert measure(path, [Anchor(4000, 9000, 10**18, 7)], 0).error_ns == 4000
    with pytest.raises(InputError, match="clock is unknown"):
        measure(path, [Anchor(6000, 9000, 10**18, 7)], 0)


def test_a_counter_that_nobody_read_at_the_end_may_have_drifted(tmp_path: Path) -> None:
    """A counter that runs 20 ppm fast; the JVM ended by itself, as long after the last reading as that came in."""
    first, second, end = 10 * 10**9, 15 * 10**9, 20 * 10**9
    fast = 2 * 1.00002

    def ticks(mono: int) -> int:
        return round((mono - first) * fast) + 77

    path = clock_file(tmp_path / "c.jfr", [(10**18 + t, ticks(t)) for t in (first, second)], 2_000_000_000)
    anchors = [Anchor(t - 10, t + 90, 10**18, 7) for t in (first, second)]
    clock = measure(path, anchors, 0, end)
    assert abs(clock.to_mono(ticks(end)) - end) <= clock.error_ns < 210_000
    alone = measure(path, anchors[:1], 0, end)
    assert alone.error_ns >= 500e-6 * (end - first)
    assert abs(alone.to_mono(ticks(end)) - end) <= alone.error_ns


def test_our_settings_follow_the_rate_and_the_java_version() -> None:
    new, old = jfc(20, 17), jfc(10, 11)
    assert new.count('<setting name="period">20 ms</setting>') == 2
    assert 'ObjectAllocationInNewTLAB"><setting name="enabled">false' in new
    assert 'ObjectAllocationInNewTLAB"><setting name="enabled">true' in old


@given(st.binary(max_size=400))
def test_any_performance_data_is_read_as_far_as_sound(data: bytes) -> None:
    parse_perf_data(b"\xca\xfe\xc0\xc0\1\2\0\1" + data)


def test_java_versions() -> None:
    assert [major_version(v) for v in ("1.8.0_412", "17.0.15", "25", "", None)] == [8, 17, 25, None, None]

"""What the BPF program tells of code and stacks: right values, and damage of every kind; and its structures' layout."""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope import probes
from perfscope.collectors.pycode import Code
from perfscope.collectors.pyspy import interpreter, kernel, kernelfile
from perfscope.collectors.pyspy.interpreter import PROCESS_BYTES, WINDOW, Interpreter, Layout
from perfscope.collectors.pyspy.kernelfile import CUT, LOOK, Words, read_words, stack_ids
from perfscope.model.stacks import Frame, StackTable

TEXT_BYTES, HALF = 1024, 512
TABLE = bytes([0x80 | 10 << 3, 0, 0, 0x80 | 11 << 3, 0, 0])
"""Instruction 0 is on the first line, 1 on the one after it."""


def packed_text(text: str) -> tuple[bytes, int]:
    """A str as CPython keeps it, cut to what the program copies; bytes of each character, 0 for ASCII."""
    top = max(map(ord, text), default=0)
    if top < 128:
        return text.encode("ascii")[:HALF], 0
    if top < 256:
        return text.encode("latin-1")[:HALF], 1
    if top < 65536:
        return text.encode("utf-16-le")[:HALF], 2
    return text.encode("utf-32-le")[:HALF], 4


@dataclass(frozen=True)
class ToldCode:
    key: int
    file: str
    name: str
    first_line: int = 1
    lines: bytes = TABLE

    def record(self) -> bytes:
        (file, file_kind), (name, name_kind) = packed_text(self.file), packed_text(self.name)
        numbers = (self.first_line, len(file), file_kind, len(name), name_kind, len(self.lines), 1, 0)
        head = struct.pack("<IIQ8I", 2, 77, self.key, *numbers)
        # What lies behind a text is left of the one before it.
        return head + file.ljust(TEXT_BYTES, b"\xa5") + name.ljust(TEXT_BYTES, b"\xa5") + self.lines

    def code(self) -> Code:
        return Code(self.file, self.name, self.first_line, self.lines)


@dataclass(frozen=True)
class ToldStack:
    number: int
    frames: tuple[tuple[int, int], ...]
    cut: int = 0

    def record(self, depth: int | None = None) -> bytes:
        head = struct.pack("<IIQII", 1, 77, self.number, len(self.frames) if depth is None else depth, self.cut)
        return head + b"".join(struct.pack("<QQII", 0xC0DE, key, at, 0) for key, at in self.frames)


def read(data: bytes) -> Words:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "words.bin"
        path.write_bytes(data)
        return read_words(path)


U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
TEXTS = st.one_of(
    st.text(st.characters(min_codepoint=low, max_codepoint=high, exclude_categories=("Cs",)), max_size=128)
    for low, high in ((0, 0x7F), (0, 0xFF), (0, 0xFFFF), (0, 0x10FFFF))
)
CODES = st.builds(ToldCode, U64, TEXTS, TEXTS, U32, st.one_of(st.just(b""), st.just(TABLE), st.binary(max_size=200)))
STACKS = st.builds(ToldStack, U64, st.lists(st.tuples(U64, U32), max_size=20).map(tuple), st.integers(0, 1))
RECORDS: st.SearchStrategy[list[ToldCode | ToldStack]] = st.lists(
    st.one_of(CODES, STACKS),
    max_size=12,
    unique_by=lambda r: (type(r), getattr(r, "key", None), getattr(r, "number", None)),
)


@given(RECORDS)
def test_what_was_told_comes_back(records: list[ToldCode | ToldStack]) -> None:
    words = read(b"".join(record.record() for record in records))
    assert words.codes == {r.key: r.code() for r in records if isinstance(r, ToldCode)}
    assert words.stacks == {r.number: (list(r.frames), r.cut != 0) for r in records if isinstance(r, ToldStack)}
    assert words.unsound == 0


@pytest.mark.parametrize(
    ("name", "kept"),
    [("a" * 513, 512), ("ß" * 513, 512), ("λ" * 257, 256), ("🐍" * 129, 128), ("", 0)],
    ids=["ascii", "latin-1", "ucs2", "ucs4", "empty"],
)
def test_a_long_name_is_cut_after_a_whole_character(name: str, kept: int) -> None:
    assert read(ToldCode(1, "f", name).record()).codes[1].name == name[:kept]


def test_nothing_told_is_no_fault(tmp_path: Path) -> None:
    assert read_words(tmp_path / "absent") == Words()
    assert read(b"") == Words()


def test_stacks_become_frames_outermost_first_with_the_cut_at_the_root() -> None:
    codes = [ToldCode(1, "/a.py", "main", 10), ToldCode(2, "/b.py", "λ.leaf", 20)]
    told = [ToldStack(5, ((2, 1), (1, 0))), ToldStack(6, ((2, 0), (1, 1)), cut=1), ToldStack(7, ((3, 0), (1, 0)))]
    words = read(b"".join(record.record() for record in (*codes, *told)))
    stacks = StackTable()
    found = stack_ids(words, np.array([0, 5, 6, 7], np.uint64), stacks)
    main, leaf = (
        (lambda line: Frame("python", "main", "/a.py", line)),
        (lambda line: Frame("python", "λ.leaf", "/b.py", line)),
    )
    assert stacks.path(found[1]) == [main(10), leaf(21)]
    assert stacks.path(found[2]) == [CUT, main(11), leaf(20)]
    # Of the first nothing was told, and a frame's code is missing in the last: no part of a stack stands for the whole.
    assert found[[0, 3]].tolist() == [-1, -1]


WHOLE: list[ToldCode | ToldStack] = [
    ToldCode(1, "/a.py", "main"),
    ToldStack(5, ((1, 0), (1, 1))),
    ToldCode(2, "/größe.py", "λ"),
    ToldStack(6, ((2, 0),)),
]
BYTES = b"".join(record.record() for record in WHOLE)
ENDS = [sum(len(record.record()) for record in WHOLE[:n]) for n in range(len(WHOLE) + 1)]


@given(st.integers(0, len(BYTES)))
def test_a_file_cut_anywhere_gives_its_whole_records(size: int) -> None:
    words = read(BYTES[:size])
    whole = WHOLE[: sum(end <= size for end in ENDS) - 1]
    assert set(words.codes) == {r.key for r in whole if isinstance(r, ToldCode)}
    assert set(words.stacks) == {r.number for r in whole if isinstance(r, ToldStack)}
    # Less than the kind of a record is nothing yet.
    assert words.unsound == (size - max(end for end in ENDS if end <= size) >= 4)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(BYTES) - 1), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4))
def test_any_damage_gives_a_part_and_never_an_error(damage: list[tuple[int, bytes]]) -> None:
    data = bytearray(BYTES)
    for at, patch in damage:
        data[at : at + len(patch)] = patch
    words = read(bytes(data[: len(BYTES)]))
    first = min(at for at, _ in damage)
    for record, end in zip(WHOLE, ENDS[1:], strict=True):
        if end <= first:  # what stands before the damage; a damaged record may take a sound one's number
            assert (record.key in words.codes) if isinstance(record, ToldCode) else (record.number in words.stacks)
    numbers = np.array(list(words.stacks), np.uint64)
    stacks = StackTable()
    assert len(stack_ids(words, numbers, stacks)) == len(numbers)
    stacks.to_arrow()


@settings(max_examples=200)
@given(st.binary(max_size=6000), st.sampled_from([b"", b"\1\0\0\0", b"\2\0\0\0"]))
def test_rubbish_is_no_error(data: bytes, head: bytes) -> None:
    words = read(head + data)
    stack_ids(words, np.array(list(words.stacks), np.uint64), StackTable())


@pytest.mark.parametrize("depth", [3, 257, 2**31, 2**32 - 1])
def test_a_depth_beyond_the_file_or_the_format_ends_the_reading(depth: int) -> None:
    tail = bytes(24 * 300) if depth == 257 else b""
    words = read(WHOLE[0].record() + ToldStack(5, ((1, 0), (1, 1))).record(depth) + tail)
    assert set(words.codes) == {1}
    assert not words.stacks
    assert words.unsound == 1


@pytest.mark.parametrize("place", ["file", "name", "lines"])
@pytest.mark.parametrize("length", [1025, 8193, 2**32 - 1])
def test_a_length_beyond_the_format_ends_the_reading(place: str, length: int) -> None:
    at = {"file": 20, "name": 28, "lines": 36}[place]
    record = bytearray(ToldCode(2, "/b.py", "n").record())
    record[at : at + 4] = struct.pack("<I", length)
    words = read(WHOLE[0].record() + bytes(record) + bytes(10_000 if length > 1025 or place != "lines" else 0))
    assert set(words.codes) == {1}
    assert words.unsound == 1


def test_a_stack_as_deep_as_the_program_reads_comes_back() -> None:
    frames = tuple((1, at) for at in range(256))
    words = read(ToldStack(9, frames, cut=1).record())
    assert words.stacks[9] == (list(frames), True)


# The structures, as the compiler lays them out ------------------------------------------------------------------------


def compiled(folder: Path, prelude: str, expressions: list[str]) -> list[int]:
    """What a C compiler makes of each expression."""
    source = folder / "layout.c"
    prints = "".join(f'printf("%zu\\n", (size_t)({expression}));' for expression in expressions)
    source.write_text(f"#include <stddef.h>\n#include <stdio.h>\n{prelude}\nint main(void) {{ {prints} return 0; }}\n")
    subprocess.run(["gcc", "-o", folder / "layout", source], check=True)
    printed = subprocess.run([folder / "layout"], check=True, capture_output=True, text=True).stdout
    return [int(line) for line in printed.split()]


HEADER = probes.path("bpf", "python.h")
INCLUDE = f'#include "{HEADER}"'


def test_records_are_those_of_the_header(tmp_path: Path) -> None:
    expected = {
        "sizeof(struct look)": LOOK.itemsize,
        **{f"offsetof(struct look, {name})": LOOK.fields[name][1] for name in LOOK.names or () if LOOK.fields},
        "AT_TICK": kernelfile.AT_TICK,
        "HOLDS_GIL": kernelfile.HOLDS_GIL,
        "UNREAD": kernelfile.UNREAD,
        "ENDED": kernelfile.ENDED,
        "FAILED": kernelfile.FAILED,
        "STACK": kernelfile.STACK,
        "CODE": kernelfile.CODE,
        "LOST_LOOKS": 0,  # in the order in which Kernel reads the counters
        "LOST_WORDS": 1,
        "SPENT_NS": 2,
        "LOOKS": 3,
        "OWNED_BY_INTERPRETER": 3,
    }
    assert compiled(tmp_path, INCLUDE, list(expected)) == list(expected.values())


def test_words_are_laid_out_as_this_tests_writer_does(tmp_path: Path) -> None:
    code, stack = ToldCode(2**64 - 1, "f", "n", 7, TABLE).record(), ToldStack(2**64 - 1, ((3, 4),), cut=1).record()
    numbers = ["first_line", "file_bytes", "file_kind", "name_bytes", "name_kind", "lines_bytes", "lines_whole", "pad"]
    expected = {
        "offsetof(struct stack, frames) + sizeof(struct frame)": len(stack),
        "offsetof(struct stack, id)": stack.index(b"\xff" * 8),
        "offsetof(struct stack, depth)": 16,
        "offsetof(struct stack, cut)": 20,
        "sizeof(((struct stack *)0)->frames) / sizeof(struct frame)": 256,
        "offsetof(struct frame, key)": 8,
        "offsetof(struct frame, instruction)": 16,
        "offsetof(struct code, lines)": len(code) - len(TABLE),
        "offsetof(struct code, key)": code.index(b"\xff" * 8),
        **{f"offsetof(struct code, {name})": 16 + 4 * index for index, name in enumerate(numbers)},
        "offsetof(struct code, file)": 48,
        "offsetof(struct code, name)": 48 + TEXT_BYTES,
        "LINES": 8192,
        "TEXT": HALF,
    }
    assert compiled(tmp_path, INCLUDE, list(expected)) == list(expected.values())


def test_a_layout_packs_into_the_headers_struct_process(tmp_path: Path) -> None:
    names = [field.name for field in fields(Layout)]
    values = {name: 1000 + index for index, name in enumerate(names)}
    packed = Interpreter(77, 11, 22, Layout(**values)).packed(33)
    offsets = compiled(
        tmp_path,
        INCLUDE,
        [
            "sizeof(struct process)",
            *(f"offsetof(struct process, {n})" for n in ("interpreter", "gil", "period_ns", "tgid")),
            *(f"offsetof(struct process, {n})" for n in names),
        ],
    )
    assert offsets[0] == len(packed) == PROCESS_BYTES
    assert [struct.unpack_from("<Q", packed, at)[0] for at in offsets[1:4]] == [11, 22, 33]
    assert struct.unpack_from("<I", packed, offsets[4])[0] == 77
    assert dict(zip(names, (struct.unpack_from("<I", packed, at)[0] for at in offsets[5:]), strict=True)) == values


def test_a_thread_is_what_the_program_declares(tmp_path: Path) -> None:
    """struct thread stands in the program itself: no other one is told it, but its map's values are read."""
    text = (HEADER.parent / "python.bpf.c").read_text()
    declared = re.search(r"struct thread \{.*?\n\};", text, re.DOTALL)
    assert declared is not None
    prelude = "typedef unsigned long long u64; typedef unsigned u32;\n" + declared[0]
    names = ("on", "ran", "state", "look", "due", "runs", "asked", "alone", "inner", "unseen", "read")
    size, *offsets = compiled(
        tmp_path, prelude, ["sizeof(struct thread)", *(f"offsetof(struct thread, {n})" for n in names)]
    )
    packed = kernel._THREAD.pack(*range(1, 12))
    assert size == len(packed)
    widths = [*(8 for _ in range(5)), *(4 for _ in range(6))]
    assert [int.from_bytes(packed[at : at + w], "little") for at, w in zip(offsets, widths, strict=True)] == [
        *range(1, 12)
    ]
    window = re.search(r"bpf_probe_read_user\(s->raw, (\d+), \(void \*\)s->at\)", text)
    assert window is not None
    assert int(window[1]) == WINDOW == interpreter.WINDOW

"""The probe's Python stack reader against the interpreter's own view, and the spool reader against damage."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope import probes
from perfscope.collectors.cuda import spool as records
from perfscope.errors import InputError

PROGRAM = """
import asyncio, ctypes, json, sys, threading, traceback
library, directory = ctypes.CDLL(sys.argv[1]), sys.argv[2]
why = ctypes.c_char_p()
assert library.spool_open(directory.encode(), ctypes.c_uint64(1 << 30)) == 0
library.pystack_open.restype = ctypes.c_uint32
assert library.pystack_open(ctypes.byref(why)) == sys.hexversion, why.value
seen = []
def leaf():
    ident = library.pystack_id(); seen.append((ident, [tuple(f)[:3] for f in traceback.extract_stack()]))
    return ident
def deeper(depth): return leaf() if depth == 0 else deeper(depth - 1)
class Service:
    def method(self):
        return (lambda:
            leaf())()
    def __call__(self): return [leaf() for _ in range(2)]
def generator():
    yield leaf()
    yield leaf()
async def coroutine(): return leaf()
def ünï(): return leaf()
leaf(); deeper(5); Service().method(); Service()(); list(generator()); ünï(); sorted([2, 1], key=lambda x: leaf())
asyncio.run(coroutine())
thread = threading.Thread(target=deeper, args=(3,)); thread.start(); thread.join()
exec(compile("def 漢字():\\n\\n  return leaf()\\n漢字()", "<мод>", "exec"), {"leaf": leaf})
for number in range(200):  # code objects that come and go at reused addresses
    exec(compile("\\n" * number + "leaf()", f"made-{number}.py", "exec"), {"leaf": leaf})
for _ in range(3): leaf()
print(json.dumps([(ident, [[f[0], f[2], f[1]] for f in frames]) for ident, frames in seen]))
"""
INTERPRETERS = sorted(
    {sys.executable}
    | {p for version in ("11", "12", "13") if "shims" not in (p := shutil.which(f"python3.{version}") or "shims")}
    | {str(p) for p in Path.home().glob(".pyenv/versions/3.1[1-3].*/bin/python3")}
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("probe") / "pystack.so"
    sources = [str(probes.path("cuda", name)) for name in ("pystack.c", "spool.c")]
    command = ["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-o", str(out), *sources, "-lpthread"]
    subprocess.run(command, check=True)
    return out


@pytest.mark.parametrize("python", INTERPRETERS)
def test_stacks_are_those_the_interpreter_shows(python: str, library: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run(
        [python, str(program), str(library), str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    (file,) = tmp_path.glob("*.spool")
    spool = records.read(file)
    assert (spool.lost, spool.damaged, spool.complete) == (0, 0, False)
    seen = json.loads(done.stdout)
    assert len(seen) > 200
    for ident, expected in seen:
        frames = [(spool.codes[code], instruction) for code, instruction in reversed(spool.stacks[ident])]
        found = [[c.file, c.name.rpartition(".")[2], c.line(i)] for c, i in frames]
        assert found == expected


def test_a_thread_without_python_has_no_stack(library: Path, tmp_path: Path) -> None:
    code = (
        "import ctypes, sys; l = ctypes.CDLL(sys.argv[1]);"
        "l.spool_open(sys.argv[2].encode(), ctypes.c_uint64(1 << 20));"
        "w = ctypes.c_char_p(); l.pystack_open(ctypes.byref(w)); p = ctypes.CDLL(None); t = ctypes.c_ulong();"
        "p.pthread_create(ctypes.byref(t), None, l.pystack_id, None); r = ctypes.c_void_p();"
        "p.pthread_join(t, ctypes.byref(r)); print((r.value or 0) & 0xffffffff)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(library), str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "0\n"


@pytest.fixture(scope="module")
def sound(library: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A spool with stacks, and some records of every fixed kind put behind them."""
    directory = tmp_path_factory.mktemp("sound")
    program = directory / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, str(program), str(library), str(directory)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    data = bytearray(next(directory.glob("*.spool")).read_bytes())
    used_at = records.HEADER_BYTES + 8
    used = struct.unpack_from("<I", data, used_at)[0]
    for kind, dtype in records.FIXED.items():
        record = records.RECORD.pack(kind, 0, dtype.itemsize) + bytes(range(1, dtype.itemsize - 7))
        at = records.HEADER_BYTES + records.CHUNK.size + used
        data[at : at + len(record)] = record
        used += len(record)
    struct.pack_into("<I", data, used_at, used)
    return bytes(data)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("damage")


def test_every_kind_of_record_is_read(sound: bytes, place: Path) -> None:
    file = place / "sound.spool"
    file.write_bytes(sound)
    spool = records.read(file)
    assert {kind: len(rows) for kind, rows in spool.fixed.items()} == dict.fromkeys(records.FIXED, 1)
    assert spool.damaged == 0


@settings(max_examples=150, deadline=None)
@given(
    cut=st.one_of(st.none(), st.integers(0, 70_000)),
    changes=st.lists(st.tuples(st.integers(0, 69_000), st.integers(0, 255)), max_size=12),
)
def test_damage_is_an_error_or_counted(
    sound: bytes, place: Path, cut: int | None, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(sound if cut is None else sound[:cut])
    for at, value in changes:
        if at < len(data):
            data[at] = value
    file = place / "damaged.spool"
    file.write_bytes(data)
    try:
        spool = records.read(file)
    except InputError as error:
        assert str(file) in str(error)
        return
    assert all(
        len(rows) <= len(data) // dtype.itemsize
        for rows, dtype in zip(spool.fixed.values(), records.FIXED.values(), strict=True)
    )
    for path in spool.stacks.values():
        for code, instruction in path:
            if code in spool.codes:
                spool.codes[code].line(instruction)


def test_a_full_disk_costs_records_not_the_program(library: Path, tmp_path: Path) -> None:
    """A limit of one chunk: the program goes on, and what found no room is counted."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("1 << 30", "65536").replace("range(200)", "range(3000)"), encoding="utf-8")
    command = [sys.executable, str(program), str(library), str(tmp_path)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    spool = records.read(next(tmp_path.glob("*.spool")))
    assert spool.lost > 1000
    assert spool.damaged == 0

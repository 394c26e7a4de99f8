"""Finding a process's interpreter, and the stacks of its sleeping threads read from outside, against its own words."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.collectors.pycode import Code
from perfscope.collectors.pyspy import interpreter, remote
from perfscope.collectors.pyspy.interpreter import Interpreter, Layout, Memory, Unreadable, find, opened

PATIENCE_S = 60.0


def pythons() -> list[str]:
    """The running interpreter, and what else is installed beside it of those whose layout is known."""
    found = [sys.executable]
    for minor in range(interpreter.READS[0][1], interpreter.READS[1][1] + 1):
        here = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3.{minor}"))
        found += map(str, here[-1:])
    return found


PYTHONS = pythons()
each_python = pytest.mark.parametrize("python", PYTHONS, ids=lambda path: Path(path).name)

PROGRAM = """
import json, select, sys, threading

def report():
    frames = sys._current_frames()
    told = {}
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            frame, path = frames[thread.ident], []
            while frame:
                code = frame.f_code
                path.append([code.co_qualname, code.co_filename, frame.f_lineno])
                frame = frame.f_back
            told[thread.native_id] = path
    print(json.dumps([threading.get_native_id(), told]), flush=True)

forever, lock = threading.Event(), threading.Lock()
lock.acquire()

class Größe:
    def warte(self):
        with lock:
            pass

def down(n):
    if n:
        return down(n - 1)
    forever.wait()

def generator():
    yield (
        1,
        forever.wait(),
    )

def λ_wait():
    select.select([], [], [])

threads = [
    lambda: Größe().warte(),
    lambda: down(300),
    lambda: [
        x for x in generator()
    ],
    λ_wait,
    lambda: max([1, 2], key=lambda _: forever.wait()),
]
for target in threads:
    threading.Thread(target=target, daemon=True).start()
for line in sys.stdin:
    if line == "spin\\n":
        print(json.dumps("spins"), flush=True)
        while True:
            pass
    report()
"""


class Child:
    """A program with five threads that wait for ever, and that tells of them when it is asked."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def ask(self, what: str = "report") -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def settled(self, read: Callable[[], Any]) -> tuple[Any, Any]:
        """(what it tells, what is read from outside) while none of its threads moved on."""
        end = time.monotonic() + PATIENCE_S
        before = self.ask()
        while time.monotonic() < end:
            found = read()
            after = self.ask()
            if before == after and len(after[1]) == 5:
                return after, found
            before = after
        raise AssertionError("its threads never came to rest")


@contextmanager
def running(command: list[str | Path]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUTF8": "1"}
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def child(python: str, folder: Path) -> Iterator[Child]:
    script = folder / "größe.py"
    script.write_text(PROGRAM, encoding="utf-8")
    with running([python, script]) as process:
        yield Child(process)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Compiles a C program under the name given."""

    def build(name: str, source: str) -> Path:
        folder = tmp_path_factory.mktemp("c")
        (folder / "a.c").write_text(source)
        subprocess.run(["gcc", "-rdynamic", "-o", folder / name, folder / "a.c"], check=True)
        return folder / name

    return build


# Real interpreters ---------------------------------------------------------------------------------------------------


@each_python
def test_the_threads_found_are_those_of_the_process(python: str, tmp_path: Path) -> None:
    with child(python, tmp_path) as program:

        def states() -> list[int]:
            found = find(program.pid)
            with opened(program.pid) as memory:
                return [tid for tid, _ in remote.states(memory, found)]

        (main, workers), tids = program.settled(states)
        assert main == program.pid
        assert sorted(tids) == sorted([main, *map(int, workers)])


@each_python
def test_the_gil_found_is_held_by_the_thread_that_runs(python: str, tmp_path: Path) -> None:
    with child(python, tmp_path) as program:
        program.settled(lambda: None)
        assert program.ask("spin") == "spins"
        found = find(program.pid)
        assert found.gil > 0
        with opened(program.pid) as memory:
            by_state = {state: tid for tid, state in remote.states(memory, found)}
            end = time.monotonic() + PATIENCE_S
            while memory.word(found.gil + found.layout.gil_locked, 4) != 1:  # it had to let go of it to write
                assert time.monotonic() < end
            assert by_state[memory.word(found.gil + found.layout.gil_holder)] == program.pid


@each_python
def test_sleeping_threads_have_the_stacks_that_they_themselves_see(python: str, tmp_path: Path) -> None:
    with child(python, tmp_path) as program:
        program.ask()
        found = find(program.pid)
        since = time.monotonic_ns()

        def asleep() -> list[remote.Asleep]:
            tids = {int(task.name): int(task.name) for task in Path(f"/proc/{program.pid}/task").iterdir()}
            return remote.asleep(found, tids, lambda tid: since)

        (main, told), threads = program.settled(asleep)
        read = {t.tid: [[code.name, code.file, code.line(at)] for code, at in t.frames] for t in threads}
        assert all(t.since_ns == since < t.time_ns < time.monotonic_ns() for t in threads)
        del read[main]  # it runs to tell
        assert read == {int(tid): path[: remote.MOST_FRAMES] for tid, path in told.items()}
        assert {t.tid for t in threads if t.cut} == {
            int(tid) for tid, path in told.items() if len(path) > len(read[int(tid)])
        }
        names = {name for path in read.values() for name, *_ in path}
        assert {"Größe.warte", "λ_wait", "down", "generator", "<lambda>"} <= names


def test_threads_on_a_cpu_unknown_or_back_meanwhile_are_left_out(tmp_path: Path) -> None:
    with child(sys.executable, tmp_path) as program:
        (_, told), _ = program.settled(lambda: None)
        found = find(program.pid)
        unknown, runs, back, *rest = map(int, told)
        looks: dict[int, int] = {}

        def off_since(tid: int) -> int | None:
            looks[tid] = looks.get(tid, 0) + 1
            return None if tid == runs else looks[tid] if tid == back else 5

        inner = {tid: 10_000_000 + tid if tid == rest[0] else tid for tid in map(int, told) if tid != unknown}
        threads = remote.asleep(found, inner, off_since)
        assert sorted(t.tid for t in threads) == sorted([10_000_000 + rest[0], rest[1]])
        assert all(t.since_ns == 5 for t in threads)


def test_a_process_that_ended_has_no_sleeping_threads(tmp_path: Path) -> None:
    with child(sys.executable, tmp_path) as program:
        program.ask()
        found = find(program.pid)
    assert remote.asleep(found, {found.pid: found.pid}, lambda tid: 0) == []


# What is no readable interpreter -------------------------------------------------------------------------------------


def unreadable(pid: int) -> Unreadable:
    with pytest.raises(Unreadable) as caught:
        find(pid)
    return caught.value


def test_another_program_may_become_python_later() -> None:
    with running(["sleep", "1000"]) as process:
        error = unreadable(process.pid)
    assert error.again
    assert "no CPython from 3.11 to 3.14" in str(error)


def test_a_program_called_python_that_is_none(compiler: Callable[[str, str], Path]) -> None:
    path = compiler(
        "python3.11", '#include <stdio.h>\nint main(void) { puts("1"); fflush(stdout); getchar(); return 0; }'
    )
    with running([path]) as process:
        assert process.stdout is not None
        process.stdout.readline()
        error = unreadable(process.pid)
    assert error.again
    assert "no CPython" in str(error)


def test_a_process_that_just_ended() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert unreadable(process.pid).again  # still in the table of processes
    process.wait()
    assert unreadable(process.pid).again


# Tables of offsets ---------------------------------------------------------------------------------------------------

# The fields of _Py_DebugOffsets in the order of CPython's headers: pycore_runtime.h of 3.13, pycore_debug_offsets.h of
# 3.14. Each is a 64-bit word; the first is "xdebugpy".
TABLES = {
    13: """
        cookie version free_threaded
        runtime_state: size finalizing interpreters_head
        interpreter_state: size id next threads_head gc imports_modules sysdict builtins ceval_gil gil_runtime_state
            gil_runtime_state_enabled gil_runtime_state_locked gil_runtime_state_holder
        thread_state: size prev next interp current_frame thread_id native_thread_id datastack_chunk status
        interpreter_frame: size previous executable instr_ptr localsplus owner
        code_object: size filename name qualname linetable firstlineno argcount localsplusnames localspluskinds
            co_code_adaptive
        pyobject: size ob_type
        type_object: size tp_name tp_repr tp_flags
        tuple_object: size ob_item ob_size
        list_object: size ob_item ob_size
        dict_object: size ma_keys ma_values
        float_object: size ob_fval
        long_object: size lv_tag ob_digit
        bytes_object: size ob_size ob_sval
        unicode_object: size state length asciiobject_size
        gc: size collecting
    """,
    14: """
        cookie version free_threaded
        runtime_state: size finalizing interpreters_head
        interpreter_state: size id next threads_head threads_main gc imports_modules sysdict builtins ceval_gil
            gil_runtime_state gil_runtime_state_enabled gil_runtime_state_locked gil_runtime_state_holder
            code_object_generation tlbc_generation
        thread_state: size prev next interp current_frame thread_id native_thread_id datastack_chunk status
        interpreter_frame: size previous executable instr_ptr localsplus owner stackpointer tlbc_index
        code_object: size filename name qualname linetable firstlineno argcount localsplusnames localspluskinds
            co_code_adaptive co_tlbc
        pyobject: size ob_type
        type_object: size tp_name tp_repr tp_flags
        tuple_object: size ob_item ob_size
        list_object: size ob_item ob_size
        set_object: size used table mask
        dict_object: size ma_keys ma_values
        float_object: size ob_fval
        long_object: size lv_tag ob_digit
        bytes_object: size ob_size ob_sval
        unicode_object: size state length asciiobject_size
        gc: size collecting
        gen_object: size gi_name gi_iframe gi_frame_state
        llist_node: size next prev
    """,
}
COOKIE = int.from_bytes(b"xdebugpy", "little")


def names(minor: int) -> list[str]:
    """ "group.field" of each word."""
    group, found = "", []
    for word in TABLES[minor].split():
        if word.endswith(":"):
            group = word[:-1] + "."
        else:
            found.append(group + word)
    return found


def table(minor: int, **changed: int) -> bytes:
    """A sound table, each word of which is another number: what is read of a frame and a code object lies close by."""
    order = names(minor)
    words = {name: 8 * 1000 + 8 * index for index, name in enumerate(order)}
    words |= {"cookie": COOKIE, "free_threaded": 0, "runtime_state.interpreters_head": 1024}
    words |= {"interpreter_state.threads_head": 24, "interpreter_state.ceval_gil": 40}
    frame = [name for name in order if name.startswith("interpreter_frame.")]
    code = [name for name in order if name.startswith("code_object.")]
    words |= {name: 4 * index for index, name in enumerate(frame)} | {name: 64 + 4 * i for i, name in enumerate(code)}
    words |= {name.replace("__", "."): value for name, value in changed.items()}
    return struct.pack(f"<{len(order)}Q", *(words[name] for name in order))


RUNTIME, INTERPRETER, GIL, VERSION = 0x10000, 0x20000, 0x30000, 0x40000


class Made(Memory):
    """Memory with a table of offsets, an interpreter with a thread, and a GIL; nothing elsewhere."""

    def __init__(self, minor: int, offsets: bytes) -> None:
        self.pieces = {RUNTIME: bytearray(2048), INTERPRETER: bytearray(64), GIL: bytearray(64), VERSION: bytearray(4)}
        self.pieces[RUNTIME][: len(offsets)] = offsets
        self.put(RUNTIME + 1024, INTERPRETER)
        self.put(INTERPRETER + 24, 0x50000)
        self.put(INTERPRETER + 40, GIL)
        self.put(VERSION, 3 << 24 | minor << 16, 4)

    def put(self, address: int, value: int, size: int = 8) -> None:
        base = address & ~0xFFFF
        self.pieces[base][address - base : address - base + size] = value.to_bytes(size, "little")

    def read(self, address: int, size: int) -> bytes:
        piece = self.pieces.get(address & ~0xFFFF, bytearray())
        at = address & 0xFFFF
        if at + size > len(piece):
            raise OSError("nothing there")
        return bytes(piece[at : at + size])


def found_in(memory: Memory) -> Interpreter:
    return interpreter._find(77, memory, RUNTIME, VERSION)


@pytest.mark.parametrize("minor", [13, 14])
def test_a_table_of_offsets_is_read_by_its_fields_names(minor: int) -> None:
    found = found_in(Made(minor, table(minor)))
    at = dict(zip(names(minor), struct.unpack(f"<{len(names(minor))}Q", table(minor)), strict=True))
    interp, thread, frame, code = "interpreter_state.", "thread_state.", "interpreter_frame.", "code_object."
    text, data = "unicode_object.", "bytes_object."
    assert found == Interpreter(
        77,
        INTERPRETER,
        GIL,
        Layout(
            threads_head=24,
            state_next=at[thread + "next"],
            state_tid=at[thread + "native_thread_id"],
            state_frame=at[thread + "current_frame"],
            through_cframe=0,
            frame_code=at[frame + "executable"],
            frame_instruction=at[frame + "instr_ptr"],
            frame_previous=at[frame + "previous"],
            frame_owner=at[frame + "owner"],
            code_first_line=at[code + "firstlineno"],
            code_file=at[code + "filename"],
            code_name=at[code + "qualname"],
            code_lines=at[code + "linetable"],
            code_bytes=at[code + "co_code_adaptive"],
            text_state=at[text + "state"],
            # Of 3.14 on the first 16 bits of a str's state say how it is interned; before, two bits did.
            text_shift={13: 2, 14: 16}[minor],
            text_length=at[text + "length"],
            text_ascii=at[text + "asciiobject_size"],
            text_compact=at[text + "asciiobject_size"] + 16,  # PyCompactUnicodeObject: and a size, and a pointer
            bytes_size=at[data + "ob_size"],
            bytes_data=at[data + "ob_sval"],
            gil_holder=at[interp + "gil_runtime_state_holder"] - at[interp + "gil_runtime_state"],
            gil_locked=at[interp + "gil_runtime_state_locked"] - at[interp + "gil_runtime_state"],
        ),
    )


ABSURD = {
    "interpreter_frame__owner": 89,  # its eight bytes wouldn't lie within what is read
    "interpreter_frame__previous": 2**64 - 8,
    "code_object__qualname": 56,
    "code_object__linetable": 64 + 89,
    "thread_state__native_thread_id": 1 << 20,
    "unicode_object__asciiobject_size": 2**63,
    "bytes_object__ob_sval": 2**32,
    "interpreter_state__gil_runtime_state_locked": 0,  # before the GIL's own state
}


@pytest.mark.parametrize("minor", [13, 14])
@pytest.mark.parametrize("field", ABSURD)
def test_absurd_offsets_are_not_read(minor: int, field: str) -> None:
    with pytest.raises(Unreadable, match="has a layout of its own") as caught:
        found_in(Made(minor, table(minor, **{field: ABSURD[field]})))
    assert not caught.value.again


@pytest.mark.parametrize("minor", [13, 14])
def test_free_threaded_python_is_not_read(minor: int) -> None:
    with pytest.raises(Unreadable, match="free-threaded") as caught:
        found_in(Made(minor, table(minor, free_threaded=1)))
    assert not caught.value.again


@pytest.mark.parametrize("minor", [13, 14])
def test_a_table_that_is_not_filled_in_yet_may_be_later(minor: int) -> None:
    with pytest.raises(Unreadable, match="isn't ready") as caught:
        found_in(Made(minor, b""))
    assert caught.value.again


@pytest.mark.parametrize("minor", [13, 14])
@pytest.mark.parametrize("address", [RUNTIME + 1024, INTERPRETER + 24, INTERPRETER + 40])
def test_an_interpreter_without_threads_or_a_gil_may_have_them_later(minor: int, address: int) -> None:
    memory = Made(minor, table(minor))
    memory.put(address, 0)
    with pytest.raises(Unreadable, match="isn't ready") as caught:
        found_in(memory)
    assert caught.value.again


@pytest.mark.parametrize("version", [(2, 7), (3, 10), (3, 15), (4, 11)])
def test_other_versions_are_not_read(version: tuple[int, int]) -> None:
    memory = Made(13, table(13))
    memory.put(VERSION, version[0] << 24 | version[1] << 16, 4)
    with pytest.raises(Unreadable, match=rf"Python {version[0]}\.{version[1]} isn't known") as caught:
        found_in(memory)
    assert not caught.value.again


@given(st.sampled_from([11, 12, 13, 14]), st.binary(max_size=648), st.booleans(), st.randoms(use_true_random=False))
def test_whatever_a_table_holds_it_is_read_soundly_or_not_at_all(
    minor: int, data: bytes, fill: bool, random: Any
) -> None:
    offsets = bytearray(table(minor) if minor > 12 else bytes(648))
    at = random.randrange(len(offsets))
    offsets[at : at + len(data)] = data[: len(offsets) - at]
    try:
        found = found_in(Made(minor, bytes(offsets)))
    except (Unreadable, OSError):
        return
    assert found.layout.sound()
    assert len(found.packed(1)) == interpreter.PROCESS_BYTES


CLAIMS = """
#include <stdio.h>
#include <string.h>
unsigned int Py_Version = 0x030d0000;
unsigned long long _PyRuntime[81] = {1};
int main(void)
{
    fread(&Py_Version, 4, 1, stdin);
    fread(_PyRuntime, 8, 81, stdin);
    puts("1");
    fflush(stdout);
    getchar();
    return 0;
}
"""


def test_a_program_that_claims_to_be_python_is_refused_by_what_it_holds(compiler: Callable[[str, str], Path]) -> None:
    path = compiler("python3.13", CLAIMS)
    sound = table(13).ljust(648, b"\0")[:648]
    for version, runtime, why, again in (
        (0x030D0000, bytes(648), "isn't ready", True),
        (0x030D0000, table(13, free_threaded=1)[:648].ljust(648, b"\0"), "free-threaded", False),
        (0x030D0000, table(13, runtime_state__interpreters_head=2**63)[:648].ljust(648, b"\0"), "can't be read", True),
        (0x030A0000, sound, "Python 3.10 isn't known", False),
        (0x030B0000, bytes(648), "isn't ready", True),
        (0x030C0000, b"\xff" * 648, "can't be read", True),
    ):
        with subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(struct.pack("<I", version) + runtime)
            process.stdout.readline()
            error = unreadable(process.pid)
            process.kill()
        assert why in str(error)
        assert error.again is again


# Stacks that changed while they were read ----------------------------------------------------------------------------

FRAMES = Layout(
    threads_head=0, state_next=8, state_tid=16, state_frame=24, frame_previous=0, frame_code=8, frame_instruction=16,
    frame_owner=24, code_first_line=64, code_file=72, code_name=80, code_lines=88, code_bytes=100, text_ascii=40,
    text_compact=56,
)  # fmt: skip


class Ring(Made):
    """A thread whose frame was called by itself."""

    def __init__(self, *, owner: int) -> None:
        self.pieces = {0x10000: bytearray(256)}
        self.put(0x10000 + 24, 0x10040)
        self.put(0x10040, 0x10040)
        self.put(0x10048, 0x10000)
        self.put(0x10058, owner, 1)


@pytest.mark.parametrize("owner", [0, 3])
def test_frames_in_a_ring_come_to_an_end(owner: int) -> None:
    known = {0x10000: Code("/a.py", "f", 1, b"")}
    frames = remote.stack(Ring(owner=owner), FRAMES, 0x10000, known)
    assert len(frames) == (0 if owner else remote.MOST_FRAMES + 1)


def test_threads_in_a_ring_come_to_an_end() -> None:
    memory = Ring(owner=0)
    memory.put(0x10000, 0x10000)
    memory.put(0x10008, 0x10000)
    states = list(remote.states(memory, Interpreter(1, 0x10000, 0, FRAMES)))
    assert len(states) == remote.MOST_THREADS

"""libbpf.so through ctypes: load an object, attach its programs, reach its maps. No compiler and no headers needed."""

from __future__ import annotations

import ctypes as c
import errno
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from perfscope.collectors.ebpf import privilege
from perfscope.errors import CollectorError

_P = c.c_void_p
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "bpf_object__open_file": (_P, [c.c_char_p, _P]),
    "bpf_object__load": (c.c_int, [_P]),
    "bpf_object__close": (None, [_P]),
    "bpf_object__next_program": (_P, [_P, _P]),
    "bpf_object__find_program_by_name": (_P, [_P, c.c_char_p]),
    "bpf_program__name": (c.c_char_p, [_P]),
    "bpf_program__set_autoload": (c.c_int, [_P, c.c_bool]),
    "bpf_program__fd": (c.c_int, [_P]),
    "bpf_program__attach": (_P, [_P]),
    "bpf_program__attach_tracepoint_opts": (_P, [_P, c.c_char_p, c.c_char_p, _P]),
    "bpf_program__attach_perf_event": (_P, [_P, c.c_int]),
    "bpf_program__attach_kprobe": (_P, [_P, c.c_bool, c.c_char_p]),
    "bpf_link__destroy": (c.c_int, [_P]),
    "bpf_object__find_map_by_name": (_P, [_P, c.c_char_p]),
    "bpf_map__fd": (c.c_int, [_P]),
    "bpf_map__initial_value": (_P, [_P, c.POINTER(c.c_size_t)]),
    "bpf_map_update_elem": (c.c_int, [c.c_int, _P, _P, c.c_uint64]),
    "bpf_map_lookup_elem": (c.c_int, [c.c_int, _P, _P]),
    "bpf_map_delete_elem": (c.c_int, [c.c_int, _P]),
    "bpf_map_get_next_key": (c.c_int, [c.c_int, _P, _P]),
    "ring_buffer__new": (_P, [c.c_int, _P, _P, _P]),
    "ring_buffer__consume": (c.c_int, [_P]),
    "ring_buffer__free": (None, [_P]),
    "libbpf_set_print": (_P, [_P]),
    "libbpf_version_string": (c.c_char_p, []),
}
_PRINT = c.CFUNCTYPE(c.c_int, c.c_int, c.c_char_p, _P)
_log: list[str] = []


class _TracepointOptions(c.Structure):
    _fields_ = [("sz", c.c_size_t), ("bpf_cookie", c.c_uint64)]


def _print(level: int, text: bytes, arguments: int) -> int:
    if level == 0:  # LIBBPF_WARN; what the verifier says comes here too
        buffer = c.create_string_buffer(1 << 16)
        c.CDLL(None).vsnprintf(buffer, c.c_size_t(len(buffer)), text, _P(arguments))
        _log.append(buffer.value.decode(errors="replace").rstrip())
        del _log[:-40]
    return 0


_print_callback = _PRINT(_print)  # kept alive: the library calls it


@cache
def library() -> c.CDLL:
    """libbpf 1.x. Raises CollectorError if the host has none."""
    try:
        lib = c.CDLL("libbpf.so.1", use_errno=True)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise CollectorError(f"no usable libbpf.so.1: {error}", hint="apt install libbpf1") from None
    lib.libbpf_set_print(_print_callback)
    return lib


def version() -> str:
    """Such as "1.1"."""
    text: bytes = library().libbpf_version_string()
    return text.decode().lstrip("v")


def _fail(what: str, error: int) -> CollectorError:
    detail = "; ".join(line for line in _log if line)
    if len(detail) > 600:  # the verifier's log: its verdict is at the end
        detail = "..." + detail[-600:]
    hint = None
    if error == errno.EPERM:  # EACCES is how the verifier rejects a program
        hint, detail = privilege.HINT, ""  # libbpf's guesses, of kernel options and memory limits, mislead
    return CollectorError(f"{what}: {os.strerror(error)}" + (f" ({detail})" if detail else ""), hint=hint)


def missed_runs(program_fd: int) -> int:
    """How often the kernel skipped a program because it, or one that may not nest with it, ran on that CPU (5.12)."""
    for line in Path(f"/proc/self/fdinfo/{program_fd}").read_text().splitlines():
        if line.startswith("recursion_misses:"):
            return int(line.split()[1])
    return 0


class Map:
    """A BPF map, its keys and values as bytes."""

    def __init__(self, fd: int, key_size: int, value_size: int) -> None:
        self.fd, self.key_size, self.value_size = fd, key_size, value_size

    def add(self, key: bytes, value: bytes) -> bool:
        """Puts a new entry; False if the key is there already. Raises CollectorError if the map is full."""
        if library().bpf_map_update_elem(self.fd, key, value, 1) == 0:  # BPF_NOEXIST
            return True
        if (error := c.get_errno()) == errno.EEXIST:
            return False
        raise _fail("bpf_map_update_elem", error)

    def get(self, key: bytes) -> bytes | None:
        value = c.create_string_buffer(self.value_size)
        return value.raw if library().bpf_map_lookup_elem(self.fd, key, value) == 0 else None

    def delete(self, key: bytes) -> None:
        library().bpf_map_delete_elem(self.fd, key)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        following = c.create_string_buffer(self.key_size)
        key: bytes | None = None
        while library().bpf_map_get_next_key(self.fd, key, following) == 0:
            key = following.raw
            if (value := self.get(key)) is not None:
                yield key, value


class Object:
    """A loaded BPF object. Links and maps are file descriptors of this process: its death detaches everything."""

    def __init__(self, path: Path, programs: Iterable[str], constants: bytes = b"") -> None:
        """Loads only `programs`. constants: the bytes its .rodata begins with.

        Raises CollectorError with what libbpf or the verifier said.
        """
        lib = library()
        _log.clear()
        self._links: list[int] = []
        self._fds: list[int] = []
        self._object = lib.bpf_object__open_file(os.fsencode(path), None)
        if not self._object:
            raise _fail(f"{path}: can't be opened", c.get_errno())
        wanted = set(programs)
        program = lib.bpf_object__next_program(self._object, None)
        while program:
            name = lib.bpf_program__name(program).decode()
            lib.bpf_program__set_autoload(program, name in wanted)
            program = lib.bpf_object__next_program(self._object, program)
        if constants:
            size = c.c_size_t()
            rodata = lib.bpf_map__initial_value(self._find_map(".rodata"), c.byref(size))
            c.memmove(rodata, constants, min(len(constants), size.value))
        result = lib.bpf_object__load(self._object)
        if result:
            self.close()
            raise _fail(f"{path.name}: can't be loaded", -result)
        self._fds = [
            lib.bpf_program__fd(lib.bpf_object__find_program_by_name(self._object, name.encode())) for name in wanted
        ]

    def _find_map(self, name: str) -> int:
        found: int | None = library().bpf_object__find_map_by_name(self._object, name.encode())
        if not found:
            raise CollectorError(f"no map {name} in the BPF object")
        return found

    def map(self, name: str, key_size: int = 4, value_size: int = 8) -> Map:
        return Map(library().bpf_map__fd(self._find_map(name)), key_size, value_size)

    def counter(self, index: int, array: str = "lost") -> int:
        """Value at that index of an array of counters."""
        value = self.map(array).get(struct.pack("<I", index))
        return int.from_bytes(value, "little") if value else 0

    def missed_runs(self) -> int:
        """How often the kernel skipped a program."""
        return sum(missed_runs(fd) for fd in self._fds)

    def attach(self, program: str) -> None:
        self._link(program, lambda p: library().bpf_program__attach(p))

    def attach_event(self, program: str, descriptor: int) -> None:
        """To a perf event, whose descriptor is closed with the link."""
        self._link(program, lambda p: library().bpf_program__attach_perf_event(p, descriptor))

    def attach_function(self, program: str, function: str) -> None:
        """To the entry of a function of the kernel."""
        self._link(program, lambda p: library().bpf_program__attach_kprobe(p, False, function.encode()))

    def attach_tracepoint(self, program: str, category: str, event: str, cookie: int) -> None:
        options = _TracepointOptions(c.sizeof(_TracepointOptions), cookie)
        self._link(
            program,
            lambda p: library().bpf_program__attach_tracepoint_opts(
                p, category.encode(), event.encode(), c.byref(options)
            ),
        )

    def _link(self, program: str, attach: Callable[[int], int | None]) -> None:
        found = library().bpf_object__find_program_by_name(self._object, program.encode())
        link = attach(found) if found else None
        if not link:
            raise _fail(f"can't attach {program}", c.get_errno())
        self._links.append(link)

    def detach(self) -> None:
        """Takes all programs off their tracepoints; maps stay readable."""
        while self._links:
            library().bpf_link__destroy(self._links.pop())

    def close(self) -> None:
        self.detach()
        if self._object:
            library().bpf_object__close(self._object)
            self._object = None

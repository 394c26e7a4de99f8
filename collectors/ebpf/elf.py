"""The address of one exported symbol of an ELF file: the dynamic symbol table, which stripping leaves in place."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

SHT_DYNSYM, PT_LOAD, PF_X = 11, 1, 1
MAX_SYMBOLS, MAX_FILES = 1 << 20, 256
PAGE_MASK = mmap.PAGESIZE - 1


@dataclass(frozen=True)
class Symbol:
    """value: address as linked; code: (offset in the file, address as linked) of each executable segment."""

    value: int
    size: int
    code: tuple[tuple[int, int], ...]

    def range_at(self, address: int, offset: int) -> tuple[int, int] | None:
        """[start, end) where the file's code at `offset` is mapped at `address`; None if no code begins there."""
        for file_offset, linked in self.code:
            if file_offset & ~PAGE_MASK == offset:
                start = address - (linked & ~PAGE_MASK) + self.value
                return start, start + self.size
        return None


_found: dict[tuple[int, int, int, str], Symbol | None] = {}


def find_symbol(path: Path, name: str, inode: int | None = None) -> Symbol | None:
    """The symbol, or None if the file isn't a sound 64-bit little-endian ELF file that exports it.

    inode: what the file must have, if the name alone may mean another one.
    """
    try:
        stat = path.stat()
    except OSError:
        return None
    if inode is not None and stat.st_ino != inode:
        return None
    key = (stat.st_dev, stat.st_ino, stat.st_mtime_ns, name)
    if key not in _found:
        if len(_found) >= MAX_FILES:
            _found.clear()
        _found[key] = _find(path, name)
    return _found[key]


def _find(path: Path, name: str) -> Symbol | None:
    try:
        with path.open("rb") as file:
            header = file.read(64)
            if header[:6] != b"\x7fELF\x02\x01":
                return None
            phoff, shoff = struct.unpack_from("<QQ", header, 32)
            phsize, phnum, shsize, shnum = struct.unpack_from("<HHHH", header, 54)
            if phsize != 56 or shsize != 64:
                return None

            def read(offset: int, size: int) -> bytes:
                file.seek(offset)
                data = file.read(min(size, MAX_SYMBOLS * 64))
                if len(data) < size:
                    raise ValueError
                return data

            programs = [struct.unpack("<IIQQQQQQ", read(phoff + i * 56, 56)) for i in range(phnum)]
            code = tuple((p[2], p[3]) for p in programs if p[0] == PT_LOAD and p[1] & PF_X)
            sections = [struct.unpack("<IIQQQQIIQQ", read(shoff + i * 64, 64)) for i in range(shnum)]
            table = next((s for s in sections if s[1] == SHT_DYNSYM), None)
            if table is None or not code or table[6] >= len(sections):
                return None
            strings = read(sections[table[6]][4], sections[table[6]][5])
            wanted = name.encode() + b"\0"
            for entry in struct.iter_unpack("<IBBHQQ", read(table[4], table[5] // 24 * 24)):
                if strings[entry[0] : entry[0] + len(wanted)] == wanted and entry[4]:
                    return Symbol(entry[4], entry[5], code)
    except (OSError, ValueError, struct.error, OverflowError):
        return None
    return None

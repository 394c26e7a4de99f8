"""The directory in which a JVM keeps the chunks it is recording, held open so that it can be read after its end."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perfscope.collectors.jfr import jvm
from perfscope.collectors.jfr.chunk import Header, parse_header
from perfscope.collectors.jfr.folder import copy_out
from perfscope.collectors.jfr.varint import MalformedError
from perfscope.collectors.jfr.walk import MAGIC
from perfscope.procfs import Process

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass
class Repository:
    """fd: of the directory. parent_fd, name: where it lies."""

    fd: int
    parent_fd: int
    name: str

    @classmethod
    def of(cls, process: Process) -> Repository | None:
        """That of a JVM which is recording: where the chunk is that it has open."""
        prefix = jvm.root(process.pid)
        try:
            for entry in Path(f"/proc/{process.pid}/fd").iterdir():
                with suppress(OSError):
                    link = os.readlink(entry)  # noqa: PTH115 (a link of /proc)
                    if link.endswith(".jfr") and link.startswith("/"):
                        folder = Path(prefix + link).parent
                        return cls._open(os.open(folder.parent, _FOLDER & ~os.O_NOFOLLOW), folder.name)
        except OSError:
            pass
        return None

    @classmethod
    def left_by(cls, process: Process, beside_fd: int) -> Repository | None:
        """That of a JVM which is gone, looked for by its name in the directory that holds `beside_fd`.

        JFR names it after the time of day and the pid; it must belong to the owner of `beside_fd`.
        """
        pattern = re.compile(rf"\d{{4}}(_\d\d){{5}}_{process.ns_pid}")
        owner = os.fstat(beside_fd).st_uid
        parent_fd = os.open("..", _FOLDER, dir_fd=beside_fd)
        for name in sorted(os.listdir(parent_fd), reverse=True):  # noqa: PTH208 (a descriptor); the latest first
            with suppress(OSError):
                if pattern.fullmatch(name) and os.stat(name, dir_fd=parent_fd, follow_symlinks=False).st_uid == owner:
                    return cls._open(parent_fd, name)
        os.close(parent_fd)
        return None

    @classmethod
    def _open(cls, parent_fd: int, name: str) -> Repository:
        try:
            return cls(os.open(name, _FOLDER, dir_fd=parent_fd), parent_fd, name)
        except OSError:
            os.close(parent_fd)
            raise

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.parent_fd)

    def copy(self, since_ns: int, target: Path) -> tuple[bool, bool]:
        """Puts the chunks that began since then, by the wall clock, behind one another into `target`.

        `(whether there was one, whether there was no other)`.
        """
        found, earlier = self._chunks(since_ns)
        for name in found:
            copy_out(self.fd, name, target, append=True)
        return bool(found), not earlier

    def only_since(self, since_ns: int) -> bool:
        """Whether no chunk in it began before that time, by the wall clock."""
        return not self._chunks(since_ns)[1]

    def _chunks(self, since_ns: int) -> tuple[list[str], bool]:
        """(those that began since then, in order, whether there are earlier ones)."""
        found: list[tuple[int, str]] = []
        earlier = False
        for name in os.listdir(self.fd):  # noqa: PTH208 (a descriptor)
            header = self._header(name)
            if header is not None and header.start_ns >= since_ns:
                found.append((header.start_ticks, name))
            else:
                earlier = earlier or header is not None
        return [name for _, name in sorted(found)], earlier

    def remove(self) -> None:
        """Removes the chunks, and the directory if nothing else is in it."""
        for name in os.listdir(self.fd):  # noqa: PTH208 (a descriptor)
            if name.endswith(".jfr"):
                os.unlink(name, dir_fd=self.fd)
        with suppress(OSError):
            os.rmdir(self.name, dir_fd=self.parent_fd)

    def _header(self, name: str) -> Header | None:
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd)
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            head = file.read(128)
        try:
            return parse_header(head, 0, len(head)) if head.startswith(MAGIC) else None
        except MalformedError:
            return None

"""A directory of ours in the file system that a JVM sees, which may be another one than ours (containers)."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from perfscope.collectors.jfr import jvm
from perfscope.errors import CollectorError
from perfscope.procfs import Process

PLACES = ("/tmp", "/var/tmp", "/dev/shm")


class TargetFolder:
    """Made with the rights of the JVM's user alone. Held open, so its files can be read after the JVM is gone.

    inner: its path as the JVM sees it. outer: as we see it while the JVM lives.
    """

    def __init__(self, process: Process, name: str) -> None:
        """Raises CollectorError if no place is writable for us."""
        prefix = jvm.root(process.pid)
        owner = jvm.effective_ids(process.pid)
        reasons = []
        for place in PLACES:
            outer = Path(f"{prefix}{place}") / name
            try:
                outer.mkdir(mode=0o700)
                self.fd = os.open(outer, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError as error:
                reasons.append(f"{place}: {error.strerror}")
                continue
            if os.geteuid() == 0 and owner is not None:
                os.fchown(self.fd, *owner)
            self.inner, self.outer = f"{place}/{name}", outer
            return
        raise CollectorError(
            f"no directory of JVM {process.pid} can be written to ({', '.join(reasons)})",
            hint="run as the JVM's own user, or as root",
        )

    def write(self, name: str, content: str) -> str:
        """Puts a file there that the JVM can read; its path as the JVM sees it."""
        descriptor = os.open(
            name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=self.fd
        )
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, 0o644)
            file.write(content)
        return f"{self.inner}/{name}"

    def size(self, name: str) -> int:
        """Bytes of a regular file there; 0 if there is none."""
        try:
            info = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except OSError:
            return 0
        return info.st_size if stat.S_ISREG(info.st_mode) else 0

    def remove(self) -> None:
        """Removes it with all in it. Idempotent."""
        if self.fd < 0:
            return
        for name in os.listdir(self.fd):  # noqa: PTH208 (a descriptor)
            os.unlink(name, dir_fd=self.fd)
        place = self._place()
        with suppress(OSError):
            os.rmdir(self.outer.name, dir_fd=place)
        os.close(place)
        os.close(self.fd)
        self.fd = -1

    def remove_socket(self, name: str) -> None:
        """Removes a socket of the same owner that lies beside it, if it is in /tmp."""
        if self.fd < 0 or Path(self.inner).parent != Path("/tmp"):
            return
        place = self._place()
        with suppress(OSError):
            info = os.stat(name, dir_fd=place, follow_symlinks=False)
            if stat.S_ISSOCK(info.st_mode) and info.st_uid == os.fstat(self.fd).st_uid:
                os.unlink(name, dir_fd=place)
        os.close(place)

    def _place(self) -> int:
        """The directory that holds it, open: after the JVM's end its path through /proc leads nowhere."""
        return os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.fd)


def copy_out(folder_fd: int, name: str, target: Path, *, append: bool = False) -> None:
    """Copies a regular file of an open directory, without following links: the folder belongs to the JVM's user."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_fd)
    with os.fdopen(descriptor, "rb") as source, target.open("ab" if append else "wb") as out:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise CollectorError(f"{name} in the JVM's file system is no regular file")
        shutil.copyfileobj(source, out, 1 << 20)

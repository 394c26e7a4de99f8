"""What a backend is: something that follows threads and writes EVENT and BLOCK records into a directory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Thread:
    """A thread when it began to be followed. state: kernel task state (records.STATE_OF_STAT)."""

    tgid: int
    tid: int
    state: int
    wait: tuple[int, int] | None = None
    """(futex op, address) if it sat in futex(2) then."""


@dataclass
class Losses:
    """Records that didn't fit their buffer, threads born that couldn't be followed, and events the kernel skipped its
    programs at (missed). restored: switches that went unseen, known all the same from the scheduler's accounts."""

    events: int = 0
    blocks: int = 0
    untracked: int = 0
    raws: int = 0
    missed: int = 0
    restored: int = 0


class Backend(ABC):
    """Attached from the end of __init__ to `stop`. Raises CollectorError where it can't run.

    paired: it pairs in the kernel, and knows whose records were lost.
    drain_s: time between two calls of `drain`.
    """

    name: str
    paired: bool
    drain_s = 0.05

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.notes: list[str] = []
        self.broken: set[int] = set()
        """Threads found, after `finish`, to have missed a switch."""

    @property
    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def follow(self, thread: Thread) -> bool:
        """Begins to record a thread, and every thread and process it will start. False if it is followed already."""

    @abstractmethod
    def forget(self, tid: int) -> None:
        """The thread was gone before it was followed."""

    @abstractmethod
    def followed(self) -> list[tuple[int, int]]:
        """(tgid, tid) of the threads followed now, dead ones perhaps among them."""

    def living(self) -> set[int]:
        """Processes followed that are known to live; none from a backend that learns of deaths only afterwards."""
        return set()

    def finish(self) -> None:
        """After `stop`: what is left to do until events.bin and blocks.bin hold paired records."""

    @abstractmethod
    def drain(self) -> None:
        """Moves what has been recorded so far into the files. Raises OSError when the disk is full."""

    @abstractmethod
    def stop(self) -> None:
        """Detaches, drains, writes ALIVE records and whatever is still open, and closes. Idempotent."""

    @abstractmethod
    def losses(self) -> Losses:
        """Counted so far; final after `stop`."""

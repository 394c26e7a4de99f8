"""What every collector is, and what the recording gives it.

A collector drives one tool and turns what the tool wrote into tables. The recording calls it from one thread of its
own, in this order: `start`, then `process_started` / `process_ended` / `tick` as things happen, then `stop`; and
`read` afterwards, one collector at a time. A call that raises or takes too long costs that collector's data only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from perfscope.clock import ClockMap
from perfscope.model.info import CollectorReport
from perfscope.model.session_writer import SessionWriter
from perfscope.options import Options
from perfscope.procfs import Process


@dataclass(frozen=True)
class Check:
    """One row of `perfscope doctor`. `state`: ok, degraded (works with less), or unavailable; `fix` mends it."""

    collector: str
    what: str
    state: str
    why: str = ""
    fix: str = ""


Undo = Callable[[str, list[str]], None]


@dataclass(frozen=True)
class Context:
    """What the recording hands to a collector.

    raw: the collector's own directory for its tool's files.
    guard: `guard(key, argv)` asks the guardian process, which outlives a killed perfscope, to run `argv` then;
        `guard(key, [])` takes that back once the collector has cleaned up itself.
    own_pids: pids of perfscope and its tools, never to be profiled.
    """

    raw: Path
    options: Options
    guard: Undo
    own_pids: set[int] = field(default_factory=set)


TICK_S, CALM_TICK_S = 0.1, 1.0


class Collector(ABC):
    """Base of all collectors. Times in ns on CLOCK_MONOTONIC. Raises CollectorError for what a user should read."""

    name: ClassVar[str]

    def __init__(self, context: Context) -> None:
        self.context = context
        self.report = CollectorReport()
        self.clocks: dict[str, ClockMap] = {}

    @classmethod
    @abstractmethod
    def check(cls, options: Options) -> Iterable[Check]:
        """What of this collector can run on this host, and what mends the rest. Has no side effect."""

    def environment(self) -> dict[str, str]:
        """Variables that a launched command must have for this collector's probe; called after `start`."""
        return {}

    def start(self, root_pids: list[int]) -> None:
        """Before the target executes its first instruction (its pid is known, it waits), or on running `root_pids`."""

    def process_started(self, process: Process) -> None:
        """A process of the target was seen, or its runtime became known (then called again)."""

    def process_ended(self, pid: int) -> None:
        """A process of the target is gone."""

    def followed(self) -> Iterable[int]:
        """Pids of processes of the target that live and that this collector found by itself. Called by another thread
        than all else."""
        return ()

    @property
    def tick_s(self) -> float:
        """Seconds from one tick to the next: longer where nothing has to be looked after, as waking up costs the
        target more than what a tick does."""
        return TICK_S

    def tick(self) -> None:
        """Every `tick_s`: drain buffers, watch the own tool."""

    def stop(self) -> None:
        """The recording ends: detach from everything. Called even after a failed start; idempotent."""

    @abstractmethod
    def read(self, writer: SessionWriter, start_ns: int, stop_ns: int) -> None:
        """Turns the raw files into tables, and completes `report` and `clocks`. [start_ns, stop_ns]: the recording."""


@dataclass
class ImportResult:
    """What `import_file` found in a file made elsewhere.

    start_ns, stop_ns: span of the file's own times (its own clock where nothing ties it to this host's; then
        clocks[source].method says so). Both 0 if the file holds counts only.
    report: losses and notes, as for a recording; a file read only as far as sound is `partial`.
    """

    source: str
    start_ns: int
    stop_ns: int
    report: CollectorReport
    clock: ClockMap | None = None

"""session.json: what was recorded, how, and how far each part of it can be trusted."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from perfscope.clock import ClockMap
from perfscope.errors import SessionError
from perfscope.model.schema import SCHEMA_VERSION
from perfscope.model.typed import build

Status = Literal["ok", "partial", "failed", "unavailable"]

_RESTORE = "record again, or restore the file from where the session came from"


@dataclass
class CollectorReport:
    """What one collector has to say about its own recording.

    status: ok: all it should have seen; partial: some is missing, `why` says what; failed: nothing usable;
        unavailable: couldn't run here, `why` says the reason and `hint` the command that mends it.
    lost_events / late_samples: counted by the tool or its driver; null when it can't count them.
    covered_ns: intervals [start, end] on CLOCK_MONOTONIC in which it was watching.
    cpu_ns: CPU time the collector itself used (its processes and its threads), null if unknown.
    notes: further plain sentences a reader of the session must know (rate lowered, torn share, ...).
    """

    status: Status = "ok"
    why: str | None = None
    hint: str | None = None
    version: str | None = None
    lost_events: int | None = None
    late_samples: int | None = None
    events: int | None = None
    cpu_ns: int | None = None
    covered_ns: list[tuple[int, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


@dataclass
class SessionInfo:
    """The whole of session.json. Times in ns on CLOCK_MONOTONIC; `started_at` is the wall clock, for people only.

    own_cpu_ns: CPU time of perfscope and its tools from attaching to detaching (not of reading afterwards).
    """

    command: list[str] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    start_ns: int = 0
    stop_ns: int = 0
    started_at: str = ""
    stopped_by: str = ""
    exit_status: int | None = None
    host: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    clocks: dict[str, ClockMap] = field(default_factory=dict)
    collectors: dict[str, CollectorReport] = field(default_factory=dict)
    tables: dict[str, int] = field(default_factory=dict)
    own_cpu_ns: int | None = None
    tool_version: str = ""
    state: Literal["recording", "complete"] = "complete"
    schema: int = SCHEMA_VERSION

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: object, where: str) -> SessionInfo:
        """Builds it from parsed JSON. Raises SessionError naming `where` for anything but a session of this version."""
        if not isinstance(data, dict):
            raise SessionError(f"{where}: not a perfscope session (expected a JSON object)")
        version = data.get("schema")
        if not isinstance(version, int) or isinstance(version, bool):
            raise SessionError(f"{where}: no schema version in it, so not a perfscope session")
        if version > SCHEMA_VERSION:
            raise SessionError(
                f"{where}: written by a newer perfscope (schema {version}; this one reads up to {SCHEMA_VERSION})",
                hint="pip install --upgrade perfscope-cli",
            )
        if version < 1:
            raise SessionError(f"{where}: schema {version} was never released", hint=_RESTORE)
        try:
            info = build(cls, data, "session")
            if info.state == "complete" and info.stop_ns < info.start_ns:
                raise ValueError("it ends before it starts")
        except (ValueError, OverflowError, RecursionError) as error:
            raise SessionError(f"{where}: damaged: {error}", hint=_RESTORE) from None
        return info

"""What a diagnosis says: verdicts, and findings with their evidence. Rules make these, reports show them."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from typing import Any, Literal


class Severity(enum.IntEnum):
    """How much a finding matters; ordered."""

    INFO = 0
    LOW = 1
    MEDIUM = 2
    HIGH = 3
    CRITICAL = 4

    @classmethod
    def parse(cls, text: str) -> Severity:
        return cls[text.upper()]

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Evidence:
    """One measured value beside the threshold it was held against, and where both come from.

    value and threshold are in `unit`; threshold is null for a plain observation. measured_by: table and collector
    ("waits, eBPF, exact"); threshold_source: why that number.
    """

    what: str
    value: float
    unit: str
    threshold: float | None = None
    measured_by: str = ""
    threshold_source: str = ""


@dataclass(frozen=True)
class Where:
    """Where it happens, as far as known. window_ns: [start, end] on CLOCK_MONOTONIC. stack: outermost first."""

    process: str | None = None
    pid: int | None = None
    thread: str | None = None
    tid: int | None = None
    stack: tuple[str, ...] = ()
    file: str | None = None
    line: int | None = None
    function: str | None = None
    kernel: str | None = None
    device: str | None = None
    window_ns: tuple[int, int] | None = None


@dataclass(frozen=True)
class Finding:
    """One bottleneck. gives_back_pct: upper bound on the share of elapsed time that mending it could save (0..100)."""

    rule: str
    title: str
    severity: Severity
    where: Where
    evidence: tuple[Evidence, ...]
    gives_back_pct: float | None
    advice: str
    see: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "severity": str(self.severity)}


@dataclass(frozen=True)
class Verdict:
    """One rule's answer. `why` is always said: what was measured (ok), or what input is missing (not_evaluable)."""

    rule: str
    verdict: Literal["flagged", "ok", "not_evaluable"]
    why: str
    findings: tuple[Finding, ...] = field(default=())


@dataclass(frozen=True)
class Diagnosis:
    """All verdicts, and all findings ranked: what gives back most first."""

    session: str
    verdicts: tuple[Verdict, ...]
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        """The stable JSON form (schema 1)."""
        return {
            "schema": 1,
            "session": self.session,
            "verdicts": [{"rule": v.rule, "verdict": v.verdict, "why": v.why} for v in self.verdicts],
            "findings": [f.to_json() for f in self.findings],
        }

"""What a source's clock came to, and the marks it is held against."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ClockResult:
    """How far a source's clock is off. Residuals are absolute values; null where nothing could be measured.

    samples: instants compared. readings: independent errors the percentiles are over (py-spy: anchors).
    uncertainty_us: largest bound on what the marks themselves contribute. stated_error_us: the bound in the session.
    resolution_us: how far apart the source's looks are; 0 if it stamps events.
    """

    source: str
    samples: int
    readings: int
    residual_us: dict[str, float] | None
    uncertainty_us: float | None
    stated_error_us: float | None
    resolution_us: float | None
    why: str = ""

    @property
    def within_bound(self) -> bool | None:
        """Whether all residuals lie within the stated bound and what the marks add; None where that isn't known."""
        if self.residual_us is None or self.stated_error_us is None:
            return None
        return self.residual_us["max"] <= self.stated_error_us + (self.uncertainty_us or 0.0)

    def to_json(self) -> dict[str, Any]:
        return self.__dict__ | {"within_bound": self.within_bound}

    def to_text(self) -> str:
        if self.residual_us is None:
            return f"  {self.source:8} not measured: {self.why}"
        figures = "  ".join(f"{name} {value:.1f}" for name, value in self.residual_us.items())
        marks = "" if self.uncertainty_us is None else f", marks good to {self.uncertainty_us:.1f}"
        looks = f"a look every {self.resolution_us:.0f}" if self.resolution_us else "stamps each event"
        lines = [f"{figures}", f"{self.readings} readings of {self.samples} samples{marks}; {looks}"]
        if self.stated_error_us is not None:
            verdict = "holds" if self.within_bound else "EXCEEDED (a look interrupted, or a wrong bound)"
            lines.append(f"stated bound {self.stated_error_us:.1f}: {verdict}")
        return f"  {self.source:8} " + ("\n" + " " * 11).join(lines)


def read_marks(path: Path) -> list[list[int]]:
    """Lines of [id, before_ns, after_ns]; none where the program couldn't make such marks."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

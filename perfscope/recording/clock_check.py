"""Measures each source's clock against instants that a recorded program marked (`doctor --clock`)."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfscope.recording import clock_marks
from perfscope.recording.launch import Target
from perfscope.recording.signals import Signals


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

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def to_text(self) -> str:
        if self.residual_us is None:
            return f"  {self.source:8} not measured: {self.why}"
        figures = "  ".join(f"{name} {value:.1f}" for name, value in self.residual_us.items())
        stated = "" if self.stated_error_us is None else f", stated bound {self.stated_error_us:.1f}"
        marks = "" if self.uncertainty_us is None else f", marks good to {self.uncertainty_us:.1f}"
        looks = f", a look every {self.resolution_us:.0f}" if self.resolution_us else ", stamps each event"
        return (
            f"  {self.source:8} {figures}  ({self.readings} readings of {self.samples} samples{marks}{stated}{looks})"
        )


def check_clocks() -> list[ClockResult]:
    """Records the marking program (about ten seconds) and evaluates it. Raises RecordingError if nothing can record."""
    with tempfile.TemporaryDirectory(prefix="perfscope-clock-", dir=_disk()) as name:
        directory = Path(name)
        java = shutil.which("java") if shutil.which("javac") else None
        marks = [sys.executable, clock_marks.__file__, name, *([java] if java else [])]
        target = Target(marks)
        try:
            with Signals(target) as signals:
                from perfscope.recording import clock_residuals

                return clock_residuals.record_and_compare(target, signals, directory, java is not None)
        finally:
            target.cancel()
            target.reap()


def _disk() -> str | None:
    """A directory that is likely on a disk, for the block writes; else the usual one for temporary files."""
    for candidate in ("/var/tmp", tempfile.gettempdir()):
        if Path(candidate).is_dir():
            return candidate
    return None


def read_marks(path: Path) -> list[list[int]]:
    """Lines of [id, before_ns, after_ns]; none where the program couldn't make such marks."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

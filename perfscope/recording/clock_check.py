"""Measures each source's clock against instants that a recorded program marked (`doctor --clock`)."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from perfscope.recording import clock_marks
from perfscope.recording.clock_result import ClockResult
from perfscope.recording.launch import Target
from perfscope.recording.signals import Signals


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

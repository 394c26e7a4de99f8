"""The Nsight Compute pass of `perfscope record`, and what is said about it on stderr."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from perfscope.cli._recording import give
from perfscope.cli._streams import say
from perfscope.model.info import CollectorReport
from perfscope.recording import ncu_pass
from perfscope.recording.ncu_pass import Settings

_EVERY_S = 5.0
_INTERRUPTED = tuple(128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM))


class _Progress:
    """A plain line now and then: the command may print to the same terminal."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _EVERY_S

    def __call__(self, measured: int, expected: int | None, elapsed_s: float) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_S
            of = "" if expected is None else f" of about {expected}"
            say(f"perfscope: ncu: {measured}{of} launches measured so far, after {elapsed_s:.0f} s")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the pass as Ctrl-C does, so that nothing of it is left running."""

    def stop(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def add(path: Path, command: list[str], status: int, settings: Settings) -> None:
    """Measures the kernels that mattered in the recording at `path`; says how it went.

    status: the command's own. One that was interrupted is not started again.
    """
    if status in _INTERRUPTED:
        say(f"perfscope: ncu: no second run, because {command[0]} was interrupted (exit status {status})")
        return
    say(f"perfscope: ncu: second run, at most {settings.limit_s:.0f} s")
    with _ended_by_signals():
        report = ncu_pass.add(path, command, settings, _Progress())
    if settings.run_as:
        give(path, settings.run_as)
    _summary(report)


def alone(path: Path, command: list[str], settings: Settings, *, force: bool) -> int:
    """Records `command` under Nsight Compute only; returns its exit status."""
    with _ended_by_signals():
        info = ncu_pass.record_alone(path, command, settings, _Progress(), force=force)
    if settings.run_as:
        give(path, settings.run_as)
    _summary(info.collectors["ncu"])
    say(f"next: perfscope diagnose {path}")
    return info.exit_status or 0


def _summary(report: CollectorReport) -> None:
    events = "" if report.events is None else f", {report.events:,} launches measured"
    lines = [f"  {'ncu':8} {report.status}{events}{f': {report.why}' if report.why else ''}"]
    if report.hint and report.status != "ok":
        lines.append(f"  {'':8} try: {report.hint}")
    lines += [f"  {'':8} {note}" for note in report.notes]
    say("\n".join(lines))

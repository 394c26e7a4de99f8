"""Runs a recording and talks about it on stderr; imported only once the target's process is forked."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from pathlib import Path
from types import TracebackType

import click
from rich.console import Console

from perfscope.cli._streams import say
from perfscope.collectors import COLLECTORS
from perfscope.errors import UsageError
from perfscope.model.info import SessionInfo
from perfscope.options import Options
from perfscope.recording.launch import RunAs, Target
from perfscope.recording.record import Progress, Recording, Request
from perfscope.recording.signals import Signals
from perfscope.reports.units import plural


def record(
    target: Target | None,
    signals: Signals,
    *,
    output: Path,
    pids: list[int],
    duration_s: float | None,
    collect: str | None,
    options: Options,
    force: bool,
    keep_raw: bool,
    owner: RunAs | None,
) -> bool:
    """Records and says how it went. False if not one collector got anything."""
    request = Request(
        output=output,
        command=target.command if target else [],
        pids=pids,
        duration_s=duration_s,
        collect=_chosen(collect),
        options=options,
        force=force,
        keep_raw=keep_raw,
    )
    with _Talk(target is not None, "; Ctrl-C ends it" if not target and duration_s is None else "") as talk:
        recording = Recording(request, target, signals, talk.progress)
        info = recording.run()
    if owner:
        give(output, owner)
    _summary(output, info)
    if target and not target.exited():
        say(f"perfscope: {target.command[0]} runs on (pid {target.pid}); waiting for it to end")
    elif target and (left := recording.left_running()):
        attach = " ".join(f"-p {pid}" for pid in left[:4])
        say(f"what {target.command[0]} started runs on, no longer recorded; try: perfscope record {attach}")
    elif not target:
        click.echo(str(output))
    return any(report.status in ("ok", "partial") for report in info.collectors.values())


def _chosen(collect: str | None) -> list[str]:
    if collect is None:
        return list(COLLECTORS)
    names = list(dict.fromkeys(name.strip() for name in collect.split(",") if name.strip()))
    unknown = [name for name in names if name not in COLLECTORS]
    if unknown or not names:
        raise UsageError(
            f"no collector named {', '.join(unknown)}" if unknown else "--collect names no collector",
            hint=f"the collectors are {', '.join(COLLECTORS)}",
        )
    return [name for name in COLLECTORS if name in names]  # in the order in which they must start


def give(path: Path, owner: RunAs) -> None:
    # By descriptors: whoever owns the directory above may put a link in the session's place meanwhile.
    for _, _, files, directory in os.fwalk(path):
        os.fchown(directory, owner.uid, owner.gid)
        for name in files:
            os.chown(name, owner.uid, owner.gid, dir_fd=directory, follow_symlinks=False)


class _Talk:
    """Progress on stderr: one live line on a terminal, else a plain line a phase.

    A launched command that prints to that same terminal has it to itself: then there are plain lines only.
    """

    def __init__(self, launched: bool, ends: str) -> None:
        """`ends`: what else to say while recording."""
        self._ends = ends
        self._live = sys.stderr.isatty() and not (launched and sys.stdout.isatty())
        self._phase = ""
        self._next = 0.0
        self._status = Console(stderr=True).status("perfscope: starting") if self._live else None

    def __enter__(self) -> _Talk:
        if self._status:
            with contextlib.suppress(OSError):
                self._status.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._status:
            with contextlib.suppress(OSError):  # the terminal may be gone
                self._status.stop()

    def progress(self, progress: Progress) -> None:
        if self._status is None:
            if progress.phase != self._phase and progress.phase in ("recording", "reading"):
                ends = self._ends if progress.phase == "recording" else ""
                say(f"perfscope: {progress.phase} ({', '.join(progress.collectors) or 'no collector works'}){ends}")
        elif progress.phase != self._phase or time.monotonic() >= self._next:
            self._next = time.monotonic() + 0.5
            seen = (
                f" {progress.elapsed_s:.0f} s, {plural(progress.processes, 'process', 'processes')}, "
                f"{plural(progress.threads, 'thread')}{self._ends}"
            )
            text = f"perfscope: {progress.phase}{seen if progress.phase == 'recording' else ''}"
            self._status.update(f"{text} ({', '.join(progress.collectors)})")
        self._phase = progress.phase


def _summary(path: Path, info: SessionInfo) -> None:
    seconds = (info.stop_ns - info.start_ns) / 1e9
    lines = [f"perfscope: {path}: {seconds:.1f} s recorded ({info.stopped_by})"]
    order = ("ok", "partial", "failed", "unavailable")
    for name, report in sorted(info.collectors.items(), key=lambda item: order.index(item[1].status)):
        got = "" if report.events is None else f", {report.events:,} event{'s' * (report.events != 1)}"
        lost = f", {report.lost_events:,} lost" if report.lost_events else ""
        lines.append(f"  {name:8} {report.status}{got}{lost}{f': {report.why}' if report.why else ''}")
        if report.hint and report.status != "ok":
            lines.append(f"  {'':8} try: {report.hint}")
    if all(report.status in ("failed", "unavailable") for report in info.collectors.values()):
        lines.append("  nothing but the list of processes was recorded")
    quoted = shlex.quote(str(path))
    lines.append(f"next: perfscope diagnose {quoted}   perfscope flame {quoted}")
    say("\n".join(lines))

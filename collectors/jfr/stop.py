"""`python -m perfscope.collectors.jfr.stop PID START_TICKS NAME FOLDER`: ends a recording whose perfscope was killed.

Stops recording NAME in that JVM, if it is still that process, and removes FOLDER (as we see it) with what was recorded.
"""

from __future__ import annotations

import shutil
import sys
import time

from perfscope import procfs
from perfscope.collectors.jfr import attach
from perfscope.errors import CollectorError
from perfscope.procfs import Process

CLOCK_SUFFIX = "-clock"
"""Ends the name of the short recording that makes the JVM begin a new chunk."""


def stop_recording(process: Process, name: str, tries: int = 5) -> str:
    """Stops a recording, trying again where that fails. Returns the JVM's reply; CollectorError if it goes on."""
    for attempt in range(tries):
        try:
            reply, _ = attach.command(process, f"JFR.stop name={name}")
            if reply.startswith("Stopped recording") or "Could not find" in reply or not _running(process, name):
                return reply
            error = CollectorError(f"JVM {process.pid} did not stop recording {name}: {first_line(reply)}")
        except CollectorError as failed:
            if isinstance(failed, attach.EndingError) or not process.alive():
                raise
            error = failed
        if attempt + 1 < tries:
            time.sleep(0.2)
    raise error


def _running(process: Process, name: str) -> bool:
    reply, _ = attach.command(process, "JFR.check")
    return any(f"name={name} " in line and "(running)" in line for line in reply.splitlines())


def first_line(text: str) -> str:
    """What a JVM's reply begins with, for messages."""
    return text.splitlines()[0] if text else "no reason given"


def main(arguments: list[str]) -> int:
    pid, start_ticks, name, folder = arguments
    ids = procfs.namespace_ids(int(pid))
    process = Process(int(pid), int(start_ticks), ids[-1] if ids else int(pid), "java")
    status = 0
    if process.alive():
        for recording in (name, name + CLOCK_SUFFIX):
            try:
                stop_recording(process, recording)
            except CollectorError:
                status = 1
    if process.alive() or not folder.startswith("/proc/"):
        shutil.rmtree(folder, ignore_errors=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Runs perfscope's command line as a process, with made collectors beside or instead of the real ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from perfscope import collectors
from perfscope.collectors.base import Check, Collector
from perfscope.errors import CollectorError
from perfscope.model.session_writer import SessionWriter
from perfscope.options import Options
from perfscope.procfs import Process

HERE = Path(__file__).parent
PERFSCOPE = [sys.executable, "-m", "perfscope"]
MADE = [sys.executable, str(HERE / "recording_helpers.py")]
"""The command line with the collectors of this module registered as well."""


class Notes(Collector):
    """Notes what it is told into a file, and starts a tool that must not outlive the recording."""

    name = "notes"

    @classmethod
    def check(cls, options: Options) -> Iterable[Check]:
        return [Check(cls.name, "made", "ok")]

    def note(self, line: str) -> None:
        with (self.context.raw / "notes").open("a") as file:
            file.write(line + "\n")

    def start(self, root_pids: list[int]) -> None:
        self.tool = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        self.context.guard("tool", ["kill", str(self.tool.pid)])
        self.note(f"start {root_pids} tool {self.tool.pid}")

    def process_started(self, process: Process) -> None:
        self.note(f"started {process.pid} {process.runtime}")

    def process_ended(self, pid: int) -> None:
        self.note(f"ended {pid}")

    def stop(self) -> None:
        self.tool.terminate()
        self.tool.wait()
        self.context.guard("tool", [])
        self.note("stop")

    def read(self, writer: SessionWriter, start_ns: int, stop_ns: int) -> None:
        self.report.events = len((self.context.raw / "notes").read_text().splitlines())
        writer.append(
            "counters",
            [{"time_ns": start_ns, "error_ns": 0, "source": "notes", "name": "notes_count", "value": 1.0}],
        )


class _Plain(Collector):
    @classmethod
    def check(cls, options: Options) -> Iterable[Check]:
        return [Check(cls.name, "made", "ok")]

    def read(self, writer: SessionWriter, start_ns: int, stop_ns: int) -> None:
        self.report.events = 0


class RaisesInStart(_Plain):
    name = "raises-start"

    def start(self, root_pids: list[int]) -> None:
        raise CollectorError("the tool said no", hint="ask it nicely")


class RaisesInTick(_Plain):
    name = "raises-tick"

    def tick(self) -> None:
        raise ZeroDivisionError("a defect")


class RaisesInRead(_Plain):
    name = "raises-read"

    def read(self, writer: SessionWriter, start_ns: int, stop_ns: int) -> None:
        raise KeyError("a defect")


class Hangs(_Plain):
    name = "hangs"

    def process_started(self, process: Process) -> None:
        time.sleep(1000)


class Fills(_Plain):
    """Writes more rows than the disk holds."""

    name = "fills"

    def read(self, writer: SessionWriter, start_ns: int, stop_ns: int) -> None:
        for i in range(10_000):
            value = int.from_bytes(os.urandom(4)) / 7
            row = {
                "time_ns": start_ns + i,
                "error_ns": 0,
                "source": "fills",
                "name": os.urandom(500).hex(),
                "value": value,
            }
            writer.append("counters", [row])


ALL = (Notes, RaisesInStart, RaisesInTick, RaisesInRead, Hangs, Fills)


def wait_for(what: Callable[[], object], seconds: float = 30) -> None:
    """Returns once `what()` is true; fails after `seconds`."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"waited {seconds} s in vain"
        time.sleep(0.01)


if __name__ == "__main__":
    for kind in ALL:
        collectors.COLLECTORS[kind.name] = f"__main__:{kind.__name__}"
    if deadline := os.environ.get("TEST_DEADLINE_S"):
        from perfscope.recording import supervise

        supervise.DEADLINES_S.update(dict.fromkeys(supervise.DEADLINES_S, float(deadline)))
    from perfscope.cli import run

    sys.exit(run())


def bpf_programs(pid: int) -> set[int]:
    """Ids of the BPF programs that a process holds."""
    found = set()
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            found |= {int(n) for n in re.findall(r"^prog_id:\s*(\d+)", entry.read_text(), re.MULTILINE)}
        except OSError:
            continue
    return found

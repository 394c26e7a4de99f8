"""Our recording in one JVM: started, stopped or salvaged, and the moments that tie its clock to ours."""

from __future__ import annotations

import os
import secrets
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from perfscope import probes
from perfscope.clock import realtime_offset
from perfscope.collectors.jfr import attach, jvm
from perfscope.collectors.jfr.chunk import MAGIC, Header, parse_header
from perfscope.collectors.jfr.folder import TargetFolder, copy_out
from perfscope.collectors.jfr.stop import CLOCK_SUFFIX, stop_recording
from perfscope.collectors.jfr.varint import MalformedError
from perfscope.errors import CollectorError
from perfscope.procfs import Process

MAX_SIZE = "2g"
"""What a recording may take on the JVM's disk before JFR drops its oldest chunks."""
FILE = "recording.jfr"


@dataclass(frozen=True)
class Anchor:
    """While [before_ns, after_ns] passed on our clock the JVM began chunks; REALTIME - MONOTONIC was measured then."""

    before_ns: int
    after_ns: int
    wall_offset_ns: int
    error_ns: int


@dataclass
class JvmRecording:
    """One JVM's recording. `file` is where it was copied to, once it has ended and there is something."""

    process: Process
    name: str
    version: str | None
    anchors: list[Anchor] = field(default_factory=list)
    via: str = ""
    others: bool = False
    running: bool = False
    end_ns: int | None = None
    file: Path | None = None
    problems: list[str] = field(default_factory=list)
    _folder: TargetFolder | None = None
    _repository: tuple[int, str] | None = None

    @classmethod
    def start(cls, process: Process, period_ms: int, guard: Callable[[str, list[str]], None]) -> JvmRecording:
        """Starts recording. Raises NotReadyError where trying later may work, CollectorError where not."""
        attach.check_attachable(process)
        name = f"perfscope-{secrets.token_hex(6)}"
        self = cls(process, name, jvm.java_version(process.pid))
        folder = self._folder = TargetFolder(process, name)
        guard(
            name,
            [
                sys.executable,
                "-m",
                "perfscope.collectors.jfr.stop",
                str(process.pid),
                str(process.start_ticks),
                name,
                str(folder.outer),
            ],
        )
        try:
            profile = folder.write("perfscope.jfc", settings(period_ms, jvm.major_version(self.version)))
            folder.write("rotate.jfc", probes.path("jfr", "rotate.jfc").read_text(encoding="utf-8"))
            self._start(profile)
        except (CollectorError, OSError) as error:
            if not isinstance(error, attach.RefusedError):
                with suppress(CollectorError):
                    stop_recording(process, name, tries=2)
            folder.remove()
            guard(name, [])
            if isinstance(error, attach.RefusedError):
                hint = "Flight Recorder needs Java 11 or newer, or OpenJDK 8u262"
                raise attach.NotReadyError(str(error), hint=hint) from None
            if isinstance(error, OSError):
                raise CollectorError(f"can't prepare JVM {process.pid}: {error.strerror or error}") from None
            raise
        return self

    def _start(self, profile: str) -> None:
        assert self._folder is not None
        before = time.monotonic_ns()
        reply, self.via = attach.command(
            self.process,
            f"JFR.start name={self.name} settings={profile} filename={self._folder.inner}/{FILE} "
            f"dumponexit=true maxsize={MAX_SIZE}",
        )
        if not reply.startswith("Started recording"):
            raise CollectorError(f"JVM {self.process.pid} did not start recording: {reply.splitlines()[0]}")
        self.running = True
        self._repository = _open_repository(self.process)
        self._rotate(before)
        with suppress(CollectorError):  # a JVM that ends just now keeps its recording
            known, _ = attach.command(self.process, "JFR.check")
            names = [line for line in known.splitlines() if line.startswith("Recording ")]
            self.others = any(f"name={self.name}" not in line for line in names)

    def _rotate(self, before_ns: int) -> None:
        """Makes the JVM begin new chunks. Each one's header is another reading of its ticks beside the wall clock."""
        assert self._folder is not None
        clock = self.name + CLOCK_SUFFIX
        earlier, _ = realtime_offset()
        try:
            attach.command(self.process, f"JFR.start name={clock} settings={self._folder.inner}/rotate.jfc")
            stop_recording(self.process, clock, tries=2)
        except CollectorError as error:
            if self.process.alive():
                self.problems.append(f"clock of JVM {self.process.pid} was looked at once only: {error}")
        offset, error_ns = realtime_offset()
        self.anchors.append(Anchor(before_ns, time.monotonic_ns(), offset, error_ns + abs(offset - earlier)))

    def stop(self, raw: Path, guard: Callable[[str, list[str]], None]) -> None:
        """Ends the recording, copies its file to `raw` and leaves the JVM and its file system as they were.

        A JVM that is gone has written its file when it exited; if it was killed, the chunks it left are taken.
        """
        if not self.running or self._folder is None:
            return
        self.running = False
        if self.process.alive():
            self._rotate(time.monotonic_ns())
            try:
                stop_recording(self.process, self.name)
                self.end_ns = time.monotonic_ns()
            except CollectorError as error:
                if self.process.alive():
                    self.problems.append(f"{error}; what it recorded so far is taken from its repository")
        target = raw / f"{self.process.pid}.jfr"
        try:
            if self._folder.size(FILE):
                copy_out(self._folder.fd, FILE, target)
                self.file = target
            elif self._salvage(target):
                self.file = target
                self.problems.append(
                    f"JVM {self.process.pid} was killed: read from the chunks it left, whose last second may be missing"
                )
            else:
                self.problems.append(f"JVM {self.process.pid} left nothing that was recorded")
        except OSError as error:
            self.problems.append(f"recording of JVM {self.process.pid} can't be copied: {error.strerror or error}")
        self._folder.remove()
        if self._repository is not None:
            os.close(self._repository[0])
            self._repository = None
        guard(self.name, [])

    def _salvage(self, target: Path) -> bool:
        """Puts the chunks of the JVM's repository that began since our start behind one another."""
        if self._repository is None or not self.anchors:
            return False
        fd, path = self._repository
        first = self.anchors[0].before_ns + self.anchors[0].wall_offset_ns
        found: list[tuple[int, str]] = []
        for name in os.listdir(fd):  # noqa: PTH208
            header = _header_of(fd, name)
            if header is not None and header.start_ns >= first:
                found.append((header.start_ticks, name))
        for _, name in sorted(found):
            copy_out(fd, name, target, append=True)
        if not self.others and not self.process.alive() and not path.startswith("/proc/"):
            # Without us the JVM would have made no repository, and it can't remove it any more.
            for name in os.listdir(fd):  # noqa: PTH208
                if name.endswith(".jfr"):
                    os.unlink(name, dir_fd=fd)
            with suppress(OSError):
                Path(path).rmdir()
        return bool(found)


def settings(period_ms: int, java: int | None) -> str:
    """Our .jfc for a sampling period and a Java version (None: unknown, taken as new)."""
    tree = ET.parse(probes.path("jfr", "perfscope.jfc"))
    for event in tree.getroot().iter("event"):
        kind = event.get("name", "").removeprefix("jdk.")
        for setting in event.iter("setting"):
            if kind in ("ExecutionSample", "NativeMethodSample") and setting.get("name") == "period":
                setting.text = f"{period_ms} ms"
            if kind == "ObjectAllocationInNewTLAB" and setting.get("name") == "enabled" and java and java < 16:
                setting.text = "true"
    return ET.tostring(tree.getroot(), encoding="unicode", xml_declaration=True)


def _open_repository(process: Process) -> tuple[int, str] | None:
    """The directory that the JVM writes its chunks to: held open, and its path as we see it."""
    prefix = jvm.root(process.pid)
    folder = Path(f"/proc/{process.pid}/fd")
    try:
        for entry in folder.iterdir():
            with suppress(OSError):
                link = os.readlink(entry)  # noqa: PTH115
                if link.endswith(".jfr") and link.startswith("/"):
                    path = prefix + os.path.dirname(link)  # noqa: PTH120
                    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path
    except OSError:
        pass
    return None


def _header_of(folder_fd: int, name: str) -> Header | None:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_fd)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        head = file.read(128)
    try:
        return parse_header(head, 0, len(head)) if head.startswith(MAGIC) else None
    except MalformedError:
        return None

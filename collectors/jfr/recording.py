"""Our recording in one JVM: started, stopped or salvaged, and the moments that tie its clock to ours."""

from __future__ import annotations

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
from perfscope.collectors.jfr.folder import TargetFolder, copy_out
from perfscope.collectors.jfr.repository import Repository
from perfscope.collectors.jfr.stop import CLOCK_SUFFIX, first_line, stop_recording
from perfscope.errors import CollectorError
from perfscope.procfs import Process

MAX_SIZE = "2g"
"""What a recording may take on the JVM's disk before JFR drops its oldest chunks."""
FILE = "recording.jfr"
FIRST_LOOK_NS = 5_000_000_000
"""Time from the recording's beginning to the next look at its clock; the one after comes as long after that, and so on.
"""
END_S = 5.0
"""How long a JVM that no longer answers may take to write its file and be gone."""


@dataclass(frozen=True)
class Anchor:
    """While [before_ns, after_ns] passed on our clock the JVM began chunks; REALTIME - MONOTONIC was measured then."""

    before_ns: int
    after_ns: int
    wall_offset_ns: int
    error_ns: int


@dataclass
class JvmRecording:
    """One JVM's recording. `file` is where it was copied to, once it has ended and there is something.

    end_ns: when it was stopped; gone_ns: when the JVM was found gone instead. salvaged: it had not written its file,
    which was put together from the chunks it left. via: what reached the JVM, "" if it ended before it had answered.
    """

    process: Process
    name: str
    version: str | None
    anchors: list[Anchor] = field(default_factory=list)
    via: str = ""
    others: bool = False
    running: bool = False
    end_ns: int | None = None
    gone_ns: int | None = None
    salvaged: bool = False
    file: Path | None = None
    problems: list[str] = field(default_factory=list)
    _folder: TargetFolder | None = None
    _repository: Repository | None = None
    _next_look_ns: int = 0
    _had_socket: bool = True

    @classmethod
    def start(cls, process: Process, period_ms: int, guard: Callable[[str, list[str]], None]) -> JvmRecording:
        """Starts recording. Raises NotReadyError where trying later may work, CollectorError where not."""
        attach.check_attachable(process)
        had_socket = attach.socket_path(process).exists()
        name = f"perfscope-{secrets.token_hex(6)}"
        self = cls(process, name, jvm.java_version(process.pid))
        self._had_socket = had_socket
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
        offset = realtime_offset()
        try:
            reply, self.via = attach.command(
                self.process,
                f"JFR.start name={self.name} settings={profile} filename={self._folder.inner}/{FILE} "
                f"dumponexit=true maxsize={MAX_SIZE}",
            )
        except attach.EndingError:  # whether it still began is seen by what it leaves behind
            self.running = True
            self._anchor(before, offset)
            return
        if not reply.startswith("Started recording"):
            raise CollectorError(f"JVM {self.process.pid} did not start recording: {first_line(reply)}")
        self.running = True
        self._repository = Repository.of(self.process)
        self._rotate(before, offset)
        with suppress(CollectorError):  # a JVM that ends just now keeps its recording
            known, _ = attach.command(self.process, "JFR.check")
            names = [line for line in known.splitlines() if line.startswith("Recording ")]
            self.others = any(f"name={self.name}" not in line for line in names)

    def _rotate(self, before_ns: int, before: tuple[int, int]) -> None:
        """Makes the JVM begin new chunks. Each one's header is another reading of its ticks beside the wall clock."""
        assert self._folder is not None
        clock = self.name + CLOCK_SUFFIX
        try:
            attach.command(self.process, f"JFR.start name={clock} settings={self._folder.inner}/rotate.jfc")
            stop_recording(self.process, clock, tries=2)
        except attach.EndingError:
            pass
        except CollectorError as error:
            if self.process.alive():
                self.problems.append(f"a look at the clock of JVM {self.process.pid} failed: {error}")
        self._anchor(before_ns, before)

    def _anchor(self, before_ns: int, before: tuple[int, int]) -> None:
        """The JVM began chunks between then and now; `before` is the wall clock's offset then, with its error."""
        offset, error_ns = realtime_offset()
        error_ns = max(error_ns, before[1]) + abs(offset - before[0])
        now = time.monotonic_ns()
        self.anchors.append(Anchor(before_ns, now, offset, error_ns))
        self._next_look_ns = now + max(FIRST_LOOK_NS, now - self.anchors[0].after_ns)

    def tick(self) -> None:
        """Looks at the clock once more, at ever longer intervals: a JVM that ends by itself gives no last look."""
        if self.running and self.via and time.monotonic_ns() >= self._next_look_ns and self.process.alive():
            self._rotate(time.monotonic_ns(), realtime_offset())

    def stop(self, raw: Path, guard: Callable[[str, list[str]], None]) -> None:
        """Ends the recording, copies its file to `raw` and leaves the JVM and its file system as they were.

        A JVM that is gone has written its file when it exited; if it was killed, the chunks it left are taken.
        """
        if not self.running or self._folder is None:
            return
        self.running = False
        if self.process.alive():
            self._rotate(time.monotonic_ns(), realtime_offset())
            try:
                stop_recording(self.process, self.name)
                self.end_ns = time.monotonic_ns()
            except attach.EndingError as error:
                if not self._wait_for_end():
                    self.problems.append(f"{error} and was not gone {END_S:.0f} s later: what it had written is taken")
            except CollectorError as error:
                if self.process.alive():
                    self.problems.append(f"{error}; what it recorded so far is taken from its repository")
        if self.end_ns is None and not self.process.alive():
            self.gone_ns = time.monotonic_ns()
        target = raw / f"{self.process.pid}.jfr"
        try:
            if self._folder.size(FILE):
                copy_out(self._folder.fd, FILE, target)
                self.file = target
                self._sweep()
            elif self._salvage(target):
                self.file, self.salvaged = target, True
            elif self.via:
                self.problems.append(f"JVM {self.process.pid} left nothing that was recorded")
            else:
                waited = (self.anchors[0].after_ns - self.anchors[0].before_ns) / 1e9
                self.problems.append(
                    f"JVM {self.process.pid} ended {waited:.1f} s after it had been asked to record and before it had "
                    "begun: nothing of it is known"
                )
        except OSError as error:
            self.problems.append(f"recording of JVM {self.process.pid} can't be copied: {error.strerror or error}")
        if not self._had_socket and not self.process.alive():  # a JVM that was killed leaves it
            self._folder.remove_socket(f".java_pid{self.process.ns_pid}")
        self._folder.remove()
        if self._repository is not None:
            self._repository.close()
            self._repository = None
        guard(self.name, [])

    def _wait_for_end(self) -> bool:
        """Lets a JVM that is ending write its file."""
        deadline = time.monotonic() + END_S
        while self.process.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def _salvage(self, target: Path) -> bool:
        """Takes the chunks of the JVM's repository that began since our start."""
        repository = self._left()
        if repository is None:
            return False
        found, alone = repository.copy(self._since_ns, target)
        if alone:
            self._remove(repository)
        return found

    def _sweep(self) -> None:
        """A JVM that is asked to record just after it has let go of its repository makes it anew, and leaves it."""
        if not self.process.alive() and (repository := self._left()) is not None:
            with suppress(OSError):  # it is gone, as it should be
                if repository.only_since(self._since_ns):
                    self._remove(repository)

    def _left(self) -> Repository | None:
        """The JVM's repository, also where it came to be known only by what a dead JVM left."""
        if self._repository is None and self._folder is not None and not self.process.alive():
            self._repository = Repository.left_by(self.process, self._folder.fd)
        return self._repository if self.anchors else None

    @property
    def _since_ns(self) -> int:
        """When it was asked to record, by the wall clock."""
        return self.anchors[0].before_ns + self.anchors[0].wall_offset_ns

    def _remove(self, repository: Repository) -> None:
        """Without us the JVM would have made none, and dead it can't remove it."""
        if not self.others and not self.process.alive():
            repository.remove()


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

"""Drives what reads Python stacks: the kernel where it can, else samplers, one a Python process for stacks and a second
for who holds the GIL, within a budget of CPU time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

from perfscope import procfs
from perfscope.collectors.base import TICK_S, Check, Collector, Context
from perfscope.collectors.ebpf import libbpf
from perfscope.collectors.pyspy import austin, stop
from perfscope.collectors.pyspy.budget import SHARE, Budget
from perfscope.collectors.pyspy.checks import check, version
from perfscope.collectors.pyspy.instance import binary
from perfscope.collectors.pyspy.interpreter import Unreadable
from perfscope.collectors.pyspy.kernel import Kernel
from perfscope.collectors.pyspy.lane import Lane, Target
from perfscope.collectors.pyspy.reading import MISSING_SHARE, Reading
from perfscope.collectors.pyspy.sampler import Sampler
from perfscope.errors import CollectorError
from perfscope.model.session_writer import SessionWriter
from perfscope.options import Options
from perfscope.procfs import Process

STOP_S = 15.0
"""Time all py-spys have to write their files. 18..40 ms is usual; ten minutes of a busy process are 100 MB."""
BURST = 16
STARTS_PER_S = 2
"""Processes attached to at once, and per second after that. Attaching two py-spys costs ~0.1 s of CPU time, so that
attaching to each child of a target that forks all the time would take more than their sampling may."""

_CALM_NS, _CALM_TICK_S, _CALM_TICKS = 1_000_000_000, 0.2, 2
"""Samplers that have been at work for so long are looked at less often: their clocks in each tick, all else in every
so many."""
_KERNEL_TICK_S, _YOUNG_NS = 0.5, 5_000_000_000
"""Where there is no sampler, as the kernel reads all stacks, and no process so young that it may yet call exec: the
buffers hold 300,000 looks, and each waking up takes a CPU from the target."""

_PATIENCE_NS = 1_000_000_000
"""How long the kernel's turn lasts to find an interpreter in a process that only just starts."""

_GUARD = "samplers"


class PySpyCollector(Collector):
    """Python stacks of every Python process of the target, and its GIL holders.

    Both are read by the kernel where it can. Else stacks are read by austin where it is installed and can, or by
    py-spy; GIL holders by py-spy.

    Samples of source "pyspy" are slices of time in which a thread had a stack, or was seen with it unchanged;
    "pyspy-gil" are counts of looks in which a thread held the GIL, with its stack. Never stops the target unless asked
    to (blocking, native).
    """

    name = "pyspy"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._targets: list[Target] = []
        self._budget = Budget(context.options.rate_hz)
        self._stopped = False
        self._ticks = self._came_ns = 0
        self._starts_left, self._starts_ns = float(BURST), 0
        self._lowered: list[str] = []
        self._judged: list[Sampler] = []
        self._austin: str | None = None
        self._kernel: Kernel | None = None
        self._unwritten: str | None = None

    @classmethod
    def check(cls, options: Options) -> Iterable[Check]:
        return check(options)

    def start(self, root_pids: list[int]) -> None:
        """Raises CollectorError if py-spy, or the sampler that was asked for, is missing or can't be run."""
        self.report.version = version(binary())
        self._austin = austin.wanted(self.context.options)
        self.context.raw.mkdir(parents=True, exist_ok=True)
        self._kernel = self._open_kernel()
        self.context.guard(_GUARD, [sys.executable, "-I", "-S", stop.__file__, str(self.context.raw.absolute())])

    def _open_kernel(self) -> Kernel | None:
        options = self.context.options
        if options.native or options.blocking or options.python_sampler not in ("auto", "bpf", "alternate"):
            return None
        try:
            return Kernel(self.context.raw, self._budget.rate_hz)
        except CollectorError:
            if options.python_sampler == "bpf":
                raise
            return None

    def process_started(self, process: Process) -> None:
        if process.runtime != "python" or process.pid in self.context.own_pids or self._stopped:
            return
        if any(t.process.pid == process.pid and t.process.start_ticks == process.start_ticks for t in self._targets):
            return
        turn = len(self._targets) % 3 if self.context.options.python_sampler == "alternate" else 0
        target = Target.attach(self.context, process, None if turn == 2 else self._austin)
        target.by_kernel = self._kernel is not None and turn == 0
        self._targets.append(target)
        self._came_ns = time.monotonic_ns()
        self._attach(target, self._came_ns)

    def _attach(self, target: Target, now: int) -> None:
        """Has the kernel read its stacks; or starts its samplers, unless many processes come at once: then when it has
        lived for a while."""
        if target.by_kernel and self._kernel is not None:
            try:
                self._kernel.follow(target.process.pid)
            except Unreadable as why:
                target.by_kernel = why.again and now - target.came_ns < _PATIENCE_NS
                target.instead = str(why)
                if target.by_kernel:
                    return
            else:
                target.attached, target.instead = True, None
                target.look(now, procfs.read_stat(target.process.pid), None)
                return
            if procfs.runtime(target.process.pid) != "python":
                target.attached = True  # its samplers begin where it becomes one again
                return
        allowed = min(BURST, self._starts_left + (now - self._starts_ns) / 1e9 * STARTS_PER_S)
        self._starts_left, self._starts_ns = allowed, now
        if allowed < 1:
            return
        self._starts_left -= 1
        target.attached = True
        target.look(now, procfs.read_stat(target.process.pid), None)
        for lane in target.lanes:
            lane.start(self._budget.rate_hz)

    def process_ended(self, pid: int) -> None:
        now = time.monotonic_ns()
        for target in self._targets:
            if target.process.pid == pid and target.ended_ns is None:
                target.ended_ns = now

    @property
    def tick_s(self) -> float:
        now = time.monotonic_ns()
        if not self._calm(now):
            return TICK_S
        return _CALM_TICK_S if self._sampling or now - self._came_ns < _YOUNG_NS else _KERNEL_TICK_S

    @property
    def _sampling(self) -> bool:
        return any(lane.current is not None for lane in self._lanes())

    def tick(self) -> None:
        """Raises CollectorError once what the kernel saw can't be written any more (disk full)."""
        now = time.monotonic_ns()
        self._ticks += 1
        self._look_after_kernel()
        if self._ticks % _CALM_TICKS and self._sampling and self._calm(now):
            for lane in self._lanes():
                if lane.current is not None:
                    lane.current.watch()
            return
        born = procfs.last_born()
        for target in self._targets:
            stat = procfs.read_stat(target.process.pid) if target.ended_ns is None else None
            alive = target.process.lives(stat)
            if alive and not target.attached:
                self._attach(target, now)
            if not target.attached:
                continue
            if alive:
                target.look(now, stat, born)
            for lane in target.lanes if not target.by_kernel else ():
                lane.tick(self._budget.rate_hz, alive, now)
        self._watch_cost(now)

    def _look_after_kernel(self) -> None:
        if self._kernel is None:
            return
        for target in self._targets:
            if target.by_kernel and target.attached and target.ended_ns is None:
                target.attached = self._kernel.follows(target.process.pid)
                target.came_ns = time.monotonic_ns()
        try:
            self._kernel.drain()
        except OSError as error:
            raise CollectorError(f"can't write {self.context.raw}: {error.strerror}") from None

    def _calm(self, now: int) -> bool:
        """Whether all samplers have been at work for a while, and none shows the dead: these are to be seen dying."""
        if any(not t.attached and t.ended_ns is None for t in self._targets):
            return False
        running = [
            (lane.gil, lane.current) for target in self._targets if not target.by_kernel for lane in target.lanes
        ]
        return all(
            s is not None and s.sampling_ns is not None and now - s.sampling_ns > _CALM_NS and (gil or not s.cut_deaths)
            for gil, s in running
        )

    def _watch_cost(self, now: int) -> None:
        running = [lane.current for lane in self._lanes() if lane.current is not None]
        for instance in running:
            instance.watch()
        # What those that are being replaced still use, to write their files, says nothing about the rate.
        sampling = [instance for instance in running if instance.sampling_ns is not None]
        if sampling != self._judged:
            self._judged = sampling
            self._budget.restart()
        before = self._budget.rate_hz
        cpu_ns = sum(i.sampling_cpu_ns for i in sampling) + sum(t.naming.cpu_ns for t in self._targets)
        rate = self._budget.judge(now / 1e9, cpu_ns / 1e9)
        if rate is None:
            return
        self._lowered.append(f"{before} to {rate} Hz, having used {self._budget.last * 100:.0f} % of one core")
        for lane in self._lanes():
            lane.replace(rate)

    def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        now = time.monotonic_ns()
        for target in self._targets:
            if target.ended_ns is None:
                stat = procfs.read_stat(target.process.pid)
                if target.process.lives(stat):
                    target.look(now, stat, None)
                else:
                    target.ended_ns = now
        for lane in self._lanes():
            lane.interrupt()
        kernel_ns = self._stop_kernel()
        deadline = time.monotonic_ns() + int(STOP_S * 1e9)
        for lane in self._lanes():
            lane.finish(deadline)
        for target in self._targets:
            target.naming.finish()
        self.context.guard(_GUARD, [])
        tools_ns = sum(i.cpu_ns for i in self._instances()) + sum(t.naming.cpu_ns for t in self._targets)
        self.report.cpu_ns = kernel_ns + tools_ns

    def _stop_kernel(self) -> int:
        """Detaches; returns the CPU time of its looks."""
        if self._kernel is None:
            return 0
        try:
            self._kernel.stop()
        except OSError as error:
            self._unwritten = error.strerror
        return self._kernel.spent_ns

    def _lanes(self) -> list[Lane]:
        return [lane for target in self._targets for lane in target.lanes]

    def _instances(self) -> list[Sampler]:
        return [i for lane in self._lanes() for i in lane.instances()]

    def read(self, writer: SessionWriter, start_ns: int, stop_ns: int) -> None:
        reading = Reading(writer, start_ns, stop_ns)
        for target in self._targets:
            reading.target(target)
        if self._kernel is not None and self._kernel.followed:
            reading.kernel(self._kernel, {t.process.pid: t.ended_ns for t in self._targets})
        self.report.events = reading.looks
        self.report.lost_events = reading.errors + reading.unsound
        self.report.late_samples = reading.late
        self.report.covered_ns = reading.covered_ns()
        self.report.details |= {"rate_hz": self._budget.rate_hz, "own_cpu_highest_share": self._budget.highest}
        self.report.details |= reading.details()
        if self._austin is not None:
            tool = austin.version(self._austin)
            self.report.details["austin_version"] = tool
            if "austin" in str(self.report.details["sampler"]):
                self.report.version = f"stacks by austin {tool}, GIL holders by py-spy {self.report.version}"
        if reading.by_kernel:
            others = f"; others: {self.report.version}" if reading.by_others else ""
            self.report.version = f"stacks and GIL holders by the kernel (libbpf {libbpf.version()}){others}"
        if (clock := reading.clock_map()) is not None:
            self.clocks["pyspy"] = clock
        self._conclude(reading)

    def _conclude(self, reading: Reading) -> None:
        report, options = self.report, self.context.options
        if options.native:
            report.notes.append("--native stops the process for each look and unwinds its native stacks: it was slowed")
        elif options.blocking:
            report.notes.append("--blocking stops the process for each look: it was slowed")
        for text in self._lowered:
            report.notes.append(f"sampling rate lowered from {text} (limit {SHARE * 100:.0f} %)")
        report.notes += reading.notes()
        whys = reading.problems
        if self._unwritten is not None:
            whys.append(f"what the kernel saw couldn't be written: {self._unwritten}")
        followed = self._kernel.followed if self._kernel is not None else {}
        if missed := sum(not t.attached and t.process.pid not in followed for t in self._targets):
            whys.append(f"{missed} of {len(self._targets)} Python processes came and went too quickly to be sampled")
        if reading.missing_share > MISSING_SHARE:
            whys.append(reading.lateness())
        if not self._targets:
            report.status, report.why = "unavailable", "the target had no Python process"
        elif not reading.looks:
            report.status = "unavailable" if whys and reading.brief else "failed"
            report.why = "; ".join(whys) or "no Python stack was seen"
            report.hint = reading.hint
        elif whys:
            report.status, report.why, report.hint = "partial", "; ".join(whys), reading.hint

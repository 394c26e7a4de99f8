"""The kernel's own events of the target: scheduling, futex waits, block requests, births and deaths, GPU jobs.

Three backends write the same records (records.py): libbpf with the shipped CO-RE object, bcc, and perf_event_open.
Their clock is CLOCK_MONOTONIC, read by the kernel at the event.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import numpy as np

from perfscope import procfs
from perfscope.clock import MONOTONIC
from perfscope.collectors.base import CALM_TICK_S, TICK_S, Check, Collector, Context
from perfscope.collectors.ebpf import checks, gil, tables, threads
from perfscope.collectors.ebpf.backend import Backend
from perfscope.collectors.ebpf.drm import DrmEvents
from perfscope.collectors.ebpf.mappings import Mappings
from perfscope.collectors.ebpf.records import ALIVE, BLOCK, DEATH, EVENT, EXEC, FORK, Records, chunks
from perfscope.errors import CollectorError
from perfscope.model.session_writer import SessionWriter
from perfscope.options import Options
from perfscope.pace import until_beat_s

BACKENDS = {
    "libbpf": "perfscope.collectors.ebpf.backend_libbpf:LibbpfBackend",
    "bcc": "perfscope.collectors.ebpf.backend_bcc:BccBackend",
    "perf": "perfscope.collectors.ebpf.backend_perf:PerfBackend",
}
"""In the order in which `auto` tries them."""

BRACKET_NS, BRACKET_TRIES = 500_000, 10
"""A moment and /proc's CPU times of it are read this close together, or as close as a busy machine allows."""


HIDDEN = "were never seen to complete (some hosts hide what interrupts an idle CPU)"


class EbpfCollector(Collector):
    """Follows every thread of the target from its first instruction, or from when the recording began."""

    name = "ebpf"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._backend: Backend | None = None
        self._drm: DrmEvents | None = None
        self._initial: list[threads.Life] = []
        self._final: dict[int, procfs.SchedStat | None] = {}
        self._names: dict[int, str | None] = {}
        self._runtimes = gil.Runtimes()
        self._mappings: Mappings | None = None
        self._open_requests = np.zeros(2, np.int64)
        self._start_ns = self._stop_ns = self._cpu_ns = 0
        self._stopping = threading.Event()
        self._drainer: threading.Thread | None = None
        self._drain_error: OSError | None = None

    @classmethod
    def check(cls, options: Options) -> Iterable[Check]:
        """Rows of `perfscope doctor`: each backend, and what the kernel can tell."""
        return checks.rows(options)

    def start(self, root_pids: list[int]) -> None:
        """Attaches, then follows the threads of `root_pids` and of all their descendants.

        Raises CollectorError, with what mends it, if no backend can run here.
        """
        with self._cost():
            self.context.raw.mkdir(parents=True, exist_ok=True)
            backend = self._backend = self._open()
            self.report.version = f"{backend.name} ({backend.version})"
            self.report.notes += backend.notes
            self._drm = DrmEvents.open(self.context.raw)
            self.report.notes += self._drm.notes
            try:
                self._mappings = Mappings(self._runtimes)
            except CollectorError as error:
                self.report.notes.append(f"where a Python process that soon ends had its GIL can't be known: {error}")
            self._start_ns = time.monotonic_ns()
            self._follow_trees(root_pids)
        self._drainer = threading.Thread(target=self._drain_loop, name="perfscope-ebpf", daemon=True)
        self._drainer.start()

    def _open(self) -> Backend:
        wanted = self.context.options.ebpf_backend
        refused: list[tuple[str, CollectorError]] = []
        for name in BACKENDS if wanted == "auto" else [wanted]:
            try:
                backend = _backend_class(name)(self.context.raw)
            except CollectorError as error:
                for leftover in ("events.bin", "blocks.bin"):
                    (self.context.raw / leftover).unlink(missing_ok=True)
                refused.append((name, error))
                continue
            self.report.notes += [f"backend {other} can't run here: {why}" for other, why in refused]
            return backend
        why = "; ".join(f"{name}: {error}" for name, error in refused)
        raise CollectorError(f"no backend can run here: {why}", hint=refused[0][1].hint)

    def _follow_trees(self, roots: list[int]) -> None:
        """Until a look finds nothing new: a thread started by one that wasn't yet followed would be missed."""
        tried: set[int] = set()
        found = True
        while found:
            found = False
            for pid in procfs.tree(roots):
                if pid in self.context.own_pids:
                    continue
                if pid not in tried:
                    self._runtimes.look(pid)
                for tid in procfs.threads(pid):
                    if tid not in tried:
                        tried.add(tid)
                        found = True
                        self._follow(pid, tid)

    def _follow(self, pid: int, tid: int) -> None:
        backend = self._backend
        thread = threads.snapshot(pid, tid)
        if backend is None or thread is None or not backend.follow(thread):
            return
        for _ in range(BRACKET_TRIES):
            now = time.monotonic_ns()
            before = procfs.schedstat(pid, tid)
            if time.monotonic_ns() - now < BRACKET_NS:
                break
        if before is None:
            backend.forget(tid)
            return
        self._initial.append(threads.Life(pid, tid, now, name=procfs.comm(pid, tid), state=thread.state, before=before))

    def process_started(self, process: procfs.Process) -> None:
        """Follows it if the kernel's fork events didn't, and finds where its CPython keeps the GIL."""
        with self._cost():
            if self._backend is None or process.pid in self.context.own_pids:
                return
            self._follow_trees([process.pid])

    def followed(self) -> set[int]:
        """What the kernel's fork events led to: also a daemon whose parent was gone before /proc showed it."""
        backend = self._backend
        return set() if backend is None or self._stopping.is_set() else backend.living()

    @property
    def tick_s(self) -> float:
        return TICK_S if self._runtimes.unread else CALM_TICK_S

    def tick(self) -> None:
        """Looks again for the GIL where it wasn't found: its library may be mapped only now.

        Raises CollectorError once the records can't be written any more (disk full).
        """
        for pid in self._runtimes.unread:
            self._runtimes.look(pid)
        if self._drain_error is not None:
            raise CollectorError(f"can't write {self.context.raw}: {self._drain_error.strerror}")

    def _drain_loop(self) -> None:
        assert self._backend is not None
        try:
            while not self._stopping.wait(until_beat_s(self._backend.drain_s)):
                self._backend.drain()
                if self._drm is not None:
                    self._drm.drain()
                if self._mappings is not None:
                    self._mappings.drain()
        except OSError as error:
            self._drain_error = error
        finally:
            self._cpu_ns += time.thread_time_ns()

    def stop(self) -> None:
        """Detaches everything, and takes /proc's last word on the threads that live on."""
        if self._stop_ns:
            return
        with self._cost():
            self._stopping.set()
            if self._drainer is not None:
                self._drainer.join()
            if self._mappings is not None:
                self._mappings.stop()
            backend = self._backend
            if backend is None:
                self._stop_ns = time.monotonic_ns()
                return
            try:
                for _ in range(BRACKET_TRIES):
                    self._last_words()
                    if time.monotonic_ns() - self._stop_ns < BRACKET_NS:
                        break
                backend.stop()
                if self._drm is not None:
                    self._drm.stop()
            except OSError as error:
                self._drain_error = error

    def _last_words(self) -> None:
        """CPU times and names of the threads that live on, as close to the end as can be."""
        backend = self._backend
        assert backend is not None
        pids = {pid for pid, _ in backend.followed()}
        self._stop_ns = time.monotonic_ns()
        for pid in pids:
            for tid in procfs.threads(pid):
                self._final[tid] = procfs.schedstat(pid, tid)
                self._names[tid] = procfs.comm(pid, tid)

    def read(self, writer: SessionWriter, start_ns: int, stop_ns: int) -> None:
        """Writes sched, waits, block_io and drm_jobs; notes processes and threads; completes `report` and `clocks`."""
        self.clocks["ebpf"] = MONOTONIC
        backend = self._backend
        if backend is None:
            return
        backend.finish()
        window = tables.Window(max(start_ns, self._start_ns), min(stop_ns, self._stop_ns))
        tasks, count = self._scan()
        lives = threads.build(self._initial, tasks, self._final, self._stop_ns)
        losses = backend.losses()
        unsure = not backend.paired and losses.events + losses.missed > 0  # it can't say whose they were
        for life in lives.lives:
            if unsure or life.tid in backend.broken:
                life.complete = False
        for life in lives.lives:
            if life.end_ns is None:
                life.name = self._names.get(life.tid) or life.name
        beginnings = tables.Beginnings(lives, window)
        sched = tables.SchedTable(writer, lives, window, beginnings)
        kinds = self._learn_gil(lives)
        for events in self._events():
            sched.add(events)
            tables.append_waits(writer, events, window, beginnings, kinds)
        sched.add_untold()
        for blocks in chunks(self.context.raw / "blocks.bin", BLOCK):
            count += len(blocks)
            self._open_requests += tables.append_blocks(writer, blocks, window, lives.lives)
        if self._drm is not None:
            count += self._drm.read(writer, window)
        tables.note_lives(writer, lives, window)
        self._complete(lives, window, count, kinds)

    def _events(self) -> Iterator[Records]:
        return chunks(self.context.raw / "events.bin", EVENT)

    def _scan(self) -> tuple[Records, int]:
        tasks, count = [np.empty(0, EVENT)], 0
        for events in self._events():
            count += len(events)
            tasks.append(events[np.isin(events["kind"], (FORK, EXEC, DEATH, ALIVE))])
        return np.concatenate(tasks), count

    def _learn_gil(self, lives: threads.Lives) -> gil.WaitKinds:
        execed = {tgid for _, tgid, _ in lives.images}
        parents = {pid: parent for pid, parent in lives.parents.items() if pid not in execed}
        named = {tgid for _, tgid, name in lives.images if name.startswith("python")}
        ranges = self._runtimes.ranges
        kinds = gil.WaitKinds(ranges, self._runtimes.unread | named - ranges.keys(), parents)
        for events in self._events():
            kinds.learn(events)
        return kinds

    def _complete(self, lives: threads.Lives, window: tables.Window, count: int, kinds: gil.WaitKinds) -> None:
        assert self._backend is not None
        losses = self._backend.losses()
        losses.raws = self._drm.lost if self._drm is not None else 0
        report = self.report
        report.events = count
        report.lost_events = losses.events + losses.blocks + losses.untracked + losses.raws + losses.missed
        report.cpu_ns = self._cpu_ns
        report.covered_ns = [(window.start_ns, window.stop_ns)]
        report.details["lost"] = vars(losses)
        incomplete = sum(not life.complete for life in lives.lives)
        problems = []
        if full := report.lost_events - losses.missed:
            problems.append(f"{full} events lost (buffers full)")
        if losses.restored:
            report.notes.append(
                f"{losses.restored} switches to recorded threads fired no event; when they happened is known from the "
                "scheduler's run times"
            )
        if losses.missed:
            problems.append(f"{losses.missed} events missed (the kernel skipped the probe)")
        if incomplete:
            problems.append(f"{incomplete} of {len(lives.lives)} threads have gaps in their scheduling events")
        of_others, of_target = self._open_requests
        if of_target:
            problems.append(f"{of_target} disk requests {HIDDEN}")
        if of_others:
            report.notes.append(f"{of_others} disk requests of other processes {HIDDEN}")
        if self._drain_error is not None:
            problems.append(f"records couldn't be written: {self._drain_error.strerror}")
        if problems:
            report.status, report.why = "partial", "; ".join(problems)
        report.details["not_followed"] = ["futex_waitv(2)", "futex_wait(2)"]  # glibc and CPython use futex(2) alone
        if kinds.unknown:
            pids = ", ".join(map(str, sorted(kinds.unknown)))
            report.notes.append(
                f"no _PyRuntime symbol found in Python process {pids}: whether its {sum(kinds.unknown.values())} futex "
                "waits were for the GIL or for other locks is unknown"
            )
        if self._mappings is not None and self._mappings.lost:
            report.notes.append(f"{self._mappings.lost} mappings of program files went unseen (buffers full)")
        if self._runtimes.ranges:
            report.notes.append(
                "GIL waits are those for the main interpreter's GIL: subinterpreters with a GIL of their own show as "
                "other locks, free-threaded builds have no GIL"
            )

    @contextmanager
    def _cost(self) -> Iterator[None]:
        before = time.thread_time_ns()
        try:
            yield
        finally:
            self._cpu_ns += time.thread_time_ns() - before


def _backend_class(name: str) -> Callable[[Path], Backend]:
    module, _, attribute = BACKENDS[name].partition(":")
    loaded: Callable[[Path], Backend] = getattr(import_module(module), attribute)
    return loaded

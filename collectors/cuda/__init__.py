"""What the GPU did, and which code asked for it: CUPTI activity records through an injected library.

The library (probes/cuda) is loaded by the CUDA driver itself, into processes started with its environment variables;
a process that runs already can't be joined. It leaves one spool file a process in the raw directory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from perfscope import probes, procfs
from perfscope.clock import MONOTONIC
from perfscope.collectors.base import Check, Collector
from perfscope.collectors.cuda import spool as records
from perfscope.collectors.cuda import tables
from perfscope.errors import CollectorError, InputError
from perfscope.model.session_writer import SessionWriter
from perfscope.options import Options
from perfscope.procfs import Process

LIBRARY = probes.path("cuda", "libperfscope_cuda.so")
_INJECTION = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
_STOP_WAIT_S = 2.0
"""Longest wait for a live process to hand over its last records; the probe looks every 0.2 s."""
_BUILD = "apt-get install gcc libc6-dev, then in a checkout: pip install --force-reinstall --no-deps ."


class CudaCollector(Collector):
    """Records kernels, copies, synchronisations, allocations, NVTX ranges and launch calls of the started target."""

    name = "cuda"

    @classmethod
    def check(cls, options: Options) -> Iterable[Check]:
        if not LIBRARY.exists():
            yield Check(cls.name, "probe", "unavailable", "the CUDA probe wasn't built with this installation", _BUILD)
        elif not Path("/dev/nvidiactl").exists():
            yield Check(cls.name, "driver", "unavailable", "no NVIDIA driver on this host", "install the NVIDIA driver")
        elif taken := [name for name in _INJECTION if os.environ.get(name)]:
            why = f"{taken[0]} is set already: another tool records CUDA in this environment"
            yield Check(cls.name, "injection", "unavailable", why, f"unset {' '.join(taken)}")
        else:
            yield Check(cls.name, "CUPTI activity", "ok")

    def environment(self) -> dict[str, str]:
        self.context.raw.mkdir(parents=True, exist_ok=True)
        self.context.raw.chmod(0o1733)  # the target may run as another user
        return {
            "PERFSCOPE_CUDA_DIR": str(self.context.raw.absolute()),
            **dict.fromkeys(_INJECTION, str(LIBRARY.absolute())),
        }

    def start(self, root_pids: list[int]) -> None:
        self._tids: dict[int, dict[int, int]] = {}
        self._host_pids: dict[int, int] = {}
        running = [pid for pid in root_pids if "libcuda.so.1" in {Path(p).name for p in procfs.mapped_files(pid)}]
        if running:
            raise CollectorError(
                f"process {running[0]} uses CUDA already; its driver loads the probe only at its first initialisation",
                hint="start the program under perfscope: perfscope record -- CMD",
            )

    def process_started(self, process: Process) -> None:
        self._host_pids[process.ns_pid] = process.pid

    def tick(self) -> None:
        for file in self._spools():
            inner = int(file.name.partition("-")[0])
            pid = self._host_pids.get(inner, inner)
            self._tids.setdefault(pid, {}).update(procfs.inner_to_host_tids(pid))

    def stop(self) -> None:
        """Asks the probes of processes that go on to hand over what they hold and to end; waits a bounded time."""
        open_files = [file for file in self._spools() if not records.closed(file)]
        for file in open_files:
            records.ask_to_stop(file)
        deadline = time.monotonic() + _STOP_WAIT_S
        while time.monotonic() < deadline and any(
            not records.closed(file) and Path(f"/proc/{self._pid(file)}").exists() for file in open_files
        ):
            time.sleep(0.02)

    def read(self, writer: SessionWriter, start_ns: int, stop_ns: int) -> None:
        report, totals = self.report, tables.Counts()
        report.covered_ns = [(start_ns, stop_ns)]
        report.lost_events = 0
        self.clocks[self.name] = MONOTONIC
        faults: list[str] = []
        for file in self._spools():
            try:
                spool = records.read(file)
            except InputError as error:
                faults.append(str(error))
                continue
            pid = self._pid(file)
            counts = tables.write(spool, pid, self._tids.get(pid, {}), writer)
            totals.add(counts)
            report.lost_events += spool.lost + spool.cupti_lost
            report.version = f"CUPTI {spool.cupti_version}" if spool.cupti_version else report.version
            self._judge(pid, spool, faults)
        report.events = totals.activities + totals.calls
        report.details = {**vars(totals)}
        if not self._spools():
            report.status, report.why = "unavailable", "no process of the target initialised CUDA"
            return
        if totals.device_ns:
            share = 100 * totals.with_stack_ns / totals.device_ns
            report.notes.append(f"{share:.1f}% of GPU time has the exact Python stack that launched it")
        if totals.overhead_ns:
            spent = sorted(totals.overhead_ns.items(), key=lambda item: -item[1])
            words = ", ".join(f"{ns / 1e6:.1f} ms {purpose}" for purpose, ns in spent if ns >= 50_000)
            report.notes.append(f"CUPTI's own account of overhead: {words or 'below 0.1 ms'}")
        if totals.bad_times:
            report.notes.append(f"{totals.bad_times} GPU records without a usable time were left out")
        if totals.launches_unseen:
            report.notes.append(
                f"{totals.launches_unseen} launch calls have no GPU record: captured into CUDA graphs, "
                "or not handed over before the process ended"
            )
        report.notes.append(
            "while it is recorded, no other CUPTI user (torch.profiler, nsys, ncu) can work in the target"
        )
        if faults or report.lost_events:
            report.status = "partial"
            report.why = "; ".join(faults) or f"{report.lost_events} records were lost"

    def _judge(self, pid: int, spool: records.Spool, faults: list[str]) -> None:
        faults += [f"process {pid}: {note[7:]}" for note in spool.notes if note.startswith("error: ")]
        self.report.notes += [f"process {pid}: {note}" for note in spool.notes if note.startswith("no launch stacks")]
        if spool.damaged:
            faults.append(f"process {pid}: {spool.damaged} chunks of its records end in a damaged one")
        if not spool.complete:
            self.report.notes.append(f"process {pid} ended abruptly: GPU records of its last 0.2 s may be missing")

    def _spools(self) -> list[Path]:
        return sorted(self.context.raw.glob("[0-9]*-[0-9]*.spool"))

    def _pid(self, file: Path) -> int:
        inner = int(file.name.partition("-")[0])
        return self._host_pids.get(inner, inner)

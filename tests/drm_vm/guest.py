"""Runs in the guest, as `guest.py DIRECTORY`: records jobs, switches and reads whose numbers are known by other means.

Leaves the session, and in truth.json what this program itself knows of them.
"""

from __future__ import annotations

import json
import mmap
import os
import platform
import shutil
import sys
import threading
import time
from pathlib import Path

from perfscope import procfs
from perfscope.collectors.base import Context
from perfscope.collectors.ebpf import EbpfCollector
from perfscope.collectors.pyspy import PySpyCollector
from perfscope.model.info import SessionInfo
from perfscope.model.session_writer import SessionWriter
from perfscope.options import Options

NAPS, READS, READ_BYTES = 20, 20, 65536
SPIN_NS = 2_000_000_000


def submit(jobs: int, told: list[dict[str, int]]) -> None:
    """Submits from the calling thread, and notes who that is and when."""
    with Path("/dev/mockgpu").open("wb", buffering=0) as gpu:
        before = time.monotonic_ns()
        gpu.write(str(jobs).encode())
        told.append({"tid": threading.get_native_id(), "jobs": jobs, "from": before, "until": time.monotonic_ns()})


def switches() -> list[int]:
    """How often the calling thread slept and how often it was preempted, by the kernel's own count."""
    lines = Path("/proc/thread-self/status").read_text().splitlines()
    return [int(line.split()[1]) for line in lines if "ctxt_switches" in line]


def nap(told: dict[str, int]) -> None:
    told["before"] = time.monotonic_ns()
    before = switches()
    told |= {"tid": threading.get_native_id(), "from": time.monotonic_ns()}
    for _ in range(NAPS):
        time.sleep(0.005)
    told["until"] = time.monotonic_ns()
    told["voluntary"], told["involuntary"] = (now - then for now, then in zip(switches(), before, strict=True))
    told["after"] = time.monotonic_ns()


def spin(told: dict[str, int]) -> None:
    told |= {"tid": threading.get_native_id(), "from": time.monotonic_ns()}
    while time.thread_time_ns() < SPIN_NS:
        pass
    told["until"] = time.monotonic_ns()


def read_disk() -> None:
    fd = os.open("/dev/vda", os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, READ_BYTES)
    for number in range(READS):
        os.preadv(fd, [buffer], number * READ_BYTES)
    os.close(fd)


def disk_counts() -> list[int]:
    """Read requests completed and sectors read, by the kernel's own count."""
    fields = Path("/sys/block/vda/stat").read_text().split()
    return [int(fields[0]), int(fields[2])]


def main(directory: Path) -> None:
    scratch = Path("/dev/shm/session.perfscope")
    writer = SessionWriter(scratch)
    ebpf = EbpfCollector(Context(writer.raw / "ebpf", Options(ebpf_backend="libbpf"), lambda key, argv: None))
    ebpf.start([os.getpid()])
    python = PySpyCollector(Context(writer.raw / "pyspy", Options(python_sampler="bpf"), lambda key, argv: None))
    python.start([os.getpid()])
    itself = procfs.process(os.getpid())
    assert itself is not None
    python.process_started(itself)
    start_ns = time.monotonic_ns()
    submitters: list[dict[str, int]] = []
    napper: dict[str, int] = {}
    spinner: dict[str, int] = {}
    submit(4, submitters)
    for target in (lambda: submit(3, submitters), lambda: nap(napper), lambda: spin(spinner)):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
    before = disk_counts()
    read_disk()
    after = disk_counts()
    python.stop()
    ebpf.stop()
    stop_ns = time.monotonic_ns()
    for collector in (ebpf, python):
        collector.read(writer, start_ns, stop_ns)
    reports = {"ebpf": ebpf.report, "pyspy": python.report}
    info = SessionInfo(start_ns=start_ns, stop_ns=stop_ns, clocks=python.clocks, collectors=reports)
    shutil.copytree(writer.finish(info), directory / "session.perfscope")
    truth = {
        "release": platform.release(),
        "pid": os.getpid(),
        "submitters": submitters,
        "napper": napper,
        "spinner": spinner,
        "disk": [now - then for now, then in zip(after, before, strict=True)],
        "read_bytes": READS * READ_BYTES,
        "doctor": {check.what: [check.state, check.why] for check in ebpf.check(Options())},
    }
    (directory / "truth.json").write_text(json.dumps(truth))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Runs the real collector and the real binding against a library whose answers are known (tests/nvml_fake)."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from perfscope.model.session import Session

DRIVER = """
import json, os, sys, threading
from pathlib import Path
from perfscope.collectors.base import Context
from perfscope.options import Options
from perfscope.collectors.nvml import NvmlCollector, collector as collector_module, owners, sampler as sampler_module
from perfscope.errors import CollectorError
from perfscope.model.info import SessionInfo
from perfscope.model.session_writer import SessionWriter
import time

def run(case):
    owners.in_first_pid_namespace = lambda: case["host"]
    collector_module._STOP_WAIT_S = 0.3
    sampler_module.SEARCH_NS, sampler_module.UNUSED_NS = 0, 100_000_000
    settings = Path(os.environ["FAKE_NVML"])
    settings.write_text(case["before"])
    writer = SessionWriter(Path(case["session"]))
    (writer.raw / "nvml").mkdir()
    collector = NvmlCollector(Context(writer.raw / "nvml", Options(gpu_rate_hz=case["rate"]), lambda key, argv: None))
    start = time.monotonic_ns()
    try:
        collector.start([os.getpid()])
        held = [open(path) for path in case["hold"]]
        whole = Path(case["session"] + ".settings")
        whole.write_text(case["before"] + case["then"].replace("SELF", str(os.getpid())))
        whole.replace(settings)
        sampler, pacer, never = collector._sampler, collector._pacer, threading.Event()
        while not set(case["uses"]) <= sampler.owners.used and pacer.error is None:
            never.wait(0.01)
        first = sampler.passes
        calls = Path(os.environ["FAKE_NVML_LOG"])
        while sampler.passes < first + case["passes"] and "HANGS" not in calls.read_text() and pacer.error is None:
            never.wait(0.01)
        collector.tick()
    finally:
        try:
            collector.stop()
        except CollectorError as error:
            print(error, file=sys.stderr)
    stop = time.monotonic_ns()
    collector.read(writer, start, stop)
    info = SessionInfo(pids=[os.getpid()], start_ns=start, stop_ns=stop,
                       collectors={"nvml": collector.report}, clocks=collector.clocks)
    writer.finish(info)
    print(json.dumps({"pid": os.getpid(), "used": sorted(sampler.owners.used), "passes": sampler.passes}))

for case in json.loads(sys.argv[1]):
    run(case)
"""


def build(directory: Path) -> Path:
    """Compiles the double. Returns the directory to search for it."""
    source = Path(__file__).parent / "nvml_fake" / "nvml.c"
    library = directory / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-Wall", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    return directory


def environment(library: Path, directory: Path) -> dict[str, str]:
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(library),
        "FAKE_NVML": str(directory / "settings"),
        "FAKE_NVML_LOG": str(directory / "calls"),
    }


class Recorded:
    """What came of one run: rows of counters, the report, and every call that the library saw."""

    def __init__(self, session: Session, calls: Path, said: dict) -> None:
        self.session = session
        self.report = session.info.collectors["nvml"]
        self.rows = session.table("counters").to_pylist()
        self.calls = Counter(calls.read_text().splitlines())
        self.pid, self.used, self.passes = said["pid"], said["used"], said["passes"]

    def values(self, name: str, device: str = "gpu0") -> set[float]:
        return {row["value"] for row in self.rows if row["name"] == name and row["device"] == device}

    def names(self, device: str = "gpu0") -> set[str]:
        return {row["name"] for row in self.rows if row["device"] == device}


def case(
    directory: Path, *, before="", then="pid 0 SELF 4096\n", host=True, rate=10, passes=4, hold=(), uses=("gpu0",)
):
    """One run of the collector on the driver process itself as the target.

    before, then: the library's settings before and after the start; SELF stands for the target's pid. hold: files that
    the target opens after the start. It ends `passes` after the target was seen on the devices `uses`.
    """
    return {"before": before, "then": then, "host": host, "rate": rate, "passes": passes, "hold": list(hold),
            "uses": list(uses), "session": str(directory / "s.perfscope")}  # fmt: skip


def record_all(library: Path, directory: Path, cases: list[dict], prefix=()) -> list[Recorded]:
    """Makes several runs, one after the other, in one process. Their calls are counted together."""
    done = subprocess.run(
        [*prefix, sys.executable, "-W", "error::UserWarning", "-c", DRIVER, json.dumps(cases)],
        env=environment(library, directory), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [
        Recorded(Session.open(Path(one["session"])), directory / "calls", json.loads(said))
        for one, said in zip(cases, done.stdout.splitlines(), strict=True)
    ]


def record(library: Path, directory: Path, prefix=(), **settings) -> Recorded:
    """Makes one run; `settings` as for `case`."""
    return record_all(library, directory, [case(directory, **settings)], prefix)[0]

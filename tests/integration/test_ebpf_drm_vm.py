"""GPU scheduler jobs on real tracepoints, and the shipped BPF objects on an older kernel: Debian's, in a machine of its
own, with a mock GPU driver."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import pytest
from drm_vm import machine

from perfscope.collectors.base import Context
from perfscope.collectors.ebpf import EbpfCollector
from perfscope.collectors.ebpf.tracefs import events
from perfscope.model.session import Session
from perfscope.options import Options

MS, NAPS = 1_000_000, 20
Truth = dict[str, Any]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Truth, Session]:
    """One boot: what the guest knows of its own doings, and what perfscope recorded of them there."""
    if platform.machine() != "x86_64":
        pytest.skip(f"the guest is x86_64, this machine {platform.machine()}")
    directory = tmp_path_factory.mktemp("machine")
    out = directory / "out"
    out.mkdir()
    command = f"{sys.executable} {machine.HERE / 'guest.py'} /dev/shm/out"
    try:
        release = machine.kernel_release()
        root = machine.fetch_kernel(release, directory)
    except machine.CannotRun as why:
        pytest.skip(str(why))
    image = machine.start_image(root, machine.build_driver(release, directory), command, directory)
    console = machine.run(root, image, out, 64 << 20)
    log = (out / "log").read_text() if (out / "log").exists() else ""
    assert (out / "truth.json").exists(), f"{log}\nconsole:\n{console}"
    truth = json.loads((out / "truth.json").read_text())
    assert truth["release"] == release
    return truth, Session.open(out / "session.perfscope")


def rows(session: Session, table: str) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = session.table(table).to_pylist()
    return data


@pytest.mark.timeout(300)
def test_every_gpu_job_with_its_submitter_and_its_three_moments(recorded: tuple[Truth, Session]) -> None:
    truth, session = recorded
    jobs = rows(session, "drm_jobs")
    assert [s["jobs"] for s in truth["submitters"]] == [4, 3]
    assert len(jobs) == 7
    for submitter in truth["submitters"]:
        mine = sorted((j for j in jobs if j["tid"] == submitter["tid"]), key=lambda j: j["queue_ns"])
        assert len(mine) == submitter["jobs"]
        for job in mine:
            assert job["pid"] == truth["pid"]
            assert job["ring"] == "ring0"
            assert submitter["from"] <= job["queue_ns"] <= job["run_ns"] < job["done_ns"]
            # The driver's timer can't fire early, and its end is what the submitter waited for.
            assert job["done_ns"] - job["run_ns"] >= 1.9 * MS
        # Nothing but the last wake-up lies between the last job's end and the return of write(2).
        assert mine[-1]["done_ns"] <= submitter["until"]
        # Two run at a time: each starts after the job two before it has ended.
        assert all(late["run_ns"] >= early["done_ns"] - 0.1 * MS for early, late in zip(mine, mine[2:], strict=False))
    assert len({job["job"] for job in jobs}) == 7
    took = sorted(job["done_ns"] - job["run_ns"] for job in jobs)
    assert took[len(took) // 2] < 20 * MS  # an emulated processor is slow, not ten times


@pytest.mark.timeout(300)
def test_the_same_objects_record_on_an_older_kernel(recorded: tuple[Truth, Session]) -> None:
    truth, session = recorded
    report = session.info.collectors["ebpf"]
    assert report.status == "ok", report.why
    assert report.lost_events == 0
    assert str(report.version).startswith("libbpf")
    napper = truth["napper"]
    off = [r for r in rows(session, "sched") if r["tid"] == napper["tid"]]
    # The kernel's counts were read outside the naps, yet between two stamps further out.
    outer = [r for r in off if napper["before"] <= r["off_ns"] < napper["after"]]
    off = [r for r in off if napper["from"] <= r["off_ns"] < napper["until"]]
    assert napper["voluntary"] > 0
    assert sum(r["state"] != "R" for r in off) <= napper["voluntary"] <= sum(r["state"] != "R" for r in outer)
    # One that a timer or signal overtakes counts as voluntary, although the thread stays runnable.
    assert napper["involuntary"] <= sum(r["state"] == "R" for r in outer)
    assert len(off) <= napper["voluntary"] + napper["involuntary"] <= len(outer)
    asleep = sum(r["wake_ns"] - r["off_ns"] for r in off if r["state"] == "S")
    assert 0.5 * NAPS * 5 * MS < asleep < napper["until"] - napper["from"]
    reads = [r for r in rows(session, "block_io") if r["device"] == "vda"]
    assert len(reads) == truth["disk"][0]
    assert sum(r["bytes"] for r in reads) == truth["disk"][1] * 512 == truth["read_bytes"]
    assert {(r["pid"], r["operation"], r["error"]) for r in reads} == {(truth["pid"], "read", 0)}
    assert all(r["start_ns"] <= r["issue_ns"] <= r["complete_ns"] for r in reads)


@pytest.mark.timeout(300)
def test_python_stacks_of_a_kernel_without_the_tracepoint(recorded: tuple[Truth, Session]) -> None:
    truth, session = recorded
    report = session.info.collectors["pyspy"]
    assert report.status == "ok" and report.details["sampler"] == "bpf", report
    assert report.lost_events == 0
    samples = [r for r in rows(session, "samples") if r["source"] == "pyspy"]
    for who, function in (("napper", "nap"), ("spinner", "spin")):
        told = truth[who]
        mine = [r for r in samples if r["tid"] == told["tid"]]
        seen = [r for r in mine if function in {f.function for f in session.stacks.path(r["stack_id"])}]
        inside = [r for r in seen if told["from"] <= r["time_ns"] < told["until"]]
        span = sum(min(r["time_ns"] + r["duration_ns"], told["until"]) - r["time_ns"] for r in inside)
        assert span > 0.8 * (told["until"] - told["from"]), who
    looks = sum(r["count"] for r in samples if r["tid"] == truth["spinner"]["tid"])
    assert looks > 100  # 2 s of CPU time at 100 Hz, in a machine whose timer is emulated


@pytest.mark.timeout(300)
def test_doctor_sees_the_driver(recorded: tuple[Truth, Session]) -> None:
    state, why = recorded[0]["doctor"]["GPU scheduler events (drm)"]
    assert state == "ok"
    assert "drm_run_job" in why


def test_without_such_events_doctor_and_the_recording_say_so(tmp_path: Path) -> None:
    (row,) = [check for check in EbpfCollector.check(Options()) if "drm" in check.what]
    if events("gpu_scheduler"):
        assert row.state == "ok"
        return
    assert row.state == "unavailable"
    assert row.why.startswith("gpu_scheduler events: not available on this kernel")
    ebpf = EbpfCollector(Context(tmp_path, Options(ebpf_backend="libbpf"), lambda key, argv: None, {os.getpid()}))
    ebpf.start([])
    ebpf.stop()
    assert row.why in ebpf.report.notes

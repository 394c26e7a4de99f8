"""The CUDA collector's own part: what it gives a target, and what it says of what the probe left."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest

from perfscope.collectors.base import Context
from perfscope.collectors.cuda import LIBRARY, CudaCollector
from perfscope.collectors.cuda import spool as records
from perfscope.model.info import SessionInfo
from perfscope.model.session import Session
from perfscope.model.session_writer import SessionWriter
from perfscope.options import Options
from perfscope.procfs import Process

DATA = Path(__file__).parents[1] / "data" / "gpu" / "truth.spool.gz"


@pytest.fixture
def collector(tmp_path: Path) -> CudaCollector:
    raw = tmp_path / "raw"
    raw.mkdir()
    return CudaCollector(Context(raw, Options(), lambda key, argv: None))


def leave(collector: CudaCollector, inner_pid: int, change: bytes = b"", at: int = 0) -> Path:
    data = bytearray(gzip.decompress(DATA.read_bytes()))
    data[at : at + len(change)] = change
    file = collector.context.raw / f"{inner_pid}-1.spool"
    file.write_bytes(data)
    return file


def read(collector: CudaCollector, place: Path) -> Session:
    writer = SessionWriter(place / "s.perfscope")
    collector.read(writer, 0, 10)
    return Session.open(writer.finish(SessionInfo(start_ns=0, stop_ns=10)))


def test_a_target_gets_the_probe_and_a_place_it_may_write_to(collector: CudaCollector) -> None:
    variables = collector.environment()
    assert variables["CUDA_INJECTION64_PATH"] == variables["NVTX_INJECTION64_PATH"] == str(LIBRARY.absolute())
    place = Path(variables["PERFSCOPE_CUDA_DIR"])
    assert place == collector.context.raw.absolute()
    assert place.stat().st_mode & 0o7777 == 0o1733


def test_what_the_probe_left_is_the_hosts_process(collector: CudaCollector, tmp_path: Path) -> None:
    collector.start([])
    collector.process_started(Process(9001, 1, 77, "python"))  # 77 as it sees itself, in a container
    leave(collector, 77)
    session = read(collector, tmp_path)
    assert set(session.table("gpu_activity")["pid"].to_pylist()) == {9001}
    assert collector.report.status == "ok"
    assert (collector.report.lost_events, collector.report.events) == (0, 800 + 733)
    assert any("exact Python stack" in note for note in collector.report.notes)


def test_losses_and_refusals_are_said(collector: CudaCollector, tmp_path: Path) -> None:
    collector.start([])
    note = b"error: another CUPTI user holds this process (cuptiSubscribe): busy\n"
    leave(collector, 1, struct.pack("<QQ", 3, 4), at=32)  # records lost by the probe, and by CUPTI
    file = leave(collector, 2, note, at=records.NOTES_AT)
    with file.open("r+b") as opened:
        opened.seek(64)
        opened.write(struct.pack("<I", len(note)))
    (collector.context.raw / "3-1.spool").write_bytes(b"PSCUDA1\0" + bytes(100))
    read(collector, tmp_path)
    assert (collector.report.status, collector.report.lost_events) == ("partial", 7)
    assert "process 2: another CUPTI user" in (collector.report.why or "")
    assert "3-1.spool: no CUDA activity spool" in (collector.report.why or "")


def test_no_cuda_in_the_target(collector: CudaCollector, tmp_path: Path) -> None:
    collector.start([])
    read(collector, tmp_path)
    assert (collector.report.status, collector.report.why) == (
        "unavailable",
        "no process of the target initialised CUDA",
    )


def test_a_probe_is_asked_to_stop(collector: CudaCollector) -> None:
    collector.start([])
    done = leave(collector, 1)
    going = leave(collector, 2, bytes(8), at=48)  # not closed yet; its process is gone, so nobody waits for it
    collector.stop()
    assert records.closed(done) and not records.closed(going)
    assert struct.unpack_from("<I", going.read_bytes(), records.STOP_AT) == (1,)
    assert struct.unpack_from("<I", done.read_bytes(), records.STOP_AT) == (0,)

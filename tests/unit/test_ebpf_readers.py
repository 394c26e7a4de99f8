"""Readers of the eBPF collector: ELF symbols, unpaired records, GPU scheduler jobs of both generations."""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfscope.collectors.ebpf import elf, gil, pairing
from perfscope.collectors.ebpf.backend import Thread
from perfscope.collectors.ebpf.backend_libbpf import until_next_drain_s
from perfscope.collectors.ebpf.drm import JobTable
from perfscope.collectors.ebpf.records import ALIVE, EVENT, SCHED, SWITCH, WAIT, WAKE, chunks


def test_python_runtime_is_where_the_loader_put_it() -> None:
    address = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    runtimes = gil.Runtimes()
    runtimes.look(os.getpid())
    assert address in [start for start, _ in runtimes.ranges[os.getpid()]]
    assert not runtimes.unread


def test_a_python_without_the_symbol_makes_its_waits_unknown(tmp_path: Path) -> None:
    """Process 10 maps a Python whose symbol can't be read, 11 is its child, 12 no Python."""
    runtimes = gil.Runtimes()
    runtimes.mapped(10, 0x1000, 0x2000, 0, str(tmp_path / "libpython3.12.so.1.0"), 1)
    runtimes.mapped(12, 0x1000, 0x2000, 0, str(tmp_path / "libboost_python312.so"), 1)
    assert runtimes.unread == {10}
    kinds = gil.WaitKinds(runtimes.ranges, runtimes.unread, {11: 10})
    waits = np.array([(5, 1, 0x1000, tgid, tgid, 0, 0, 0, 0, WAIT, 0) for tgid in (10, 11, 12)], EVENT)
    kinds.learn(waits)
    assert [gil.KINDS[kind] for kind in kinds.of(waits)] == ["unknown", "unknown", "futex"]
    assert kinds.unknown == {10: 1, 11: 1}


@given(st.floats(0, 1), st.floats(0.001, 10))
def test_a_buffer_is_drained_again_before_it_is_a_sixteenth_full(filled: float, seconds: float) -> None:
    wait = until_next_drain_s(filled, seconds)
    assert 0.05 <= wait <= 0.5
    assert wait == 0.05 or wait * filled / seconds <= 1.0001 / 16
    assert wait == 0.5 or wait * filled / seconds >= 0.9999 / 16


@given(st.binary(max_size=400))
def test_no_bytes_upset_the_elf_reader(data: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"\x7fELF\x02\x01" + data)
        file.flush()
        assert elf.find_symbol(Path(file.name), "_PyRuntime") is None


def test_off_wake_on_of_two_threads(tmp_path: Path) -> None:
    """Thread 10 sleeps 100..180 and is woken at 150; 11 runs from 100, is preempted at 180, never comes back."""
    rows = [
        (100, 0, 0, 10, 10, 11, 1, 0, 0, SWITCH, 0),
        (150, 0, 0, 11, 10, 11, 0, 0, 0, WAKE, 0),
        (180, 0, 0, 11, 11, 10, 0x100, 0, 3, SWITCH, 0),
    ]
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(np.array(rows, EVENT).tobytes())
    assert pairing.pair(source, target, [(50, Thread(10, 10, 0)), (50, Thread(11, 11, 1))]) == set()
    (out,) = chunks(target, EVENT)
    sched = {int(r["tid"]): r for r in out[out["kind"] == SCHED]}
    assert [int(sched[10][name]) for name in ("a", "b", "time", "value", "extra", "cpu")] == [100, 150, 180, 1, 11, 3]
    assert [int(sched[11][name]) for name in ("a", "time")] == [0, 100]  # off since before it was followed
    (left,) = out[(out["kind"] == ALIVE) & (out["tid"] == 11)]
    assert [int(left[name]) for name in ("a", "b", "value")] == [180, 180, 0]


def test_jobs_of_both_generations() -> None:
    old = JobTable()
    old.event("drm_sched_job", 10, 7, 8, {"fence": 0xABC, "name": "gfx", "id": 3, "job_count": 2})
    old.event("drm_run_job", 15, 0, 0, {"fence": 0xABC, "name": "gfx", "id": 3})
    old.event("drm_sched_process_job", 30, 0, 0, {"fence": 0xABC})
    (job,) = old.rows()
    assert (job.queue_ns, job.run_ns, job.done_ns, job.pid, job.tid) == (10, 15, 30, 7, 8)
    assert (job.ring, job.job, job.queued_jobs) == ("gfx", 3, 2)
    new = JobTable()
    key: dict[str, int | str] = {"fence_context": 5, "fence_seqno": 9}
    new.event("drm_sched_job_queue", 10, 7, 8, {**key, "dev": "0000:01:00.0", "name": "sdma"})
    new.event("drm_sched_job_run", 12, 0, 0, dict(key))
    new.event("drm_sched_job_done", 20, 0, 0, dict(key))
    (job,) = new.rows()
    assert (job.queue_ns, job.run_ns, job.done_ns) == (10, 12, 20)
    assert (job.device, job.ring, job.job) == ("0000:01:00.0", "sdma", 9)

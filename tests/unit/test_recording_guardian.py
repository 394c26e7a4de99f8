"""The guardian runs what is registered once perfscope is gone, and nothing else."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from recording_helpers import wait_for

from perfscope.recording.guardian import Guard


def test_nothing_runs_when_all_was_taken_back(tmp_path: Path) -> None:
    guard = Guard()
    guard.register("a", ["touch", str(tmp_path / "a")])
    guard.register("a", [])
    guard.close()
    assert list(tmp_path.iterdir()) == []


def test_what_is_left_runs_latest_first_and_a_failing_undo_stops_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    guard = Guard()
    for name in ("first", "second"):
        guard.register(name, ["sh", "-c", f"echo {name} >> {log}"])
    guard.register("third", ["/nonexistent"])
    guard.close()
    assert log.read_text().split() == ["second", "first"]


def test_one_collectors_undos_can_run_at_once(tmp_path: Path) -> None:
    guard = Guard()
    guard.register("jfr:1", ["touch", str(tmp_path / "jfr")])
    guard.register("ebpf:1", ["touch", str(tmp_path / "ebpf")])
    guard.run_now("jfr:")
    wait_for((tmp_path / "jfr").exists)
    assert not (tmp_path / "ebpf").exists()
    guard.register("ebpf:1", [])
    guard.close()


def test_it_has_a_session_of_its_own_and_survives_what_is_typed(tmp_path: Path) -> None:
    guard = Guard()
    guard.register("a", ["touch", str(tmp_path / "a")])
    wait_for(lambda: b"\0-S\0" in Path(f"/proc/{guard.pid}/cmdline").read_bytes())
    assert os.getsid(guard.pid) == guard.pid != os.getsid(0)
    ignored = lambda: int(Path(f"/proc/{guard.pid}/status").read_text().split("SigIgn:\t")[1].split()[0], 16)  # noqa: E731 (short)
    typed = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    wait_for(lambda: all(ignored() >> (number - 1) & 1 for number in typed))  # under nohup, one is from the start
    for number in typed:
        os.kill(guard.pid, number)
    guard.close()
    assert (tmp_path / "a").exists()


def test_a_killed_guardian_costs_only_the_net() -> None:
    guard = Guard()
    os.kill(guard.pid, signal.SIGKILL)
    wait_for(lambda: Path(f"/proc/{guard.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    guard.register("a", ["true"])
    guard.close()

"""The nvml collector through the real binding: which devices and processes are the target's, and whole recordings."""

import json
import subprocess
import sys

import pytest
from nvml_helpers import build, environment, record

from perfscope.model.session import Session


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("nvml"))


INSIDE = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs tmpfs /dev && touch /dev/nvidia0 /dev/nvidia1 && exec "$@"', "-")


def test_a_target_that_is_never_listed_keeps_what_it_has_open(library, tmp_path):
    got = record(
        library, tmp_path, before="gpus 2\n", then="pid 1 1 5\n", hold=["/dev/nvidia1"], uses=(), prefix=INSIDE
    )
    assert {row["device"] for row in got.rows} == {"gpu1"}
    assert not got.values("gpu_process_memory_bytes", "gpu1")
    assert (got.report.status, got.used) == ("ok", [])
    assert "gpu1: kept as the target has it open; the driver listed no process of it" in got.report.notes


def test_a_lost_gpu_is_left_alone_and_the_other_goes_on(library, tmp_path):
    got = record(
        library, tmp_path, before="gpus 2\n", passes=6,
        then="pid 0 SELF 4096\npid 1 SELF 8192\nfail nvmlDeviceGetPowerUsage 1 15\n", uses=["gpu0", "gpu1"],
    )  # fmt: skip
    assert got.report.details["absent"]["gpu1"]["device"] == "GPU is lost"
    assert got.calls["nvmlDeviceGetPowerUsage 1"] <= got.calls["nvmlDeviceGetPowerUsage 0"] - 3
    assert got.values("gpu_power_w", "gpu0") == {345.678}


def test_only_the_devices_of_the_target_are_kept(library, tmp_path):
    got = record(library, tmp_path, before="gpus 3\npid 0 1 5\n", then="pid 2 SELF 4096\n", uses=["gpu2"])
    assert {row["device"] for row in got.rows} == {"gpu2"}
    assert got.values("gpu_memory_used_bytes", "gpu2") == {1002}
    # Once known, the others are no longer read.
    assert got.calls["nvmlDeviceGetPowerUsage 0"] < got.calls["nvmlDeviceGetPowerUsage 2"]
    used = {label: facts["used"] for label, facts in got.report.details["devices"].items()}
    assert used == {"gpu0": False, "gpu1": False, "gpu2": True}


def test_a_target_that_uses_no_gpu_leaves_nothing_but_the_reason(library, tmp_path):
    got = record(library, tmp_path, then="pid 0 1 5\n", uses=())
    assert got.rows == []
    assert (got.report.status, got.report.why) == ("unavailable", "no process of the target was seen on a GPU")


def test_mig_instances_have_their_own_values_and_share_the_rest(library, tmp_path):
    got = record(library, tmp_path, before="mig 2\n", then="pid 101 SELF 4096\n", uses=["gpu0/mig1"])
    assert {row["device"] for row in got.rows} == {"gpu0", "gpu0/mig1"}
    assert got.values("gpu_sm_active_pct", "gpu0/mig1") == {3.0}
    assert got.values("gpu_memory_used_bytes", "gpu0/mig1") == {1101}
    assert got.values("gpu_process_memory_bytes", "gpu0/mig1") == {4096}
    assert got.values("gpu_power_w", "gpu0") == {345.678}
    assert not got.values("gpu_power_w", "gpu0/mig1")
    assert not got.calls["nvmlGpmSampleGet 0"]
    assert got.report.details["devices"]["gpu0/mig1"]["gpu_instance"] == 6


def test_utilisation_of_the_target_processes(library, tmp_path):
    got = record(library, tmp_path, passes=12)  # asked once a second; the first answer is of the time before
    assert got.values("gpu_process_sm_pct") == {42}
    assert got.values("gpu_process_memory_pct") == {24}
    rows = [r for r in got.rows if r["name"] == "gpu_process_sm_pct"]
    assert all(r["pid"] == got.pid and r["error_ns"] > 100_000_000 for r in rows)


def test_in_a_container_a_process_is_told_by_the_device_it_holds(library, tmp_path):
    """The driver's ids are of another namespace: 4242 isn't ours, and 77 was there before."""
    got = record(
        library, tmp_path, host=False, before="gpus 2\npid 1 77 5\n", then="pid 1 4242 4096\n",
        hold=["/dev/nvidia1"], uses=["gpu1"], prefix=INSIDE,
    )  # fmt: skip
    assert got.used == ["gpu1"]
    assert {(r["pid"], r["value"]) for r in got.rows if r["name"] == "gpu_process_memory_bytes"} == {(got.pid, 4096)}
    assert any("exclusion" in note for note in got.report.notes)


def test_in_a_container_two_unknown_processes_are_not_guessed(library, tmp_path):
    got = record(
        library, tmp_path, host=False, then="pid 0 4242 4096\npid 0 4243 4096\n", hold=["/dev/nvidia0"], prefix=INSIDE
    )
    assert got.used == ["gpu0"]
    assert not got.values("gpu_process_memory_bytes")
    assert got.values("gpu_temperature_c") == {61}


def test_in_a_container_an_equal_number_is_chance(library, tmp_path):
    got = record(library, tmp_path, host=False, uses=())
    assert got.used == []


def test_recording_a_command_from_end_to_end(library, tmp_path):
    target = (
        "import os, sys, threading\n"
        "open(os.environ['FAKE_NVML'], 'a').write(f'pid 0 {os.getpid()} 4096\\n')\n"
        "calls = open(os.environ['FAKE_NVML_LOG'])\n"
        "while calls.read().count('nvmlGpmMetricsGet') < 1: threading.Event().wait(0.02)\n"
        "while calls.read().count('nvmlDeviceGetComputeRunningProcesses_v3') < 1: threading.Event().wait(0.02)\n"
    )
    session = tmp_path / "s.perfscope"
    command = [sys.executable, "-m", "perfscope", "record", "-o", session, "--collect", "nvml", "--gpu-rate", "20"]
    (tmp_path / "settings").touch()
    done = subprocess.run(
        [*command, "--", sys.executable, "-c", target],
        env=environment(library, tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    opened = Session.open(session)
    assert opened.info.collectors["nvml"].status == "ok", opened.info.collectors["nvml"]
    assert opened.info.options["gpu_rate_hz"] == 20
    assert "gpu_sm_active_pct" in opened.table("counters")["name"].to_pylist()
    doctor = subprocess.run(
        [sys.executable, "-m", "perfscope", "doctor", "--json"],
        env=environment(library, tmp_path), capture_output=True, text=True,
    )  # fmt: skip
    rows = json.loads(doctor.stdout)
    (row,) = [r for r in (rows["checks"] if isinstance(rows, dict) else rows) if r["collector"] == "nvml"]
    assert (row["state"], row["why"]) == ("ok", "1 found")

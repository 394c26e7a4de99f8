"""The nvml collector through the real binding, against a library that answers what the tests know."""

import json
import math
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from nvml_helpers import build, case, environment, record, record_all

from perfscope.model.session import Session

MIB = 1 << 20


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def plain(library, tmp_path_factory):
    """One GPU with GPM and nothing that fails, at 10 Hz."""
    return record(library, tmp_path_factory.mktemp("plain"), passes=8)


def test_gpm_and_classic_values_arrive_in_their_units(plain):
    got = plain
    # The double's GPM metrics are 1.5 times their id: 1 graphics, 2 SM, 3 occupancy, 5 tensor, 10 DRAM, 20 and 21 PCIe.
    expected = {
        "gpu_busy_pct": 1.5, "gpu_sm_active_pct": 3.0, "gpu_sm_occupancy_pct": 4.5, "gpu_tensor_active_pct": 7.5,
        "gpu_dram_active_pct": 15.0, "pcie_tx_bytes_per_s": 30 * MIB, "pcie_rx_bytes_per_s": 31.5 * MIB,
        "gpu_power_w": 345.678, "gpu_power_limit_w": 700.0, "gpu_power_limit_default_w": 650.0,
        "gpu_temperature_c": 61.0, "gpu_sm_clock_mhz": 1500.0,
        "gpu_memory_clock_mhz": 3200.0, "gpu_sm_clock_max_mhz": 1980.0, "gpu_memory_clock_max_mhz": 3201.0,
        "gpu_memory_used_bytes": 1000.0, "gpu_memory_total_bytes": 80000.0, "gpu_ecc_corrected_errors": 7.0,
        "gpu_ecc_uncorrected_errors": 2.0, "pcie_link_generation": 4.0, "pcie_link_width_lanes": 8.0,
        "pcie_link_generation_max": 5.0, "pcie_link_width_max_lanes": 16.0, "gpu_process_memory_bytes": 4096.0,
        "gpu_clock_event_sw_power_cap": 1.0, "gpu_clock_event_sw_thermal_slowdown": 1.0,
        "gpu_clock_event_hw_slowdown": 0.0, "gpu_clock_event_gpu_idle": 0.0,
    }  # fmt: skip
    for name, value in expected.items():
        assert got.values(name) == {value}, name
    assert {row["pid"] for row in got.rows if row["name"].startswith("gpu_process")} == {got.pid}
    assert {row["pid"] for row in got.rows if not row["name"].startswith("gpu_process")} == {None}
    assert got.report.status == "ok"
    assert got.report.version == "NVML 13.999.1, driver 999.1"
    facts = got.report.details["devices"]["gpu0"]
    assert facts == {
        "name": "NVIDIA Fake", "uuid": "GPU-0000", "pci": "00000000:1B:00.0", "mig": None, "numa_node": 1,
        "cpu_affinity": "0-3,8,64", "used": True,
    }  # fmt: skip


def test_gpm_takes_the_place_of_slow_calls_and_keeps_its_distance(library, tmp_path):
    got = record(library, tmp_path, rate=50, passes=20)
    assert got.calls["nvmlGpmMetricsGet -1"] >= 2
    assert not got.calls["TOO_CLOSE -1"] and not got.calls["WRONG_ORDER -1"]
    assert not got.calls["nvmlDeviceGetPcieThroughput 0"]
    assert not got.calls["nvmlDeviceGetUtilizationRates 0"]


def test_every_gpm_sample_but_the_first_gives_means(plain):
    assert plain.calls["nvmlGpmMetricsGet -1"] == plain.calls["nvmlGpmSampleGet 0"] - 1 >= 3


def test_what_the_hardware_has_for_good_is_asked_once(plain):
    for function in ("MaxPcieLinkGeneration", "MaxPcieLinkWidth", "PowerManagementDefaultLimit"):
        assert plain.calls[f"nvmlDeviceGet{function} 0"] == 1
    assert plain.calls["nvmlDeviceGetMaxClockInfo 0"] == 2  # SM and memory
    assert plain.calls["nvmlDeviceGetPowerUsage 0"] >= 8  # every pass since the target was seen


def test_a_target_that_is_never_listed_keeps_what_it_has_open(library, tmp_path):
    got = record(
        library, tmp_path, before="gpus 2\n", then="pid 1 1 5\n", hold=["/dev/nvidia1"], uses=(), prefix=INSIDE
    )
    assert {row["device"] for row in got.rows} == {"gpu1"}
    assert not got.values("gpu_process_memory_bytes", "gpu1")
    assert (got.report.status, got.used) == ("ok", [])
    assert "gpu1: kept as the target has it open; the driver listed no process of it" in got.report.notes


def test_gpm_rows_tile_the_time_they_cover(plain):
    rows = sorted((r for r in plain.rows if r["name"] == "gpu_sm_active_pct"), key=lambda r: r["time_ns"])
    assert len(rows) >= 3
    for row, following in pairwise(rows):
        assert row["error_ns"] > 50_000_000
        end, start = row["time_ns"] + row["error_ns"], following["time_ns"] - following["error_ns"]
        assert abs(end - start) <= 2
    power = [r["error_ns"] for r in plain.rows if r["name"] == "gpu_power_w"]
    assert max(power) <= plain.session.info.clocks["nvml"].error_ns


def test_without_gpm_classic_calls_say_what_they_can(library, tmp_path):
    got = record(library, tmp_path, before="gpm 0\n")
    assert got.values("gpu_utilization_pct") == {37}
    assert got.values("gpu_memory_utilization_pct") == {12}
    assert got.values("pcie_tx_bytes_per_s") == {111_000}  # counter 0 is TX
    assert got.values("pcie_rx_bytes_per_s") == {222_000}
    assert got.calls["nvmlDeviceGetPcieThroughput 0"] == 2  # once a second at most, though sampled more often
    assert not got.values("gpu_sm_active_pct") and not got.values("gpu_busy_pct")
    assert "GPM (value)" in got.report.details["absent"]["gpu0"]


@pytest.mark.parametrize(("code", "words"), [(3, "Not Supported"), (4, "Insufficient Permissions")])
def test_a_call_that_can_never_work_is_made_once_and_its_value_is_missing(library, tmp_path, code, words):
    failing = {
        "nvmlDeviceGetPowerUsage": ("gpu_power_w", "power"),
        "nvmlDeviceGetCurrentClocksEventReasons": ("gpu_clock_event_sw_power_cap", "clock event reasons"),
        "nvmlDeviceGetMemoryInfo": ("gpu_memory_used_bytes", "memory"),
    }
    before = "".join(f"fail {function} 0 {code}\n" for function in [*failing, "nvmlDeviceGetNumaNodeId"])
    got = record(library, tmp_path, before=before)
    for function, (name, what) in failing.items():
        assert not got.values(name)
        assert got.calls[f"{function} 0"] == 1
        assert got.report.details["absent"]["gpu0"][what] == words
    assert got.report.details["devices"]["gpu0"]["numa_node"] is None
    assert got.values("gpu_temperature_c") == {61}
    assert any("power" in note and words in note for note in got.report.notes)


def test_a_passing_failure_is_tried_again_but_not_in_every_pass(library, tmp_path):
    got = record(library, tmp_path, before="fail nvmlDeviceGetPowerUsage 0 999\n", passes=5)
    assert got.calls["nvmlDeviceGetPowerUsage 0"] == 1
    assert not got.values("gpu_power_w")


def test_every_single_call_may_fail(library, tmp_path, plain):
    """Whatever function gives Not Supported, the rest is had and nothing breaks."""
    functions = {line.split()[0] for line in plain.calls} - {
        "nvmlInitWithFlags", "nvmlShutdown", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2",
    }  # fmt: skip
    assert len(functions) > 25
    cases = []
    for function in sorted(functions):
        (tmp_path / function).mkdir()
        listing = function == "nvmlDeviceGetComputeRunningProcesses_v3"  # without it no use can be seen here
        cases.append(
            case(
                tmp_path / function,
                before=f"fail {function} -1 3\n",
                rate=50,
                passes=8,
                uses=[] if listing else ["gpu0"],
            )
        )
    for function, got in zip(sorted(functions), record_all(library, tmp_path, cases), strict=True):
        if function == "nvmlDeviceGetComputeRunningProcesses_v3":
            assert got.rows == []
            continue
        assert got.values("gpu_temperature_c") or got.values("gpu_power_w"), function
        left_out = plain.names() - got.names() - {"gpu_process_sm_pct", "gpu_process_memory_pct"}  # take longer
        assert len(left_out) <= 9, (function, left_out)  # the clock events are nine
        assert all(math.isfinite(row["value"]) for row in got.rows)


def test_a_lost_gpu_is_left_alone_and_the_other_goes_on(library, tmp_path):
    got = record(
        library, tmp_path, before="gpus 2\n", passes=6,
        then="pid 0 SELF 4096\npid 1 SELF 8192\nfail nvmlDeviceGetPowerUsage 1 15\n", uses=["gpu0", "gpu1"],
    )  # fmt: skip
    assert got.report.details["absent"]["gpu1"]["device"] == "GPU is lost"
    assert got.calls["nvmlDeviceGetPowerUsage 1"] <= got.calls["nvmlDeviceGetPowerUsage 0"] - 3
    assert got.values("gpu_power_w", "gpu0") == {345.678}


def test_a_driver_that_hangs_costs_no_more_than_what_came_after(library, tmp_path):
    then = "pid 0 SELF 4096\nfail nvmlDeviceGetCurrPcieLinkWidth 0 -1\n"
    got = record(library, tmp_path, then=then, passes=1000)
    assert got.calls["nvmlDeviceGetCurrPcieLinkWidth 0"] >= 1
    assert got.values("gpu_memory_used_bytes") == {1000}
    assert not got.calls["nvmlShutdown -1"]  # its memory is still in use


def test_a_gpu_that_cannot_be_opened_is_named(library, tmp_path):
    got = record(library, tmp_path, before="gpus 2\nfail nvmlDeviceGetHandleByIndex_v2 1 4\n")
    assert got.report.details["absent"]["gpu1"] == {"device": "Insufficient Permissions"}
    assert "gpu1 can't be opened: Insufficient Permissions" in got.report.notes
    assert got.values("gpu_temperature_c") == {61}


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


def test_xid_errors_are_counted_once_with_the_time_they_came_in(library, tmp_path):
    got = record(library, tmp_path, then="pid 0 SELF 4096\nxid 0 79\nxid 0 31\n", passes=5)
    assert sorted(row["value"] for row in got.rows if row["name"] == "gpu_xid") == [31, 79]
    assert any("2 Xid errors" in note for note in got.report.notes)


def test_utilisation_of_the_target_processes(library, tmp_path):
    got = record(library, tmp_path, passes=12)  # asked once a second; the first answer is of the time before
    assert got.values("gpu_process_sm_pct") == {42}
    assert got.values("gpu_process_memory_pct") == {24}
    rows = [r for r in got.rows if r["name"] == "gpu_process_sm_pct"]
    assert all(r["pid"] == got.pid and r["error_ns"] > 100_000_000 for r in rows)


INSIDE = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs tmpfs /dev && touch /dev/nvidia0 /dev/nvidia1 && exec "$@"', "-")


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


def test_the_documentation_names_every_counter(plain):
    words = set(re.findall(r"`([a-z_]+)`", (Path(__file__).parents[2] / "docs" / "gpu-counters.md").read_text()))
    names = {name.removeprefix("gpu_clock_event_") for name in plain.names()}
    assert names <= words, names - words

"""The nvml collector through the real binding, against a library that answers what the tests know."""

import math
import re
from itertools import pairwise
from pathlib import Path

import pytest
from nvml_helpers import build, case, record, record_all

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
                passes=5,
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


def test_a_driver_that_hangs_costs_no_more_than_what_came_after(library, tmp_path):
    then = "pid 0 SELF 4096\nfail nvmlDeviceGetCurrPcieLinkWidth 0 -1\n"
    got = record(library, tmp_path, then=then, passes=1000)
    assert got.calls["HANGS 0"] == 1
    assert got.values("gpu_memory_used_bytes") == {1000}
    assert not got.calls["nvmlShutdown -1"]  # its memory is still in use


def test_a_gpu_that_cannot_be_opened_is_named(library, tmp_path):
    got = record(library, tmp_path, before="gpus 2\nfail nvmlDeviceGetHandleByIndex_v2 1 4\n")
    assert got.report.details["absent"]["gpu1"] == {"device": "Insufficient Permissions"}
    assert "gpu1 can't be opened: Insufficient Permissions" in got.report.notes
    assert got.values("gpu_temperature_c") == {61}


def test_xid_errors_are_counted_once_with_the_time_they_came_in(library, tmp_path):
    got = record(library, tmp_path, then="pid 0 SELF 4096\nxid 0 79\nxid 0 31\n", passes=5)
    assert sorted(row["value"] for row in got.rows if row["name"] == "gpu_xid") == [31, 79]
    assert any("2 Xid errors" in note for note in got.report.notes)


def test_the_documentation_names_every_counter(plain):
    words = set(re.findall(r"`([a-z_]+)`", (Path(__file__).parents[2] / "docs" / "gpu-counters.md").read_text()))
    names = {name.removeprefix("gpu_clock_event_") for name in plain.names()}
    assert names <= words, names - words

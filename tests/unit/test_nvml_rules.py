"""The rules on sampled GPUs, on made-up sessions whose right answer follows by hand."""

import math

import numpy as np
import pytest

from perfscope.diagnosis.engine import judge
from perfscope.diagnosis.gpu_counters import Series
from perfscope.diagnosis.rules.pcie_saturated import link_bytes_per_s
from perfscope.diagnosis.thresholds import defaults
from perfscope.model.finding import Severity
from perfscope.model.info import CollectorReport, SessionInfo
from perfscope.model.session import Session
from perfscope.model.session_writer import SessionWriter

MS = 1_000_000
START = 5_000 * MS
GEN5_X16 = 32e9 * 128 / 130 * 16 / 8


class Sampled:
    """A session of `seconds` whose GPUs were sampled ten times a second."""

    def __init__(self, path, seconds=10, report=None, others=()):
        self.writer = SessionWriter(path / "gpu.perfscope")
        self.seconds = seconds
        self.collectors = {**{name: CollectorReport() for name in others}, "nvml": report or CollectorReport()}

    def gpm(self, name, values, device="gpu0", first=0):
        """Means of consecutive intervals of 100 ms."""
        times = START + (np.arange(len(values)) + first) * 100 * MS + 50 * MS
        self._add(name, times, 50 * MS, values, device)

    def points(self, name, values, device="gpu0", every_ms=100):
        self._add(name, START + 30 * MS + np.arange(len(values)) * every_ms * MS, 10_000, values, device)

    def _add(self, name, times, error, values, device):
        count = len(values)
        self.writer.append("counters", {
            "time_ns": times, "error_ns": np.full(count, error), "source": ["nvml"] * count, "name": [name] * count,
            "device": [device] * count, "value": np.asarray(values, np.float64),
        })  # fmt: skip

    def verdict(self, rule):
        info = SessionInfo(
            command=["serve"], start_ns=START, stop_ns=START + self.seconds * 1000 * MS, collectors=self.collectors
        )
        diagnosis = judge(Session.open(self.writer.finish(info)), [], defaults())
        return next(v for v in diagnosis.verdicts if v.rule == rule)


@pytest.fixture
def sampled(tmp_path):
    return Sampled(tmp_path)


def evidence(finding, what):
    (found,) = [e.value for e in finding.evidence if e.what == what]
    return found


RULES = ("gpu-saturated", "gpu-throttled", "pcie-saturated")


@pytest.mark.parametrize("rule", RULES)
def test_a_session_without_a_gpu_says_why(tmp_path, rule):
    report = CollectorReport(
        "unavailable", "no NVIDIA GPU can be seen: NVML Shared Library Not Found", "install a driver"
    )
    verdict = Sampled(tmp_path, report=report).verdict(rule)
    assert verdict.verdict == "not_evaluable"
    assert "no NVIDIA GPU can be seen: NVML Shared Library Not Found" in verdict.why
    assert "install a driver" in verdict.why


@pytest.mark.parametrize("rule", RULES)
def test_a_counter_that_the_driver_refused_is_named_with_its_reason(tmp_path, rule):
    report = CollectorReport(details={"absent": {"gpu0": {"power": "Not Supported"}}})
    sampled = Sampled(tmp_path, report=report)
    sampled.points("gpu_temperature_c", [40] * 100)
    verdict = sampled.verdict(rule)
    assert verdict.verdict == "not_evaluable"
    assert "gpu0: power: Not Supported" in verdict.why


# Saturated


def test_three_full_samples_in_a_row_are_saturation(sampled):
    sampled.gpm("gpu_busy_pct", [50] * 40 + [99, 99.5, 100] + [50] * 57)
    sampled.gpm("gpu_sm_active_pct", [10] * 40 + [70, 80, 90] + [10] * 57)
    verdict = sampled.verdict("gpu-saturated")
    assert verdict.verdict == "flagged"
    (finding,) = verdict.findings
    assert finding.severity is Severity.INFO
    assert finding.gives_back_pct is None
    assert finding.where.device == "gpu0"
    assert finding.where.window_ns == (START + 4000 * MS, START + 4300 * MS)
    assert evidence(finding, "samples in a row") == 3
    assert evidence(finding, "least busy of 3 samples in a row") == 99
    assert evidence(finding, "saturated, share of the recording") == pytest.approx(3)
    assert evidence(finding, "SMs active meanwhile, mean") == pytest.approx(80)


def test_two_full_samples_or_full_ones_apart_are_none(sampled):
    sampled.gpm("gpu_busy_pct", [100, 100, 98.9] * 33)
    assert sampled.verdict("gpu-saturated").verdict == "ok"


def test_full_samples_on_both_sides_of_a_hole_do_not_follow_each_other(sampled):
    sampled.gpm("gpu_busy_pct", [50] * 20 + [100, 100])
    sampled.gpm("gpu_busy_pct", [100, 100] + [50] * 20, first=60)
    assert sampled.verdict("gpu-saturated").verdict == "ok"


def test_without_gpm_looks_of_the_same_second_count_once(tmp_path):
    (tmp_path / "short").mkdir()
    short = Sampled(tmp_path / "short")
    short.points("gpu_utilization_pct", [40] * 30 + [100] * 15 + [40] * 55)  # 1.5 s: at most two distinct looks
    assert short.verdict("gpu-saturated").verdict == "ok"
    long = Sampled(tmp_path)
    long.points("gpu_utilization_pct", [40] * 30 + [100] * 40 + [40] * 30)
    assert long.verdict("gpu-saturated").verdict == "flagged"


def test_two_samples_are_too_few_to_say(sampled):
    sampled.gpm("gpu_busy_pct", [50, 50])
    assert sampled.verdict("gpu-saturated").verdict == "not_evaluable"


def test_each_gpu_is_judged_alone(sampled):
    sampled.gpm("gpu_busy_pct", [10] * 100, device="gpu0")
    sampled.gpm("gpu_busy_pct", [100] * 100, device="gpu1")
    (finding,) = sampled.verdict("gpu-saturated").findings
    assert finding.where.device == "gpu1"
    assert evidence(finding, "saturated, share of the recording") == pytest.approx(100, abs=1)


# Throttled


def throttled(sampled, reason="sw_thermal_slowdown", busy=100, clock=990, active=50, limit=None, default=None):
    """`active` of 100 samples below the clock, at half of it by default."""
    for name, watts in (("gpu_power_limit_w", limit), ("gpu_power_limit_default_w", default)):
        if watts is not None:
            sampled.points(name, [watts], every_ms=1000)
    sampled.gpm("gpu_busy_pct", [busy] * 100)
    sampled.points(f"gpu_clock_event_{reason}", [1] * active + [0] * (100 - active))
    sampled.points("gpu_sm_clock_mhz", [clock] * active + [1980] * (100 - active))
    sampled.points("gpu_sm_clock_max_mhz", [1980], every_ms=10_000)


def test_throttling_gives_back_what_the_lower_clock_cost(sampled):
    throttled(sampled)
    verdict = sampled.verdict("gpu-throttled")
    assert verdict.verdict == "flagged"
    (finding,) = verdict.findings
    assert evidence(finding, "busy time at a lowered clock") == pytest.approx(50)
    assert evidence(finding, "SM clock meanwhile, mean") == pytest.approx(990)
    assert evidence(finding, "SM clock, maximum") == 1980
    assert finding.gives_back_pct == pytest.approx(25)  # half of the time at half of the clock
    assert finding.severity is Severity.MEDIUM
    assert "heat" in finding.title and "cool" in finding.advice


def test_a_busy_gpu_counts_more_than_an_idle_one(sampled):
    sampled.gpm("gpu_busy_pct", [90] * 50 + [10] * 50)
    sampled.points("gpu_clock_event_hw_slowdown", [0] * 50 + [1] * 50)
    sampled.points("gpu_sm_clock_mhz", [1980] * 50 + [495] * 50)
    sampled.points("gpu_sm_clock_max_mhz", [1980], every_ms=10_000)
    verdict = sampled.verdict("gpu-throttled")
    # Slowed down in 10 of 100 parts of its busy time; 5 % of the recording's time busy x 3/4 of the clock = 3.75 %.
    assert verdict.verdict == "ok"
    assert "10.0 %" in verdict.why


def test_a_few_percent_below_the_clock_at_a_lowered_power_limit_cost_nothing(sampled):
    throttled(sampled, "sw_power_cap", clock=1900, active=100, limit=650, default=700)
    verdict = sampled.verdict("gpu-throttled")
    assert verdict.verdict == "ok"
    assert "slowed down in 100.0 %" in verdict.why


@pytest.mark.parametrize(("limit", "default"), [(700, 700), (700, None), (None, 700), (None, None), (750, 700)])
def test_a_board_at_a_power_limit_that_nobody_lowered_is_not_throttled(sampled, limit, default):
    throttled(sampled, "sw_power_cap", clock=1485, active=100, limit=limit, default=default)
    verdict = sampled.verdict("gpu-throttled")
    assert verdict.verdict == "ok"
    assert "at its power limit in 100.0 % of its busy time (SM clock meanwhile, mean 1485 MHz" in verdict.why
    assert "slowed down in 0.0 %" in verdict.why


def test_a_lowered_power_limit_is_throttling(sampled):
    throttled(sampled, "sw_power_cap", clock=990, active=100, limit=350, default=700)
    (finding,) = sampled.verdict("gpu-throttled").findings
    assert finding.gives_back_pct == pytest.approx(50)
    assert "lowered power limit" in finding.title and "default" in finding.advice


def test_heat_beside_the_power_limit_counts_alone(sampled):
    throttled(sampled, "sw_power_cap", active=100, limit=700, default=700)
    sampled.points("gpu_clock_event_hw_thermal_slowdown", [1] * 20 + [0] * 80)
    (finding,) = sampled.verdict("gpu-throttled").findings
    assert evidence(finding, "busy time at a lowered clock") == pytest.approx(20)
    assert finding.gives_back_pct == pytest.approx(10)


@pytest.mark.parametrize("reason", ["gpu_idle", "applications_clocks_setting", "sync_boost"])
def test_clocks_that_are_low_for_other_reasons_are_no_throttling(sampled, reason):
    throttled(sampled, reason)
    sampled.points("gpu_clock_event_sw_power_cap", [0] * 100)
    assert sampled.verdict("gpu-throttled").verdict == "ok"


def test_without_clocks_the_gain_is_unknown_not_nothing(sampled):
    sampled.gpm("gpu_busy_pct", [100] * 100)
    sampled.points("gpu_clock_event_hw_slowdown", [1] * 100)
    (finding,) = sampled.verdict("gpu-throttled").findings
    assert finding.gives_back_pct is None
    assert finding.severity is Severity.LOW


def test_an_idle_gpu_is_not_throttled(sampled):
    throttled(sampled, busy=0)
    verdict = sampled.verdict("gpu-throttled")
    assert (verdict.verdict, verdict.why) == ("ok", "gpu0 was never busy")


def test_a_mig_instance_is_judged_by_the_clocks_of_its_gpu(sampled):
    sampled.gpm("gpu_busy_pct", [100] * 100, device="gpu0/mig1")
    sampled.points("gpu_clock_event_sw_thermal_slowdown", [1] * 100)
    sampled.points("gpu_sm_clock_mhz", [990] * 100)
    sampled.points("gpu_sm_clock_max_mhz", [1980], every_ms=10_000)
    (finding,) = sampled.verdict("gpu-throttled").findings
    assert finding.where.device == "gpu0/mig1"
    assert finding.gives_back_pct == pytest.approx(50, abs=0.6)


# PCIe


@pytest.mark.parametrize(
    ("generation", "lanes", "gigabytes"),
    # As in the tables everybody quotes: 1.0 x1 250 MB/s, 3.0 x16 15.75 GB/s, 4.0 x16 31.5, 5.0 x16 63.0.
    [(1, 1, 0.25), (2, 8, 4.0), (3, 16, 15.754), (4, 16, 31.508), (5, 16, 63.015), (5, 8, 31.508), (6, 16, 118.0)],
)
def test_what_a_link_can_carry(generation, lanes, gigabytes):
    assert link_bytes_per_s(generation, lanes) == pytest.approx(gigabytes * 1e9, rel=1e-3)


def test_an_unknown_generation_has_no_maximum():
    assert math.isnan(link_bytes_per_s(9, 16))
    assert math.isnan(link_bytes_per_s(math.nan, 16))


def link(sampled, generation=5, lanes=16):
    sampled.points("pcie_link_generation", [generation] * 10, every_ms=1000)
    sampled.points("pcie_link_width_lanes", [lanes] * 10, every_ms=1000)
    sampled.points("pcie_link_generation_max", [5], every_ms=1000)
    sampled.points("pcie_link_width_max_lanes", [16], every_ms=1000)


def test_a_full_link_is_flagged_with_its_share(sampled):
    link(sampled)
    sampled.gpm("pcie_tx_bytes_per_s", [0.5 * GEN5_X16] * 80 + [0.95 * GEN5_X16] * 20)
    verdict = sampled.verdict("pcie-saturated")
    assert verdict.verdict == "flagged"
    (finding,) = verdict.findings
    assert evidence(finding, "link from the GPU used, mean while full") == pytest.approx(95)
    assert finding.gives_back_pct == pytest.approx(20)
    assert "slot" not in finding.advice
    assert "block writes" not in finding.title


def test_just_below_the_threshold_is_ok(sampled):
    link(sampled)
    sampled.gpm("pcie_tx_bytes_per_s", [0.919 * GEN5_X16] * 100)
    verdict = sampled.verdict("pcie-saturated")
    assert verdict.verdict == "ok"
    assert "91.9 %" in verdict.why


def test_a_narrow_link_is_full_earlier_and_named(sampled):
    link(sampled, lanes=8)
    sampled.gpm("pcie_rx_bytes_per_s", [0.48 * GEN5_X16] * 100)
    (finding,) = sampled.verdict("pcie-saturated").findings
    assert evidence(finding, "link to the GPU used, mean while full") == pytest.approx(96)
    assert evidence(finding, "PCIe width") == 8
    assert evidence(finding, "PCIe width, maximum of GPU and slot") == 16
    assert "slot" in finding.advice


def test_a_link_that_sleeps_between_looks_is_taken_at_its_highest(sampled):
    sampled.points("pcie_link_generation", [1, 5] * 5, every_ms=1000)
    sampled.points("pcie_link_width_lanes", [16] * 10, every_ms=1000)
    sampled.gpm("pcie_tx_bytes_per_s", [0.5 * GEN5_X16] * 100)
    assert sampled.verdict("pcie-saturated").verdict == "ok"


def test_without_the_link_nothing_is_said_of_the_traffic(sampled):
    sampled.gpm("pcie_tx_bytes_per_s", [0.95 * GEN5_X16] * 100)
    assert sampled.verdict("pcie-saturated").verdict == "not_evaluable"


@pytest.mark.parametrize(("device_us", "both"), [(200, True), (40, False)])
def test_slow_block_writes_at_the_same_time_are_told(tmp_path, device_us, both):
    sampled = Sampled(tmp_path, others=("ebpf",))
    link(sampled)
    sampled.gpm("pcie_tx_bytes_per_s", [0.1 * GEN5_X16] * 50 + [0.95 * GEN5_X16] * 50)
    rows = []
    for i in range(100):
        issue = START + i * 100 * MS + 20 * MS
        took = 5000 if i < 50 else device_us  # slow ones while the link was free don't count
        rows.append({
            "start_ns": issue - 1000, "issue_ns": issue, "complete_ns": issue + took * 1000, "pid": 1, "tid": 1,
            "comm": "x", "device": "nvme0n1", "sector": i, "bytes": 4096, "operation": "write", "flags": "W",
            "error": 0, "in_target": True,
        })  # fmt: skip
    sampled.writer.append("block_io", rows)
    (finding,) = sampled.verdict("pcie-saturated").findings
    assert evidence(finding, "block writes meanwhile, device time, median") == pytest.approx(device_us)
    assert ("while block writes took" in finding.title) is both


# Series


def test_nearest_and_highest_values():
    series = Series(np.asarray([0, 100, 200]), np.zeros(3, np.int64), np.asarray([1.0, 5.0, 3.0]))
    near = series.near(np.asarray([-10, 49, 51, 190, 400]), 60)
    assert near[:4].tolist() == [1, 1, 5, 3]
    assert math.isnan(near[4])
    assert series.highest(np.asarray([10, 150, 500]), 95).tolist()[:2] == [5, 5]
    assert math.isnan(series.highest(np.asarray([500]), 95)[0])
    assert Series(np.asarray([7]), np.zeros(1, np.int64), np.asarray([2.0])).near(np.asarray([5, 9]), 3).tolist() == [
        2,
        2,
    ]

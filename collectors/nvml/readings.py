"""What is read of a device, how often, and under which names it goes into `counters`.

Each reading is one call. Where the driver says "not available" in a value, the value is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pynvml

from perfscope.collectors.nvml.devices import Device

SECOND_NS = 1_000_000_000
ALWAYS_NS = 0
ONCE_NS = 1 << 62
"""For what the hardware has for good: the first of these calls takes ms."""

CLOCK_EVENTS = {
    "gpu_idle": pynvml.nvmlClocksEventReasonGpuIdle,
    "applications_clocks_setting": pynvml.nvmlClocksEventReasonApplicationsClocksSetting,
    "sw_power_cap": pynvml.nvmlClocksEventReasonSwPowerCap,
    "hw_slowdown": pynvml.nvmlClocksEventReasonHwSlowdown,
    "sync_boost": pynvml.nvmlClocksEventReasonSyncBoost,
    "sw_thermal_slowdown": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
    "hw_thermal_slowdown": pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    "hw_power_brake_slowdown": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
    "display_clock_setting": pynvml.nvmlClocksEventReasonDisplayClockSetting,
}
"""Why the clocks are below their maximum: name -> bit."""

_KB = 1000
"""nvmlDeviceGetPcieThroughput says KB/s without saying which; the smaller reading never overstates."""

Values = Mapping[str, float | None]


@dataclass(frozen=True)
class Reading:
    """One call: what it asks for, the least time between two, and how its answer becomes values."""

    what: str
    every_ns: int
    call: Callable[[Device], Values]


def _clock_events(device: Device) -> Values:
    try:
        mask = pynvml.nvmlDeviceGetCurrentClocksEventReasons(device.handle)
    except pynvml.NVMLError_FunctionNotFound:  # drivers before 535 know it by its old name
        mask = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(device.handle)
    return {f"gpu_clock_event_{name}": float(bool(mask & bit)) for name, bit in CLOCK_EVENTS.items()}


def _memory(device: Device) -> Values:
    memory = pynvml.nvmlDeviceGetMemoryInfo(device.handle)
    return {"gpu_memory_used_bytes": memory.used, "gpu_memory_total_bytes": memory.total}


def _utilization(device: Device) -> Values:
    rates = pynvml.nvmlDeviceGetUtilizationRates(device.handle)
    return {"gpu_utilization_pct": rates.gpu, "gpu_memory_utilization_pct": rates.memory}


def _one(name: str, function: Any, *arguments: Any, scale: float = 1.0) -> Callable[[Device], Values]:
    def call(device: Device) -> Values:
        value = function(device.handle, *arguments)
        return {name: None if value is None or value in _NOT_AVAILABLE else value * scale}

    return call


_NOT_AVAILABLE = (pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value, pynvml.NVML_VALUE_NOT_AVAILABLE_uint.value)

_MEMORY = Reading("memory", SECOND_NS // 2, _memory)
_UTILIZATION = Reading("utilisation", ALWAYS_NS, _utilization)
_SHARED = (
    Reading("power", ALWAYS_NS, _one("gpu_power_w", pynvml.nvmlDeviceGetPowerUsage, scale=1e-3)),
    Reading("SM clock", ALWAYS_NS, _one("gpu_sm_clock_mhz", pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM)),
    Reading("clock event reasons", ALWAYS_NS, _clock_events),
    Reading(
        "memory clock",
        SECOND_NS,
        _one("gpu_memory_clock_mhz", pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM),
    ),
    Reading(
        "power limit",
        SECOND_NS,
        _one("gpu_power_limit_w", pynvml.nvmlDeviceGetEnforcedPowerLimit, scale=1e-3),
    ),
    Reading(
        "power limit, default",
        ONCE_NS,
        _one("gpu_power_limit_default_w", pynvml.nvmlDeviceGetPowerManagementDefaultLimit, scale=1e-3),
    ),
    Reading(
        "temperature",
        SECOND_NS,
        _one("gpu_temperature_c", pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
    ),
    Reading(
        "ECC errors, corrected",
        SECOND_NS,
        _one(
            "gpu_ecc_corrected_errors",
            pynvml.nvmlDeviceGetTotalEccErrors,
            pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        ),
    ),
    Reading(
        "ECC errors, uncorrected",
        SECOND_NS,
        _one(
            "gpu_ecc_uncorrected_errors",
            pynvml.nvmlDeviceGetTotalEccErrors,
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        ),
    ),
    Reading("PCIe generation", SECOND_NS, _one("pcie_link_generation", pynvml.nvmlDeviceGetCurrPcieLinkGeneration)),
    Reading("PCIe width", SECOND_NS, _one("pcie_link_width_lanes", pynvml.nvmlDeviceGetCurrPcieLinkWidth)),
    Reading(
        "PCIe generation, maximum",
        ONCE_NS,
        _one("pcie_link_generation_max", pynvml.nvmlDeviceGetMaxPcieLinkGeneration),
    ),
    Reading(
        "PCIe width, maximum",
        ONCE_NS,
        _one("pcie_link_width_max_lanes", pynvml.nvmlDeviceGetMaxPcieLinkWidth),
    ),
    Reading(
        "SM clock, maximum",
        ONCE_NS,
        _one("gpu_sm_clock_max_mhz", pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM),
    ),
    Reading(
        "memory clock, maximum",
        ONCE_NS,
        _one("gpu_memory_clock_max_mhz", pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_MEM),
    ),
)
_SLOW_PCIE = (
    Reading(
        "PCIe throughput, sent",
        SECOND_NS,
        _one(
            "pcie_tx_bytes_per_s",
            pynvml.nvmlDeviceGetPcieThroughput,
            pynvml.NVML_PCIE_UTIL_TX_BYTES,
            scale=_KB,
        ),
    ),
    Reading(
        "PCIe throughput, received",
        SECOND_NS,
        _one(
            "pcie_rx_bytes_per_s",
            pynvml.nvmlDeviceGetPcieThroughput,
            pynvml.NVML_PCIE_UTIL_RX_BYTES,
            scale=_KB,
        ),
    ),
)
"""These measure for 20 ms while the caller waits, so they come last, and only where GPM doesn't say it."""

CONSTANTS = frozenset(
    {
        "pcie_link_generation_max", "pcie_link_width_max_lanes", "gpu_sm_clock_max_mhz", "gpu_memory_clock_max_mhz",
        "gpu_power_limit_default_w",
    }
)  # fmt: skip
"""Counters that are read once, before the target begins."""


def readings(device: Device, gpm: bool) -> tuple[Reading, ...]:
    """What to read of a device with classic calls, given whether GPM works on it."""
    if device.parent:
        return (_MEMORY,)
    if gpm:
        return (_MEMORY, *_SHARED)
    return (_UTILIZATION, _MEMORY, *_SHARED, *_SLOW_PCIE)

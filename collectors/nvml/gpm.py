"""GPU performance monitoring (Hopper and newer): means over the time between two samples, at no cost to the GPU."""

from __future__ import annotations

import math
import time
from typing import Any

import pynvml

from perfscope.collectors.nvml.calls import Bracketed
from perfscope.collectors.nvml.devices import Device

LEAST_NS = 100_000_000
"""NVML's documentation of nvmlGpmSampleGet: two samples must be more than 100 ms apart, its own refresh."""

_MIB = 1 << 20
METRICS: dict[str, tuple[int, float]] = {
    "gpu_busy_pct": (pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL, 1),
    "gpu_sm_active_pct": (pynvml.NVML_GPM_METRIC_SM_UTIL, 1),
    "gpu_sm_occupancy_pct": (pynvml.NVML_GPM_METRIC_SM_OCCUPANCY, 1),
    "gpu_tensor_active_pct": (pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, 1),
    "gpu_dram_active_pct": (pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, 1),
    "pcie_tx_bytes_per_s": (pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, _MIB),
    "pcie_rx_bytes_per_s": (pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, _MIB),
    "nvlink_tx_bytes_per_s": (pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, _MIB),
    "nvlink_rx_bytes_per_s": (pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, _MIB),
}
"""Counter -> GPM's metric, and the factor to the counter's unit. Sent (tx) is from the GPU's side."""


def supported(device: Device) -> bool:
    """Whether GPM works on a device; on a GPU cut into MIG instances it works on those."""
    if device.mig_enabled:
        return False
    owner = device.parent or device
    support = owner.ask("GPM", pynvml.nvmlGpmQueryDeviceSupport)
    if support is None:
        return False
    if not support.isSupportedDevice:
        owner.calls.missing("GPM", "not supported by this GPU")
        return False
    return device.parent is None or device.gpu_instance is not None


class Gpm:
    """The last sample of a device, and the one before. Raises NVMLError where the driver does."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._samples: list[Any] = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
        self._last: Bracketed[Any] | None = None
        self._request = pynvml.c_nvmlGpmMetricsGet_t()
        self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(METRICS)
        for place, (metric, _) in enumerate(METRICS.values()):
            self._request.metrics[place].metricId = metric

    def due_in_ns(self) -> int:
        """How long until the next sample may be taken; 0 or less: now."""
        return 0 if self._last is None else self._last.after_ns + LEAST_NS + 1 - time.monotonic_ns()

    def read(self) -> Bracketed[dict[str, float]] | None:
        """Takes a sample; the means since the one before, with the time they cover. None at first and where that fails.

        The interval runs from the middle of one sample's call to that of the next.
        """
        taken = self._device.calls.read("GPM sample", self._take)
        if taken is None:
            return None
        last, self._last = self._last, taken
        self._samples.reverse()  # the newest lies last, the older one is written over next
        if last is None:
            return None
        answer = self._device.calls.read("GPM metrics", self._means)
        if answer is None:
            return None
        return Bracketed(answer.value, _middle(last), _middle(taken))

    def close(self) -> None:
        while self._samples:
            pynvml.nvmlGpmSampleFree(self._samples.pop())

    def _take(self) -> None:
        device = self._device
        if device.parent is None:
            pynvml.nvmlGpmSampleGet(device.handle, self._samples[0])
        else:
            pynvml.nvmlGpmMigSampleGet(device.parent.handle, device.gpu_instance, self._samples[0])

    def _means(self) -> dict[str, float]:
        request = self._request
        request.sample1, request.sample2 = self._samples
        pynvml.nvmlGpmMetricsGet(request)
        means = {}
        for place, (name, (_, factor)) in enumerate(METRICS.items()):
            metric = request.metrics[place]
            if metric.nvmlReturn != pynvml.NVML_SUCCESS:
                self._device.calls.missing(f"GPM {name}", str(pynvml.NVMLError(metric.nvmlReturn)))
            elif not math.isfinite(metric.value):
                self._device.calls.missing(f"GPM {name}", f"the driver says {metric.value}")
            else:
                means[name] = metric.value * factor
        return means


def _middle(taken: Bracketed[Any]) -> int:
    return (taken.before_ns + taken.after_ns) // 2

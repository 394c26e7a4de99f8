"""NVIDIA's management library: what the GPUs of the target do, sampled from outside.

Every row of `counters` has the middle of the time its value was read in, and half of that time as its error. GPM's
values (SM, tensor, DRAM, PCIe, NVLink) are means over exactly time_ns ± error_ns; the driver's own windows behind
gpu_utilization_pct (1/6 to 1 s) and gpu_power_w (up to 1 s) are not known from here.
"""

from perfscope.collectors.nvml.collector import NvmlCollector

__all__ = ["NvmlCollector"]

"""What a reader of a session must know about the machine. No names, no environment variables, nothing secret."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

_CGROUP_MARKS = ("docker", "kubepods", "containerd", "libpod", "lxc", "garden")


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return None


def _first_value(path: str, *keys: str) -> str | None:
    for line in (_read(path) or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in keys:
            return value.strip()
    return None


def _container() -> str | None:
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    groups = _read("/proc/1/cgroup") or ""
    return next((mark for mark in _CGROUP_MARKS if mark in groups), None)


def _virtual_machine() -> str | None:
    flags = (_first_value("/proc/cpuinfo", "flags") or "").split()
    if "hypervisor" in flags:
        return _read("/sys/class/dmi/id/sys_vendor") or "unknown hypervisor"
    return None


def fingerprint() -> dict[str, Any]:
    """Kernel, processor, memory, container and interpreter of this host. A value that can't be read is null."""
    memory = _first_value("/proc/meminfo", "MemTotal")
    return {
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu": _first_value("/proc/cpuinfo", "model name", "Processor"),
        "cpus_online": os.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "cpu_governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "memory_bytes": int(memory.split()[0]) * 1024 if memory else None,
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "container": _container(),
        "virtual_machine": _virtual_machine(),
        "boot_minus_monotonic_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns(),
    }

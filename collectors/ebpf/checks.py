"""Rows of `perfscope doctor`: what the kernel and its tools allow here, and what mends the rest."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

from perfscope.collectors.base import Check, Options
from perfscope.collectors.ebpf import backend_bcc, backend_libbpf, drm, libbpf, tracefs
from perfscope.errors import CollectorError

CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF = 21, 38, 39


def _has(*capabilities: int) -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            mask = int(line.split()[1], 16)
            return bool(mask >> CAP_SYS_ADMIN & 1) or all(mask >> capability & 1 for capability in capabilities)
    return False


def rows(options: Options) -> Iterator[Check]:
    """One row a backend, one for tracefs and one for GPU scheduler events."""
    backends = [_libbpf(), _bcc(), _perf()]
    usable = any(row.state == "ok" for row in backends)
    for row in backends:
        # A missing second choice costs nothing.
        yield row if row.state == "ok" or not usable else Check(row.collector, row.what, "degraded", row.why, row.fix)
    if tracefs.root() is None:
        why = "tracefs is not mounted, or not readable: bcc, perf and GPU scheduler events need it; libbpf does not"
        yield Check("ebpf", "tracefs", "degraded", why, tracefs.MOUNT_HINT)
    else:
        yield Check("ebpf", "tracefs", "ok", str(tracefs.root()))
    yield _drm()


def _libbpf() -> Check:
    what = "backend libbpf (CO-RE)"
    try:
        version = libbpf.version()
        backend_libbpf.kernel_has("sched_switch")
    except CollectorError as error:
        return Check("ebpf", what, "unavailable", str(error), error.hint or "")
    if platform.machine() not in backend_libbpf.FUTEX_NUMBER:
        return Check("ebpf", what, "unavailable", f"no system call numbers known for {platform.machine()}")
    if not _has(CAP_BPF, CAP_PERFMON):
        return Check("ebpf", what, "unavailable", "needs root, or CAP_BPF and CAP_PERFMON", _privilege_hint())
    return Check("ebpf", what, "ok", f"libbpf {version}, kernel BTF")


def _bcc() -> Check:
    what = "backend bcc"
    try:
        module = backend_bcc.find_bcc()
    except CollectorError as error:
        return Check("ebpf", what, "unavailable", str(error), error.hint or "")
    if not _has(CAP_BPF, CAP_PERFMON):
        return Check("ebpf", what, "unavailable", "needs root, or CAP_BPF and CAP_PERFMON", _privilege_hint())
    headers = (Path(f"/lib/modules/{platform.release()}/build/include"), Path("/sys/kernel/kheaders.tar.xz"))
    if "BCC_KERNEL_SOURCE" not in os.environ and not any(path.exists() for path in headers):
        return Check("ebpf", what, "unavailable", "no kernel headers to compile against", backend_bcc.HEADERS_HINT)
    if tracefs.root() is None:
        return Check("ebpf", what, "unavailable", "tracefs is not mounted, or not readable", tracefs.MOUNT_HINT)
    return Check("ebpf", what, "ok", f"bcc {module.__version__}")


def _perf() -> Check:
    what = "backend perf (perf_event_open)"
    if tracefs.root() is None:
        return Check("ebpf", what, "unavailable", "tracefs is not mounted, or not readable", tracefs.MOUNT_HINT)
    try:
        paranoid = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    except (OSError, ValueError):
        return Check("ebpf", what, "unavailable", "the kernel has no perf events (CONFIG_PERF_EVENTS)")
    if paranoid > -1 and not _has(CAP_PERFMON):
        why = f"kernel.perf_event_paranoid is {paranoid}: events of all processes need CAP_PERFMON or -1"
        return Check("ebpf", what, "unavailable", why, "sysctl kernel.perf_event_paranoid=-1")
    return Check("ebpf", what, "ok", f"kernel.perf_event_paranoid {paranoid}")


def _drm() -> Check:
    what = "GPU scheduler events (drm)"
    if tracefs.root() is None:
        return Check("ebpf", what, "unavailable", "tracefs is not mounted, or not readable", tracefs.MOUNT_HINT)
    if why := drm.missing():
        return Check("ebpf", what, "unavailable", why)
    return Check("ebpf", what, "ok", ", ".join(tracefs.events("gpu_scheduler")))


def _privilege_hint() -> str:
    return "run as root, or: setcap cap_bpf,cap_perfmon,cap_dac_read_search=ep on the Python that runs perfscope"

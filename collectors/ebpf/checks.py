"""Rows of `perfscope doctor`: what the kernel and its tools allow here, and what mends the rest."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

from perfscope.collectors.base import Check
from perfscope.collectors.ebpf import backend_bcc, backend_libbpf, drm, libbpf, privilege, tracefs
from perfscope.errors import CollectorError
from perfscope.options import Options


def rows(options: Options) -> Iterator[Check]:
    """One row a backend, one for tracefs and one for GPU scheduler events; the latter two help no one alone."""
    backends = [_libbpf(), _bcc(), _perf()]
    usable = any(row.state == "ok" for row in backends)
    for row in backends:
        # A missing second choice costs nothing.
        yield row if row.state == "ok" or not usable else Check(row.collector, row.what, "degraded", row.why, row.fix)
    if not usable:
        return
    if tracefs.root() is None:
        error = tracefs.unreadable()
        why = f"{error}: bcc, perf and GPU scheduler events need it; libbpf does not"
        yield Check("ebpf", "tracefs", "degraded", why, error.hint or "")
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
    if not privilege.has(privilege.BPF, privilege.PERFMON):
        return Check("ebpf", what, "unavailable", privilege.NEEDED, privilege.HINT)
    return Check("ebpf", what, "ok", f"libbpf {version}, kernel BTF")


def _bcc() -> Check:
    what = "backend bcc"
    try:
        module = backend_bcc.find_bcc()
    except CollectorError as error:
        return Check("ebpf", what, "unavailable", str(error), error.hint or "")
    if not privilege.has(privilege.BPF, privilege.PERFMON):
        return Check("ebpf", what, "unavailable", privilege.NEEDED, privilege.HINT)
    headers = (Path(f"/lib/modules/{platform.release()}/build/include"), Path("/sys/kernel/kheaders.tar.xz"))
    if "BCC_KERNEL_SOURCE" not in os.environ and not any(path.exists() for path in headers):
        return Check("ebpf", what, "unavailable", "no kernel headers to compile against", backend_bcc.HEADERS_HINT)
    if tracefs.root() is None:
        return _no_tracefs(what)
    return Check("ebpf", what, "ok", f"bcc {module.__version__}")


def _perf() -> Check:
    what = "backend perf (perf_event_open)"
    if tracefs.root() is None:
        return _no_tracefs(what)
    try:
        paranoid = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    except (OSError, ValueError):
        return Check("ebpf", what, "unavailable", "the kernel has no perf events (CONFIG_PERF_EVENTS)")
    if paranoid > -1 and not privilege.has(privilege.PERFMON):
        why = f"kernel.perf_event_paranoid is {paranoid}: events of all processes need CAP_PERFMON or -1"
        return Check("ebpf", what, "unavailable", why, "sysctl kernel.perf_event_paranoid=-1")
    return Check("ebpf", what, "ok", f"kernel.perf_event_paranoid {paranoid}")


def _drm() -> Check:
    what = "GPU scheduler events (drm)"
    if tracefs.root() is None:
        return _no_tracefs(what)
    if why := drm.missing():
        return Check("ebpf", what, "unavailable", why)
    return Check("ebpf", what, "ok", ", ".join(tracefs.events("gpu_scheduler")))


def _no_tracefs(what: str) -> Check:
    error = tracefs.unreadable()
    return Check("ebpf", what, "unavailable", str(error), error.hint or "")

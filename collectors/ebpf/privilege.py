"""The rights that BPF programs and events of other processes need."""

from __future__ import annotations

from perfscope import procfs
from perfscope.errors import CollectorError

SYS_ADMIN, PERFMON, BPF = 21, 38, 39
"""Numbers of capabilities, as in linux/capability.h."""

NEEDED = "needs root, or CAP_BPF and CAP_PERFMON"
HINT = "run as root, or: setcap cap_bpf,cap_perfmon,cap_dac_read_search=ep on the Python that runs perfscope"


def has(*capabilities: int) -> bool:
    """True with all of these capabilities, or with CAP_SYS_ADMIN, which stands for them."""
    return procfs.has_capability(SYS_ADMIN) or all(map(procfs.has_capability, capabilities))


def require_bpf() -> None:
    """Raises CollectorError without the right to load BPF programs, before a library says so in its own way."""
    if not has(BPF, PERFMON):
        raise CollectorError(NEEDED, hint=HINT)

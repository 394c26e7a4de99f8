"""What of the ways to read Python stacks can run on this host, and what mends the rest."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from perfscope.collectors.base import Check
from perfscope.collectors.ebpf import libbpf
from perfscope.collectors.pyspy import austin, interpreter, kernel
from perfscope.collectors.pyspy.instance import binary
from perfscope.errors import CollectorError
from perfscope.options import Options

OLDEST = (0, 4, 2)
"""First py-spy whose configuration log line anchors its clock to under a millisecond."""
_CAP_SYS_PTRACE = 19
_INSTALL = "pip install --upgrade 'py-spy>=0.4.2'"


def version(path: str) -> str:
    """Version of a py-spy. Raises CollectorError if it can't be run or is too old."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CollectorError(f"{path} can't be run: {error}", hint=_INSTALL) from None
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", done.stdout)
    if done.returncode != 0 or match is None:
        raise CollectorError(f"{path} --version failed: {(done.stderr or done.stdout).strip()[:200]}", hint=_INSTALL)
    if tuple(map(int, match.groups())) < OLDEST:
        raise CollectorError(f"py-spy {match[0]} is too old: its clock can't be told exactly", hint=_INSTALL)
    return match[0]


def check(options: Options) -> list[Check]:
    """Rows for `doctor`: the programs, and the right to read other processes."""
    try:
        rows = [Check("pyspy", "py-spy", "ok", f"version {version(binary())}")]
    except CollectorError as error:
        return [Check("pyspy", "py-spy", "unavailable", str(error), error.hint or "")]
    return [*rows, _permission(), _kernel(), _austin()]


def _kernel() -> Check:
    """BPF programs read the same stacks at a small part of any sampler's cost, and tear none."""
    what = "bpf (Python stacks, the cheapest, none torn)"
    if (why := kernel.unavailable()) is not None:
        return Check("pyspy", what, "degraded", f"{why[0]}: a sampler reads the stacks", why[1])
    versions = " to ".join(f"{major}.{minor}" for major, minor in interpreter.READS)
    return Check("pyspy", what, "ok", f"libbpf {libbpf.version()}; reads Python {versions}, samplers the others")


def _austin() -> Check:
    """austin reads the same stacks at a quarter of the cost; py-spy does without it."""
    what = "austin (Python stacks, cheaper than py-spy)"
    try:
        found = austin.version(austin.binary())
    except CollectorError as error:
        return Check("pyspy", what, "degraded", f"{error}: py-spy reads the stacks", error.hint or "")
    versions = " to ".join(f"{major}.{minor}" for major, minor in austin.READS)
    return Check("pyspy", what, "ok", f"version {found}; reads Python {versions}, py-spy the others")


def _permission() -> Check:
    what = "read other processes (ptrace)"
    if _seccomp_blocks():
        return Check(
            "pyspy", what, "unavailable", "process_vm_readv is blocked, as in a container without SYS_PTRACE",
            "docker run --cap-add SYS_PTRACE (Kubernetes: securityContext.capabilities.add: [SYS_PTRACE])",
        )  # fmt: skip
    if _effective_capabilities() >> _CAP_SYS_PTRACE & 1:
        return Check("pyspy", what, "ok", "CAP_SYS_PTRACE")
    if _has_file_capability(binary()):
        return Check("pyspy", what, "ok", "py-spy has file capabilities")
    scope = _ptrace_scope()
    fix = "run perfscope with sudo, or: sudo setcap cap_sys_ptrace=eip " + binary()
    if scope == 0:
        return Check("pyspy", what, "degraded", "own processes only (no CAP_SYS_PTRACE)", fix)
    if scope == 1:
        # A tracer may read its descendants; py-spy is a sibling of the target, never its ancestor.
        return Check("pyspy", what, "unavailable", "kernel.yama.ptrace_scope is 1, and no CAP_SYS_PTRACE", fix)
    return Check("pyspy", what, "unavailable", f"kernel.yama.ptrace_scope is {scope}, and no CAP_SYS_PTRACE", fix)


def _effective_capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _has_file_capability(path: str) -> bool:
    try:
        return bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False


def _ptrace_scope() -> int:
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return 0  # no Yama: classic rules


def _seccomp_blocks() -> bool:
    """Whether even our own memory can't be read the way py-spy does: then a seccomp filter forbids the call."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    source, target = ctypes.create_string_buffer(b"x"), ctypes.create_string_buffer(1)

    class Iovec(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    local = Iovec(ctypes.addressof(target), 1)
    remote = Iovec(ctypes.addressof(source), 1)
    done: int = libc.process_vm_readv(
        os.getpid(), ctypes.byref(local), ctypes.c_ulong(1), ctypes.byref(remote), ctypes.c_ulong(1), ctypes.c_ulong(0)
    )
    return done != 1

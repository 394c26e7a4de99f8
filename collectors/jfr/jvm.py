"""A running JVM as seen from outside: is it one, may it be attached to, which version. Reads /proc only."""

from __future__ import annotations

import os
import re
import signal
import struct
import time
from pathlib import Path

from perfscope import procfs
from perfscope.procfs import Process

_PERFDATA_LIMIT = 1 << 20
_ENTRY = struct.Struct("IIIBBBBI")
_NAMES = {b"sun.rt.jvmCapabilities", b"java.property.java.version", b"java.property.java.vm.version"}


def is_jvm(process: Process) -> bool:
    """True if this very process is alive and a HotSpot JVM. Look again right before touching it.

    OpenJ9 has a libjvm.so too, but takes SIGQUIT as an order to write dumps.
    """
    names = {path.rsplit("/", 1)[-1] for path in procfs.mapped_files(process.pid)}
    return "libjvm.so" in names and not any(n.startswith("libj9vm") for n in names) and process.alive()


def root(pid: int) -> str:
    """Prefix that leads to the process's file system from ours: "" if it is the same one."""
    inner = f"/proc/{pid}/root"
    try:
        here, there = os.stat("/"), os.stat(inner)  # noqa: PTH116 (of /proc, as below)
        mounts = os.readlink("/proc/self/ns/mnt"), os.readlink(f"/proc/{pid}/ns/mnt")  # noqa: PTH115 (names, not paths)
    except OSError:
        return inner
    same = (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino) and mounts[0] == mounts[1]
    return "" if same else inner


def effective_ids(pid: int) -> tuple[int, int] | None:
    """Effective uid and gid, or None if the process is gone."""
    found: dict[str, int] = {}
    for line in _status(pid):
        name, _, rest = line.partition(":")
        if name in ("Uid", "Gid"):
            found[name] = int(rest.split()[1])
    return (found["Uid"], found["Gid"]) if len(found) == 2 else None


def catches_sigquit(pid: int) -> bool:
    """True once HotSpot's handler stands. Before that, or under -Xrs, SIGQUIT would kill the process."""
    for line in _status(pid):
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signal.SIGQUIT - 1) & 1)
    return False


STARTED_S = 10.0


def past_its_start(process: Process) -> bool:
    """True once HotSpot is past the moment at which it removes what earlier attachers may have left.

    It takes SIGQUIT some ms before that. A request placed then is removed, and the signal that follows makes it print
    a thread dump on the target's stdout (seen on JDK 17 in 6 of 500 starts). Its service thread is made after that;
    JDK 8 gives its threads no names, so that its age has to do.
    """
    names = {procfs.comm(process.pid, tid) for tid in procfs.threads(process.pid)}
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - process.start_ticks / os.sysconf("SC_CLK_TCK")
    return "Service Thread" in names or age_s > STARTED_S


def attach_disabled(pid: int) -> bool:
    """True if the JVM was started with -XX:+DisableAttachMechanism.

    Such a JVM answers SIGQUIT with a thread dump on the target's stdout, so this is asked first. The JVM says it
    itself in its performance data; where that is off, its command line and environment are looked at.
    """
    capabilities = perf_data(pid).get("sun.rt.jvmCapabilities")
    if capabilities is not None:
        return capabilities[:1] == "0"
    last = {b"-": False, b"+": True}
    try:
        options = Path(f"/proc/{pid}/environ").read_bytes() + b"\0" + Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    signs = re.findall(rb"-XX:([-+])DisableAttachMechanism", options)
    return last[signs[-1]] if signs else False


def java_version(pid: int) -> str | None:
    """As in the system property java.version, e.g. "17.0.15"; null if the JVM keeps no performance data."""
    data = perf_data(pid)
    return data.get("java.property.java.version") or data.get("java.property.java.vm.version")


def major_version(version: str | None) -> int | None:
    """8 of "1.8.0_412", 17 of "17.0.15+6", null of anything else."""
    match = re.match(r"(?:1\.)?(\d+)", version or "")
    return int(match[1]) if match else None


def perf_data(pid: int) -> dict[str, str]:
    """Some strings of the JVM's hsperfdata file; empty if it has none (-XX:-UsePerfData) or it is being set up."""
    for path in procfs.mapped_files(pid):
        if "/hsperfdata_" in path:
            try:
                with Path(f"/proc/{pid}/root{path}").open("rb") as file:
                    return parse_perf_data(file.read(_PERFDATA_LIMIT))
            except OSError:
                return {}
    return {}


def parse_perf_data(data: bytes) -> dict[str, str]:
    """The wanted strings of an hsperfdata image in this machine's byte order. Damaged ones give what was sound.

    Layout: magic 0xcafec0c0 (big endian), byte order, major, minor, accessible; used, overflow (i32), time (i64),
    offset of the first entry and number of entries (i32). An entry: its length, name offset, vector length (u32),
    type, flags, unit, variability (u8), data offset (u32).
    """
    found: dict[str, str] = {}
    if len(data) < 32 or data[:4] != b"\xca\xfe\xc0\xc0" or not data[7]:
        return found
    position, count = struct.unpack_from("ii", data, 24)
    for _ in range(min(count, 10_000)):
        if position < 32 or position + _ENTRY.size > len(data):
            break
        length, name_at, items, *_kinds, data_at = _ENTRY.unpack_from(data, position)
        if length < _ENTRY.size:
            break
        name = data[position + name_at : position + length].split(b"\0", 1)[0]
        if name in _NAMES and items:
            value = data[position + data_at : position + min(data_at + items, length)]
            found[name.decode()] = value.split(b"\0", 1)[0].decode("latin-1")
        position += length
    return found


def _status(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return []

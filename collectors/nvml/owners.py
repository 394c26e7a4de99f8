"""Which devices the target uses, and which of the driver's process ids is which process of it.

The driver gives process ids of the host's first pid namespace, whoever asks. Where perfscope lives there too (on the
host; the target may be in a container), they are the ids it knows itself. Elsewhere they mean nothing, and equal
numbers are chance: then a device is used by the target if one of its processes has the device's file open and the
driver lists a process that wasn't there before the target began; and which id is which process is told by exclusion
only: one such process of the target, and one such id. The same holds where none of the ids is ours, as in a sandbox
that hides its namespace. A target that is never listed at all still has open what it uses: these devices are kept then.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from perfscope.collectors.nvml.devices import Device
from perfscope.procfs import in_first_pid_namespace


def opened(pid: int) -> set[int]:
    """N of each /dev/nvidiaN that a process has open; empty if it can't be looked into."""
    found = set()
    try:
        with os.scandir(f"/proc/{pid}/fd") as files:
            for file in files:
                try:
                    target = os.readlink(file.path)  # noqa: PTH115 (a link of /proc, not a path)
                except OSError:
                    continue
                number = target.removeprefix("/dev/nvidia")
                if number != target and number.isdecimal():
                    found.add(int(number))
    except OSError:
        pass
    return found


def visible(pid: int, devices: Collection[Device]) -> set[str] | None:
    """Labels of the devices that CUDA_VISIBLE_DEVICES leaves a process; None if it says nothing usable.

    An index counts in CUDA's order and in the process's own container, so it is understood only where both are the
    driver's: equal models or CUDA_DEVICE_ORDER=PCI_BUS_ID, and our own mount namespace. A UUID always is.
    """
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
        inside = os.stat(f"/proc/{pid}/ns/mnt").st_ino != os.stat("/proc/self/ns/mnt").st_ino  # noqa: PTH116
    except OSError:
        return None
    settings = dict(item.partition(b"=")[::2] for item in data.split(b"\0"))
    listed = settings.get(b"CUDA_VISIBLE_DEVICES")
    if listed is None:
        return None
    whole = [d for d in devices if d.parent is None]
    same_order = settings.get(b"CUDA_DEVICE_ORDER") == b"PCI_BUS_ID" or len({d.facts.get("name") for d in whole}) == 1
    found: set[str] = set()
    for part in listed.decode(errors="replace").split(","):
        name = part.strip()
        if name.startswith(("GPU-", "MIG-")):
            found |= {d.label for d in devices if str(d.facts.get("uuid") or "").startswith(name)}
        elif name.isdecimal():
            if inside or not same_order:
                return None
            found |= {d.label for d in devices if d.index == int(name)}
        else:
            break  # CUDA ignores what follows the first entry that is none
    return found


class Owners:
    """What was seen of the target on each device. `listed` ids are the driver's, all others are ours."""

    def __init__(self, host: bool | None = None) -> None:
        self.host = in_first_pid_namespace() if host is None else host
        self.used: set[str] = set()
        self.held: set[str] = set()
        """Devices that a process of the target was seen to have open: all that is known if it is never listed."""
        self.by_exclusion = False
        """True if an id was told by exclusion."""
        self._before: dict[str, set[int]] = {}

    @property
    def known(self) -> set[str]:
        """Labels of the devices that count as the target's."""
        return self.used or self.held

    def before(self, device: str, listed: Collection[int]) -> None:
        """The driver's ids on a device before the target began."""
        self._before[device] = set(listed)

    def match(
        self, device: str, listed: Collection[int] | None, pids: Collection[int], holders: Collection[int]
    ) -> dict[int, int]:
        """The driver's ids on a device that are processes of the target -> our ids of them.

        listed: None if the driver doesn't say. pids: the target's; holders: those that have the device open.
        """
        self.held |= {device} if holders else set()
        mine = {pid: pid for pid in listed or () if pid in pids} if self.host else {}
        if mine or not holders or (listed is not None and not listed):
            self.used |= {device} if mine else set()
            return mine
        new = set(listed or ()) - self._before.get(device, set())
        if self.host:
            new = {pid for pid in new if not Path(f"/proc/{pid}").exists()}  # those are other programs
        if listed is not None and not new:
            return {}
        self.used.add(device)
        if len(new) == 1 and len(holders) == 1:
            self.by_exclusion = True
            return dict(zip(new, holders, strict=True))
        return {}

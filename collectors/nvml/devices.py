"""The GPUs of the host, and their MIG instances: what each is, and what doesn't change while it is recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pynvml

from perfscope.collectors.nvml.calls import Calls
from perfscope.errors import CollectorError

FIX = "on a machine with an NVIDIA GPU: install its driver (nvidia-smi must list the GPU)"


@dataclass
class Device:
    """One GPU, or one MIG instance of one (then `parent` is that GPU, and what they share is read there).

    label: gpu<index>, or gpu<index>/mig<number>; index in the driver's order, that of PCI addresses.
    minor: N of its /dev/nvidiaN. gpu_instance: id of a MIG instance. facts: what is told of it in the session.
    """

    label: str
    index: int
    handle: Any
    parent: Device | None = None
    minor: int | None = None
    gpu_instance: int | None = None
    mig_enabled: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    calls: Calls = field(default_factory=Calls)

    def ask(self, what: str, function: Any, *arguments: Any) -> Any:
        """One answer of the driver; None if it has none (the reason is kept)."""
        answer = self.calls.read(what, lambda: function(self.handle, *arguments))
        return None if answer is None else answer.value


def open_driver() -> None:
    """Loads and initialises the library. Raises CollectorError that says why it can't be."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise CollectorError(f"no NVIDIA GPU can be seen: {error}", hint=FIX) from None


def count() -> int:
    """Number of GPUs. Raises CollectorError if they can't be counted, or there is none."""
    try:
        found: int = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        raise CollectorError(f"the GPUs can't be counted: {error}", hint=FIX) from None
    if found == 0:
        raise CollectorError("the driver is loaded, but there is no NVIDIA GPU", hint=FIX)
    return found


def find() -> tuple[list[Device], dict[str, str]]:
    """All GPUs and MIG instances that can be opened, and why the others can't (label -> reason)."""
    devices: list[Device] = []
    refused: dict[str, str] = {}
    for index in range(count()):
        try:
            device = Device(f"gpu{index}", index, pynvml.nvmlDeviceGetHandleByIndex(index))
        except pynvml.NVMLError as error:
            refused[f"gpu{index}"] = str(error)
            continue
        _describe(device)
        devices.append(device)
        devices += _instances(device)
    return devices, refused


def _describe(device: Device) -> None:
    device.minor = device.ask("minor number", pynvml.nvmlDeviceGetMinorNumber)
    mode = device.ask("MIG mode", pynvml.nvmlDeviceGetMigMode)
    device.mig_enabled = bool(mode) and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    pci = device.ask("PCI address", pynvml.nvmlDeviceGetPciInfo)
    device.facts = {
        "name": device.ask("name", pynvml.nvmlDeviceGetName),
        "uuid": device.ask("UUID", pynvml.nvmlDeviceGetUUID),
        "pci": pci and pci.busId,
        "mig": None if mode is None else device.mig_enabled,
        "numa_node": device.ask("NUMA node", pynvml.nvmlDeviceGetNumaNodeId),
        "cpu_affinity": _cpus(device.ask("CPU affinity", pynvml.nvmlDeviceGetCpuAffinity, 64)),
    }


def _instances(device: Device) -> list[Device]:
    if not device.mig_enabled:
        return []
    found = []
    for number in range(device.ask("number of MIG instances", pynvml.nvmlDeviceGetMaxMigDeviceCount) or 0):
        try:
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device.handle, number)
        except pynvml.NVMLError:
            continue  # a slot without an instance
        mig = Device(f"{device.label}/mig{number}", device.index, handle, device, device.minor)
        mig.gpu_instance = mig.ask("GPU instance", pynvml.nvmlDeviceGetGpuInstanceId)
        mig.facts = {
            "name": mig.ask("name", pynvml.nvmlDeviceGetName),
            "uuid": mig.ask("UUID", pynvml.nvmlDeviceGetUUID),
            "gpu_instance": mig.gpu_instance,
        }
        found.append(mig)
    return found


def _cpus(words: Any) -> str | None:
    """A mask of 64-bit words as the kernel writes lists of CPUs: 0-3,8. None for no mask."""
    if words is None:
        return None
    numbers = [64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1]
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)

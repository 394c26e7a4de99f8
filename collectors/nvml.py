"""NVIDIA's management library: whether there is a GPU to watch, and if not, why not."""

from __future__ import annotations

from collections.abc import Iterable

from perfscope.collectors.base import Check, Collector, Options
from perfscope.errors import CollectorError
from perfscope.model.session import SessionWriter

_FIX = "on a machine with an NVIDIA GPU: install its driver (nvidia-smi must list the GPU)"


def _devices() -> int:
    """Number of NVIDIA GPUs. Raises CollectorError that says why there is none to be seen."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise CollectorError(f"no NVIDIA GPU can be seen: {error}", hint=_FIX) from None
    try:
        count: int = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        raise CollectorError(f"the GPUs can't be counted: {error}", hint=_FIX) from None
    finally:
        pynvml.nvmlShutdown()
    if count == 0:
        raise CollectorError("the driver is loaded, but there is no NVIDIA GPU", hint=_FIX)
    return count


class NvmlCollector(Collector):
    """Looks for NVIDIA GPUs; reads no counters yet, and says so."""

    name = "nvml"

    @classmethod
    def check(cls, options: Options) -> Iterable[Check]:
        try:
            count = _devices()
        except CollectorError as error:
            return [Check(cls.name, "NVIDIA GPU", "unavailable", str(error), error.hint or "")]
        return [Check(cls.name, "NVIDIA GPU", "unavailable", f"{count} found, but this version reads no GPU counters")]

    def read(self, writer: SessionWriter, start_ns: int, stop_ns: int) -> None:
        raise CollectorError("this version reads no GPU counters")

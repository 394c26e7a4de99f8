"""The collectors, one module or package a tool. Adding one is its module and one line here."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfscope.collectors.base import Collector

COLLECTORS: dict[str, str] = {
    "ebpf": "perfscope.collectors.ebpf:EbpfCollector",
    "pyspy": "perfscope.collectors.pyspy:PySpyCollector",
    "jfr": "perfscope.collectors.jfr:JfrCollector",
    "cuda": "perfscope.collectors.cuda:CudaCollector",
    "nvml": "perfscope.collectors.nvml:NvmlCollector",
}
"""Name on the command line -> where its class lives; imported only when used. Kernel probes start first."""

READERS: dict[str, str] = {
    "pyspy": "perfscope.collectors.pyspy",
    "jfr": "perfscope.collectors.jfr",
    "ncu": "perfscope.collectors.ncu",
}
"""Modules that read files made elsewhere: each has `sniff(head: bytes, path) -> bool` and
`import_file(path, writer) -> ImportResult` (collectors.base)."""


def load(name: str) -> type[Collector]:
    """The collector class of that name."""
    module, _, attribute = COLLECTORS[name].partition(":")
    loaded: type[Collector] = getattr(import_module(module), attribute)
    return loaded

"""Rows of `perfscope doctor`: what the kernel and its tools allow here, and what mends the rest."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.collectors.base import Check, Options


def rows(options: Options) -> Iterator[Check]:
    yield Check("ebpf", "libbpf", "ok")

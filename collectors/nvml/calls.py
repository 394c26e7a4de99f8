"""Calls of the driver on one device: each bracketed in time, and one that fails is not made again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import pynvml

T = TypeVar("T")

FIRST_WAIT_NS = 1_000_000_000
LONGEST_WAIT_NS = 60_000_000_000
"""A call that failed is made again after 1 s, then after twice as long each time, up to a minute."""

NEVER_AGAIN = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
    }
)
"""Errors that a repetition can't mend."""

_GONE = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND})


@dataclass(frozen=True)
class Bracketed(Generic[T]):
    """An answer, and the times just before and after its call, in ns on CLOCK_MONOTONIC."""

    value: T
    before_ns: int
    after_ns: int


@dataclass
class _Failure:
    reason: str
    times: int
    retry_ns: int
    wait_ns: int


class Calls:
    """The calls on one device, by what they ask for."""

    def __init__(self) -> None:
        self.gone: str | None = None
        """Why the device answers no more."""
        self._failures: dict[str, _Failure] = {}

    def read(self, what: str, call: Callable[[], T]) -> Bracketed[T] | None:
        """The call's answer; None if it failed now, or failed before and isn't to be made again yet."""
        before = time.monotonic_ns()
        failure = self._failures.get(what)
        if self.gone or (failure and before < failure.retry_ns):
            return None
        try:
            value = call()
        except pynvml.NVMLError as error:
            self._failed(what, error.value, str(error))
            return None
        return Bracketed(value, before, time.monotonic_ns())

    def missing(self, what: str, reason: str) -> None:
        """Notes a value that the driver left out of an answer, once."""
        self._failures.setdefault(f"{what} (value)", _Failure(reason, 1, 0, 0))

    @property
    def absent(self) -> dict[str, str]:
        """What wasn't had, and why, in the driver's words."""
        found = {
            what: f.reason if f.times == 1 else f"{f.reason} ({f.times} times)" for what, f in self._failures.items()
        }
        return {**found, "device": self.gone} if self.gone else found

    def _failed(self, what: str, code: int, reason: str) -> None:
        failure = self._failures.setdefault(what, _Failure(reason, 0, 0, FIRST_WAIT_NS // 2))
        failure.reason, failure.times = reason, failure.times + 1
        failure.wait_ns = min(2 * failure.wait_ns, LONGEST_WAIT_NS)
        failure.retry_ns = 1 << 63 if code in NEVER_AGAIN else time.monotonic_ns() + failure.wait_ns
        if code in _GONE:
            self.gone = reason

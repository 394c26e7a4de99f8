"""A number of seconds on the command line."""

from __future__ import annotations

from typing import Any

import click


class Seconds(click.types.FloatParamType):
    """A float from `low` to `high`. Unlike in click's own range, NaN is in none, and --help doesn't show the limits."""

    def __init__(self, low: float, high: float, *, low_open: bool = False) -> None:
        self.low, self.high, self.low_open = low, high, low_open

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        if not self.low <= seconds <= self.high or (self.low_open and seconds == self.low):
            lowest = f"more than {self.low:g}" if self.low_open else f"at least {self.low:g}"
            self.fail(f"it must be a number of seconds, {lowest} and at most {self.high:.0f}, not {value}.", param, ctx)
        return seconds

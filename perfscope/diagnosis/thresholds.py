"""Thresholds: the defaults in thresholds.toml, and what a project says otherwise."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from perfscope.errors import UsageError
from perfscope.model import project
from perfscope.model.finding import Severity


@dataclass(frozen=True)
class Threshold:
    """A number a rule judges by, its unit, and why it is that number."""

    value: float
    unit: str
    source: str


Limits = Mapping[str, Threshold]
"""The thresholds of one rule, by name."""

Thresholds = dict[str, dict[str, Threshold]]
"""Rule (or "severity") -> threshold name -> threshold."""


def defaults() -> Thresholds:
    """The shipped thresholds."""
    data = tomllib.loads(files("perfscope.diagnosis").joinpath("thresholds.toml").read_text(encoding="utf-8"))
    return {
        rule: {name: Threshold(float(t["value"]), t["unit"], t["source"]) for name, t in group.items()}
        for rule, group in data.items()
    }


def load(directory: Path) -> Thresholds:
    """Defaults, overridden by the project that `directory` lies in.

    The nearest of perfscope.toml and a pyproject.toml with a [tool.perfscope] counts, looking upwards from
    `directory`; in one directory perfscope.toml wins. Raises UsageError for a name that is no threshold or a value
    that is no number, and InputError for a file that is no TOML.
    """
    thresholds = defaults()
    found = project.settings(directory)
    if found is None:
        return thresholds
    file, settings = found
    groups = settings.get("thresholds", {})
    if not isinstance(groups, dict):
        raise UsageError(f"{file}: thresholds must be a table of rules")
    for rule, values in groups.items():
        if rule not in thresholds:
            raise UsageError(f"{file}: no rule {rule!r}", hint="rules: " + ", ".join(thresholds))
        if not isinstance(values, dict):
            raise UsageError(f"{file}: thresholds.{rule} must be a table")
        for name, value in values.items():
            known = thresholds[rule].get(name)
            if known is None:
                raise UsageError(
                    f"{file}: rule {rule} has no threshold {name!r}", hint="it has: " + ", ".join(thresholds[rule])
                )
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise UsageError(f"{file}: thresholds.{rule}.{name} must be a number of {known.unit}, at least 0")
            thresholds[rule][name] = Threshold(float(value), known.unit, f"set in {file}")
    return thresholds


def severity(gives_back_pct: float | None, thresholds: Thresholds) -> Severity:
    """Severity of a finding by the share of elapsed time it could give back; LOW if that is unknown."""
    if gives_back_pct is not None:
        for name in ("critical", "high", "medium"):
            if gives_back_pct >= thresholds["severity"][name].value:
                return Severity.parse(name)
    return Severity.LOW

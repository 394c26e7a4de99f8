"""What GPU kernels do for inference, told from their names by the table kernel_groups.toml."""

from __future__ import annotations

import re
import tomllib
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path

from perfscope.errors import UsageError
from perfscope.model import project

OTHER = "other"
_LONGEST = 4096

Rules = tuple[tuple[str, re.Pattern[str]], ...]
"""(group, pattern) in the order in which they are tried."""


@cache
def defaults() -> Rules:
    """The shipped table."""
    text = files("perfscope.merge").joinpath("kernel_groups.toml").read_text(encoding="utf-8")
    return tuple((rule["group"], _joined(rule["patterns"])) for rule in tomllib.loads(text)["rule"])


def load(directory: Path) -> Rules:
    """The shipped table behind the [kernel-groups] of the project that `directory` lies in.

    Raises UsageError for a group whose patterns are no list of regular expressions.
    """
    found = project.settings(directory)
    if found is None or "kernel-groups" not in found[1]:
        return defaults()
    file, groups = found[0], found[1]["kernel-groups"]
    if not isinstance(groups, dict):
        raise UsageError(f"{file}: kernel-groups must be a table of groups")
    own = []
    for group, patterns in groups.items():
        if not isinstance(patterns, list) or not patterns or not all(isinstance(p, str) for p in patterns):
            raise UsageError(
                f"{file}: kernel-groups.{group} must be a list of patterns", hint=f'{group} = ["part_of_a_name"]'
            )
        try:
            own.append((group, _joined(patterns)))
        except re.error as error:
            raise UsageError(f"{file}: kernel-groups.{group}: not a regular expression: {error}") from None
    return (*own, *defaults())


@lru_cache(maxsize=1 << 14)
def group_of(name: str, rules: Rules) -> str:
    """The group of a kernel (or copy) by its name."""
    text = name[:_LONGEST]
    return next((group for group, pattern in rules if pattern.search(text)), OTHER)


def _joined(patterns: list[str]) -> re.Pattern[str]:
    for pattern in patterns:
        re.compile(pattern)  # each must be one by itself
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.IGNORECASE)

"""What a project says in its perfscope.toml, or in the [tool.perfscope] of its pyproject.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from perfscope.errors import InputError, UsageError

SETTINGS = ("thresholds", "kernel-groups")


def settings(directory: Path) -> tuple[Path, dict[str, Any]] | None:
    """(file, settings) of the project that `directory` lies in; None if it says nothing.

    The nearest of perfscope.toml and a pyproject.toml with a [tool.perfscope] counts, looking upwards from
    `directory`; in one directory perfscope.toml wins. Raises UsageError for a setting that doesn't exist, and
    InputError for a file that is no TOML.
    """
    found = _find(directory.resolve())
    if found is not None:
        file, values = found
        for key in values.keys() - set(SETTINGS):
            known = " and ".join(f"[{name}]" for name in SETTINGS)
            raise UsageError(f"{file}: unknown setting {key!r}", hint=f"there are {known}; see docs/rules.md")
    return found


def _find(directory: Path) -> tuple[Path, dict[str, Any]] | None:
    for place in (directory, *directory.parents):
        if (own := place / "perfscope.toml").is_file():
            return own, _read(own)
        if (shared := place / "pyproject.toml").is_file():
            tool = _read(shared).get("tool", {})
            values = tool.get("perfscope") if isinstance(tool, dict) else None
            if values is not None:
                if not isinstance(values, dict):
                    raise UsageError(f"{shared}: tool.perfscope must be a table")
                return shared, values
    return None


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{file}: can't be read: {error}") from None

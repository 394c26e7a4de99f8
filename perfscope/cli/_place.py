"""Where the user stands, and files written for the user."""

from __future__ import annotations

import os
from pathlib import Path

from perfscope.errors import InputError, UsageError


def here() -> Path:
    """The current directory, or where there is none (it was deleted) the root."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path("/")


def refuse_existing(path: Path, *, force: bool) -> None:
    """Raises UsageError if `path` exists and would be replaced: not a device or pipe, as /dev/stdout is."""
    if os.path.lexists(path) and not path.is_char_device() and not path.is_fifo() and not force:
        raise UsageError(f"{path} exists already", hint="replace it with --force, or choose another name with -o")


def write_file(path: Path, text: str) -> None:
    """Writes a file whole or not at all: what it replaces goes only once it is whole. Raises InputError if it can't."""
    replaces = not path.exists() or path.is_file()
    target = path.with_name(f"{path.name}.partial") if replaces else path
    try:
        try:
            target.write_text(text, encoding="utf-8", errors="backslashreplace")
            if replaces:
                target.replace(path)
        except OSError:
            if replaces:
                target.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error.strerror}", hint="choose another place with -o") from None

"""Java Flight Recorder: records a running JVM, and reads .jfr files of any origin.

Imported by the stop command that outlives a killed recording, so everything heavy is imported on use.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfscope.collectors.base import ImportResult
    from perfscope.collectors.jfr.collector import JfrCollector as JfrCollector
    from perfscope.model.session_writer import SessionWriter

__all__ = ["JfrCollector", "import_file", "sniff"]


def sniff(head: bytes, path: Path) -> bool:
    """True for what begins like a JFR chunk, whatever its name."""
    return head.startswith(b"FLR\0")


def import_file(path: Path, writer: SessionWriter) -> ImportResult:
    """Reads a .jfr file of any origin. Raises InputError if nothing in it can be read."""
    from perfscope.collectors.jfr.importer import import_file as read

    return read(path, writer)


def __getattr__(name: str) -> Any:
    if name == "JfrCollector":
        from perfscope.collectors.jfr.collector import JfrCollector

        return JfrCollector
    raise AttributeError(name)

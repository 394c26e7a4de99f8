"""What all tests share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the helper modules beside this file


def _children() -> dict[int, str]:
    found = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                name, _, rest = (process / "stat").read_text().rpartition(")")
            except OSError:
                continue
            state, parent = rest.split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                found[int(process.name)] = name.partition("(")[2]
    return found


@pytest.fixture(autouse=True)
def no_strays() -> Iterator[None]:
    """Fails a test that leaves a process of its own running."""
    before = _children()
    yield
    strays = {pid: name for pid, name in _children().items() if pid not in before}
    assert not strays, f"left running: {strays}"

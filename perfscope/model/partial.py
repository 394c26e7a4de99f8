"""The directory of a session that is not whole yet: its name, and the lock that a living recording holds on it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

PARTIAL = ".partial"


def in_use(partial: Path) -> bool:
    """True if a living recording holds the directory's lock."""
    held = os.open(partial, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(held)
    return False

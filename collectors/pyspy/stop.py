"""`python stop.py FOLDER`: ends the samplers of a recording whose perfscope was killed or hangs.

They are known by their output in FOLDER, so that this can be asked for before the first of them is started: a kill
between the start of one and a note of its pid would leave it running for as long as the target does. Imports only the
standard library.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

TOOLS = {"py-spy", "austin"}
_UNBORN_S = 0.5
"""A process that was being forked when perfscope was killed has its own command line only after that."""
_PATIENCE_S = 8.0
_ASK_EVERY_S = 0.5
"""A sampler that only just starts may miss one."""


def samplers(folder: Path) -> list[int]:
    """Running samplers that write into `folder`, an absolute path. Theirs may be relative to where they run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = os.fsdecode((process / "cmdline").read_bytes()).split("\0")
            here = (process / "cwd").readlink()
        except OSError:
            continue
        if Path(words[0]).name in TOOLS and any(folder in (here / word).parents for word in words):
            found.append(int(process.name))
    return found


def main(folder: Path) -> None:
    """Asks them to write their files and end, again and again; kills those that don't."""
    began = asked = time.monotonic()
    while (found := samplers(folder)) or time.monotonic() - began < _UNBORN_S:
        patient = time.monotonic() - began < _PATIENCE_S
        if found and (asked == began or time.monotonic() - asked > _ASK_EVERY_S):
            asked = time.monotonic()
            for pid in found:
                try:
                    os.kill(pid, signal.SIGINT if patient else signal.SIGKILL)
                except ProcessLookupError:
                    continue
        time.sleep(0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

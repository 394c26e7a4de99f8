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

TOOLS = {b"py-spy", b"austin"}
_UNBORN_S = 0.5
"""A process that was being forked when perfscope was killed has its own command line only after that."""
_PATIENCE_S = 8.0
_ASK_EVERY_S = 0.5
"""A sampler that only just starts may miss one."""


def samplers(folder: str) -> list[int]:
    """Running samplers that write into `folder`, an absolute path. Theirs may be relative to where they run."""
    inside, found = os.fsencode(folder) + b"/", []
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 (of names)
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            here = os.readlink(os.fsencode(f"/proc/{pid}/cwd"))  # noqa: PTH115 (a link of /proc)
        except OSError:
            continue
        paths = [os.path.join(here, word) for word in words]  # noqa: PTH118 (bytes)
        if os.path.basename(words[0]) in TOOLS and any(path.startswith(inside) for path in paths):  # noqa: PTH119
            found.append(int(pid))
    return found


def main(folder: str) -> None:
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
    main(sys.argv[1])

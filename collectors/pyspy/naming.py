"""Names of threads that started after others had died: read anew, for a running py-spy doesn't.

py-spy reads a thread's name once for each pthread handle; a new thread gets the handle of a dead one. So it can within
one look, which reads the threads at one moment and the names at another: a name is taken only for a thread that was
there before the look began and still is when it has ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from perfscope import procfs
from perfscope.collectors.base import Context
from perfscope.collectors.pyspy.instance import binary

EVERY_NS = 500_000_000
"""Least time between two looks at the names, which cost 11..17 ms of CPU time each: 3 % of a core at most."""
TRIES = 2
"""Looks that a thread may show up in without a name: one that isn't Python's never gets one."""
_LIMIT_NS = 5_000_000_000
_MAX_BYTES = 64 << 20


class Naming:
    """Looks at the names of a process's threads by `py-spy dump`, one look at a time, without waiting for it.

    names: by kernel id as the process sees it. cpu_ns: what the looks have cost.
    """

    def __init__(self, context: Context, pid: int) -> None:
        self.context = context
        self.pid = pid
        self.names: dict[int, str] = {}
        self.cpu_ns = 0
        self._looks: Counter[int] = Counter()
        self._before: set[int] = set()
        self._output = context.raw / f"{pid}.names.json"
        self._popen: subprocess.Popen[bytes] | None = None
        self._began_ns = 0

    def tick(self, tids: Iterable[int], now: int) -> None:
        """Takes in a look that is done; begins another if one of `tids` has no name, and the last wasn't just now."""
        if self._popen is not None:
            self._take(now)
            return
        wanted = {tid for tid in tids if self._looks[tid] < TRIES} - self.names.keys()
        if wanted and now - self._began_ns >= EVERY_NS:
            self._began_ns = now
            self._looks.update(wanted)
            self._before = self._present()
            argv = [binary(), "dump", "--json", "--nonblocking", "--pid", str(self.pid)]
            try:
                with self._output.open("wb") as stream:
                    self._popen = subprocess.Popen(
                        argv,
                        stdin=subprocess.DEVNULL,
                        stdout=stream,
                        stderr=subprocess.DEVNULL,
                        start_new_session=True,
                    )
            except OSError:
                return  # no descriptor or space left just now
            self.context.own_pids.add(self._popen.pid)

    def finish(self) -> None:
        """Waits for a look that is under way."""
        while self._popen is not None:
            self._take(time.monotonic_ns())
            time.sleep(0.002)

    def _present(self) -> set[int]:
        return set(procfs.inner_to_host_tids(self.pid))

    def _take(self, now: int) -> None:
        assert self._popen is not None
        done, status, usage = os.wait4(self._popen.pid, os.WNOHANG)
        if done == 0:
            if now - self._began_ns > _LIMIT_NS:
                self._popen.kill()
            return
        self._popen.returncode = os.waitstatus_to_exitcode(status)
        self._popen = None
        self.cpu_ns += round((usage.ru_utime + usage.ru_stime) * 1e9)
        lasting = self._before & self._present()
        self.names |= {tid: name for tid, name in parse(self._output).items() if tid in lasting}
        self._output.unlink(missing_ok=True)


def parse(path: Path) -> dict[int, str]:
    """Names by kernel id of a dump's JSON; nothing from what isn't one, as where the process ended meanwhile."""
    try:
        with path.open("rb") as file:
            document = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    found: dict[int, str] = {}
    for thread in document if isinstance(document, list) else []:
        if isinstance(thread, dict):
            tid, name = thread.get("os_thread_id"), thread.get("thread_name")
            if type(tid) is int and isinstance(name, str) and name:
                found[tid] = name
    return found

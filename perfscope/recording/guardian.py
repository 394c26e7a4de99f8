"""A tiny process that cleans up when perfscope can't: it outlives a `kill -9` and then runs the registered undos.

`Guard` is perfscope's end: it starts this very file as a process of its own session and writes one JSON line per
message into its standard input. When that closes, perfscope has finished or was killed, and every undo still
registered runs, the latest first: none after a clean end, when every collector took its own back. The process
imports only the standard library.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading

UNDO_TIMEOUT_S = 15
"""Longest an undo may take (a jcmd to a JVM in a safepoint takes ~11 s to give up)."""


class Guard:
    """Perfscope's end of the guardian. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        self.pid = self._process.pid

    def register(self, key: str, argv: list[str]) -> None:
        """Has `argv` run if perfscope is killed; an empty one takes that back."""
        self._send({"key": key, "argv": argv})

    def run_now(self, prefix: str) -> None:
        """Runs the undos whose key starts with `prefix` at once: their collector can't do it any more."""
        self._send({"run": prefix})

    def close(self) -> None:
        """Ends the guardian, once it has run what collectors that failed to stop left registered."""
        with self._lock, contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()
        self._process.wait()

    def _send(self, message: dict[str, object]) -> None:
        line = json.dumps(message).encode() + b"\n"
        # A guardian that was killed must not end the recording: there is only less of a net.
        with self._lock, contextlib.suppress(OSError, ValueError):
            assert self._process.stdin
            self._process.stdin.write(line)
            self._process.stdin.flush()


def _run(argv: list[str]) -> None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            argv,
            timeout=UNDO_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )


def _main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    undos: dict[str, list[str]] = {}
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "run" in message:
            for key in [k for k in reversed(undos) if k.startswith(message["run"])]:
                _run(undos.pop(key))
            continue
        undos.pop(message["key"], None)
        if message["argv"]:
            undos[message["key"]] = message["argv"]
    for argv in reversed(undos.values()):
        _run(argv)


if __name__ == "__main__":
    _main()

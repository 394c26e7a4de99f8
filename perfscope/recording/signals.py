"""Signals and job control while a target runs: what a shell or a supervisor would do to the command still happens.

Launched command: a Ctrl-C or Ctrl-\\ typed on the terminal reaches the command by itself, since it shares our process
group; perfscope survives it and finishes once the command ends. Signals sent to perfscope alone (SIGTERM, SIGHUP,
SIGUSR1, ...) are passed on. When the command stops (Ctrl-Z), perfscope stops with it, and continues it when continued.

Running processes (-p): SIGINT, SIGTERM and SIGHUP end the recording and touch nothing else.
"""

from __future__ import annotations

import os
import select
import signal
from types import FrameType, TracebackType

from perfscope.errors import RecordingError
from perfscope.recording.launch import Target

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PASSED_ON = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
_TYPED = (signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH)


def _in_foreground() -> bool:
    """True if our process group has the terminal: then what is typed reaches the command without us."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


class Signals:
    """Context in which signals are handled as above.

    stop_requested: name of the signal that ends the recording.
    writing: set while the session is written: with no recording left to end, a signal gives up (RecordingError).
    """

    def __init__(self, target: Target | None) -> None:
        self.target = target
        self.writing = False
        self.stop_requested: str | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> Signals:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        handled = (*_PASSED_ON, signal.SIGCHLD) if self.target else _ENDING
        for number in handled:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # under nohup
            self._before[number] = signal.signal(number, self._handle)
        if self.target:
            self._before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as it was before
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._read)
        os.close(self._write)

    def wait(self, timeout_s: float) -> None:
        """Returns after `timeout_s`, or as soon as a signal came (also one that needed nothing)."""
        if select.select([self._read], [], [], max(timeout_s, 0))[0]:
            os.read(self._read, 4096)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.writing and number in _ENDING and (self.target is None or self.target.exited()):
            name = signal.Signals(number).name
            raise RecordingError(f"{name} while the session was being written: it is not whole and can't be shown")
        if self.target is None:
            self.stop_requested = signal.Signals(number).name
        elif number == signal.SIGCHLD:
            self._follow_stop()
        elif not (number in _TYPED and _in_foreground()):
            self.target.signal(number)

    def _follow_stop(self) -> None:
        assert self.target
        # Only where a shell waits for us on a terminal: elsewhere nobody would continue perfscope.
        if self.target.stopped() and _in_foreground():
            os.kill(os.getpid(), signal.SIGSTOP)
            self.target.signal(signal.SIGCONT)

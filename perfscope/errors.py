"""Every error perfscope raises on purpose.

PerfscopeError                exit 2 unless a subclass says otherwise
├── UsageError                2   the command line asks for something impossible
├── InputError                2   a file or session from outside can't be read; names file and offset
│   └── SessionError          2   a session directory is missing, incomplete, damaged or of another version
├── CollectorError            3   one tool failed; costs only that tool's data while others work
└── RecordingError            3   the recording as a whole failed

An error says what failed and why in its message, and the command or setting that mends it in `hint`.
The CLI catches PerfscopeError once, at the top; a traceback is always a bug of ours.
"""

from __future__ import annotations


class PerfscopeError(Exception):
    """Base of all deliberate errors. `exit_code` is the process's exit status; `hint` says how to mend it."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(PerfscopeError):
    """The command line asks for something impossible."""


class InputError(PerfscopeError):
    """A file from outside can't be used. The message names the file, and the offset where one is known."""


class SessionError(InputError):
    """A session directory is missing, unfinished, damaged, or written by an unknown version."""


class CollectorError(PerfscopeError):
    """A tool failed or can't run here. Recorded in the session; never ends the recording of the others."""

    exit_code = 3


class RecordingError(PerfscopeError):
    """The recording as a whole failed."""

    exit_code = 3

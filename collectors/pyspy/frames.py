"""py-spy's frames: which layer they belong to, and the pseudo frames that carry process and thread."""

from __future__ import annotations

import re
from typing import NamedTuple

from perfscope.model.stacks import Frame

_NATIVE_SUFFIXES = (".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".hh", ".cu", ".cuh", ".rs", ".s", ".S", ".pyx", ".pxd")
_LIBRARY = re.compile(r"\.so(\.[\d.]+)?$")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+$")
_THREAD = re.compile(r"thread \((\d+|0x[0-9a-fA-F]+)\)(?:: (.*))?$", re.DOTALL)
_PROCESS = re.compile(r'process (\d+)(?::"(.*)")?$', re.DOTALL)

MAX_NAME = 4096
"""Longest function or file name kept, in characters; no compiler or interpreter makes longer ones in practice."""


class ThreadName(NamedTuple):
    """Thread pseudo frame. tid: kernel's id as the process sees it; None where py-spy knew only the pthread handle."""

    tid: int | None
    name: str | None


def thread_frame(text: str) -> ThreadName | None:
    """Reads "thread (8838): worker", which `--threads` puts at the root; None for any other text."""
    match = _THREAD.match(text)
    if match is None:
        return None
    number = match[1]
    tid = None if number.startswith("0x") or len(number) > 9 else int(number)
    return ThreadName(tid, match[2] or None)


def process_frame(text: str) -> int | None:
    """Reads the pid from 'process 19304:"python x.py"', which `--subprocesses` puts at the root."""
    match = _PROCESS.match(text)
    return int(match[1]) if match and len(match[1]) <= 9 else None


def is_python(filename: str, line: int | None) -> bool:
    """Whether a frame is Python code.

    py-spy doesn't say. Python files end in .py or are made up by the interpreter ("<string>"); a frame with no line is
    native (stripped library); what is left is told by the suffixes of native languages (a Python script may have none).
    """
    if filename.endswith(".py") or filename.startswith("<"):
        return True
    return bool(line) and bool(filename) and not filename.endswith(_NATIVE_SUFFIXES) and not _LIBRARY.search(filename)


def make_frame(function: str, filename: str, line: int | None) -> Frame:
    """One frame of the session. Addresses without a symbol collapse to one frame a module: "[libc.so.6]"."""
    function, filename = function[:MAX_NAME], filename[:MAX_NAME]
    line = line if line and 0 < line < 2**31 else None
    if is_python(filename, line):
        return Frame("python", function, filename or None, line)
    module = filename.rsplit("/", 1)[-1]
    if _ADDRESS.match(function):
        return Frame("native", f"[{module or 'unknown'}]", None, None, filename or None)
    if line is None:
        return Frame("native", function, None, None, filename or None)
    return Frame("native", function, filename or None, line)


def collapsed(frame: Frame) -> bool:
    """True for a frame that stands for any address of its module; several in a row are one."""
    return frame.layer == "native" and frame.function.startswith("[") and frame.line is None

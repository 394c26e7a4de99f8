"""Makes a session of files that other profilers wrote."""

from __future__ import annotations

import shlex
from collections.abc import Sequence, Set
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from perfscope import __version__
from perfscope.collectors import READERS
from perfscope.collectors.base import ImportResult
from perfscope.errors import InputError, UsageError
from perfscope.model.info import CollectorReport, SessionInfo
from perfscope.model.session_writer import SessionWriter

_HEAD_BYTES = 4096
"""How much of a file its kind is told from."""


def import_files(files: Sequence[Path], output: Path, *, force: bool = False) -> SessionInfo:
    """Reads each file with the reader that knows its content, into one session.

    A file that can't be read is reported in the session beside those that can. Raises InputError if none can, or if
    their clocks have nothing in common, and UsageError if a file is given twice.
    """
    _refuse_twice(files)
    writer = SessionWriter(output, force=force)
    results: dict[str, ImportResult] = {}
    failed: dict[str, InputError] = {}
    timed: dict[str, Path] = {}
    try:
        for file in files:
            try:
                result = _import(file, writer)
            except InputError as error:
                failed[_key(file.name, file, {*results, *failed})] = error
                continue
            results[_key(result.source, file, {*results, *failed})] = result
            if result.clock and result.stop_ns > result.start_ns:
                timed.setdefault(result.clock.domain, file)
        if not results:
            raise _nothing(list(failed.values()))
        if len(timed) > 1:
            raise _unaligned(timed)
        info = _info(files, results, failed)
        writer.finish(info)
    except BaseException:
        writer.discard()
        raise
    return info


def _refuse_twice(files: Sequence[Path]) -> None:
    seen: set[Path] = set()
    for file in files:
        if (real := file.resolve()) in seen:
            raise UsageError(f"{file} is given twice: all in it would count twice")
        seen.add(real)


def _unaligned(timed: dict[str, Path]) -> InputError:
    files = " and ".join(f"{file} ({domain})" for domain, file in timed.items())
    return InputError(
        f"nothing ties the clocks of {files} together, so there is no one time for them",
        hint="import each into a session of its own: perfscope import FILE -o DIR",
    )


def _import(file: Path, writer: SessionWriter) -> ImportResult:
    try:
        if not file.is_dir() and not file.is_file() and file.exists():
            raise InputError(
                f"{file}: no regular file, and it is read more than once", hint="save it first: cat ... > FILE"
            )
        with file.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except IsADirectoryError:
        session = (file / "session.json").exists()
        raise InputError(
            f"{file}: {'a session already' if session else 'a directory'}, not a file of another profiler",
            hint=f"perfscope show {shlex.quote(str(file))}" if session else "name the files in it",
        ) from None
    except OSError as error:
        raise InputError(f"{file}: can't be read: {error.strerror}", hint=_mend(error, file)) from None
    if not head:
        raise InputError(f"{file}: empty", hint="let the profiler end by itself: most write their file only then")
    for module in READERS.values():
        reader = import_module(module)
        if reader.sniff(head, file):
            result: ImportResult = reader.import_file(file, writer)
            return result
    raise InputError(
        f"{file}: not a format that perfscope reads",
        hint="it reads py-spy's chrometrace, raw and speedscope files, austin's text, JFR recordings, and Nsight "
        "Compute's reports",
    )


def _mend(error: OSError, file: Path) -> str:
    quoted = shlex.quote(str(file))
    return f"sudo chmod a+r {quoted}" if isinstance(error, PermissionError) else f"check its name: ls -l {quoted}"


def _key(source: str, file: Path, taken: Set[str]) -> str:
    name, number = source, 1
    while name in taken:
        number += 1
        name = f"{source}:{file.name}" if number == 2 else f"{source}:{file.name}:{number}"
    return name


def _nothing(errors: list[InputError]) -> InputError:
    if len(errors) == 1:
        return errors[0]
    return InputError("none of the files can be read:" + "".join(f"\n  {e}" for e in errors), hint=errors[0].hint)


def _info(files: Sequence[Path], results: dict[str, ImportResult], failed: dict[str, InputError]) -> SessionInfo:
    timed = [r for r in results.values() if r.stop_ns > r.start_ns]
    return SessionInfo(
        start_ns=min((r.start_ns for r in timed), default=0),
        stop_ns=max((r.stop_ns for r in timed), default=0),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        stopped_by="imported",
        options={"files": [str(file) for file in files]},
        clocks={name: r.clock for name, r in results.items() if r.clock},
        collectors={
            **{name: r.report for name, r in results.items()},
            **{name: CollectorReport("failed", str(e), e.hint) for name, e in failed.items()},
        },
        tool_version=__version__,
    )

"""Nsight Compute: a second, replayed run of the program that measures the kernels which mattered in the first."""

from __future__ import annotations

from pathlib import Path

from perfscope.collectors.base import ImportResult
from perfscope.collectors.ncu import binaryreport, export, launches, textreport
from perfscope.errors import InputError, PerfscopeError
from perfscope.model.info import CollectorReport
from perfscope.model.session_writer import SessionWriter

_HEADER_WITHIN = 1 << 20
"""The CSV's header line follows what ncu and the program printed; looked for in this many first bytes."""


def sniff(head: bytes, path: Path) -> bool:
    """True for an .ncu-rep file, and for ncu's CSV with whatever the program printed before it."""
    if binaryreport.sniff(head) or textreport.sniff(head):
        return True
    if b"==PROF==" not in head and b"==WARNING==" not in head:
        return False
    with path.open("rb") as file:
        return textreport.sniff(file.read(_HEADER_WITHIN))


def import_file(path: Path, writer: SessionWriter) -> ImportResult:
    """Reads an .ncu-rep file, or ncu's CSV (raw or details page). It holds no times of day: start and stop are 0.

    Raises InputError if nothing in it can be read; a part that can't be is told in the report.
    """
    measured, report = read(path)
    # Numbers of another file's launches in the same session lie below its number of rows.
    writer.append("gpu_kernels", launches.columns(measured, first=writer.rows.get("gpu_kernels", 0)))
    return ImportResult("ncu", 0, 0, report)


def read(path: Path) -> tuple[list[launches.Launch], CollectorReport]:
    """The launches of a report of either kind, and how sound it is. Raises InputError as `import_file`."""
    report = CollectorReport()
    with path.open("rb") as file:
        binary = binaryreport.sniff(file.read(4))
    if binary:
        measured = _binary(path, report)
    else:
        measured, unread = textreport.read(path)
        report.lost_events = unread
        report.why = f"{unread} lines could not be read" if unread else None
    if not measured:
        raise InputError(f"{path}: no measured launch in it", hint="ncu --import FILE.ncu-rep --csv --page raw")
    if report.why:
        report.status, report.why = "partial", f"{path.name}: {report.why}"
    report.events = len(measured)
    report.notes.append(
        "Nsight Compute replays each kernel alone, with cold caches unless asked: its times are its own"
    )
    return measured, report


def _binary(path: Path, report: CollectorReport) -> list[launches.Launch]:
    """Through NVIDIA's reader, or through ncu's own export where that isn't there or fails; the report says which."""
    binaryreport.check_size(path)
    try:
        measured = binaryreport.read(path)
        report.details["reader"] = "ncu-report"
    except binaryreport.ReaderError as error:
        try:
            measured, report.lost_events = export.read(path)
        except PerfscopeError:
            raise InputError(f"{error}{binaryreport.damage(path)}", hint=error.hint) from None
        report.details["reader"] = "ncu --import"
        report.notes.append(f"{error.why}: read through ncu's own export, which rounds values")
    if not measured:
        raise InputError(f"{path}: no measured launch in it{binaryreport.damage(path)}", hint="record it again")
    report.why = binaryreport.lacking(path, len(measured))
    return measured

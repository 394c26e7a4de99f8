"""Compares what each source stamped with what the recorded program marked.

Bracketed instants (eBPF, JFR): the program reads the clock before (b) and after (a) something the source stamps at its
start (s) and end (e). True times lie in b <= s, e <= a, so a clock error shifts s and e alike, and
((s - b) - (a - e)) / 2 is that error, to within ((s - b) + (a - e)) / 2. That bound doesn't depend on the error, so
readings are picked by it: the tightest fifth. Wider brackets than the error that a clock is held to can't tell whether
it keeps to it; `doctor --clock` prints how wide these are ("marks good to").

Sampled instants (py-spy, austin): the program spins through functions named after the time, so that each sample's stack
tells a time at which it was current. py-spy stamps a sample when it is over, so it can't be stamped before what it saw,
only later (the program or the sampler had to wait for a CPU): the earliest of a sampler's stamps, relative to what they
saw, bounds the error of its one anchor from above, and exceeds it by no more than the quickest sample took. austin
stamps before it looks: where it loses its CPU in between, which is seldom, the stamp is early by any time. The earliest
2 % are left out for that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from perfscope.clock import ClockMap
from perfscope.model.session import Session
from perfscope.options import Options
from perfscope.recording.clock_marks import FUNCTIONS, QUANTUM_NS
from perfscope.recording.clock_result import ClockResult, read_marks
from perfscope.recording.launch import Target
from perfscope.recording.record import Recording, Request
from perfscope.recording.signals import Signals

Times = npt.NDArray[np.int64]

_RATE_HZ = 200
_TIGHTEST_SHARE = 0.2
_FEWEST_SAMPLES = 20
"""Samples below which the earliest says little: each sees a function up to half a millisecond after it began."""
_EARLY_SHARE = 0.02
_SAMPLERS = {"bpf": ("bpf", 0.0), "py-spy": ("pyspy", 0.0), "austin": ("austin", _EARLY_SHARE)}
"""What reads Python stacks, as a session calls it: its name here, and the share of its stamps left out as early."""
_EARLIEST_NS = 200_000_000
"""How far before what it saw a stamp may be: the worst anchor, when the wall clock is set while py-spy starts."""


def record_and_compare(target: Target, signals: Signals, directory: Path, with_java: bool) -> list[ClockResult]:
    """Records the waiting marking program and compares. Raises RecordingError if nothing can record."""
    request = Request(
        output=directory / "clock.perfscope",
        command=target.command,
        collect=["ebpf", "pyspy", "jfr"],
        options=Options(rate_hz=_RATE_HZ, python_sampler="alternate"),
    )
    Recording(request, target, signals, lambda progress: None).run()
    return compare(Session.open(request.output), directory, with_java)


def compare(session: Session, directory: Path, with_java: bool) -> list[ClockResult]:
    """Compares a recording of the marking program with the marks it left in `directory`."""
    python = _python(session, directory)
    return [_ebpf(session, directory), *python, _jfr(session, directory, with_java)]


def bracket_errors(before: Times, after: Times, start: Times, end: Times) -> tuple[Times, Times]:
    """`(errors, bounds)` in ns of a clock that stamped [start, end] within what was marked as [before, after].

    Both arrays have one entry a bracket that holds the middle of exactly one stamped interval; marks are ascending.
    """
    middle = (start + end) // 2
    slot = np.searchsorted(before, middle, side="right") - 1
    inside = (slot >= 0) & (middle <= after[np.maximum(slot, 0)])
    slot, start, end = slot[inside], start[inside], end[inside]
    _, first, count = np.unique(slot, return_index=True, return_counts=True)
    single = first[count == 1]
    slot, start, end = slot[single], start[single], end[single]
    lead, trail = start - before[slot], after[slot] - end
    return (lead - trail) // 2, (lead + trail) // 2


def lateness(times: Times, quanta: Times) -> Times:
    """Stamp minus the beginning of what the sample saw, in ns; the latter is known modulo FUNCTIONS * QUANTUM_NS."""
    span = FUNCTIONS * QUANTUM_NS
    late: Times = (times - quanta * QUANTUM_NS + _EARLIEST_NS) % span - _EARLIEST_NS
    return late


def _result(
    source: str,
    samples: int,
    errors: Times,
    uncertainty_ns: float | None,
    clocks: Sequence[ClockMap],
    resolution_ns: float,
) -> ClockResult:
    values = np.abs(errors) / 1e3
    figures = {
        "median": float(np.median(values)),
        "p95": float(np.percentile(values, 95)),
        "p99": float(np.percentile(values, 99)),
        "max": float(values.max()),
    }
    return ClockResult(
        source=source,
        samples=samples,
        readings=len(errors),
        residual_us={name: round(value, 2) for name, value in figures.items()},
        uncertainty_us=None if uncertainty_ns is None else round(uncertainty_ns / 1e3, 2),
        stated_error_us=max((clock.error_ns / 1e3 for clock in clocks), default=None),
        resolution_us=round(resolution_ns / 1e3, 1),
    )


def _missing(session: Session, source: str, otherwise: str, name: str | None = None) -> ClockResult:
    report = session.info.collectors.get(source)
    why = report.why if report and report.why else otherwise
    return ClockResult(name or source, 0, 0, None, None, None, None, why)


def _clocks(session: Session, source: str) -> list[ClockMap]:
    return [c for name, c in session.info.clocks.items() if name.partition(":")[0] == source]


def _tightest(source: str, session: Session, errors: Times, bounds: Times) -> ClockResult:
    kept = bounds <= np.quantile(bounds, _TIGHTEST_SHARE)
    return _result(source, len(errors), errors[kept], float(bounds[kept].max()), _clocks(session, source), 0)


def _marks(path: Path) -> tuple[int, Times, Times] | None:
    marks = np.asarray(read_marks(path), np.int64)
    return (int(marks[0, 0]), marks[:, 1], marks[:, 2]) if len(marks) else None


def _ebpf(session: Session, directory: Path) -> ClockResult:
    found = []
    for name, table, tid_column, start, end in (
        ("sleeps", "sched", "tid", "off_ns", "on_ns"),
        ("writes", "block_io", "tid", "start_ns", "complete_ns"),
    ):
        if (marks := _marks(directory / name)) is None:
            continue
        tid, before, after = marks
        rows = session.table(table).select([tid_column, start, end]).drop_null()
        mine = rows.column(tid_column).to_numpy() == tid
        stamps = [rows.column(column).to_numpy()[mine] for column in (start, end)]
        found.append(bracket_errors(before, after, *stamps))
    errors = np.concatenate([e for e, _ in found]) if found else np.empty(0, np.int64)
    if not len(errors):
        return _missing(session, "ebpf", "no thread switch of the program was recorded")
    return _tightest("ebpf", session, errors, np.concatenate([b for _, b in found]))


def _jfr(session: Session, directory: Path, with_java: bool) -> ClockResult:
    marks = _marks(directory / "parks")
    if marks is None:
        return _missing(
            session, "jfr", "the Java program made no marks" if with_java else "no JDK (java and javac) on the PATH"
        )
    _, before, after = marks
    events = session.table("jvm_events")
    parks = np.asarray([t == "ThreadPark" for t in events.column("type").to_pylist()], bool)
    start = events.column("time_ns").to_numpy()[parks]
    end = start + events.column("duration_ns").to_numpy()[parks]
    errors, bounds = bracket_errors(before, after, start, end)
    if not len(errors):
        return _missing(session, "jfr", "no park of the program was recorded")
    return _tightest("jfr", session, errors, bounds)


def _python(session: Session, directory: Path) -> list[ClockResult]:
    """The clocks of those samplers that were used, told apart by the processes that each read; py-spy's if none was."""
    report = session.info.collectors.get("pyspy")
    errors: dict[str, dict[str, int]] = report.details.get("clock_error_ns", {}) if report else {}
    used = [name for name in _SAMPLERS if name in errors] or ["py-spy"]
    return [_sampled(session, directory, *_SAMPLERS[name], errors.get(name, {})) for name in used]


def _sampled(
    session: Session, directory: Path, name: str, early_share: float, errors: Mapping[str, int]
) -> ClockResult:
    """errors: stated bound in ns of each process that this sampler read, by pid. early_share: of stamps, left out."""
    samples = session.table("samples").filter(_untorn(session))
    pids = samples.column("pid").to_numpy()
    times = samples.column("time_ns").to_numpy()
    frames = session.stacks.frame_array()[samples.column("stack_id").to_numpy()]
    names = [frame.function.partition("clock_")[2] for frame in session.stacks.frames]
    numbers = np.asarray([int(name) if name.isdigit() else -1 for name in names], np.int64)
    quanta = numbers[frames] if len(frames) else np.empty(0, np.int64)
    anchors, used, gaps, stated = [], 0, [], []
    for pid, _, _ in read_marks(directory / "spinners"):
        mine = (pids == pid) & (quanta >= 0)
        if str(pid) in errors and mine.sum() >= _FEWEST_SAMPLES:
            anchors.append(int(np.quantile(lateness(times[mine], quanta[mine]), early_share)))
            gaps.append(np.median(np.diff(np.sort(times[mine]))))
            stated.append(errors[str(pid)] / 1e3)
            used += int(mine.sum())
    if not anchors:
        return _missing(session, "pyspy", "too few samples of the program were recorded", name)
    marks_ns = QUANTUM_NS / (used / len(anchors))
    found = _result(name, used, np.asarray(anchors), float(marks_ns), [], float(np.median(gaps)))
    return dataclasses.replace(found, stated_error_us=max(stated))


def _untorn(session: Session) -> npt.NDArray[np.bool_]:
    samples = session.table("samples")
    source = np.asarray([s == "pyspy" for s in samples.column("source").to_pylist()], bool)
    timed = samples.column("time_ns").is_valid().to_numpy()
    kept: npt.NDArray[np.bool_] = source & timed & ~samples.column("torn").to_numpy()
    return kept

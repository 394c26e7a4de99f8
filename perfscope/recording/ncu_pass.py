"""A run of the command under Nsight Compute, which replays kernels and so gets a run of its own.

After a recording (`add`) it measures the kernels that carried most GPU time there, and adds gpu_kernels to the finished
session: whatever happens in this pass, the recording stays whole. Alone (`record_alone`) it measures every kernel once.
"""

from __future__ import annotations

import grp
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from perfscope import __version__
from perfscope.collectors import ncu
from perfscope.collectors.ncu import driver, messages
from perfscope.collectors.ncu.launches import Launch, columns
from perfscope.collectors.ncu.selection import Selection, select
from perfscope.errors import CollectorError, InputError, PerfscopeError
from perfscope.model.info import CollectorReport, SessionInfo
from perfscope.model.kernels import same_kernels
from perfscope.model.schema import schema
from perfscope.model.session import Session
from perfscope.model.session_writer import SessionWriter
from perfscope.recording.environment import fingerprint
from perfscope.recording.guardian import Guard
from perfscope.recording.launch import RunAs, environment_for

LIMIT_S = 300.0
"""Default time limit of the pass."""
_GRACE_S = 30.0
"""After the limit ncu is interrupted, and writes what it has; this long later it and all it started are killed."""
_LOOK_EVERY_S = 0.2
_INJECTION = (b"CUDA_INJECTION64_PATH", b"NVTX_INJECTION64_PATH")

Progress = Callable[[int, int | None, float], None]
"""Called with launches measured so far, launches expected (None if unknown), and seconds elapsed."""


@dataclass(frozen=True)
class Settings:
    """How the pass runs. clocks: none (as the GPU runs anyway) or base (locked, reproducible, slower)."""

    limit_s: float = LIMIT_S
    clocks: str = "none"
    run_as: RunAs | None = None
    keep_raw: bool = True


@dataclass(frozen=True)
class _Ran:
    launches: list[Launch]
    report: CollectorReport
    exit_code: int


def add(path: Path, command: list[str], settings: Settings, progress: Progress) -> CollectorReport:
    """Measures the heaviest kernels of the session at `path` in a second run of `command`, and adds them to it.

    What fails costs gpu_kernels only, and is told in the report, which is also written to the session.
    """
    session = Session.open(path)
    with tempfile.TemporaryDirectory(prefix="perfscope-ncu-") as scratch:
        directory = path / "raw" / "ncu" if settings.keep_raw else Path(scratch)
        measured: list[Launch] = []
        try:
            chosen = select(session.table("gpu_activity"))
            if chosen is None or not chosen.chosen:
                raise CollectorError(
                    _no_kernels(session), hint="perfscope record --ncu=only -- CMD measures without it"
                )
            ran = _run(command, directory, settings, chosen, progress)
            measured, report = ran.launches, ran.report
            report.notes += [*_coverage(session, measured, chosen), *chosen.notes]
        except PerfscopeError as error:
            report = CollectorReport("failed", str(error), error.hint)
            if isinstance(error, _Failed) and error.unread and not settings.keep_raw:
                report.hint = "record it again without --no-raw, which throws the report away"
        _amend(session, measured, report)
    return report


def record_alone(path: Path, command: list[str], settings: Settings, progress: Progress, *, force: bool) -> SessionInfo:
    """Makes a session of one run of `command` under Nsight Compute: each kernel once in each configuration.

    The command has perfscope's own standard streams. `exit_status` of the result is the command's. Raises
    PerfscopeError if ncu isn't there or the session can't be written.
    """
    writer = SessionWriter(path, force=force)
    try:
        start = time.monotonic_ns()
        info = SessionInfo(
            command=command,
            host=fingerprint(),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            options={"ncu": "only", "clocks": settings.clocks, "keep_raw": settings.keep_raw},
            tool_version=__version__,
            state="recording",
        )
        writer.write_info(info)
        keep_raw = settings.keep_raw
        try:
            ran = _run(command, writer.raw / "ncu", settings, None, progress)
        except CollectorError as error:
            if not isinstance(error, _Failed):
                raise
            why, hint = (text.replace(str(writer.raw), str(path / "raw")) for text in (str(error), error.hint or ""))
            ran = _Ran([], CollectorReport("failed", why, hint or None), error.exit_code_of_command)
            keep_raw |= error.unread
        writer.append("gpu_kernels", columns(ran.launches))
        info.start_ns, info.stop_ns, info.stopped_by = start, time.monotonic_ns(), "target exited"
        info.collectors, info.exit_status = {"ncu": ran.report}, ran.exit_code
        writer.finish(info, keep_raw=keep_raw)
    except BaseException:
        writer.discard()
        raise
    return info


class _Failed(CollectorError):
    """ncu ran, and measured nothing or (unread) left a report that couldn't be read."""

    def __init__(self, trouble: messages.Trouble, exit_code: int, *, unread: bool = False) -> None:
        super().__init__(trouble.what, hint=trouble.hint)
        self.exit_code_of_command = exit_code
        self.unread = unread


def _run(command: list[str], directory: Path, settings: Settings, chosen: Selection | None, progress: Progress) -> _Ran:
    """Runs ncu and reads what it wrote. Raises CollectorError if nothing was measured."""
    executable = driver.find()
    environment = environment_for(settings.run_as)
    if taken := [name.decode() for name in _INJECTION if environment.get(name)]:
        raise CollectorError(
            f"{taken[0]} is set: another tool records CUDA in this environment, and ncu can't share it",
            hint=f"unset {' '.join(taken)}",
        )
    if not driver.permitted(settings.run_as.uid if settings.run_as else None):
        raise CollectorError("no permission to read the GPU's performance counters", hint=messages.PERMISSION)
    directory.mkdir(parents=True, exist_ok=True)
    if settings.run_as:
        os.chown(directory, settings.run_as.uid, settings.run_as.gid)
    log, report_file = directory / "log.txt", directory / "report.ncu-rep"
    line = driver.command_line(
        executable, command, report=report_file.absolute(), log=log.absolute(), selection=chosen, clocks=settings.clocks
    )
    expected = chosen.expected if chosen else None
    started = time.monotonic()
    status, timed_out = _supervised(line, directory, environment, settings, chosen is None, log, expected, progress)
    said = messages.parse(_lines(log) or _lines(directory / "output.txt"))  # it logs nothing of options it refuses
    functions = chosen.functions if chosen else ()
    trouble = messages.explain(said, timed_out=timed_out, limit_s=settings.limit_s, functions=functions)
    exit_code = said.exit_code if said.exit_code is not None else (0 if said.connected else status)
    exit_code = 128 - exit_code if exit_code < 0 else exit_code
    if not report_file.exists():
        raise _Failed(trouble or messages.Trouble(f"ncu left no report (exit status {status})", str(log)), exit_code)
    size = report_file.stat().st_size
    try:
        launches, report = ncu.read(report_file)
    except InputError as error:
        raise _Failed(messages.Trouble(str(error), error.hint or ""), exit_code, unread=True) from None
    if trouble:
        report.status, report.hint = "partial", trouble.hint
        report.why = "; ".join(filter(None, (report.why, trouble.what)))
    if size > 1 << 30:
        report.notes.append(f"the report has {size / 1e9:.1f} GB; --no-raw doesn't keep it")
    report.version = _version(executable)
    report.details |= {
        "launches": len(launches),
        "replays a launch": said.passes,
        "seconds": round(time.monotonic() - started, 1),
        "report bytes": size,
        "command": line,
    }
    return _Ran(launches, report, exit_code)


def _supervised(
    line: list[str],
    directory: Path,
    environment: dict[bytes, bytes],
    settings: Settings,
    alone: bool,
    log: Path,
    expected: int | None,
    progress: Progress,
) -> tuple[int, bool]:
    """Runs ncu in a session of its own until it ends or the limit is over: (its status, whether it was stopped).

    Nothing of it outlives this call, or a killed perfscope.
    """
    run_as = settings.run_as
    groups = [run_as.gid, *(g.gr_gid for g in grp.getgrall() if run_as.name in g.gr_mem)] if run_as else []
    as_user = {"user": run_as.uid, "group": run_as.gid, "extra_groups": groups} if run_as else {}
    guard = Guard()
    try:
        with (directory / "output.txt").open("wb") as output:
            try:
                process = subprocess.Popen(
                    line,
                    env=environment,
                    stdin=None if alone else subprocess.DEVNULL,
                    stdout=None if alone else output,
                    stderr=None if alone else output,
                    start_new_session=True,
                    **as_user,  # type: ignore[call-overload]  # user, group
                )
            except OSError as error:
                who = f" as {run_as.name}" if run_as else ""
                raise CollectorError(
                    f"{line[0]} can't be started{who}: {error.strerror}", hint=f"ls -l {line[0]}"
                ) from None
        guard.register("ncu", ["kill", "-KILL", "--", f"-{process.pid}"])
        try:
            return _wait(process, settings.limit_s, log, expected, progress)
        finally:
            if process.poll() is None:
                _kill(process)
            guard.register("ncu", [])
    finally:
        guard.close()


def _wait(
    process: subprocess.Popen[bytes], limit_s: float, log: Path, expected: int | None, progress: Progress
) -> tuple[int, bool]:
    start = time.monotonic()
    interrupted = False
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK_EVERY_S), interrupted
        elapsed = time.monotonic() - start
        progress(messages.parse(_lines(log)).profiled, expected, elapsed)
        if elapsed > limit_s and not interrupted:
            process.send_signal(signal.SIGINT)
            interrupted = True
        elif elapsed > limit_s + _GRACE_S:
            _kill(process)
            return process.returncode, True


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills ncu and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _lines(log: Path) -> list[str]:
    try:
        return log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _version(executable: Path) -> str | None:
    try:
        out = subprocess.run([str(executable), "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    found = [line for line in out.stdout.splitlines() if line.startswith("Version")]
    return f"ncu {found[0].split()[1]}" if found else None


def _no_kernels(session: Session) -> str:
    report = session.info.collectors.get("cuda")
    why = "" if report is None or report.why is None else f": {report.why}"
    state = "was not recorded" if report is None else report.status
    return f"the first run shows no GPU kernels to choose from (cuda {state}{why})"


def _coverage(session: Session, measured: list[Launch], chosen: Selection) -> list[str]:
    """How much of the first run's kernel time the measured kernels and configurations carried there."""
    activity = session.table("gpu_activity")
    kernels = activity.filter(pc.equal(activity["kind"], "kernel"))
    names = kernels["name"].cast(pa.string())
    same = same_kernels({launch.name for launch in measured}, names.unique().to_pylist())
    configs = {(same.get(m.name), *(m.grid or (None,) * 3), *(m.block or (None,) * 3)) for m in measured}
    columns = [names.to_pylist()]
    columns += [kernels[f"{what}_{axis}"].to_pylist() for what in ("grid", "block") for axis in "xyz"]
    spent = pc.subtract(kernels["end_ns"], kernels["start_ns"]).to_pylist()
    covered = sum(ns for ns, key in zip(spent, zip(*columns, strict=True), strict=True) if key in configs)
    wanted = {(c.name, *c.grid, *c.block) for c in chosen.chosen}
    notes = [f"the measured kernels carried {100 * covered / chosen.total_ns:.1f}% of the first run's kernel time"]
    if lacking := len(wanted - configs):
        notes.append(f"{lacking} of {len(wanted)} chosen kernels were not launched like that in the second run")
    return notes


def _amend(session: Session, measured: list[Launch], report: CollectorReport) -> None:
    """Adds the measured kernels and the report to a finished session. Each file is replaced as a whole."""
    if measured:
        table = session.path / "tables" / "gpu_kernels.parquet"
        new = table.with_name(table.name + ".new")
        pq.write_table(pa.Table.from_pydict(columns(measured), schema("gpu_kernels")), new, compression="zstd")
        new.replace(table)
        session.info.tables["gpu_kernels"] = pq.read_metadata(table).num_rows
    session.info.collectors["ncu"] = report
    file = session.path / "session.json"
    new = file.with_name(file.name + ".new")
    text = json.dumps(session.info.to_json(), indent=1, ensure_ascii=False)
    new.write_bytes(text.encode(errors="replace") + b"\n")
    shutil.copymode(file, new)
    new.replace(file)

"""`perfscope record`."""

from __future__ import annotations

from pathlib import Path

import click

from perfscope.cli._seconds import Seconds
from perfscope.errors import RecordingError, UsageError
from perfscope.recording.launch import RunAs, Target
from perfscope.recording.names import default_path
from perfscope.recording.signals import Signals


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Session directory (default: named after CMD).")
@click.option("-d", "--duration", type=Seconds(0, 1e9, min_open=True), help="Stop recording after SECONDS.")
@click.option("-r", "--rate", type=click.IntRange(1, 1000), default=100, show_default=True, help="Samples a second.")
@click.option("--collect", help="Collectors to use, comma-separated (default: all that can run).")
@click.option("--native", is_flag=True, help="Native frames below Python ones; stops the target for each sample.")
@click.option("--blocking", is_flag=True, help="Stop the target for each Python sample: no torn stacks, slower target.")
@click.option("--ebpf-backend", type=click.Choice(["auto", "libbpf", "bcc", "perf"]), default="auto", show_default=True)
@click.option("--gpu-rate", type=click.IntRange(1, 100), default=10, show_default=True, help="GPU counters a second.")
@click.option("--user", help="Run CMD as this user (needs root); the session is theirs, too.")
@click.option("--force", is_flag=True, help="Replace an existing session.")
@click.option("--no-raw", is_flag=True, help="Don't keep the tools' own files.")
@click.option("-p", "--pid", "pids", type=click.IntRange(min=1), multiple=True, help="Running process; repeatable.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def command(
    output: Path | None,
    duration: float | None,
    rate: int,
    collect: str | None,
    native: bool,
    blocking: bool,
    ebpf_backend: str,
    gpu_rate: int,
    user: str | None,
    force: bool,
    no_raw: bool,
    pids: tuple[int, ...],
    command: tuple[str, ...],
) -> int:
    """Record CMD, or running processes, and everything they start.

    \b
    perfscope record -- python serve.py       until it ends; exits with its status
    perfscope record -d 30 -p 4121 -p 4098    30 s of two running processes

    CMD runs as if alone: same terminal, environment, signals and exit status. Ctrl-C is CMD's: the recording ends when
    CMD does. After --duration the session is written, CMD runs on, and perfscope waits for it. With -p, Ctrl-C, SIGTERM
    and SIGHUP end the recording and touch nothing else.

    --user changes user, group and supplementary groups; under sudo also HOME, USER and LOGNAME, which sudo had changed.
    """
    if bool(pids) == bool(command):
        raise UsageError(
            "give either a command to run or running processes",
            hint="perfscope record -- CMD, or perfscope record -p PID",
        )
    if user and pids:
        raise UsageError("--user says who runs a command; running processes have their users already")
    run_as = RunAs.named(user) if user else None
    path = output or default_path(list(command), list(pids))
    # The fork comes before everything that starts threads or takes long, so nothing below is imported at the top.
    target = Target(list(command), run_as) if command else None
    with Signals(target) as signals:
        try:
            from perfscope.cli import _recording

            recorded = _recording.record(
                target,
                signals,
                output=path,
                pids=list(pids),
                duration_s=duration,
                collect=collect,
                rate_hz=rate,
                native=native,
                blocking=blocking,
                ebpf_backend=ebpf_backend,
                gpu_rate_hz=gpu_rate,
                force=force,
                keep_raw=not no_raw,
                owner=run_as,
            )
        finally:
            # Whatever happened to the recording, a command that was started is waited for.
            if target:
                target.cancel()
                target.reap()
        return target.reap() if target else 0 if recorded else RecordingError.exit_code

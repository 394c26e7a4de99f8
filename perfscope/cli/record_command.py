"""`perfscope record`."""

from __future__ import annotations

from pathlib import Path

import click

from perfscope.cli._seconds import Seconds
from perfscope.collectors import COLLECTORS
from perfscope.errors import RecordingError, UsageError
from perfscope.options import Options
from perfscope.recording.launch import RunAs, Target
from perfscope.recording.names import default_path
from perfscope.recording.signals import Signals


def _ncu_mode(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value == "full":
        raise UsageError(
            "--ncu measures what the rules need, about 23 replays a launch; --set full takes 38 and more, seconds a "
            "launch, and megabytes of report each, and no rule reads the rest of it",
            hint="ncu --set full -k NAME -c 1 -o FILE CMD, then perfscope import FILE.ncu-rep",
        )
    if value not in (None, "second", "only"):
        raise UsageError(f"--ncu={value}: no such mode", hint="perfscope record --ncu -- CMD, or --ncu=only")
    return value


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Session directory. [default: named after CMD]",
)
@click.option(
    "-d",
    "--duration",
    metavar="SECONDS",
    type=Seconds(0, 1e9, low_open=True),
    help="Stop recording after so long. [default: when CMD or the processes end]",
)
@click.option(
    "-r",
    "--rate",
    metavar="HZ",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="Samples a second.",
)
@click.option(
    "--collect",
    metavar="LIST",
    help=f"Collectors, comma-separated: {', '.join(COLLECTORS)}. [default: all that can run]",
)
@click.option("--native", is_flag=True, help="Native frames below Python ones; stops the target for each sample.")
@click.option("--blocking", is_flag=True, help="Stop the target for each Python sample: no torn stacks, slower target.")
@click.option(
    "--python-sampler",
    type=click.Choice(["auto", "bpf", "austin", "pyspy"]),
    default="auto",
    help="What reads Python stacks. [default: auto, the first of bpf, austin and pyspy that can]",
)
@click.option(
    "--ebpf-backend",
    type=click.Choice(["auto", "libbpf", "bcc", "perf"]),
    default="auto",
    help="How kernel events are read. [default: auto, the first of these that works]",
)
@click.option(
    "--gpu-rate",
    metavar="HZ",
    type=click.IntRange(1, 100),
    default=10,
    show_default=True,
    help="Looks at GPU counters a second.",
)
@click.option(
    "--ncu",
    is_flag=False,
    flag_value="second",
    callback=_ncu_mode,
    metavar="[only]",
    help="Measure the GPU kernels that mattered in a second run of CMD; --ncu=only: just that run.",
)
@click.option(
    "--ncu-limit",
    metavar="SECONDS",
    type=Seconds(1, 1e6),
    default=300,
    help="Longest that run may take. [default: 300]",
)
@click.option(
    "--ncu-clocks",
    type=click.Choice(["none", "base"]),
    default="none",
    help="base: lock the GPU's clocks for that run. [default: none]",
)
@click.option("--user", metavar="NAME", help="Run CMD as this user (needs root); the session is theirs, too.")
@click.option("--force", is_flag=True, help="Replace an existing session.")
@click.option("--no-raw", is_flag=True, help="Don't keep the tools' own files.")
@click.option(
    "-p",
    "--pid",
    "pids",
    metavar="PID",
    type=click.IntRange(min=1),
    multiple=True,
    help="Record this running process; repeatable.",
)
@click.argument("command", metavar="(-p PID... | -- CMD...)", nargs=-1, type=click.UNPROCESSED)
def command(
    output: Path | None,
    duration: float | None,
    rate: int,
    collect: str | None,
    native: bool,
    blocking: bool,
    python_sampler: str,
    ebpf_backend: str,
    gpu_rate: int,
    ncu: str | None,
    ncu_limit: float,
    ncu_clocks: str,
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
    and SIGHUP end the recording and touch nothing else. Where GPUs are recorded, CUDA_INJECTION64_PATH,
    NVTX_INJECTION64_PATH and PERFSCOPE_CUDA_DIR are set for CMD; --collect without cuda leaves them out.

    --ncu runs CMD a second time, under NVIDIA's Nsight Compute, which replays each kernel it measures: those that
    carried 90 % of the first run's GPU time, some launches each. The second run has the same arguments and environment
    and no input; its output goes into the session.

    --user changes user, group and supplementary groups; under sudo also HOME, USER and LOGNAME, which sudo had changed.
    """
    if bool(pids) == bool(command):
        raise UsageError(
            "give either a command to run or running processes",
            hint="perfscope record -- CMD, or perfscope record -p PID",
        )
    if ncu and pids:
        raise UsageError(
            "--ncu can't measure running processes: Nsight Compute must start the program, since it replays each "
            "kernel and saves what it writes from the first CUDA call on",
            hint="perfscope record --ncu -- CMD starts it; record running processes without --ncu",
        )
    if python_sampler in ("austin", "bpf") and (native or blocking):
        raise UsageError(
            f"{python_sampler} never stops the target: --native and --blocking are py-spy's", hint="leave one out"
        )
    if user and pids:
        raise UsageError("--user says who runs a command; running processes have their users already")
    run_as = RunAs.named(user) if user else None
    path = output or default_path(list(command), list(pids))
    if ncu == "only":
        from perfscope.cli import _ncu
        from perfscope.recording import ncu_pass

        limit = ncu_limit if duration is None else min(duration, ncu_limit)
        settings = ncu_pass.Settings(limit, ncu_clocks, run_as, keep_raw=not no_raw)
        return _ncu.alone(path, list(command), settings, force=force)
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
                options=Options(rate, native, blocking, python_sampler, ebpf_backend, gpu_rate),
                force=force,
                keep_raw=not no_raw,
                owner=run_as,
            )
        finally:
            # Whatever happened to the recording, a command that was started is waited for.
            if target:
                target.cancel()
                target.reap()
        status = target.reap() if target else 0 if recorded else RecordingError.exit_code
    if ncu and target:
        from perfscope.cli import _ncu
        from perfscope.recording import ncu_pass

        _ncu.add(path, target.command, status, ncu_pass.Settings(ncu_limit, ncu_clocks, run_as, keep_raw=not no_raw))
    return status

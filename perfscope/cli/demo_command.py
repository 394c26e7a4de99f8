"""perfscope demo: the example stack under load, recorded while it runs, or a GPU's recording; diagnosed and drawn."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
from click.core import ParameterSource

from perfscope.cli import _gpu_demo
from perfscope.cli._seconds import Seconds
from perfscope.cli._streams import say
from perfscope.errors import RecordingError, UsageError

_STOP_SECONDS = 10.0
_WARM_UP_SECONDS = 3.0
"""Load before the recording begins: a JVM compiles first, and that is not what a running service does."""


@click.command()
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Session directory; the flame graph stands beside it. [default: demo.perfscope, gpu-demo.perfscope]",
)
@click.option(
    "-d",
    "--seconds",
    metavar="SECONDS",
    type=Seconds(1, 600),
    default=10.0,
    help="How long to record, 1 to 600. [default: 10]",
)
@click.option("--gpu", is_flag=True, help="Show a recording of an LLM on a GPU, made elsewhere; needs no GPU.")
@click.option("--force", is_flag=True, help="Replace an earlier demo's session and flame graph.")
@click.pass_context
def command(context: click.Context, output: Path | None, seconds: float, gpu: bool, force: bool) -> None:
    """Record the example inference service under load, print its diagnosis and write its flame graph."""
    if gpu and context.get_parameter_source("seconds") is not ParameterSource.DEFAULT:
        raise UsageError("--gpu shows a finished recording: --seconds can't lengthen it", hint="perfscope demo --gpu")
    output = output or Path("gpu-demo.perfscope" if gpu else "demo.perfscope")
    if output.name in ("", ".."):
        raise UsageError(f"{output} can't be a session's name", hint="give the directory to make: -o DIR")
    flame = output.with_suffix(".html")
    for path in (output, flame):
        if path.exists() and not force:
            again = f"perfscope demo{' --gpu' if gpu else ''} --force"
            raise UsageError(f"{path} exists already", hint=f"{again}, or another name with -o")
    if gpu:
        _show_gpu(output, flame, force=force)
    else:
        _record(output, flame, seconds, force=force)


def _show_gpu(output: Path, flame: Path, *, force: bool) -> None:
    """Diagnoses and draws the shipped recording, from a copy of it at `output`."""
    say(_gpu_demo.ABOUT)
    _gpu_demo.copy(output, force=force)
    _perfscope("diagnose", str(output))
    _perfscope("flame", str(output), "-o", str(flame), "--weight", "gpu", *(["--force"] if force else []))
    say(_gpu_demo.LOOK.format(session=output, flame=flame.resolve()))


def _record(output: Path, flame: Path, seconds: float, *, force: bool) -> None:
    """Records the example stack under load into `output`, diagnoses and draws it."""
    flame.unlink(missing_ok=True)
    python = [sys.executable, "-m"]
    with ExitStack() as running:
        service, url = running.enter_context(_server("the service", [*python, "perfscope.examples.service"]))
        pids = [service.pid]
        if shutil.which("javac") and (java := shutil.which("java")):
            source = Path(__file__).parents[1] / "examples" / "gateway" / "Gateway.java"
            gateway, url = running.enter_context(_server("the gateway", [java, str(source), url]))
            pids.append(gateway.pid)
        else:
            say("no JDK here, so no Java gateway in front of the service  (apt-get install default-jdk-headless)")
        load = running.enter_context(_child([*python, "perfscope.examples.load", url, "--seconds", "3600"]))
        say(f"the example stack answers at {url}; warming it up, then recording it for {seconds:g} s")
        time.sleep(_WARM_UP_SECONDS)
        attach = [part for pid in pids for part in ("-p", str(pid))]
        _perfscope("record", "-o", str(output), "-d", f"{seconds:g}", *(["--force"] if force else []), *attach)
        load.terminate()
        text, _ = load.communicate(timeout=_STOP_SECONDS)
    seen = json.loads(text)
    if not seen["requests"]:
        raise RecordingError("the example stack answered no request", hint="python -m perfscope.examples.service")
    say(
        f"while recorded: {seen['requests']} requests, p50 {seen['p50_ms']:.0f} ms, p99 {seen['p99_ms']:.0f} ms, "
        f"{seen['failures']} failed\n"
    )
    _perfscope("diagnose", str(output))
    _perfscope("flame", str(output), "-o", str(flame))
    say(f"\nsession      {output}\nflame graph  {flame.resolve()}  (open it in a browser)")


def _perfscope(*arguments: str) -> None:
    """Runs a perfscope command as a user would, shown first. Raises RecordingError with its status if it fails."""
    say(f"$ perfscope {shlex.join(arguments)}")
    status = subprocess.run([sys.executable, "-m", "perfscope", *arguments], check=False).returncode
    if status:
        raise RecordingError(f"perfscope {arguments[0]} ended with status {status}; its own message is above")


@contextmanager
def _child(argv: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process with its stdout piped, gone when the block ends."""
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def _server(what: str, argv: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of the example stack and the address it printed once it listened."""
    with _child(argv) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()  # ends with the process, if that dies before it listens
        if not address:
            raise RecordingError(f"{what} of the example did not start", hint=f"see what it says: {shlex.join(argv)}")
        yield process, address

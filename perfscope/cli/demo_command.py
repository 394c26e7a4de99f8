"""perfscope demo: the example stack under load, recorded while it runs, then diagnosed and drawn."""

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

from perfscope.cli._seconds import Seconds
from perfscope.cli._streams import say
from perfscope.errors import RecordingError, UsageError

_STOP_SECONDS = 10.0
_WARM_UP_SECONDS = 3.0
"""Load before the recording begins: a JVM compiles first, and that is not what a running service does."""


@click.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("demo.perfscope"), show_default=True)
@click.option("-d", "--seconds", type=Seconds(1, 600), default=10.0, show_default=True, help="How long.")
@click.option("--force", is_flag=True, help="Replace an earlier demo's session and flame graph.")
def command(output: Path, seconds: float, force: bool) -> None:
    """Record the example inference service under load, print its diagnosis and write its flame graph."""
    flame = output.with_suffix(".html")
    for path in (output, flame):
        if path.exists() and not force:
            raise UsageError(f"{path} exists already", hint="perfscope demo --force, or another name with -o")
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

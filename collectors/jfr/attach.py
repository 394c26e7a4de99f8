"""Asks a JVM to run a diagnostic command: over its attach socket, or by a JDK's jcmd where that can't be reached.

The attach protocol of HotSpot on Linux: a file .attach_pidN in the JVM's working directory or /tmp and SIGQUIT make it
open the socket /tmp/.java_pidN (N: its pid in its own pid namespace). A request is the protocol's version "1", the
operation and three arguments, each ended by a zero byte; the reply is a result code on its own line, then text.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from perfscope import procfs
from perfscope.collectors.jfr import jvm
from perfscope.errors import CollectorError
from perfscope.procfs import Process

REPLY_LIMIT = 1 << 20
CONNECT_SECONDS = 5.0
"""How long a JVM may take to open its socket; idle ones need some milliseconds."""


class UnreachableError(CollectorError):
    """No request got to the JVM, so another way may be tried without doing anything twice."""


class RefusedError(CollectorError):
    """The JVM answered that it won't. One that is still starting refuses what it takes a moment later."""


class EndingError(CollectorError):
    """The JVM hung up without an answer: it is ending. Whether it still did what was asked is unknown."""


class NotReadyError(CollectorError):
    """The JVM can't be asked yet: it is still starting, or stopped by a signal. Asking later may work."""


def command(process: Process, text: str, *, timeout: float = 20.0) -> tuple[str, str]:
    """Runs diagnostic command `text` in the JVM; `(its reply, "attach socket" or the jcmd used)`.

    Raises NotReadyError where a later try may work, CollectorError otherwise.
    """
    check_attachable(process)
    try:
        return over_socket(process, text, timeout), "attach socket"
    except UnreachableError as error:
        tool = find_jcmd(process)
        if tool is None:
            raise
        try:
            return by_jcmd(process, tool, text, timeout), tool
        except CollectorError as second:
            raise CollectorError(f"{error}; by jcmd: {second}", hint=error.hint) from None


def check_attachable(process: Process) -> None:
    """Raises unless the process is a JVM that takes SIGQUIT as a request. Everything else might be killed by it."""
    if not process.alive():
        raise CollectorError(f"process {process.pid} is gone")
    if not jvm.is_jvm(process):
        raise CollectorError(f"process {process.pid} is no JVM")
    status = procfs.read_stat(process.pid)
    if status is not None and status.state in "Tt":
        raise NotReadyError(f"JVM {process.pid} is stopped", hint=f"kill -CONT {process.pid}")
    if jvm.attach_disabled(process.pid):
        raise CollectorError(
            f"JVM {process.pid} was started with -XX:+DisableAttachMechanism",
            hint="start it without that option, or with -XX:StartFlightRecording and import the .jfr file",
        )
    listens = jvm.catches_sigquit(process.pid) and jvm.past_its_start(process)
    if not listens and not socket_path(process).exists():
        raise NotReadyError(
            f"JVM {process.pid} does not take attach requests (yet): it is starting, or runs with -Xrs",
            hint="start it without -Xrs, or with -XX:+StartAttachListener",
        )


def over_socket(process: Process, text: str, timeout: float) -> str:
    """The reply to a diagnostic command over the attach socket."""
    path = socket_path(process)
    owner = jvm.effective_ids(process.pid)
    if owner is None:
        raise CollectorError(f"process {process.pid} is gone")
    if not path.exists():
        _request_socket(process, path, owner)
    try:
        info = path.lstat()
        if not stat.S_ISSOCK(info.st_mode) or info.st_uid not in (owner[0], 0):
            raise UnreachableError(f"{path} is not the JVM's own socket", hint=f"remove {path}")
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(_short(path))
            reply = _ask(connection, text, timeout)
    except TimeoutError:
        raise CollectorError(f"JVM {process.pid} did not answer {text.split()[0]} in {timeout:.0f} s") from None
    except OSError as error:
        raise UnreachableError(
            f"can't reach the attach socket of JVM {process.pid}: {error.strerror or error}",
            hint="run as the JVM's own user, or as root",
        ) from None
    if not reply:
        raise EndingError(f"JVM {process.pid} ended before it had answered {text.split()[0]}")
    code, _, rest = reply.partition(b"\n")
    answer = rest.decode(errors="replace").strip()
    if code.strip() != b"0":
        reason = answer or f"result {code.decode(errors='replace')}"
        raise RefusedError(f"JVM {process.pid} refused {text.split()[0]}: {reason}")
    return answer


def _ask(connection: socket.socket, text: str, timeout: float) -> bytes:
    """The JVM's whole reply; nothing if it hangs up, which can't be told from never having got the request."""
    try:
        connection.sendall(b"1\0jcmd\0" + text.encode() + b"\0\0\0")
        return _receive(connection, time.monotonic() + timeout)
    except ConnectionError:
        return b""


def _receive(connection: socket.socket, deadline: float) -> bytes:
    parts = b""
    while part := connection.recv(65536):
        parts += part
        if len(parts) > REPLY_LIMIT or time.monotonic() > deadline:
            raise TimeoutError
    return parts


def socket_path(process: Process) -> Path:
    """Where a JVM that takes attach requests has its socket, while it lives."""
    return Path(f"/proc/{process.pid}/root/tmp/.java_pid{process.ns_pid}")


def _short(path: Path) -> str:
    return str(path)  # at most "/proc/4194304/root/tmp/.java_pid4194304", far below the limit of 108


def _request_socket(process: Process, path: Path, owner: tuple[int, int]) -> None:
    """Makes the JVM open its socket. HotSpot heeds the file only if it belongs to its own user (or to root)."""
    name = f".attach_pid{process.ns_pid}"
    folder = next(
        (
            opened
            for place in (f"/proc/{process.pid}/cwd", f"/proc/{process.pid}/root/tmp")
            if (opened := _place_trigger(place, name, owner)) is not None
        ),
        None,
    )
    if folder is None:
        raise UnreachableError(
            f"can't write to the working directory or /tmp of JVM {process.pid}",
            hint="run as the JVM's own user, or as root",
        )
    try:
        check_attachable(process)  # once more, right before the signal
        try:
            os.stat(name, dir_fd=folder)  # without it the signal would ask for a thread dump
        except FileNotFoundError:
            raise NotReadyError(f"JVM {process.pid} removed the request to attach: it is starting") from None
        _signal(process)
        deadline = time.monotonic() + CONNECT_SECONDS
        while not path.exists():
            if not process.alive():
                raise CollectorError(f"process {process.pid} is gone")
            if time.monotonic() > deadline:
                raise CollectorError(f"JVM {process.pid} did not open its attach socket in {CONNECT_SECONDS:.0f} s")
            time.sleep(0.002)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        os.close(folder)


def _place_trigger(place: str, name: str, owner: tuple[int, int]) -> int | None:
    """Puts the file there. Returns the folder, open: its path is gone as soon as the JVM is. None if that's refused."""
    try:
        folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        how = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, how, 0o660, dir_fd=folder)
    except FileExistsError:  # a killed tool left it
        return folder
    except OSError:
        os.close(folder)
        return None
    try:
        if os.geteuid() == 0 and owner != (0, 0):
            os.fchown(descriptor, *owner)
    finally:
        os.close(descriptor)
    return folder


def _signal(process: Process) -> None:
    """SIGQUIT to exactly this process: the descriptor is opened first and the start time compared after."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError as error:
        raise CollectorError(f"process {process.pid} is gone") from error
    try:
        if not process.alive():
            raise CollectorError(f"process {process.pid} is gone")
        signal.pidfd_send_signal(descriptor, signal.SIGQUIT)
    except PermissionError:
        raise CollectorError(
            f"no right to signal JVM {process.pid}", hint="run as the JVM's own user, or as root"
        ) from None
    finally:
        os.close(descriptor)


def find_jcmd(process: Process) -> str | None:
    """jcmd of the JVM's own JDK if that is on our file system, else the one on PATH, else None."""
    if jvm.root(process.pid) == "":
        for path in procfs.mapped_files(process.pid):
            if path.endswith("/libjvm.so"):
                for parent in list(Path(path).parents)[1:4]:
                    if (own := parent / "bin" / "jcmd").is_file():
                        return str(own)
    return shutil.which("jcmd")


def by_jcmd(process: Process, tool: str, text: str, timeout: float) -> str:
    """The reply to a diagnostic command by a JDK's jcmd. Its exit status says nothing: the reply does."""
    check_attachable(process)
    try:
        done = subprocess.run(
            [tool, str(process.pid), text],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CollectorError(f"{tool} failed on JVM {process.pid}: {error}") from None
    output = (done.stdout + done.stderr)[:REPLY_LIMIT].decode(errors="replace")
    answer = re.sub(rf"^{process.pid}:\n", "", output).strip()
    if done.returncode != 0 or "Exception" in answer:
        reason = answer.splitlines()[0] if answer else f"exit status {done.returncode}"
        raise CollectorError(f"{tool} failed on JVM {process.pid}: {reason}")
    return answer

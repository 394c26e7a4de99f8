"""Starts the target so that nothing about its run differs from a run without perfscope.

The child is forked early, from a process that has no threads yet, and waits on a pipe until the kernel probes are
attached; then it becomes the command. It stays in our process group and on our terminal, keeps every inherited file
descriptor, the working directory, limits and signal mask, and gets the environment and signal dispositions that
perfscope itself was started with (the interpreter's own changes to them are taken back).

This module imports nothing heavy: numpy and pyarrow start threads, and the fork comes before them.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import resource
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from perfscope.errors import PerfscopeError, UsageError

_NOT_STARTED = 125
"""What the waiting child exits with if it is never told to go (perfscope gave up or was killed)."""


class CommandError(PerfscopeError):
    """The command can't be executed; exit status 127 (not found) or 126 (found, but not executable), as in a shell."""

    def __init__(self, command: str, number: int) -> None:
        missing = number in (errno.ENOENT, errno.ENOTDIR)
        what = "command not found" if missing else f"can't be executed: {os.strerror(number)}"
        super().__init__(
            f"{command}: {what}",
            hint="check its name and PATH" if missing else f"check its permissions: ls -l {command}",
        )
        self.exit_code = 127 if missing else 126


@dataclass(frozen=True)
class RunAs:
    """The user that the command runs as."""

    name: str
    uid: int
    gid: int
    home: str

    @classmethod
    def named(cls, name: str) -> RunAs:
        """Raises UsageError if there is no such user, or we may not become it."""
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise UsageError(f"no user named {name}", hint="getent passwd lists the users") from None
        if os.geteuid() not in (0, entry.pw_uid):
            raise UsageError(f"only root can run the command as {name}", hint="sudo perfscope record --user ...")
        return cls(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir)


def original_environment() -> dict[bytes, bytes]:
    """The environment perfscope was started with, without what the interpreter added (LC_CTYPE in the C locale)."""
    try:
        block = Path("/proc/self/environ").read_bytes()
    except OSError:
        return dict(os.environb)
    pairs = (entry.partition(b"=") for entry in block.split(b"\0") if b"=" in entry)
    return {name: value for name, _, value in pairs}


def environment_for(run_as: RunAs | None) -> dict[bytes, bytes]:
    """The environment of a command that runs as that user (as we, if None)."""
    environment = original_environment()
    if run_as and b"SUDO_USER" in environment:
        # sudo made these root's (or left the caller's); the command runs as somebody, so they are that one's.
        name = os.fsencode(run_as.name)
        environment.update({b"USER": name, b"LOGNAME": name, b"HOME": os.fsencode(run_as.home)})
    return environment


class Target:
    """The launched command: first a waiting child, after `go` the command itself."""

    def __init__(self, command: list[str], run_as: RunAs | None = None) -> None:
        """Forks the waiting child. Raises CommandError at once if there is no such command."""
        self.command = command
        self.usage: resource.struct_rusage | None = None
        self._status: int | None = None
        self._ended = False
        environment = environment_for(run_as)
        path = os.fsdecode(environment.get(b"PATH", os.fsencode(os.defpath)))
        if "/" not in command[0] and shutil.which(command[0], os.F_OK, path) is None:
            raise CommandError(command[0], errno.ENOENT)
        go_read, self._go = os.pipe()
        self._failure, failure_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _become(command, environment, run_as, go_read, self._go, failure_write)
        os.close(go_read)
        os.close(failure_write)

    def go(self, variables: dict[str, str] | None = None) -> None:
        """Lets the child become the command, with `variables` added to its environment; returns once it has.

        Raises CommandError if it can't.
        """
        added = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in (variables or {}).items())
        with contextlib.suppress(BrokenPipeError), open(self._go, "wb") as pipe:  # noqa: PTH123 (a descriptor)
            pipe.write(b"g" + added)  # a child killed while it waited: its status says so
        self._go = -1
        report = os.read(self._failure, 64)
        os.close(self._failure)
        self._failure = -1
        if report:
            self.reap()
            raise CommandError(self.command[0], int(report))

    def cancel(self) -> None:
        """Ends the waiting child: the command is never started. Does nothing after `go`."""
        if self._go >= 0:
            os.close(self._go)
            os.close(self._failure)
            self._go = self._failure = -1
            self.reap()

    def exited(self) -> bool:
        """True once the command has ended; it stays a zombie, readable in /proc, until `reap`."""
        return self._ended or os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def stopped(self) -> bool:
        """True if the command has been stopped (Ctrl-Z) since the last call."""
        if self._ended:
            return False
        try:
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG) is not None
        except ChildProcessError:  # it has exited, so it won't stop any more
            return False

    def reap(self) -> int:
        """Waits for the end and returns the exit status as a shell gives it: 128 + n for signal n."""
        if self._status is None:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            self._ended = True  # before the pid is free again: a signal handler must not hit its next owner
            _, status, self.usage = os.wait4(self.pid, 0)
            code = os.waitstatus_to_exitcode(status)
            self._status = 128 - code if code < 0 else code
        return self._status

    def signal(self, number: int) -> None:
        """Passes a signal on, unless the command has ended."""
        if not self._ended:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)


def _become(
    command: list[str],
    environment: dict[bytes, bytes],
    run_as: RunAs | None,
    go: int,
    parent_end: int,
    failure: int,
) -> None:
    """In the child: waits for the word, then executes the command. Never returns."""
    try:
        os.close(parent_end)  # or it would never see the end of the pipe
        for name in ("SIGPIPE", "SIGXFSZ"):  # the interpreter ignores these two
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        with open(go, "rb") as pipe:
            word = pipe.read()
        if word[:1] != b"g":
            os._exit(_NOT_STARTED)
        for entry in word[1:].split(b"\0")[:-1]:
            variable, _, value = entry.partition(b"=")
            environment[variable] = value
        if run_as and run_as.uid != os.geteuid():
            groups = [g.gr_gid for g in grp.getgrall() if run_as.name in g.gr_mem]
            os.setgroups(sorted({run_as.gid, *groups}))
            os.setgid(run_as.gid)
            os.setuid(run_as.uid)
        try:
            os.execvpe(command[0], command, environment)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            # A script without "#!": what execvp(3), and so every shell and env(1), does with it.
            os.execve("/bin/sh", ["/bin/sh", *command], environment)
    except OSError as error:
        os.write(failure, str(error.errno or errno.EIO).encode())
    finally:
        os._exit(_NOT_STARTED)

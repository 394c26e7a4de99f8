"""What a session says of its machine, checked against other tools."""

from __future__ import annotations

import os
import platform
import subprocess

from perfscope.recording.environment import fingerprint
from perfscope.recording.record import _wall_clock


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_fingerprint_agrees_with_the_systems_own_tools() -> None:
    host = fingerprint()
    assert host["kernel"] == _output("uname", "-r")
    assert host["architecture"] == _output("uname", "-m")
    assert host["cpus_allowed"] == int(_output("nproc"))
    assert host["memory_bytes"] == int(_output("free", "-b").splitlines()[1].split()[1])
    assert host["libc"].split()[-1] in _output("ldd", "--version").splitlines()[0]


def test_it_names_nobody_and_holds_no_environment() -> None:
    text = repr(fingerprint())
    assert platform.node() not in text
    for name in ("HOME", "PATH", "PWD"):
        assert os.environ.get(name, "unset") not in text


def test_a_slewed_wall_clock_is_no_step_and_a_set_one_is() -> None:
    second = 1_000_000_000
    slewed = _wall_clock(5, 5 + 400_000, 1_000, second)  # 400 ppm
    assert slewed["step_ns"] is None
    assert _wall_clock(5, 5 - 3 * second, 1_000, second)["step_ns"] == -3 * second

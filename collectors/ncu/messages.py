"""What Nsight Compute says about its own run, and what mends its failures.

Its lines begin with ==PROF==, ==WARNING== or ==ERROR==. The texts are those of ncu 2019 to 2026.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_LINE = re.compile(r"==(PROF|WARNING|ERROR)== ?(.*)")
_PROFILING = re.compile(r'==PROF== Profiling "(.*?)"(?: - \d+)?(?: \(\d+/\d+\))?: ?(.*)')
_PASSES = re.compile(r"100% - (\d+) pass")
_EXIT = re.compile(r"The application returned an error code \((-?\d+)\)")


@dataclass(frozen=True)
class Trouble:
    """What went wrong, for people, and the command or setting that mends it."""

    what: str
    hint: str


@dataclass
class Said:
    """A log of ncu, read.

    profiled: launches measured to the end. passes: replays of one, at most. exit_code: the program's own, where ncu
    says it. errors: ncu's own error lines. none: it says that it measured nothing. connected: processes it reached.
    """

    profiled: int = 0
    passes: int = 0
    exit_code: int | None = None
    connected: int = 0
    none: bool = False
    stopped: bool = False
    errors: list[str] = field(default_factory=list)


def parse(lines: Iterable[str]) -> Said:
    """Reads ncu's log. Unknown lines are passed over."""
    said = Said()
    for line in lines:
        if match := _PROFILING.search(line):
            if done := _PASSES.search(match[2]):
                said.profiled += 1
                said.passes = max(said.passes, int(done[1]))
            said.stopped |= "==PROF== Received signal" in match[2]
            continue
        found = _LINE.match(line.strip())
        if not found:
            continue
        kind, text = found[1], found[2].strip()
        if text.startswith("Connected to process"):
            said.connected += 1
        elif text.startswith("Received signal"):
            said.stopped = True
        elif text.startswith("No kernels were profiled"):
            said.none = True
        elif exit_code := _EXIT.search(text):
            said.exit_code = int(exit_code[1])
        elif kind == "ERROR":
            said.errors.append(text)
    return said


PERMISSION = (
    "as root: sudo perfscope record --ncu -- CMD; in a container: docker run --cap-add=SYS_ADMIN; for all users: "
    'echo "options nvidia NVreg_RestrictProfilingToAdminUsers=0" | sudo tee /etc/modprobe.d/perfscope.conf, and reboot'
)
_KNOWN: tuple[tuple[str, Trouble], ...] = (
    ("ERR_NVGPUCTRPERM", Trouble("no permission to read the GPU's performance counters", PERMISSION)),
    (
        "driver resource was unavailable|multiple.?subscribers|Another tool|already.*being profiled",
        Trouble(
            "another tool holds the GPU's counters (DCGM, nsys, another ncu, torch.profiler or other CUPTI user)",
            "dcgmi profile --pause (and --resume afterwards), or stop that tool; in the program: no torch.profiler",
        ),
    ),
    (
        "driver is not compatible|driver version is insufficient|not supported by (?:the )?(?:current )?driver",
        Trouble(
            "the NVIDIA driver is too old for this ncu, or ncu too old for the driver",
            "nvidia-smi shows the driver; install the Nsight Compute of its CUDA version, or a newer driver",
        ),
    ),
    (
        "lock file",
        Trouble(
            "ncu can't write its lock file, which another user's ncu left",
            "sudo rm /tmp/nsight-compute-lock, or TMPDIR=$(mktemp -d) perfscope record --ncu -- CMD",
        ),
    ),
    (
        "on MIG",
        Trouble("ncu can't lock clocks on a MIG device", "perfscope record --ncu --ncu-clocks none -- CMD"),
    ),
    (
        "not supported on (?:this )?device|No supported (?:GPU|device)|unsupported GPU",
        Trouble(
            "this ncu doesn't support this GPU",
            "nvidia-smi -L shows the GPU; Nsight Compute supports Volta and newer, each version some of them",
        ),
    ),
    (
        "Failed to find metric|Failed to find section|No metrics to collect",
        Trouble(
            "this version of ncu doesn't know a metric or section that is asked for",
            "ncu --version; install a newer Nsight Compute (2022.4 or later)",
        ),
    ),
    (
        "bad allocation|out of memory|system memory",
        Trouble(
            "ncu ran out of memory saving what the kernel writes, which it restores for each replay",
            "give the program a smaller batch or model for this run",
        ),
    ),
    (
        "No space left|Failed to (?:write|save|create).*report|cannot.*write",
        Trouble("the report couldn't be written", "df -h; record to another disk with -o DIR"),
    ),
)


def explain(said: Said, *, timed_out: bool, limit_s: float, functions: tuple[str, ...]) -> Trouble | None:
    """Why a pass measured less than it should have; None if all is well."""
    for pattern, trouble in _KNOWN:
        if line := next((e for e in said.errors if re.search(pattern, e, re.IGNORECASE)), None):
            return Trouble(f"{trouble.what} (ncu: {line[:200]})", trouble.hint)
    if timed_out:
        return Trouble(
            f"ncu didn't end within {limit_s:.0f} s and was stopped; kernels that wait for others (NCCL, several "
            "processes) hang when they are replayed alone, and servers don't end by themselves",
            f"perfscope record --ncu --ncu-limit {2 * limit_s:.0f} -- CMD, with a CMD that ends by itself",
        )
    if said.profiled == 0 and said.errors:
        return Trouble(f"ncu: {said.errors[0][:300]}", "its whole log is in raw/ncu/log.txt of the session")
    if said.profiled == 0 and said.connected == 0:
        return Trouble(
            "the program ended before it used CUDA under ncu" + _exit(said),
            "run it alone and look at what it says; its output is in raw/ncu/output.txt of the session",
        )
    if said.profiled == 0:
        wanted = f" named {', '.join(functions[:5])}" if functions else ""
        return Trouble(
            f"no kernel{wanted} was launched often enough in the second run{_exit(said)}",
            "give the program the same work in both runs: fixed seeds and inputs; or measure all: --ncu=only",
        )
    if said.errors:
        return Trouble(f"ncu: {said.errors[0][:300]}", "its whole log is in raw/ncu/log.txt of the session")
    if said.stopped or said.exit_code:
        return Trouble("the program ended early" + _exit(said), "its output is in raw/ncu/output.txt of the session")
    return None


def _exit(said: Said) -> str:
    return f" (exit status {said.exit_code})" if said.exit_code else ""

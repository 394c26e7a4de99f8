"""Programs with one planted bottleneck each, recorded for real: that rule is flagged, there, and no other.

The recordings run in a scheduling group of their own with all the weight it can get, and the program before its
recorder: other load on the test machine is a cause in its own right, and the rules rightly report it.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

PLANTED = Path(__file__).parents[1] / "planted"
ON_DISK = Path(__file__).parents[2] / "build"  # where the repository is; /tmp may be memory


@dataclass(frozen=True)
class Case:
    """A program, the faults that must be flagged (with the function named), and what its title must say."""

    program: str
    flagged: frozenset[str] = frozenset()
    function: str | None = None
    says: str = ""
    options: tuple[str, ...] = ()


def one(program, rule, function=None, says="", options=()):
    return Case(program, frozenset({rule}), function, says, tuple(options))


APART = ("-XX:CompileCommand=dontinline,Allocation::parse",)
"""JFR's looks at a loop that everything was inlined into mostly show the loop."""

CASES = [
    one("python_hotspot.py", "python-hotspot", "score"),
    one("gil_contention.py", "gil-contention", "detokenize", r"threads .*waited .* for the GIL"),
    one("cpu_oversubscription.py", "cpu-oversubscription", None, "its own threads had them"),
    one("disk_wait.py", "disk-wait", "append"),
    one("lock_contention.py", "lock-contention", "lookup", r"request-\* .* held by 4 threads in turn at fetch"),
    one("lock_holder.py", "lock-contention", "request", "held by .*reload"),
    one("LockContention.java", "lock-contention", "lookup", "monitor of java.lang.Object .* at LockContention.fetch"),
    one("ReentrantContention.java", "lock-contention", "lookup", r"ReentrantLock\$NonfairSync .* held by 4 threads"),
    one("GcPause.java", "gc-pause", None, "stood still", ["-XX:+UseSerialGC", "-Xms80m", "-Xmx80m"]),
    one(
        "Allocation.java",
        "jvm-allocation",
        "parse",
        "byte",
        ["-XX:+UseSerialGC", "-Xms1g", "-Xmx1g", "-Xmn800m", *APART],
    ),
    Case("healthy.py"),
    Case("sleep_or_idle.py"),
    Case("Healthy.java", options=("-XX:+UseSerialGC",)),
]


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """Directory of the compiled Java programs."""
    javac = shutil.which("javac")
    assert javac, "javac is needed: apt-get install openjdk-17-jdk-headless"
    out = tmp_path_factory.mktemp("classes")
    subprocess.run([javac, "-d", str(out), *map(str, PLANTED.glob("*.java"))], check=True, timeout=120)
    return out


def record(command, session):
    """Records a command with the installed perfscope; raises with its output if that fails."""
    process = subprocess.Popen(
        [sys.executable, "-m", "perfscope", "record", "-o", str(session), "--", *_first(), *command],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    with contextlib.suppress(OSError):  # no autogroups in this kernel, or not root: then without
        Path(f"/proc/{process.pid}/autogroup").write_text("-20")
    try:
        _, said = process.communicate(timeout=120)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    assert process.returncode == 0, said


def _first():
    """Runs a program before all else of its scheduling group, where that is allowed."""
    return ["nice", "-n", "-15"] if os.geteuid() == 0 else []


def diagnose(session):
    done = subprocess.run(
        [sys.executable, "-m", "perfscope", "diagnose", str(session), "--format", "json"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def command_of(case, classes, tmp_path):
    if case.program.endswith(".java"):
        return ["java", *case.options, "-cp", str(classes), case.program.removesuffix(".java")]
    if case.program == "disk_wait.py":
        return [sys.executable, str(PLANTED / case.program), str(ON_DISK / f"{tmp_path.name}.journal")]
    return [sys.executable, str(PLANTED / case.program)]


def planted_line(program):
    lines = (PLANTED / program).read_text(encoding="utf-8").splitlines()
    return next((n for n, text in enumerate(lines, 1) if "planted: " in text), None)


@pytest.mark.parametrize("case", CASES, ids=[c.program for c in CASES])
def test_the_planted_cause_is_found_and_nothing_else(case, classes, tmp_path):
    ON_DISK.mkdir(exist_ok=True)
    crowded = os.getloadavg()[0] > (os.cpu_count() or 1)
    record(command_of(case, classes, tmp_path), tmp_path / "planted.perfscope")
    diagnosis = diagnose(tmp_path / "planted.perfscope")
    faults = [f for f in diagnosis["findings"] if f["severity"] != "info"]
    if crowded:  # others hold the CPUs of this machine, and the rule says that it is others
        taken = [f for f in faults if f["rule"] == "cpu-oversubscription" and "other processes" in f["title"]]
        faults = [f for f in faults if f not in taken or f["rule"] in case.flagged]
    told = "\n".join(f"{v['rule']} {v['verdict']}: {v['why']}" for v in diagnosis["verdicts"])
    assert {f["rule"] for f in faults} == case.flagged, told
    if case.program == "sleep_or_idle.py":
        assert [(f["rule"], f["gives_back_pct"]) for f in diagnosis["findings"] if f not in faults] == [
            ("sleep-or-idle", None)
        ]
    if not case.flagged:
        return
    finding = faults[0]
    if not (crowded and finding["rule"] == "cpu-oversubscription"):
        assert re.search(case.says, finding["title"]), finding["title"]
    assert 0 < finding["gives_back_pct"] <= 100
    assert finding["advice"]
    assert all(e["threshold_source"] for e in finding["evidence"] if e["threshold"] is not None)
    if case.function:
        assert finding["where"]["function"].rsplit(".", 1)[-1] == case.function
        assert abs(finding["where"]["line"] - planted_line(case.program)) <= 1  # a loop's head or body
    if case.program.endswith(".py") and case.function:
        assert Path(finding["where"]["file"]).name == case.program

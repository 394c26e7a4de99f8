"""Each source's clock against known instants, also while the wall clock is set."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from recording_helpers import PERFSCOPE

from perfscope.model.session import Session
from perfscope.recording import clock_marks
from perfscope.recording.clock_residuals import compare

GOALS_US = {"ebpf": 10, "jfr": 100, "pyspy": 2000, "austin": 2000, "bpf": 100}

STEP_C = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

/* The wall clock jumps by 30 s at STEP_AT_NS on CLOCK_MONOTONIC, for every process that loads this. */
int clock_gettime(clockid_t clock, struct timespec *out) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, out);
    if (result == 0 && clock == CLOCK_REALTIME) {
        struct timespec mono;
        real(CLOCK_MONOTONIC, &mono);
        const char *at = getenv("STEP_AT_NS");
        if (at && mono.tv_sec * 1000000000LL + mono.tv_nsec >= atoll(at)) out->tv_sec += 30;
    }
    return result;
}
"""


def test_every_source_is_within_its_goal() -> None:
    # On a machine without a CPU to spare a sampler looks late, which is no fault of a clock: one try of three had one.
    tries = 0
    while beyond := beyond_goals():
        tries += 1
        assert tries < 3, beyond


def beyond_goals() -> dict[str, float]:
    """Microseconds by which sources miss their goals, in a measurement whose other figures are proven here."""
    done = subprocess.run([*PERFSCOPE, "doctor", "--clock", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sources: dict[str, dict[str, Any]] = {s["source"]: s for s in json.loads(done.stdout)["sources"]}
    assert set(sources) == set(GOALS_US)
    for source in sources.values():
        assert source["samples"] > 100, source
        assert source["residual_us"]["median"] <= source["residual_us"]["p95"] <= source["residual_us"]["max"]
    for name in ("pyspy", "austin", "bpf"):
        assert sources[name]["resolution_us"] > 1000  # a sampler's looks are apart, however good its clock
    assert sources["ebpf"]["resolution_us"] == 0
    worst = {name: source["residual_us"]["max" if name != "jfr" else "p99"] for name, source in sources.items()}
    return {name: value - GOALS_US[name] for name, value in worst.items() if value > GOALS_US[name]}


@pytest.mark.parametrize("sampler", ["pyspy", "austin", "bpf"])
def test_setting_the_wall_clock_moves_nothing(tmp_path: Path, sampler: str) -> None:
    (tmp_path / "step.c").write_text(STEP_C)
    library = tmp_path / "step.so"
    subprocess.run(["clang", "-shared", "-fPIC", "-O1", "-o", library, tmp_path / "step.c", "-ldl"], check=True)
    marks = tmp_path / "marks"
    marks.mkdir()
    java = shutil.which("java")
    assert java
    program = [sys.executable, clock_marks.__file__, str(marks), java]
    step_at = time.monotonic_ns() + 5_000_000_000  # in the midst of the eight seconds or so that the program runs
    done = subprocess.run(
        [*PERFSCOPE, "record", "-r", "200", "--python-sampler", sampler, "-o", tmp_path / "s", "--", *program],
        capture_output=True,
        text=True,
        env={**os.environ, "LD_PRELOAD": str(library), "STEP_AT_NS": str(step_at)},
    )
    assert done.returncode == 0, done.stderr
    session = Session.open(tmp_path / "s")
    assert session.info.start_ns < step_at < session.info.stop_ns
    assert abs(session.info.host["wall_clock"]["step_ns"] - 30_000_000_000) < 10_000_000
    results = compare(session, marks, with_java=True)
    assert {result.source for result in results} == {"ebpf", "jfr", sampler}
    for result in results:
        assert result.residual_us is not None, result.why
        # py-spy is linked statically: its own log keeps the old wall clock while ours has jumped. Samplers that start
        # after the step can't be anchored to that line, and their recording must say so by a wider bound.
        assert result.stated_error_us is not None
        assert result.residual_us["p99"] <= max(GOALS_US[result.source], result.stated_error_us), result
        assert result.residual_us["max"] < 1_000_000

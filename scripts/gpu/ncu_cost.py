"""What the Nsight Compute pass costs against profiling every launch with the same sections; whether both judge alike.

    python scripts/gpu/ncu_cost.py OUT NAME [--limit SECONDS] -- CMD

Records CMD with the pass (`perfscope record --ncu`), then runs it under ncu, which measures launch after launch from
the warm-up's end until the time is over. Nobody waits for all launches: their time is extrapolated, as that of the
recorded run plus the pace of those measured times the number of launches in the recording. Writes OUT/NAME.json, also
where a step fails, with what failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from perfscope.collectors.ncu import driver, messages
from perfscope.errors import PerfscopeError
from perfscope.model.kernels import function_name
from perfscope.model.session import Session

_WARM_UP = 2000
"""Launches passed over before the sample."""
_MOST = 200
"""Launches in the sample, at most."""
_FEWEST = 5
"""With fewer launches measured there is no pace."""
_WRITING_S = 5.0
"""For ncu to write its report once it is interrupted."""


def _perfscope(*arguments: str, timeout: float) -> str:
    line = [sys.executable, "-m", "perfscope", *arguments]
    return subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True, timeout=timeout).stdout


def _verdicts(session: Path) -> dict[tuple[str, str], str]:
    """(kernel, grid as in the title) -> the rule that is its cause."""
    findings = json.loads(_perfscope("diagnose", str(session), "--format", "json", timeout=20))["findings"]
    return {(f["where"]["kernel"], f["title"].partition(": ")[0]): f["rule"] for f in findings if f["where"]["kernel"]}


def _every(command: list[str], work: Path, until: float) -> dict[str, Any]:
    """Measures launches until then (time.monotonic()): how many, and the seconds from the first's end to the last's."""
    log = work / "every.log"
    line = driver.command_line(driver.find(), command, report=work / "every.ncu-rep", log=log, selection=None)
    at = line.index("--filter-mode")
    line[at : at + 6] = ["--launch-skip", str(_WARM_UP), "--launch-count", str(_MOST), "--kill", "yes"]
    seen: list[float] = []
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    interrupted = False
    while process.poll() is None:
        time.sleep(0.02)
        now = time.monotonic()
        if log.exists():
            done = messages.parse(log.read_text(errors="replace").splitlines()).profiled
            seen += [now] * (done - len(seen))
        if now > until and not interrupted:
            process.send_signal(signal.SIGINT)
            interrupted = True
        if now > until + _WRITING_S:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    span = seen[-1] - seen[0] if len(seen) > 1 else 0.0
    return {"launches": len(seen), "s": round(span, 2), "interrupted": interrupted}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("name")
    parser.add_argument("--limit", type=float, default=98.0, help="seconds in all (98)")
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"command": asked.command}
    with tempfile.TemporaryDirectory() as work:
        try:
            _measure(asked.command, Path(work), time.monotonic() + asked.limit, result)
        except (subprocess.SubprocessError, OSError, PerfscopeError) as error:
            result["failed"] = str(error)
    (asked.out / f"{asked.name}.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    print(json.dumps(result, indent=1))
    return 0


def _measure(command: list[str], work: Path, ends: float, result: dict[str, Any]) -> None:
    def left() -> float:
        return max(1.0, ends - time.monotonic())

    session = work / "pass.perfscope"
    limit = f"{max(5.0, 0.46 * left()):.0f}"
    _perfscope("record", "--ncu", "--ncu-limit", limit, "-o", str(session), "--", *command, timeout=left())
    opened = Session.open(session)
    report = opened.info.collectors["ncu"]
    launches = int(pc.sum(pc.equal(opened.table("gpu_activity")["kind"], "kernel")).as_py() or 0)
    recorded_s = (opened.info.stop_ns - opened.info.start_ns) / 1e9
    pass_s = report.details.get("seconds")
    result |= {
        "recorded_s": round(recorded_s, 1), "launches": launches,
        "pass_s": pass_s, "pass_launches": report.details.get("launches"),
        "status": report.status, "why": report.why, "notes": report.notes,
    }  # fmt: skip

    sample = _every(command, work, ends - _WRITING_S - 8)
    result["sample"] = sample
    if sample["launches"] < _FEWEST:
        return
    every_s = recorded_s + sample["s"] / (sample["launches"] - 1) * launches
    result["every_s_extrapolated"] = round(every_s)
    if report.status == "ok":  # one that was cut short has no cost to compare
        result["pass_of_every_pct"] = round(100 * float(report.details["seconds"]) / every_s, 3)

    _perfscope("import", str(work / "every.ncu-rep"), "-o", str(work / "every.perfscope"), timeout=left())
    by_pass, by_all = _verdicts(session), _verdicts(work / "every.perfscope")
    common = by_pass.keys() & by_all.keys()
    result["kernels_judged_by_both"] = len(common)
    result["differ"] = [
        {"kernel": function_name(key[0]) or key[0], "where": key[1], "pass": by_pass[key], "every": by_all[key]}
        for key in sorted(common)
        if by_pass[key] != by_all[key]
    ]


if __name__ == "__main__":
    sys.exit(main())

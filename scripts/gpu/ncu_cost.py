"""What the Nsight Compute pass costs against profiling every launch with the same sections; whether both judge alike.

    python scripts/gpu/ncu_cost.py OUT NAME [--sample N] -- CMD

Runs CMD once alone, once recorded with the pass (`perfscope record --ncu`), and once under ncu with every launch
measured, or with the first N launches after the warm-up (--sample), from which the time for all is extrapolated by
their number. Writes OUT/NAME.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from perfscope.collectors.ncu import driver
from perfscope.model.kernels import function_name
from perfscope.model.session import Session

_WARM_UP = 2000
"""Launches passed over before a sample."""


def _timed(line: list[str]) -> float:
    start = time.monotonic()
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - start


def _perfscope(*arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "perfscope", *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def _verdicts(session: Path) -> dict[tuple[str, str], str]:
    """(kernel, grid as in the title) -> the rule that is its cause."""
    findings = json.loads(_perfscope("diagnose", str(session), "--format", "json"))["findings"]
    return {(f["where"]["kernel"], f["title"].partition(": ")[0]): f["rule"] for f in findings if f["where"]["kernel"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("name")
    parser.add_argument("--sample", type=int)
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        result = _measure(asked, Path(work))
    (asked.out / f"{asked.name}.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    print(json.dumps(result, indent=1))
    return 0


def _measure(asked: argparse.Namespace, work: Path) -> dict[str, Any]:
    alone_s = _timed(asked.command)

    session = work / "pass.perfscope"
    _perfscope("record", "--ncu", "--ncu-limit", "500", "-o", str(session), "--", *asked.command)
    opened = Session.open(session)
    report = opened.info.collectors["ncu"]
    activity = opened.table("gpu_activity")
    launches = int(pc.sum(pc.equal(activity["kind"], "kernel")).as_py())

    every = work / "every.ncu-rep"
    line = driver.command_line(driver.find(), asked.command, report=every, log=work / "every.log", selection=None)
    at = line.index("--launch-count")
    which = ["--launch-skip", str(_WARM_UP), "--launch-count", str(asked.sample)] if asked.sample else []
    line[at : at + 2] = which
    line[line.index("per-launch-config")] = "global"
    every_s = _timed(line)
    _perfscope("import", str(every), "-o", str(work / "every.perfscope"))
    all_s = alone_s + (every_s - alone_s) * launches / asked.sample if asked.sample else every_s

    by_pass, by_all = _verdicts(session), _verdicts(work / "every.perfscope")
    common = by_pass.keys() & by_all.keys()
    differ = [
        {"kernel": function_name(key[0]) or key[0], "where": key[1], "pass": by_pass[key], "every": by_all[key]}
        for key in sorted(common)
        if by_pass[key] != by_all[key]
    ]
    pass_s = float(report.details["seconds"])
    return {
        "command": asked.command,
        "alone_s": round(alone_s, 1),
        "launches": launches,
        "pass_s": pass_s,
        "pass_launches": report.details["launches"],
        "every_s": round(all_s, 1),
        "every_is_extrapolated_from_launches": asked.sample,
        "pass_of_every_pct": round(100 * pass_s / all_s, 2),
        "kernels_judged_by_both": len(common),
        "differ": differ,
        "notes": report.notes,
        "status": report.status,
        "why": report.why,
    }


if __name__ == "__main__":
    sys.exit(main())

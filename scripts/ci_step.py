#!/usr/bin/env python3
"""One step of any CI: records a command, leaves the flame graph and the diagnosis, fails on what you say.

Everything comes from the environment, so that no CI has to paste it into a shell line:
    PERFSCOPE_COMMAND      the command to record: a script for bash, which must end by itself (needed)
    PERFSCOPE_DURATION     stop recording after so many seconds; empty: when the command ends
    PERFSCOPE_FAIL_ON      info, low, medium, high or critical: exit 1 on such a finding; empty: never
    PERFSCOPE_OUTPUT       folder for all files, made if absent (default: perfscope-out)
    PERFSCOPE_RECORD_ARGS  further options for `perfscope record`, split as a shell would
    GITHUB_STEP_SUMMARY    where set, the diagnosis is appended to this file as Markdown

Leaves session.perfscope/, flame.html, diagnosis.json and diagnosis.md in the folder.
Exit status: the command's own where it failed; 1 for a finding at or above PERFSCOPE_FAIL_ON; 2 for a wrong setting;
3 if the recording or one of its outputs failed; else 0.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SEVERITIES = ("info", "low", "medium", "high", "critical")
PERFSCOPE = (sys.executable, "-m", "perfscope")


class StepError(Exception):
    """The step can't go on. args: message, exit status."""


def main(environment: Mapping[str, str]) -> int:
    """Runs the step. Returns its exit status."""
    command = environment.get("PERFSCOPE_COMMAND", "").strip()
    if not command:
        raise StepError("PERFSCOPE_COMMAND is empty: which command shall be recorded?", 2)
    fail_on = environment.get("PERFSCOPE_FAIL_ON", "").strip().lower()
    if fail_on and fail_on not in SEVERITIES:
        raise StepError(f"PERFSCOPE_FAIL_ON is {fail_on!r}; it can be {', '.join(SEVERITIES)}", 2)
    output = Path(environment.get("PERFSCOPE_OUTPUT") or "perfscope-out")
    session = output / "session.perfscope"
    flame, in_json, in_markdown = (output / name for name in ("flame.html", "diagnosis.json", "diagnosis.md"))
    output.mkdir(parents=True, exist_ok=True)
    for file in (flame, in_json, in_markdown):
        file.unlink(missing_ok=True)  # what an earlier run left must not pass for this one's

    own_status = record(command, session, environment)
    perfscope("flame", str(session), "-o", str(flame))
    in_json.write_text(perfscope("diagnose", str(session), "--format", "json")[0], encoding="utf-8")
    limit = ["--fail-on", fail_on] if fail_on else []
    text, found = perfscope("diagnose", str(session), "--format", "markdown", *limit, allowed=(0, 1))
    in_markdown.write_text(text, encoding="utf-8")
    print(text)
    if summary := environment.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file_:
            file_.write(text + "\n")
    if own_status:
        print(f"perfscope step: the recorded command itself ended with status {own_status}", file=sys.stderr)
    elif found:
        print(f"perfscope step: findings at or above {fail_on}", file=sys.stderr)
    return own_status or found


def record(command: str, session: Path, environment: Mapping[str, str]) -> int:
    """Records the command. Returns its exit status. Raises StepError if no whole session came of it."""
    options = shlex.split(environment.get("PERFSCOPE_RECORD_ARGS", ""))
    if duration := environment.get("PERFSCOPE_DURATION", "").strip():
        options += ["-d", duration]
    earlier = session.stat().st_ino if session.exists() else None
    argv = [*PERFSCOPE, "record", *options, "-o", str(session), "--force", "--", "bash", "-c", command]
    status = subprocess.run(argv, check=False).returncode
    if not session.exists() or session.stat().st_ino == earlier:
        raise StepError("the recording failed; its message is above", 3)
    return status if status >= 0 else 128 - status


def perfscope(*arguments: str, allowed: tuple[int, ...] = (0,)) -> tuple[str, int]:
    """Stdout and status of a perfscope command. Raises StepError for a status that isn't allowed."""
    done = subprocess.run([*PERFSCOPE, *arguments], check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode not in allowed:
        raise StepError(f"perfscope {arguments[0]} ended with status {done.returncode}; its message is above", 3)
    return done.stdout, done.returncode


if __name__ == "__main__":
    try:
        sys.exit(main(os.environ))
    except StepError as error:
        print(f"perfscope step: {error.args[0]}", file=sys.stderr)
        sys.exit(error.args[1])

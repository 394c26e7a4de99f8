#!/usr/bin/env python3
"""One step of any CI: records a command, leaves the flame graph and the diagnosis, fails on what you say.

Everything comes from the environment, so that no CI has to paste it into a shell line:
    PERFSCOPE_COMMAND      the command to record, a line for bash (needed)
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

import html
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SEVERITIES = ("info", "low", "medium", "high", "critical")


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
    output.mkdir(parents=True, exist_ok=True)
    session = output / "session.perfscope"

    status = record(command, session, environment)
    perfscope("flame", str(session), "-o", str(output / "flame.html"))
    diagnosis = json.loads(perfscope("diagnose", str(session), "--format", "json"))
    (output / "diagnosis.json").write_text(json.dumps(diagnosis, indent=1) + "\n", encoding="utf-8")
    text = markdown(diagnosis, command)
    (output / "diagnosis.md").write_text(text, encoding="utf-8")
    if summary := environment.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(text)
    print(text)
    if status:
        print(f"the recorded command itself ended with status {status}", file=sys.stderr)
        return status
    worst = [f for f in diagnosis["findings"] if fail_on and rank(f) >= SEVERITIES.index(fail_on)]
    if worst:
        print(f"{len(worst)} finding(s) at or above {fail_on}", file=sys.stderr)
    return 1 if worst else 0


def record(command: str, session: Path, environment: Mapping[str, str]) -> int:
    """Records the command. Returns its exit status. Raises StepError if there is no session afterwards."""
    options = shlex.split(environment.get("PERFSCOPE_RECORD_ARGS", ""))
    if duration := environment.get("PERFSCOPE_DURATION", "").strip():
        options += ["-d", duration]
    argv = [*PERFSCOPE, "record", "-o", str(session), "--force", *options, "--", "bash", "-c", command]
    status = subprocess.run(argv, check=False).returncode
    if not (session / "session.json").exists():
        raise StepError("the recording failed; its message is above", 3)
    return status if status >= 0 else 128 - status


PERFSCOPE = (sys.executable, "-m", "perfscope")


def perfscope(*arguments: str) -> str:
    """Stdout of a perfscope command. Raises StepError if it fails."""
    done = subprocess.run([*PERFSCOPE, *arguments], check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise StepError(f"perfscope {arguments[0]} ended with status {done.returncode}; its message is above", 3)
    return done.stdout


def rank(finding: Mapping[str, Any]) -> int:
    """Position of a finding's severity, least first."""
    return SEVERITIES.index(finding["severity"])


def markdown(diagnosis: Mapping[str, Any], command: str) -> str:
    """The diagnosis as Markdown: a table of findings, then each with its evidence, then the rules by verdict."""
    lines = ["## perfscope", "", f"{code(command)}", ""]
    if diagnosis["findings"]:
        lines += ["| | severity | finding | gives back up to |", "|--:|---|---|--:|"]
        for number, finding in enumerate(diagnosis["findings"], 1):
            given = finding["gives_back_pct"]
            share = "unknown" if given is None else f"{given:.1f} %"
            lines.append(f"| {number} | {plain(finding['severity'])} | {plain(finding['title'])} | {share} |")
        lines.append("")
        for number, finding in enumerate(diagnosis["findings"], 1):
            lines += [f"**{number}. {plain(finding['title'])}** ({code(finding['rule'])}){place(finding['where'])}", ""]
            lines += [f"- {evidence(item)}" for item in finding["evidence"]]
            lines += ["", plain(finding["advice"]), ""]
    else:
        lines += ["No findings.", ""]
    for verdict, title in (("ok", "ok"), ("not_evaluable", "not evaluable")):
        rules = [v for v in diagnosis["verdicts"] if v["verdict"] == verdict]
        if rules:
            lines += [f"<details><summary>{title}: {len(rules)} rules</summary>", ""]
            lines += [f"- {code(v['rule'])}: {plain(v['why'])}" for v in rules]
            lines += ["", "</details>", ""]
    return "\n".join(lines)


def place(where: Mapping[str, Any]) -> str:
    """Where a finding is, as far as it is known."""
    parts = [code(where[key]) for key in ("process", "thread", "function", "kernel", "device") if where.get(key)]
    if where.get("file"):
        parts.append(code(f"{where['file']}:{where['line']}" if where.get("line") else where["file"]))
    return " in " + ", ".join(parts) if parts else ""


def evidence(item: Mapping[str, Any]) -> str:
    """One measured value beside its threshold."""
    text = f"{plain(item['what'])}: {item['value']:g} {plain(item['unit'])}"
    if item.get("threshold") is not None:
        text += f" (threshold {item['threshold']:g} {plain(item['unit'])})"
    return text + (f", measured by {plain(item['measured_by'])}" if item.get("measured_by") else "")


def plain(value: object) -> str:
    """Text that means nothing to Markdown or HTML: names come from the recorded program."""
    flat = html.escape(" ".join(str(value).split()))
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", flat)


def code(value: object) -> str:
    """The same in a fixed-width face."""
    return f"<code>{plain(value)}</code>"


if __name__ == "__main__":
    try:
        sys.exit(main(os.environ))
    except StepError as error:
        print(f"perfscope step: {error.args[0]}", file=sys.stderr)
        sys.exit(error.args[1])

"""The CI step as the action runs it: files left, summary written, and the exit status says what happened."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEP = ROOT / "scripts" / "ci_step.py"
# Waits for a timer all its life: whatever else the machine does, the target itself is idle.
IDLE = f"{sys.executable} -c 'import time; time.sleep(2)'"


def step(folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PERFSCOPE_", "GITHUB_"))}
    return subprocess.run(
        [sys.executable, str(STEP)],
        env=environment | settings,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_recorded_command_leaves_its_files_and_a_summary(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("# before\n")
    done = step(tmp_path, PERFSCOPE_COMMAND=IDLE, PERFSCOPE_FAIL_ON="info", GITHUB_STEP_SUMMARY=str(summary))
    out = tmp_path / "perfscope-out"
    assert {p.name for p in out.iterdir()} == {"session.perfscope", "flame.html", "diagnosis.json", "diagnosis.md"}
    diagnosis = json.loads((out / "diagnosis.json").read_text())
    assert diagnosis["schema"] == 1
    assert "sleep-or-idle" in {finding["rule"] for finding in diagnosis["findings"]}, done.stderr
    assert done.returncode == 1, done.stderr
    text = (out / "diagnosis.md").read_text()
    assert diagnosis["findings"][0]["title"] in text.replace("\\", "")
    assert summary.read_text() == "# before\n" + text + "\n"
    assert "<html" in (out / "flame.html").read_text()[:1000].lower()


def test_the_commands_own_failure_is_the_steps(tmp_path: Path) -> None:
    done = step(tmp_path, PERFSCOPE_COMMAND="sleep 0.3; exit 7", PERFSCOPE_OUTPUT="a b")
    assert done.returncode == 7, done.stderr
    assert (tmp_path / "a b" / "diagnosis.json").exists()
    assert "status 7" in done.stderr


def test_a_second_run_replaces_the_first_and_record_args_are_passed(tmp_path: Path) -> None:
    for collect in ("pyspy", "ebpf"):
        done = step(tmp_path, PERFSCOPE_COMMAND="sleep 0.3", PERFSCOPE_RECORD_ARGS=f"--collect '{collect}'")
        assert done.returncode == 0, done.stderr
        session = json.loads((tmp_path / "perfscope-out/session.perfscope/session.json").read_text())
        assert set(session["collectors"]) == {collect}


@pytest.mark.parametrize(
    ("settings", "status", "message"),
    [
        ({}, 2, "PERFSCOPE_COMMAND is empty"),
        ({"PERFSCOPE_COMMAND": "true", "PERFSCOPE_FAIL_ON": "terrible"}, 2, "it can be info, low"),
        ({"PERFSCOPE_COMMAND": "true", "PERFSCOPE_DURATION": "soon"}, 3, "the recording failed"),
        ({"PERFSCOPE_COMMAND": "true", "PERFSCOPE_DURATION": "1; touch injected"}, 3, "the recording failed"),
        ({"PERFSCOPE_COMMAND": "true", "PERFSCOPE_RECORD_ARGS": "$(touch injected) `touch injected`"}, 3, "failed"),
    ],
)
def test_a_wrong_setting_is_said(tmp_path: Path, settings: dict[str, str], status: int, message: str) -> None:
    done = step(tmp_path, **settings)
    assert (done.returncode, message in done.stderr) == (status, True), done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "injected").exists()


def test_the_action_pastes_no_input_into_a_script() -> None:
    text = (ROOT / "action.yml").read_text()
    for block in re.findall(r"^ +run: (?:\|\n((?: {8}.*\n)+)|(.*)\n)", text, re.MULTILINE):
        assert "${{" not in "".join(block)
    declared = set(re.findall(r"^  ([a-z-]+):$", text.split("\noutputs:")[0], re.MULTILINE))
    assert declared == set(re.findall(r"\$\{\{ (?:always\(\) && )?inputs\.([a-z-]+)", text))
    documented = set(re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "docs" / "ci.md").read_text(), re.MULTILINE))
    assert declared == documented
    called = re.findall(r"\$GITHUB_ACTION_PATH/([\w/.]+)", text)
    assert [ROOT / name for name in called] == [STEP]

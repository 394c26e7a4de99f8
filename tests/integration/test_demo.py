"""perfscope demo, a stranger's first command: it records both processes, prints a diagnosis, leaves a flame graph."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from perfscope.model.session import Session


def demo(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "perfscope", "demo", "-d", "3", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


OF_THE_MACHINE = "disk requests were never seen to complete"
"""What may be missing through no fault of the recorder: some hosts hide what interrupts an idle CPU."""


def test_the_demo_records_diagnoses_and_draws_and_never_overwrites(tmp_path: Path) -> None:
    done = demo(tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"demo.perfscope", "demo.html"}
    info = json.loads((tmp_path / "demo.perfscope" / "session.json").read_text())
    for name in ("ebpf", "pyspy", "jfr"):
        report = info["collectors"][name]
        assert report["status"] == "ok" or (name == "ebpf" and OF_THE_MACHINE in report["why"]), report
    frames = Session.open(tmp_path / "demo.perfscope").table("frames").to_pylist()
    python = {Path(frame["file"]).name for frame in frames if frame["layer"] == "python" and frame["file"]}
    assert {"engine.py", "server.py"} <= python
    assert any("Gateway" in f"{frame['module']} {frame['function']}" for frame in frames if frame["layer"] == "java")
    assert (tmp_path / "demo.html").read_text().startswith("<!doctype html>")
    assert str(tmp_path / "demo.html") in done.stderr
    assert "requests, p50" in done.stderr
    assert "demo.perfscope" in done.stdout  # the diagnosis is the result

    again = demo(tmp_path)
    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert "Traceback" not in again.stderr

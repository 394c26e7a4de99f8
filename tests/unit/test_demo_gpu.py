"""The recording that ships for those without a GPU: whole, free of the machine it was made on, and told as it is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from perfscope.cli import _gpu_demo
from perfscope.errors import InputError, UsageError
from perfscope.model.schema import TABLES
from perfscope.model.session import Session

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "examples" / "gpu" / "llm.perfscope"
PAGE = ROOT / "docs" / "gpu.md"
FOREIGN = re.compile(r"(?<![\w.>*-])/(?!(?:home/me|venv|usr|lib|lib64|dev|proc|sys|etc)\b)[\w.-]+/|GPU-[0-9a-f]{8}-")
"""Absolute paths below anything but what every Linux has, or a renamed place; and the identity of one GPU."""


@pytest.fixture(scope="module")
def session() -> Session:
    return Session.open(SHIPPED)


def demo(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "perfscope", "demo", "--gpu", *options],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def texts(table: pa.Table) -> set[str]:
    found: set[str] = set()
    for column in table.columns:
        if pa.types.is_dictionary(column.type):
            column = column.cast(pa.string())
        if pa.types.is_string(column.type):
            found |= set(column.unique().drop_null().to_pylist())
    return found


def test_it_is_whole_and_small_and_every_collector_is_in_it(session: Session) -> None:
    session.check()
    assert {name: report.status for name, report in session.info.collectors.items()} == dict.fromkeys(
        ("ebpf", "pyspy", "jfr", "cuda", "nvml"), "ok"
    )
    for name in ("sched", "waits", "jvm_events", "samples", "counters", "gpu_activity", "cuda_api"):
        assert session.table(name).num_rows > 100, name
    assert {"pyspy", "jfr"} <= set(session.table("samples")["source"].unique().to_pylist())
    assert "gpu_sm_active_pct" in session.table("counters")["name"].unique().to_pylist()
    assert sum(file.stat().st_size for file in SHIPPED.rglob("*") if file.is_file()) < 1_500_000


def test_nothing_in_it_is_of_the_machine_it_was_made_on(session: Session) -> None:
    assert FOREIGN.findall((SHIPPED / "session.json").read_text(encoding="utf-8")) == []
    assert re.fullmatch(r"[\d.]+", session.info.host["kernel"])  # no suffix of one site's build
    for name in TABLES:
        assert {text for text in texts(session.table(name)) if FOREIGN.search(text)} == set(), name


def test_nothing_of_the_whole_recording_passes_for_a_figure_of_the_part(session: Session) -> None:
    info = session.info
    assert (info.own_cpu_ns, info.exit_status) == (None, None)
    assert info.stopped_by == "cut from a longer recording"
    assert [report.cpu_ns for report in info.collectors.values()] == [None] * 5
    assert all("cut from a longer recording" in report.notes[-1] for report in info.collectors.values())
    assert session.table("threads")["cpu_ns"].null_count == session.table("threads").num_rows
    times = session.table("samples")["time_ns"]
    assert times.null_count == 0
    for table, first, last in (("gpu_activity", "start_ns", "end_ns"), ("cuda_api", "start_ns", "end_ns")):
        for row in session.table(table).select([first, last]).to_pylist():
            assert row[last] >= info.start_ns
            assert row[first] < info.stop_ns


def busy_ns(session: Session) -> int:
    """Time in which the device ran anything, within the recording."""
    info = session.info
    rows = session.table("gpu_activity").select(["start_ns", "end_ns"]).to_pylist()
    total, until = 0, info.start_ns
    for start, end in sorted((row["start_ns"], min(row["end_ns"], info.stop_ns)) for row in rows):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total


def test_the_demo_needs_no_gpu_and_never_overwrites(tmp_path: Path, session: Session) -> None:
    done = demo(tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"gpu-demo.perfscope", "gpu-demo.html"}
    assert "Launch-bound" in done.stdout
    assert str(tmp_path / "gpu-demo.html") in done.stderr
    assert (tmp_path / "gpu-demo.html").read_text(encoding="utf-8").startswith("<!doctype html>")

    flame = "flame gpu-demo.perfscope --weight gpu --format folded -o -"
    folded = subprocess.run(
        [sys.executable, "-m", "perfscope", *flame.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.rsplit(" ", 1) for line in folded.stdout.splitlines()]
    assert sum(int(value) for _, value in lines) == session.info.stop_ns - session.info.start_ns
    assert sum(int(value) for stack, value in lines if stack.endswith("_[g]")) == busy_ns(session)

    again = demo(tmp_path)
    assert again.returncode == 2
    assert "exists already" in again.stderr
    (tmp_path / "gpu-demo.html").write_text("mine", encoding="utf-8")
    assert demo(tmp_path, "--force").returncode == 0
    assert (tmp_path / "gpu-demo.html").read_text(encoding="utf-8") != "mine"


def test_a_finished_recording_has_no_length_to_choose(tmp_path: Path) -> None:
    done = demo(tmp_path, "-d", "3")
    assert done.returncode == 2
    assert "finished recording" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", [".", "..", "/"])
def test_a_session_needs_a_name(tmp_path: Path, place: str) -> None:
    done = demo(tmp_path, "-o", place, "--force")
    assert done.returncode == 2
    assert "can't be a session's name" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_no_session_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear", encoding="utf-8")
    with pytest.raises(UsageError, match="in the way"):
        _gpu_demo.copy(tmp_path / "mine", force=True)
    assert (tmp_path / "mine" / "letter").read_text(encoding="utf-8") == "dear"
    with pytest.raises(InputError, match="can't be written"):
        _gpu_demo.copy(tmp_path / "mine" / "letter" / "s", force=False)


def test_it_works_from_an_installed_wheel(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next((tmp_path / "dist").glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "site")
    (tmp_path / "here").mkdir()
    done = demo(tmp_path / "here", "-o", "s.perfscope", PYTHONPATH=str(tmp_path / "site"))
    assert done.returncode == 0, done.stderr
    shipped = tmp_path / "site" / "perfscope" / "examples" / "gpu" / "llm.perfscope"
    copied = tmp_path / "here" / "s.perfscope"
    for file in SHIPPED.rglob("*"):
        if file.is_file():
            at = file.relative_to(SHIPPED)
            assert file.read_bytes() == (shipped / at).read_bytes() == (copied / at).read_bytes()


def test_the_page_shows_what_the_commands_print_now() -> None:
    check = [sys.executable, str(ROOT / "scripts" / "page_output.py"), str(PAGE), "--check"]
    assert subprocess.run(check, check=False).returncode == 0, "to mend: python scripts/page_output.py docs/gpu.md"


def test_the_page_quotes_the_recording_that_ships(session: Session) -> None:
    quoted = PAGE.read_text(encoding="utf-8").split("```text\n")[1].split("```")[0]
    counts = {name: int(n.replace(",", "")) for name, n in re.findall(r"^  (\w+) +ok, ([\d,]+) events", quoted, re.M)}
    assert counts == {name: report.events for name, report in session.info.collectors.items()}


def test_the_page_names_the_command_that_was_recorded(session: Session) -> None:
    shown = re.search(r'record -o llm\.perfscope -- sh -c "([^"]+)"', PAGE.read_text(encoding="utf-8"))
    assert shown is not None
    recorded = session.info.command[-1].replace("/home/me/", "").replace(" >/dev/null", "")
    assert shown[1] == recorded


def test_the_first_layer_pays_for_each_token_as_the_page_says(session: Session) -> None:
    """A token begins with its embedding; the attention calls after it are its layers, in order."""
    layer, before, tokens = 0, None, 0
    late: list[int] = []
    calls = session.table("cuda_api").select(["start_ns", "end_ns", "stack_id"]).sort_by("start_ns")
    for call in calls.to_pylist():
        function = session.stacks.path(call["stack_id"])[-1].function
        if function == "embedding":
            layer, tokens = 0, tokens + 1
        if function == "sdpa_attention_forward":
            late += [layer] if before is not None and call["start_ns"] - before > 3_000_000 else []
            layer += 1
        before = call["end_ns"]
    assert set(late) == {0}
    assert abs(len(late) - tokens) <= 1  # the part may begin or end within a token


def test_texts_are_renamed_everywhere(tmp_path: Path) -> None:
    out = tmp_path / "renamed.perfscope"
    trim = [sys.executable, str(ROOT / "scripts" / "gpu" / "trim_session.py"), str(SHIPPED), str(out)]
    subprocess.run([*trim, "--seconds", "0.2", "--rename", "/home/me=/x", "--rename", "/venv/lib=/y"], check=True)
    said = json.dumps(json.loads((out / "session.json").read_text(encoding="utf-8")))
    session = Session.open(out)
    words = {said}.union(*(texts(session.table(name)) for name in TABLES))
    assert not [text for text in words if "/home/me" in text or "/venv/lib" in text]
    assert any(text.startswith("/y/python") for text in words)
    assert "/x/llm.py" in texts(session.table("frames"))

"""What we read from .jfr files against what the JDK's own tool reads from the same file."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from perfscope.collectors.jfr import import_file
from perfscope.collectors.jfr.chunk import Chunk, Header, JfrFile
from perfscope.collectors.jfr.frames import ChunkNames, class_name
from perfscope.collectors.jfr.kinds import CONSTANTS, EVENTS, SAMPLES, WANTED
from perfscope.model.info import SessionInfo
from perfscope.model.session import Session
from perfscope.model.session_writer import SessionWriter
from perfscope.model.stacks import StackTable
from tests.jfr_helpers import DATA, compile_java


def printed(path: Path, *types: str) -> list[dict[str, Any]]:
    """Events as `jfr print --json` gives them, with whole stacks."""
    only = ["--events", ",".join(types)] if types else []
    command = ["jfr", "print", "--json", "--stack-depth", "64", *only, str(path)]
    out = subprocess.run(command, check=True, capture_output=True, timeout=120)
    found: list[dict[str, Any]] = json.loads(out.stdout)["recording"]["events"]
    return found


def wall_ns(text: str) -> int:
    """2026-11-29T15:44:05.123456789Z or with an offset, to the nanosecond."""
    match = re.fullmatch(r"(.*?)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)", text)
    assert match is not None
    seconds = int(datetime.fromisoformat(match[1] + match[3].replace("Z", "+00:00")).timestamp())
    return seconds * 10**9 + int((match[2] or "").ljust(9, "0"))


def span_ns(text: str) -> int:
    """PT1M0.5S, to the nanosecond."""
    match = re.fullmatch(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d+))?S)?", text)
    assert match is not None
    whole = int(match[1] or 0) * 3600 + int(match[2] or 0) * 60 + int(match[3] or 0)
    return whole * 10**9 + int((match[4] or "").ljust(9, "0"))


def their_stack(trace: dict[str, Any] | None) -> tuple[Any, ...] | None:
    if trace is None:
        return None
    frames = tuple(
        (f"{class_name(f['method']['type']['name'])}.{f['method']['name']}", f["lineNumber"], f["type"] == "Native")
        for f in reversed(trace["frames"])
    )
    return trace["truncated"], frames


def our_stack(names: ChunkNames, stacks: StackTable, key: int | None) -> tuple[Any, ...] | None:
    stack = names.stack(key, stacks)
    if key is None or stack is None:
        return None
    frames = stacks.path(stack)
    cut = frames[0].function.startswith("[deeper")
    return cut, tuple((f.function, f.line or -1, f.layer == "native") for f in frames[cut:])


def unify(stack: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    """Lines that are unknown are -1 or 0 in the file."""
    return stack and (stack[0], tuple((f, line if line > 0 else -1, n) for f, line, n in stack[1]))


@pytest.mark.parametrize("name", ["phases.jfr", "killed.jfr"])
def test_samples_and_events_are_those_of_the_jdks_tool(name: str) -> None:
    path = DATA / name
    types = (*SAMPLES, *EVENTS)
    theirs: Counter[tuple[Any, ...]] = Counter()
    for event in printed(path, *types):
        values = event["values"]
        thread = values.get("sampledThread") or values.get("eventThread")
        size = next((values[k] for k in ("weight", "bytesRead", "bytesWritten") if k in values), None)
        theirs[
            (
                event["type"],
                wall_ns(values["startTime"]),
                span_ns(values.get("duration", "PT0S")),
                thread["osThreadId"] if thread else None,
                thread["javaName"] if thread else None,
                size,
                unify(their_stack(values.get("stackTrace"))),
            )
        ] += 1
    ours: Counter[tuple[Any, ...]] = Counter()
    first: Header | None = None
    for chunk in JfrFile(path, WANTED, CONSTANTS):
        first = first or chunk.header  # ticks go on from chunk to chunk; the JDK's tool starts from the first, too
        names = ChunkNames(chunk)
        stacks = StackTable()
        for type_ in types:
            samples = type_ in SAMPLES
            size_field = EVENTS[type_].bytes if not samples else None
            fields = ("startTime", "duration", "sampledThread" if samples else "eventThread", "stackTrace")
            for ticks, lasted, thread, trace, size in chunk.rows(type_, (*fields, size_field or "-")):
                about = names.threads.get(thread)
                ours[
                    (
                        type_,
                        first.start_ns + ticks - first.start_ticks,
                        lasted or 0,
                        about[1] if about else None,
                        names.text(about[2]) if about else None,
                        size,
                        our_stack(names, stacks, trace),
                    )
                ] += 1
        assert chunk.header.ticks_per_second == 10**9 and chunk.damaged_events == 0
    assert sum(ours.values()) > 500
    assert ours == theirs


def resolved(chunk: Chunk, names: ChunkNames, type_name: str, value: Any, depth: int = 0) -> Any:
    """A constant of a simple type as the JDK's tool prints it: its one string or number."""
    pool = chunk.pool(type_name)
    found = pool.get(value)
    if found is None or len(found) != 1 or depth > 3:
        return None
    return names.text(found[0])


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A recording with the JDK's own settings, by the JDK alone, and the pid of its JVM."""
    folder = tmp_path_factory.mktemp("default")
    path = folder / "default.jfr"
    done = subprocess.run(
        ["java", f"-XX:StartFlightRecording=filename={path},settings=profile", "-cp", compile_java(folder), "Phases"],
        input=b"phases\nexit\n",
        check=True,
        timeout=120,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    return path, int(next(line for line in done.stdout.split(b"\n") if line.startswith(b"ready")).split()[1])


def test_every_event_of_every_type_is_read(default: tuple[Path, int]) -> None:
    """Counts of all types, and the numbers and strings in all events."""
    path, _ = default
    theirs: Counter[tuple[Any, ...]] = Counter()
    for event in printed(path):
        theirs[event["type"], None, None] += 1
        for key, value in event["values"].items():
            if isinstance(value, int | str) and key not in ("startTime", "duration"):
                theirs[event["type"], key, value] += 1
    ours: Counter[tuple[Any, ...]] = Counter()
    file = JfrFile(path)
    for chunk in file:
        names = ChunkNames(chunk)
        for type_ in chunk.event_names():
            fields = chunk.field_names(type_)
            kinds = {f.name: (f, chunk.metadata.types[f.type_id].name) for f in chunk.metadata.by_name[type_].fields}
            for values in chunk.rows(type_, fields):
                ours[type_, None, None] += 1
                for key, value in zip(fields, values, strict=True):
                    field, kind = kinds[key]
                    shown = resolved(chunk, names, kind, value) if field.pooled else value
                    shown = names.text(shown) if kind == "java.lang.String" else shown
                    if (type_, key, shown) in theirs:
                        ours[type_, key, shown] += 1
    assert file.losses == [] and file.damaged_events == 0
    assert {k: n for k, n in ours.items() if k[1] is None} == {k: n for k, n in theirs.items() if k[1] is None}
    # What the tool shows in another form by annotations of the type (instants, spans, addresses) can't be compared so.
    other_form = re.compile(r"PT.*|-?0x[0-9A-F]*|-?\d{4,}-\d\d-\d\dT.*|.*\\.*")
    comparable = {k: n for k, n in theirs.items() if not isinstance(k[2], str) or not other_form.fullmatch(k[2])}
    wrong = {k: (n, ours[k]) for k, n in comparable.items() if ours[k] != n}
    assert len(comparable) > 1000
    assert not wrong


def test_a_default_recording_can_be_imported(default: tuple[Path, int], tmp_path: Path) -> None:
    path, pid = default
    writer = SessionWriter(tmp_path / "s.perfscope")
    result = import_file(path, writer)
    assert result.report.status == "ok" and result.clock is not None
    session = Session.open(writer.finish(SessionInfo(start_ns=result.start_ns, stop_ns=result.stop_ns)))
    assert set(session.table("samples")["pid"].to_pylist()) == {pid}
    expected = Counter(e["type"] for e in printed(path, *SAMPLES, "jdk.ThreadPark"))
    assert session.table("samples").num_rows == sum(expected[s] for s in SAMPLES) > 0
    assert session.table("jvm_events")["type"].to_pylist().count("ThreadPark") == expected["jdk.ThreadPark"] > 0

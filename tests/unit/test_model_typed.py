"""session.json may say anything: it is read as declared, or refused by the name of what is wrong."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from perfscope.clock import MONOTONIC
from perfscope.errors import SessionError
from perfscope.model.info import CollectorReport, SessionInfo
from perfscope.model.session import Session
from perfscope.model.session_writer import SessionWriter
from perfscope.model.typed import build
from perfscope.reports.terminal import print_session

INFO = SessionInfo(
    command=["python", "serve.py"],
    pids=[7],
    start_ns=1_000,
    stop_ns=9_000,
    host={"kernel": "6.1", "memory_bytes": 1 << 30},
    options={"rate_hz": 100},
    clocks={"ebpf": MONOTONIC},
    collectors={"ebpf": CollectorReport("partial", why="late", lost_events=0, covered_ns=[(1_000, 9_000)])},
    own_cpu_ns=5,
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just(1 << 70),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SessionWriter(tmp_path_factory.mktemp("typed") / "s").finish(INFO)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, inner in items for place in _places(inner, (*path, key)))]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_value_in_any_place_is_shown_or_refused_by_name(session: Path, data: st.DataObject) -> None:
    content = INFO.to_json() | {"tables": {}, "state": "complete"}
    content = json.loads(json.dumps(content))
    *way, last = data.draw(st.sampled_from([place for place in _places(content) if place]))
    inner = content
    for key in way:
        inner = inner[key]
    inner[last] = data.draw(ANYTHING)
    (session / "session.json").write_text(json.dumps(content))
    try:
        opened = Session.open(session)
    except SessionError as error:
        assert "session.json" in str(error) or "still" in str(error) or "cut off" in str(error)
        return
    print_session(opened, Console(file=io.StringIO(), width=80))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"start_ns": 1 << 70}, "session.start_ns is 1180591620717411303424, and not of type int"),
        ({"start_ns": True}, "session.start_ns is True"),
        ({"collectors": {"jfr": {"lost_events": "many"}}}, "session.collectors.jfr.lost_events is 'many'"),
        ({"collectors": {"jfr": {"status": "fine"}}}, "session.collectors.jfr.status is 'fine'"),
        ({"collectors": {"jfr": {"covered_ns": [[1]]}}}, "session.collectors.jfr.covered_ns[0] is [1]"),
        ({"clocks": {"jfr": {"domain": "x", "offset_ns": 0}}}, "session.clocks.jfr lacks"),
        ({"clocks": {"jfr": {"domain": "x", "offset_ns": 0, "error_ns": 1, "scale": float("nan")}}}, "scale is nan"),
        ({"start_ns": 5, "stop_ns": 4}, "it ends before it starts"),
    ],
)
def test_what_is_wrong_is_said(value: dict[str, Any], message: str) -> None:
    with pytest.raises(SessionError) as caught:
        SessionInfo.from_json({"schema": 1, **value}, "s/session.json")
    assert "s/session.json: damaged: " in str(caught.value) and message in str(caught.value)


def test_what_is_written_is_read_back() -> None:
    assert build(SessionInfo, json.loads(json.dumps(INFO.to_json())), "session") == INFO
    assert build(SessionInfo, {"added_later": 1, "command": []}, "session") == SessionInfo()

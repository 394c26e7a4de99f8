"""How sessions are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.recording.names import default_path, session_name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "serve.py"], "serve"),
        (["/usr/bin/python3.11", "-u", "app/serve.py", "--port", "80"], "serve"),
        (["python3", "-m", "http.server"], "http.server"),
        (["java", "-Xmx1g", "-jar", "build/gateway.jar"], "gateway"),
        (["java", "-cp", "build", "Gateway"], "Gateway"),
        (["env", "A=1", "nice", "-n", "./run.sh"], "run"),
        (["python3", "-c", "print(1)"], "python3"),
        (["./a b;c"], "a_b_c"),
        (["bash"], "bash"),
        (["../.."], "session"),
    ],
)
def test_a_session_is_named_after_what_is_run(command: list[str], name: str) -> None:
    assert session_name(command) == name


def test_a_taken_name_gets_the_next_free_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_path(["serve.py"], []) == Path("serve.perfscope")
    Path("serve.perfscope").mkdir()
    Path("serve-2.perfscope.partial").mkdir()  # a recording that is running, or was killed
    assert default_path(["serve.py"], []) == Path("serve-3.perfscope")
    assert default_path([], [7, 9]) == Path("pid7-pid9.perfscope")

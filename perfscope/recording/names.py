"""How a session is named when the user doesn't say."""

from __future__ import annotations

import re
from pathlib import Path

_INTERPRETERS = re.compile(r"(python|pypy)[\d.]*|java|node|ruby|perl|bash|sh|env|nice|time|sudo|uv|poetry|run")


def session_name(command: list[str]) -> str:
    """serve for `python serve.py`, pkg.server for `python -m pkg.server`, gateway for `java -jar gateway.jar`."""
    words = iter(command)
    for word in words:
        base = Path(word).name
        if _INTERPRETERS.fullmatch(base):
            continue
        if word == "-m":
            return _clean(next(words, "command"))
        if word == "-c":
            break
        if word in ("-jar", "-cp", "-classpath", "--class-path", "-X", "-W"):
            value = next(words, "")
            if word == "-jar":
                return _clean(Path(value).stem)
            continue
        if word.startswith("-") or "=" in word:
            continue
        return _clean(Path(word).stem or base)
    return _clean(Path(command[0]).name)


def default_path(command: list[str], pids: list[int]) -> Path:
    """Where a recording goes when the user doesn't say: in the working directory, named after what is recorded."""
    return free_path(session_name(command) if command else "-".join(f"pid{pid}" for pid in pids[:3]))


def free_path(name: str) -> Path:
    """NAME.perfscope in the working directory; NAME-2.perfscope, NAME-3... where that exists already."""
    name = _clean(name)
    number, path = 1, Path(f"{name}.perfscope")
    while path.exists() or Path(f"{path}.partial").exists():
        number += 1
        path = Path(f"{name}-{number}.perfscope")
    return path


def _clean(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name).strip("._-")[:64] or "session"

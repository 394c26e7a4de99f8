"""What can run here, and what mends the rest."""

from __future__ import annotations

import json
import subprocess

from recording_helpers import PERFSCOPE

from perfscope.collectors import COLLECTORS


def _doctor(prefix: list[str]) -> list[dict[str, str]]:
    done = subprocess.run([*prefix, *PERFSCOPE, "doctor", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["host"]["kernel"]
    rows: list[dict[str, str]] = data["checks"]
    return rows


def _states(rows: list[dict[str, str]], collector: str) -> set[str]:
    return {row["state"] for row in rows if row["collector"] == collector}


def test_every_collector_has_a_row_and_every_fault_a_reason_and_a_remedy() -> None:
    rows = _doctor([])
    assert {row["collector"] for row in rows} == {*COLLECTORS, "ncu"}
    for row in rows:
        assert row["state"] in ("ok", "degraded", "unavailable")
        assert row["state"] == "ok" or row["why"], row
        # Nothing mends a kernel or driver that doesn't have it.
        assert row["state"] == "ok" or row["fix"] or "not available on this kernel" in row["why"], row
    assert "ok" in _states(rows, "ebpf") and "ok" in _states(rows, "pyspy") and "ok" in _states(rows, "jfr")


def test_without_rights_it_says_what_they_are() -> None:
    rows = _doctor(["setpriv", "--bounding-set=-all", "--inh-caps=-all"])  # root in name only
    backends = [row for row in rows if row["what"].startswith("backend")]
    assert len(backends) == 3
    for row in backends:
        assert row["state"] == "unavailable", row
        assert "CAP_" in row["why"] and ("root" in row["fix"] or "sysctl" in row["fix"]), row
    assert "degraded" in _states(rows, "pyspy")


def test_the_table_is_for_people() -> None:
    done = subprocess.run([*PERFSCOPE, "doctor"], capture_output=True, text=True)
    assert done.returncode == 0
    assert all(name in done.stdout for name in COLLECTORS)
    assert "what mends it" in done.stdout

"""docs/session-format.md says what the schema says, column by column, and every field of session.json."""

from __future__ import annotations

import dataclasses
import re
import runpy
from pathlib import Path

import pytest

from perfscope.clock import ClockMap
from perfscope.model.info import CollectorReport, SessionInfo
from perfscope.model.schema import SCHEMA_VERSION, TABLES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "session-format.md").read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_schema() -> None:
    expected = runpy.run_path(str(ROOT / "scripts" / "session_format.py"))["rendered"](PAGE)
    assert expected == PAGE, "mend it with: python scripts/session_format.py --write"


@pytest.mark.parametrize("table", TABLES)
def test_every_column_stands_in_its_tables_chapter(table: str) -> None:
    chapter = PAGE.split(f"\n### {table}\n")[1].split("\n### ")[0]
    listed = re.findall(r"^\| `(\w+)` \| \w+ \| (yes)? ?\|", chapter, re.MULTILINE)
    assert listed == [(column.name, "yes" if column.nullable else "") for column in TABLES[table]]


@pytest.mark.parametrize("kind", [SessionInfo, ClockMap, CollectorReport])
def test_every_field_of_session_json_is_described(kind: type) -> None:
    chapter = PAGE.split("## session.json")[1].split("## Tables")[0]
    described = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|([^|]+)\|", chapter, re.MULTILINE))))
    assert {field.name for field in dataclasses.fields(kind)} - described == set()


def test_the_version_is_the_schemas() -> None:
    assert f"now\n**{SCHEMA_VERSION}**" in PAGE

#!/usr/bin/env python3
"""Renders the table chapter of docs/session-format.md from perfscope.model.schema: session_format.py --write."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

from perfscope.model.schema import TABLES

PAGE = Path(__file__).parents[1] / "docs" / "session-format.md"
BEGIN = "<!-- tables: written by scripts/session_format.py -->\n"
END = "<!-- end of tables -->\n"


def tables() -> str:
    """Every table with its columns, as Markdown."""
    parts = []
    for name, columns in TABLES.items():
        rows = "".join(
            f"| `{c.name}` | {type_name(c.type)} | {'yes' if c.nullable else ''} | {c.doc.replace('|', '/')} |\n"
            for c in columns
        )
        parts.append(f"### {name}\n\n| column | type | null | meaning |\n|---|---|---|---|\n{rows}")
    return "\n".join(parts)


def type_name(type_: pa.DataType) -> str:
    """Arrow's name of a type; a dictionary-encoded string is a category."""
    return "category" if pa.types.is_dictionary(type_) else str(type_)


def rendered(page: str) -> str:
    """The page with its table chapter as the schema says. Raises ValueError without both marks."""
    head, mark, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not mark or not end:
        raise ValueError("the page has lost its marks")
    return f"{head}{BEGIN}\n{tables()}\n{END}{tail}"


if __name__ == "__main__":
    current = PAGE.read_text(encoding="utf-8")
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(rendered(current), encoding="utf-8")
    elif rendered(current) != current:
        sys.exit(f"{PAGE} differs from the schema; mend it with: python scripts/session_format.py --write")

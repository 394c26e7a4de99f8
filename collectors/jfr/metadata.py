"""The types of a JFR chunk, from its own metadata event: what each event and each constant consists of."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from perfscope.collectors.jfr.integers import all_unsigned
from perfscope.collectors.jfr.varint import MalformedError, StringRef, string, unsigned

METADATA_LIMIT = 16 << 20
"""Bytes of a metadata event that are believed; JDK 25's own is 0.1 MB, and application events add some KB each."""
DEPTH_LIMIT = 12
"""Nesting of metadata elements; HotSpot's go to 5 (root, metadata, class, field, annotation)."""
STRING = "java.lang.String"


class Field(NamedTuple):
    """One field. pooled: the value is a key into its type's constant pool; array: a count, then that many values."""

    name: str
    type_id: int
    pooled: bool
    array: bool


class Type(NamedTuple):
    """One type: primitive (no fields), structure, or event."""

    id: int
    name: str
    fields: tuple[Field, ...]


@dataclass
class Metadata:
    """All types of a chunk."""

    types: dict[int, Type] = field(default_factory=dict)
    by_name: dict[str, Type] = field(default_factory=dict)


def parse(event: bytes) -> Metadata:
    """Metadata of one metadata event (its bytes behind size and type). Equal ones, as chunk after chunk has, are kept.

    Raises MalformedError, or IndexError where the event ends too early.
    """
    if len(event) > METADATA_LIMIT:
        raise MalformedError(f"metadata of {len(event)} bytes", 0)
    p = 0
    for _ in range(2):  # start, duration
        _, p = unsigned(event, p)
    return _parse(event[p:])


@lru_cache(maxsize=4)
def _parse(event: bytes) -> Metadata:
    _, p = unsigned(event, 0)  # metadata id
    count, p = unsigned(event, p)
    if count > len(event) - p:
        raise MalformedError(f"metadata names {count} strings in {len(event) - p} bytes", p)
    strings: list[str] = []
    for _ in range(count):
        encoding, length = event[p], event[p + 1]
        if 3 <= encoding <= 5 and length < 128:  # nearly all of them: short, in ASCII
            raw = event[p + 2 : p + 2 + length]
            if len(raw) == length and raw.isascii():
                strings.append(raw.decode("ascii"))
                p += 2 + length
                continue
        text, p = string(event, p)
        if isinstance(text, StringRef):
            raise MalformedError("a string of the metadata refers to a pool", p)
        strings.append(text or "")
    metadata = Metadata()
    try:
        _element(all_unsigned(event[p:]), 0, strings, metadata, None, 0)
    except (KeyError, ValueError) as error:
        raise MalformedError(f"metadata: {error!r}", p) from None
    return metadata


def _element(
    numbers: list[int], p: int, strings: list[str], metadata: Metadata, fields: list[Field] | None, depth: int
) -> int:
    """Reads one element and its children; classes go into `metadata`, fields into the class's `fields`."""
    if depth > DEPTH_LIMIT:
        raise MalformedError(f"metadata nested deeper than {DEPTH_LIMIT}", 0)
    name, count = numbers[p], numbers[p + 1]
    tag = strings[name] if name < len(strings) else ""
    end = p + 2 + 2 * count
    attributes: dict[str, str] = {}
    if tag in ("class", "field"):
        try:
            attributes = {strings[numbers[i]]: strings[numbers[i + 1]] for i in range(p + 2, end, 2)}
        except IndexError:
            raise MalformedError("metadata refers to a string that it doesn't have, or ends too early", 0) from None
    own: list[Field] | None = [] if tag == "class" else None
    count, p = numbers[end], end + 1
    for _ in range(count):
        p = _element(numbers, p, strings, metadata, own, depth + 1)
    if tag == "class" and own is not None:
        made = Type(int(attributes["id"]), attributes["name"], tuple(own))
        metadata.types[made.id] = made
        metadata.by_name[made.name] = made
    elif tag == "field" and fields is not None:
        fields.append(
            Field(
                attributes["name"],
                int(attributes["class"]),
                attributes.get("constantPool") == "true",
                int(attributes.get("dimension", "0")) > 0,
            )
        )
    return p

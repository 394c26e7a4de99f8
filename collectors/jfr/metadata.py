"""The types of a JFR chunk, from its own metadata event: what each event and each constant consists of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from perfscope.collectors.jfr.integers import all_unsigned
from perfscope.collectors.jfr.varint import Buffer, MalformedError, StringRef, string, unsigned

Reader = Callable[[Buffer, int], tuple[Any, int]]
"""`reader(buffer, position) -> (tuple of the wanted fields, position behind the value)`."""

METADATA_LIMIT = 16 << 20
"""Bytes of a metadata event that are believed; JDK 25's own is 0.1 MB, and application events add some KB each."""
STRING = "java.lang.String"
EVENT = "jdk.jfr.Event"
"""Super type of all events."""


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
    readers: dict[tuple[int, tuple[str, ...] | None], Reader] = field(default_factory=dict)
    """Those already compiled, by type and wanted fields."""


def parse(event: bytes, events: frozenset[str] | None) -> Metadata:
    """Metadata of one metadata event (its bytes behind size and type). Equal ones, as chunk after chunk has, are kept.

    events: names of the event types whose fields are wanted (None: all); others have none. Most of a file's are others.
    Raises MalformedError, or IndexError where the event ends too early.
    """
    if len(event) > METADATA_LIMIT:
        raise MalformedError(f"metadata of {len(event)} bytes", 0)
    p = 0
    for _ in range(2):  # start, duration
        _, p = unsigned(event, p)
    return _parse(event[p:], events)


@lru_cache(maxsize=4)
def _parse(event: bytes, events: frozenset[str] | None) -> Metadata:
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
    try:
        return _classes(all_unsigned(event[p:]), strings, events)
    except (KeyError, ValueError) as error:
        raise MalformedError(f"metadata: {error!r}", p) from None


def _classes(numbers: list[int], strings: list[str], events: frozenset[str] | None) -> Metadata:
    """Types of a tree of elements, each a name, the number of its attributes, these as pairs, and the number of
    elements within it. A class's fields stand behind it and before the next class, so that the tree need not be built.
    """
    found: list[tuple[int, str, list[Field]]] = []
    known = len(strings)
    keep = False
    p, left = 0, 1
    while left:
        name_at = numbers[p]
        tag = strings[name_at] if name_at < known else ""  # a damaged name of what isn't needed does no harm
        end = p + 2 + 2 * numbers[p + 1]
        if tag == "class" or (keep and tag == "field"):
            texts = [strings[number] for number in numbers[p + 2 : end]]
            attributes = dict(zip(texts[::2], texts[1::2], strict=True))
            name = attributes["name"]
            if tag == "class":
                found.append((int(attributes["id"]), name, []))
                keep = events is None or name in events or attributes.get("superType") != EVENT
            else:
                pooled = attributes.get("constantPool") == "true"
                array = int(attributes.get("dimension", "0")) > 0
                found[-1][2].append(Field(name, int(attributes["class"]), pooled, array))
        left += numbers[end] - 1
        p = end + 1
    types = [Type(number, name, tuple(fields)) for number, name, fields in found]
    return Metadata({type_.id: type_ for type_ in types}, {type_.name: type_ for type_ in types})

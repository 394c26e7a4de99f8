"""Readers compiled to the types of a chunk: one straight-line function a type, with the fields that are wanted.

A general interpreter of the type tree spends most of its time on dispatch. The source made here holds numbers and
variable names of its own only; nothing from a file gets into it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

from perfscope.collectors.jfr import varint
from perfscope.collectors.jfr.metadata import STRING, Field, Metadata, Reader, Type
from perfscope.collectors.jfr.varint import MalformedError

LEAVES_LIMIT = 2000
"""Values that one type may consist of with all its nested types (custom events have some tens)."""
DEPTH_LIMIT = 8
"""Nesting of structures within each other; JDK 25's types go to 3."""

_VARINTS = {"short": "signed16", "int": "signed32", "long": "signed64", "char": "unsigned"}
_FLOATS = {"float": (">f", 4), "double": (">d", 8)}


def compile_reader(metadata: Metadata, type_: Type, wanted: Sequence[str] | None) -> Reader:
    """Reader of the fields of `type_` named in `wanted`, in that order, None for one it lacks (None: all it has).

    Nested structures come as tuples of all their fields, arrays as lists, constants as keys into their pools.
    Raises MalformedError for types that hold themselves, are nested too deep or are too large.
    """
    key = (type_.id, None if wanted is None else tuple(wanted))
    known = metadata.readers.get(key)
    if known is None:
        known = metadata.readers[key] = _made(metadata, type_, wanted)
    return known


def _made(metadata: Metadata, type_: Type, wanted: Sequence[str] | None) -> Reader:
    source = _Source(metadata)
    if type_.name == STRING:
        source.lines += ["    v, p = string(b, p)", "    return (v,), p"]
    else:
        kept = [field.name for field in type_.fields if wanted is None or field.name in wanted]
        names = source.fields(type_.fields, wanted, "    ", 0)
        if wanted is not None:
            variables = dict(zip(kept, names, strict=True))
            names = [variables.get(name, "None") for name in wanted]
        source.lines.append(f"    return ({''.join(n + ', ' for n in names)}), p")
    scope: dict[str, Any] = {
        **{name: getattr(varint, name) for name in ("unsigned", "signed64", "signed32", "signed16", "signed8")},
        "string": varint.string,
        "float4": struct.Struct(">f").unpack_from,
        "float8": struct.Struct(">d").unpack_from,
        "too_many": _too_many,
    }
    exec(_compiled("def read(b, p):\n" + "\n".join(source.lines)), scope)
    made: Reader = scope["read"]
    return made


@lru_cache(maxsize=1024)
def _compiled(text: str) -> CodeType:
    """Half of the types of a file have the fields of another one, and the next chunk has all of them again."""
    return compile(text, "<reader of a JFR type>", "exec")


def _too_many(count: int, p: int) -> None:
    raise MalformedError(f"array of {count} values runs past the end", p)


class _Source:
    """Lines of one reader, grown field by field."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        self.lines: list[str] = []
        self.leaves = 0

    def fields(self, fields: tuple[Field, ...], wanted: Collection[str] | None, indent: str, depth: int) -> list[str]:
        """Code for consecutive fields; names of the variables that hold the wanted ones."""
        if depth > DEPTH_LIMIT:
            raise MalformedError(f"type nested deeper than {DEPTH_LIMIT}, or in itself", 0)
        names = []
        for field in fields:
            keep = wanted is None or field.name in wanted
            name = self.array(field, keep, indent, depth) if field.array else self.value(field, keep, indent, depth)
            if keep:
                names.append(name)
        return names

    def array(self, field: Field, keep: bool, indent: str, depth: int) -> str:
        self.leaves += 1
        name, count = f"a{self.leaves}", f"n{self.leaves}"
        self.add(indent, f"{count} = b[p]; p += 1")
        self.add(indent, f"if {count} > 127: {count}, p = unsigned(b, p - 1)")
        # Every value takes a byte or more but those of types without fields, which no JVM has arrays of.
        self.add(indent, f"if {count} > len(b) - p: too_many({count}, p)")
        if keep:
            self.add(indent, f"{name} = []")
        self.add(indent, f"for _ in range({count}):")
        value = self.value(field, keep, indent + "    ", depth)
        self.add(indent + "    ", f"{name}.append({value})" if keep else "pass")
        return name

    def value(self, field: Field, keep: bool, indent: str, depth: int) -> str:
        self.leaves += 1
        if self.leaves > LEAVES_LIMIT:
            raise MalformedError(f"type of more than {LEAVES_LIMIT} values", 0)
        name = f"v{self.leaves}"
        type_ = self.metadata.types.get(field.type_id)
        if type_ is None:
            raise MalformedError(f"a field is of type {field.type_id}, which the metadata lacks", 0)
        kind = type_.name
        if field.pooled or kind in _VARINTS:
            convert = "unsigned" if field.pooled else _VARINTS[kind]
            self.add(indent, f"{name} = b[p]; p += 1")
            self.add(indent, f"if {name} > 127: {name}, p = {convert}(b, p - 1)")
        elif kind == "boolean":
            self.add(indent, f"{name} = b[p] != 0; p += 1")
        elif kind == "byte":
            self.add(indent, f"{name}, p = signed8(b, p)")
        elif kind in _FLOATS:
            size = _FLOATS[kind][1]
            self.add(indent, f"{name} = float{size}(b, p)[0]; p += {size}")
        elif kind == STRING:
            self.add(indent, f"{name}, p = string(b, p)")
        else:
            parts = self.fields(type_.fields, None if keep else (), indent, depth + 1)
            if keep:
                self.add(indent, f"{name} = ({''.join(part + ', ' for part in parts)})")
        return name

    def add(self, indent: str, line: str) -> None:
        self.lines.append(indent + line)

"""Data classes from parsed JSON that may say anything: each value is held against its declared type."""

from __future__ import annotations

import dataclasses
import math
import types
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_INT64 = 1 << 63


def build(kind: type[T], data: object, where: str) -> T:
    """A data class of the JSON object `data`; fields it lacks keep their defaults, unknown ones are left out.

    Raises ValueError that says which value, below `where`, is of another type. An integer must fit into 64 bits and a
    float be finite: JSON as Python reads it bounds neither.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{where} is no object")
    values = {
        name: _value(hint, data[name], f"{where}.{name}") for name, hint in get_type_hints(kind).items() if name in data
    }
    try:
        return kind(**values)
    except TypeError:
        lacking = [f.name for f in dataclasses.fields(kind) if f.name not in values]  # type: ignore[arg-type]  # a data class
        raise ValueError(f"{where} lacks one of {', '.join(lacking)}") from None


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (hint,) = [argument for argument in arguments if argument is not type(None)]
        return _value(hint, value, where)
    if dataclasses.is_dataclass(hint):
        return build(hint, value, where)  # type: ignore[arg-type]  # a data class
    if origin is list and isinstance(value, list):
        return [_value(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if origin is tuple and isinstance(value, list) and len(value) == len(arguments):
        return tuple(_value(kind, item, where) for kind, item in zip(arguments, value, strict=True))
    if origin is dict and isinstance(value, dict):
        return {key: _value(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if hint is Any or (origin is Literal and value in arguments) or _is_plain(hint, value):
        return value
    raise ValueError(f"{where} is {value!r:.40}, and not of type {getattr(hint, '__name__', hint)}")


def _is_plain(hint: Any, value: object) -> bool:
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < _INT64
    return hint in (str, bool) and isinstance(value, hint)

"""Names of GPU kernels: which of two spellings mean the same kernel.

The C++ runtime's demangler (gpu_activity) and Nsight Compute spell one kernel differently:
`copy(float4 const*)` and `copy(const float4 *)`, `std::array<char*, 2ul>` and `std::array<char *, 2>`,
`(anonymous namespace)` and `<unnamed>`, `{lambda(int)#1}` and `[lambda(int) (instance 1)]`. Nsight Compute also
writes a template's parameters as T1, T2 and leaves some namespaces out (its name simplification).
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable

_LAMBDA = (
    (re.compile(r"\[lambda\([^()]*\) \(instance (\d+)\)\]"), r"lambda#\1"),
    (re.compile(r"\{lambda\([^()]*\)#(\d+)\}"), r"lambda#\1"),
)
_GROUP = re.compile(r"\([^()]*\)(?: ?const)?(::)?")
_WORDS = re.compile(r"\b(?:const|volatile|__restrict__|__restrict)\b|\bvoid (?=[\w:])")
_INTEGER = re.compile(r"(?<![\w.])(-?\d+)(?:ull|ul|u|ll|l)\b", re.IGNORECASE)
_SPACE = re.compile(r"\s*([^\w\s])\s*|(?<=\w)\s+(?=\w)")
_NAMESPACE = re.compile(r"(?<![#\w])\w+::")
_LONGEST = 1 << 16
"""Longest name that is taken apart; C++ templates reach some ten thousand characters."""


@functools.lru_cache(maxsize=4096)
def kernel_key(name: str) -> str:
    """What all spellings of one kernel have in common: its name and template arguments.

    Left out: parameter lists, return type, const, namespaces. Overloads in one or several namespaces share a key; who
    joins by it compares grid and block too, and prefers an equal name (`same_kernels`).
    """
    if len(name) > _LONGEST:
        return name
    text = name.replace("(anonymous namespace)", "unnamed").replace("<unnamed>", "unnamed").replace("operator ()", "()")
    text = text.replace("operator()", "()")
    while True:  # innermost first: a lambda's parameters may hold another lambda
        before = text
        for pattern, common in _LAMBDA:
            text = pattern.sub(common, text)
        if text == before:
            text = _GROUP.sub(lambda m: "." if m[1] else "", text)
        if text == before:
            break
    text = _WORDS.sub("", text)
    text = _INTEGER.sub(r"\1", text)
    text = re.sub(r"\btrue\b", "1", re.sub(r"\bfalse\b", "0", text))
    text = _SPACE.sub(lambda m: m[1] or " ", text).strip()
    return _NAMESPACE.sub("", text).strip(".")


def function_name(name: str) -> str | None:
    """A kernel's bare function name, without namespaces, template arguments and parameters; None if it has none."""
    bare = kernel_key(name).partition("<")[0]
    return bare if re.fullmatch(r"[A-Za-z_]\w*", bare) else None


def same_kernels(names: Iterable[str], others: Iterable[str]) -> dict[str, str]:
    """Each of `names` that also is among `others`, in whatever spelling -> that one.

    An equal name wins; else the only one with the same key. Where several have it, which one is meant can't be told,
    and the name is left out.
    """
    equal = set(others)
    by_key: dict[str, set[str]] = defaultdict(set)
    for other in equal:
        by_key[kernel_key(other)].add(other)
    found = {}
    for name in names:
        candidates = by_key.get(kernel_key(name), set())
        if name in equal:
            found[name] = name
        elif len(candidates) == 1:
            found[name] = next(iter(candidates))
    return found

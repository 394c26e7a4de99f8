"""Folded stacks: `process;thread;frame;...;leaf count`, one line a distinct stack, as flamegraph.pl and others read.

Names are escaped so that reading gives back exactly what was written. In a name, backslash is `\\\\`, newline `\\n`,
and `;`, controls, line separators and lone surrogates are `\\xNN` or `\\uNNNN` (code point, hexadecimal). An empty
name is `\\e`.
Each frame ends in its layer, `_[j]` java, `_[p]` python, `_[n]` native, `_[k]` kernel, `_[g]` gpu or `_[s]` state, so
that readers never merge functions of two languages by name; processes and threads carry none, and a frame of them that
happens to end so has its `[` escaped. The count is the last word of a line; it is in ns, or samples for that weight.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from perfscope.errors import InputError
from perfscope.merge.calltree import CallTree, TreeFrame

_LETTERS = {"java": "j", "python": "p", "native": "n", "kernel": "k", "gpu": "g", "state": "s"}
_LAYERS = {letter: layer for layer, letter in _LETTERS.items()}
_SPECIAL = re.compile("[\\\\;\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ESCAPED = re.compile(r"\\(\\|n|e|x[0-9a-f]{2}|u[0-9a-f]{4})")
_SUFFIX = re.compile(r"_\[([jpnkgs])\]\Z")

Path = tuple[tuple[str | None, str], ...]
"""One stack, outermost first: (layer, name) each; layer is None for processes and threads."""


def lines(tree: CallTree, weight: str) -> Iterator[str]:
    """One line for each distinct stack with a self weight above 0, without line ends, in the tree's own order.

    Raises KeyError if the tree has no such weight. Stacks that differ in nothing a line shows are summed.
    """
    names = [_name(frame) for frame in tree.frames]
    texts: list[str] = [""] * len(tree.parent)
    sums: dict[str, int] = {}
    values = tree.weights[weight].tolist()
    for node, (parent, frame) in enumerate(zip(tree.parent.tolist(), tree.frame.tolist(), strict=True)):
        if parent >= 0:
            texts[node] = f"{texts[parent]};{names[frame]}" if parent else names[frame]
        if values[node]:
            sums[texts[node]] = sums.get(texts[node], 0) + values[node]
    for text, value in sums.items():
        yield f"{text} {value}"


def read(text: Iterable[str], name: str = "folded stacks") -> dict[Path, int]:
    """What `lines` wrote: path -> count. Raises InputError naming `name` and the line for anything else."""
    stacks: dict[Path, int] = {}
    for number, line in enumerate(text, 1):
        line = line.removesuffix("\n")
        if not line:
            continue
        stack, space, digits = line.rpartition(" ")
        if not space or not (digits.isascii() and digits.isdigit()):
            raise InputError(f"{name}: line {number}: doesn't end in a count")
        path = tuple(_parse(field) for field in stack.split(";")) if stack else ()
        stacks[path] = stacks.get(path, 0) + int(digits)
    return stacks


def _name(frame: TreeFrame) -> str:
    text = _SPECIAL.sub(_escape, frame.label) or "\\e"
    letter = _LETTERS.get(frame.layer)
    if letter:
        return f"{text}_[{letter}]"
    return f"{text[:-3]}\\x5b{text[-2:]}" if _SUFFIX.search(text) else text


def _escape(match: re.Match[str]) -> str:
    char = match.group()
    if char in "\\\n":
        return "\\\\" if char == "\\" else "\\n"
    return f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}"


def _parse(field: str) -> tuple[str | None, str]:
    suffix = _SUFFIX.search(field)
    text = field[: suffix.start()] if suffix else field
    return _LAYERS[suffix.group(1)] if suffix else None, _ESCAPED.sub(_unescape, text)


def _unescape(match: re.Match[str]) -> str:
    code = match.group(1)
    return {"\\": "\\", "n": "\n", "e": ""}[code] if len(code) == 1 else chr(int(code[1:], 16))

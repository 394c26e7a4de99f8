"""One name for one GPU kernel, whichever tool wrote it down.

Demanglers differ: `at::(anonymous namespace)::k<(int)4, char*>(char*)` to one, `void at::<unnamed>::k<4, char *>(T2)` to
another, which leaves out some namespaces too. What all write alike stays: names without what they are qualified with,
template arguments, and which lambda of which function. Parameter lists go, because some tools write T1, T2 in them.
"""

from __future__ import annotations

import re
from functools import lru_cache

_LAMBDA = re.compile(r"[\[{]lambda(\([^()]*\))?\s*(?:#(\d+)|\(instance (\d+)\))?[\]}]|'lambda(\d*)'(\([^()]*\))?")
_UNNAMED = re.compile(r"\(anonymous namespace\)|<unnamed>|\(anonymous\)|_GLOBAL__N_\w*|_INTERNAL_\w+")
_CALL = re.compile(r"operator ?\(\)")
_CAST = re.compile(r"\((?:[A-Za-z_][\w:]*(?:<[^()]*>)?[ *]*)+\)(?=-?\d)")
_NUMBER = re.compile(r"\b(\d+)(?:[uU]?[lL]{0,2}|[lL]{1,2}[uU])\b")
_WORDS = re.compile(r"\b(?:const|volatile|struct|class|void(?=\s+[\w:~]))\b|&")
_QUALIFIED = re.compile(r"(?:[A-Za-z_]\w*)?(?:::)+(?!lambda_)(?=[A-Za-z_])")
_TRUTH = {"true": "1", "false": "0"}
_MAX_CHARS = 1 << 16


@lru_cache(maxsize=1 << 14)
def canonical(name: str) -> str:
    """The key by which launches of one kernel are found across tools; for comparing, not for showing.

    Two launches are of the same kernel only if grid and block agree too: parameter types alone are not told apart.
    """
    text = _LAMBDA.sub(_lambda, name[:_MAX_CHARS])
    text = _UNNAMED.sub("", text)
    text = _CALL.sub("", text)
    text = _CAST.sub("", text)
    text = _without_parentheses(text)
    text = _NUMBER.sub(r"\1", text)
    text = _WORDS.sub(" ", text)
    text = re.sub(r"\b(true|false)\b", lambda match: _TRUTH[match[1]], text)
    text = re.sub(r"\s*([<>,*:\[\]])\s*", r"\1", text)
    text = re.sub(r":{3,}", "::", text)
    text = _QUALIFIED.sub("", text)
    return re.sub(r"\s+", " ", text).strip()


def base(name: str) -> str:
    """The function's own name: no namespaces, no template arguments, no parameters. `sgemm` of `void a::sgemm<4>(T1)`."""
    text = canonical(name)
    return text.partition("<")[0].rpartition("::")[2] or text


def _lambda(match: re.Match[str]) -> str:
    parameters = re.sub(r"\bconst\b|[\w]+::|[&\s()]", "", match[1] or match[5] or "")
    number = match[2] or match[3] or (str(int(match[4]) + 2) if match[4] else "1")
    return f"lambda_{number}_{re.sub(r'[^A-Za-z0-9_]', '_', parameters)}"


def _without_parentheses(text: str) -> str:
    parts = []
    depth = 0
    for piece in re.split(r"([()])", text):
        if piece == "(":
            depth += 1
        elif piece == ")":
            depth = max(0, depth - 1)
        elif not depth:
            parts.append(piece)
    return "".join(parts)

"""Lines of instructions as read from CPython's location tables, against what CPython itself says of each."""

from __future__ import annotations

import importlib.util
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.collectors.pycode import Code

MODULES = (
    "argparse",
    "ast",
    "asyncio.base_events",
    "dataclasses",
    "enum",
    "inspect",
    "subprocess",
    "tarfile",
    "typing",
)


def objects(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and all that it defines."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from objects(constant)


def read(code: types.CodeType) -> list[int | None]:
    ours = Code(code.co_filename, code.co_qualname, code.co_firstlineno, code.co_linetable)
    return [ours.line(unit) for unit in range(len(code.co_code) // 2)]


def told(code: types.CodeType) -> list[int | None]:
    """CPython's own: the line of each code unit, caches included."""
    lines: list[int | None] = []
    for start, end, line in code.co_lines():
        assert start == 2 * len(lines)
        lines += [line] * ((end - start) // 2)
    return lines


@pytest.mark.parametrize("module", MODULES)
def test_every_instruction_of_a_module_has_cpythons_line(module: str) -> None:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text()
    found = list(objects(compile(source, spec.origin, "exec")))
    assert len(found) > 50
    for code in found:
        assert read(code) == told(code), code.co_qualname


NAMES = st.sampled_from(["a", "größe", "x" * 150])
"""The long one puts what follows it beyond the columns that short entries can hold."""
GAPS = st.sampled_from(["", "\n", "\n" * 3, "\n" * 70, "\n" * 5000])
EXPRESSIONS = st.recursive(
    NAMES,
    lambda inner: st.one_of(
        st.builds("({}{} + {})".format, inner, GAPS, inner),
        st.builds("{}({}{})".format, NAMES, GAPS, inner),
        st.builds("[i{} for i in {}{} if i]".format, GAPS, inner, GAPS),
        st.builds("(lambda q: {}{})".format, GAPS, inner),
    ),
    max_leaves=8,
)
STATEMENTS = st.one_of(
    st.builds("    v = {}\n".format, EXPRESSIONS),
    st.builds("    with {} as w:\n        pass\n".format, EXPRESSIONS),
    st.builds(
        "    try:\n        {}\n    except E as e:{}\n        raise\n    finally:\n        f()\n".format, NAMES, GAPS
    ),
    st.builds("    while ({}):\n        yield {}\n        continue\n".format, EXPRESSIONS, NAMES),
    st.builds("{}    def inner(p={}): return p\n".format, GAPS, NAMES),
)


@given(st.lists(STATEMENTS, min_size=1, max_size=6), GAPS)
def test_made_up_source_has_cpythons_lines(body: list[str], gap: str) -> None:
    source = f"{gap}def f():\n" + "".join(body)
    for code in objects(compile(source, "made up", "exec")):
        assert read(code) == told(code)


def test_instructions_of_no_line_have_none() -> None:
    def leaves() -> None:
        with open("a"):  # noqa: PTH123
            return

    lines = read(leaves.__code__)
    assert None in lines
    assert lines == told(leaves.__code__)


def test_an_instruction_behind_the_table_is_of_the_first_line() -> None:
    assert Code("f", "n", 7, b"").line(0) == 7
    assert Code("f", "n", 7, told.__code__.co_linetable).line(1 << 31) == 7


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_a_broken_table_gives_some_line_or_none(table: bytes, instruction: int) -> None:
    line = Code("f", "n", 1, table).line(instruction)
    assert line is None or isinstance(line, int)


def test_a_number_without_an_end_is_read_in_no_time() -> None:
    """A table of a megabyte that is one number: reading it whole would take work in proportion to its square."""
    line = Code("f", "n", 1, b"\xe8" + b"\x7f" * (1 << 20)).line(0)
    assert line is not None
    assert abs(line) < 1 << 64

"""The stack trie: whatever goes in comes out, each distinct stack is kept once, and damage is refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.model.schema import LAYERS, schema
from perfscope.model.stacks import ROOT, Frame, StackTable

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
frames = st.builds(
    Frame,
    st.sampled_from(LAYERS),
    text,
    st.none() | text,
    st.none() | st.integers(1, 2**31 - 1),
    st.none() | text,
)
stacks = st.lists(st.lists(frames, max_size=6), max_size=20)


@given(stacks)
def test_every_stack_comes_back_as_it_went_in(given_stacks: list[list[Frame]]) -> None:
    table = StackTable()
    ids = [table.stack(stack) for stack in given_stacks]
    assert [table.path(stack_id) for stack_id in ids] == given_stacks
    reread = StackTable.from_arrow(*table.to_arrow())
    assert [reread.path(stack_id) for stack_id in ids] == given_stacks


@given(stacks)
def test_each_distinct_stack_and_frame_is_kept_once(given_stacks: list[list[Frame]]) -> None:
    table = StackTable()
    for stack in given_stacks + given_stacks:
        table.stack(stack)
    prefixes = {tuple(stack[:length]) for stack in given_stacks for length in range(1, len(stack) + 1)}
    assert len(table.parents) == len(prefixes)
    assert len(table.frames) == len({frame for stack in given_stacks for frame in stack})


@given(stacks, stacks)
def test_a_reread_table_goes_on_with_the_same_ids(first: list[list[Frame]], second: list[list[Frame]]) -> None:
    table = StackTable()
    for stack in first:
        table.stack(stack)
    reread = StackTable.from_arrow(*table.to_arrow())
    assert [reread.stack(s) for s in first + second] == [table.stack(s) for s in first + second]


@given(stacks)
def test_callers_stand_before_what_they_call(given_stacks: list[list[Frame]]) -> None:
    table = StackTable()
    for stack in given_stacks:
        table.stack(stack)
    parents = table.parent_array()
    assert (parents < np.arange(len(parents))).all()
    assert (parents >= ROOT).all()


def test_same_names_of_two_languages_stay_apart() -> None:
    table = StackTable()
    assert table.stack([Frame("python", "run")]) != table.stack([Frame("java", "run")])


def test_the_empty_stack_is_the_root() -> None:
    table = StackTable()
    assert table.stack([]) == ROOT
    assert table.path(ROOT) == []


def test_the_tables_have_the_declared_schema() -> None:
    table = StackTable()
    table.stack([Frame("python", "main", "a.py", 3, None), Frame("native", "read", None, None, "libc.so.6")])
    for empty in (StackTable(), table):
        for name, data in zip(("frames", "stacks"), empty.to_arrow(), strict=True):
            assert data.schema.equals(schema(name)), name


@pytest.mark.parametrize(
    ("parents", "frame_ids"),
    [([0], [0]), ([1, -1], [0, 0]), ([-2], [0]), ([-1], [1]), ([-1], [-1])],
    ids=["its own caller", "a later caller", "no such caller", "no such frame", "a negative frame"],
)
def test_a_damaged_trie_is_refused(parents: list[int], frame_ids: list[int]) -> None:
    good = StackTable()
    good.frame(Frame("python", "main"))
    damaged = pa.table(
        [pa.array(range(len(parents)), pa.int32()), pa.array(parents, pa.int32()), pa.array(frame_ids, pa.int32())],
        schema=schema("stacks"),
    )
    with pytest.raises(ValueError, match="don't exist"):
        StackTable.from_arrow(good.to_arrow()[0], damaged)

import pytest
import reports_helpers as helpers
from hypothesis import given
from hypothesis import strategies as st

from perfscope.errors import InputError
from perfscope.merge.calltree import TreeFrame
from perfscope.reports import folded

NAMES = st.text(st.characters(), max_size=12) | st.sampled_from(helpers.ODD_NAMES)
LAYERS = st.sampled_from(["java", "python", "native", "kernel", "gpu", "state", "process", "thread"])
FRAMES = st.builds(TreeFrame, LAYERS, NAMES)


def expected(stacks: list[helpers.Stack], weight: str) -> dict[folded.Path, int]:
    sums: dict[folded.Path, int] = {}
    for stack in stacks:
        path = tuple((None if f.layer in ("process", "thread") else f.layer, f.label) for f in stack.frames)
        value = {"wall": stack.wall, "cpu": stack.cpu, "off-cpu": stack.wall - stack.cpu, "samples": stack.samples}
        if value[weight]:
            sums[path] = sums.get(path, 0) + value[weight]
    return sums


@pytest.mark.parametrize("weight", ["wall", "cpu", "off-cpu", "samples"])
@pytest.mark.parametrize("make", [helpers.server, helpers.odd])
def test_what_is_written_reads_back_exactly(make, weight: str) -> None:
    stacks = make()
    text = "".join(line + "\n" for line in folded.lines(helpers.build(stacks), weight))
    assert folded.read(text.splitlines(keepends=True)) == expected(stacks, weight)


@given(st.lists(st.tuples(st.lists(FRAMES, min_size=1, max_size=5), st.integers(1, 10**12)), max_size=8))
def test_any_name_survives(rows: list[tuple[list[TreeFrame], int]]) -> None:
    stacks = [helpers.Stack(tuple(frames), weight, 0, 1) for frames, weight in rows]
    lines = list(folded.lines(helpers.build(stacks), "wall"))
    assert all(len(line.splitlines()) == 1 for line in lines)
    assert folded.read(lines) == expected(stacks, "wall")


def test_one_name_in_two_languages_stays_two_frames() -> None:
    base = (helpers.frame("process", "p"), helpers.frame("thread", "t"))
    stacks = [
        helpers.Stack((*base, helpers.frame("python", "run")), 3, 0, 1),
        helpers.Stack((*base, helpers.frame("java", "run")), 5, 0, 1),
    ]
    assert list(folded.lines(helpers.build(stacks), "wall")) == ["p;t;run_[p] 3", "p;t;run_[j] 5"]


@pytest.mark.parametrize("line", ["no count", "a;b -3", "a;b 1.5", "a;b \u0664", "12"])
def test_a_line_without_a_count_is_named(line: str) -> None:
    with pytest.raises(InputError, match=r"stacks\.folded: line 2:"):
        folded.read(["a 1\n", line + "\n"], "stacks.folded")

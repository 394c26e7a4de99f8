"""Which kernels are measured, on GPU timelines whose right answer follows by hand."""

import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ncu_helpers import launches

from perfscope.collectors.ncu.driver import METRICS, SECTIONS, command_line
from perfscope.collectors.ncu.selection import LAUNCHES, select
from perfscope.model.schema import schema


def chosen(runs, **config):
    return select(pa.Table.from_pylist(launches(1000, runs, **config), schema("gpu_activity")))


def test_the_heaviest_kernels_are_taken_until_they_carry_90_percent():
    selection = chosen([("a(int)", 60), ("b(int)", 31), ("c(int)", 5), ("d(int)", 4)] * 50)
    assert [c.name for c in selection.chosen] == ["a(int)", "b(int)"]
    assert selection.functions == ("a", "b")
    assert selection.covers_pct == pytest.approx(91)
    assert (selection.chosen[0].launches, selection.chosen[0].spent_ns, selection.total_ns) == (50, 3000, 5000)
    assert selection.expected == 2 * LAUNCHES
    assert "9.0% of kernel time are too small" in " ".join(selection.notes)


def test_configurations_of_one_kernel_are_chosen_apart():
    rows = launches(0, [("a(int)", 90)] * 50, grid=(1000, 1, 1)) + launches(9000, [("a(int)", 1)] * 50, grid=(1, 1, 1))
    selection = select(pa.Table.from_pylist(rows, schema("gpu_activity")))
    assert [(c.name, c.grid) for c in selection.chosen] == [("a(int)", (1000, 1, 1))]


def test_instances_of_one_template_are_chosen_apart_and_all_that_bear_its_name_expected():
    selection = chosen([("ns::a<1>(int)", 60), ("ns::a<2>(int)", 35), ("ns::a<3>(int)", 5)] * 50)
    assert [c.name for c in selection.chosen] == ["ns::a<1>(int)", "ns::a<2>(int)"]
    assert (selection.functions, selection.expected) == (("a",), 3 * LAUNCHES)


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("void at::native::copy<4, at::native::(anonymous namespace)::F<float>>(int, F)", True),
        ("copy(int)", True),
        ("copy", True),
        ("void ns::copy_all<4>(int)", False),
        ("void ns::deep_copy(int)", False),
        ("void ns::fill<4>(ns::copy_t)", False),
    ],
)
def test_ncu_is_asked_for_kernels_of_that_name_alone(tmp_path, name, taken):
    selection = chosen([("copy<1>(int)", 100)] * 10)
    line = command_line(tmp_path / "ncu", ["x"], report=tmp_path / "r", log=tmp_path / "l", selection=selection)
    pattern = line[line.index("--kernel-name") + 1].removeprefix("regex:")
    assert bool(re.search(pattern, name)) == taken


def test_autotuning_is_left_out_and_said():
    tuning = [(f"candidate_{n}(int)", 500) for n in range(20) for _ in range(5)]
    steady = [("candidate_3(int)", 100), ("norm(int)", 20)] * 400
    selection = chosen(tuning + steady)
    assert [c.name for c in selection.chosen] == ["candidate_3(int)", "norm(int)"]
    note = next(n for n in selection.notes if "autotuning" in n)
    spent = 19 * 5 * 500
    assert f"19 kernels with {100 * spent / (spent + 2500 + 48000):.1f}%" in note
    # candidate_3 was tried five times while the others were, too: those launches are no steady ones.
    assert selection.skip == 5
    assert selection.covers_pct == pytest.approx(100 * (2500 + 48000) / (spent + 2500 + 48000))


def test_a_program_in_two_phases_has_no_warm_up():
    selection = chosen([("first(int)", 10)] * 200 + [("second(int)", 10)] * 200)
    assert {c.name for c in selection.chosen} == {"first(int)", "second(int)"}


def test_a_heavy_kernel_with_few_launches_is_not_skipped():
    selection = chosen([("small(int)", 1)] * 100 + [("heavy(int)", 1000)] * 2 + [("small(int)", 1)] * 100)
    assert selection.skip == 1
    assert [(c.name, c.launches) for c in selection.chosen] == [("heavy(int)", 2)]
    assert any("fewer than 2 launches" in note for note in selection.notes)
    once = chosen([("heavy(int)", 1000)])
    assert (once.skip, once.expected) == (0, 1)


def test_without_kernels_there_is_nothing_to_choose():
    assert select(schema("gpu_activity").empty_table()) is None


RUN = st.tuples(st.sampled_from(["a(int)", "b<1>(int)", "ns::c(float)", "(weird)"]), st.integers(0, 10**6))


@given(st.lists(RUN, min_size=1, max_size=200))
def test_any_timeline_gives_a_sound_choice(runs):
    selection = chosen(runs)
    assert 0 <= selection.covers_pct <= 100.0001
    assert selection.total_ns == sum(ns for _, ns in runs)
    assert all(c.launches > selection.skip for c in selection.chosen)
    assert all(name.isidentifier() for name in selection.functions)


def test_the_command_limits_ncu_to_the_choice(tmp_path):
    selection = chosen([("a(int)", 60), ("ns::b<2>(int)", 40)] * 50)
    report, log = tmp_path / "r.ncu-rep", tmp_path / "log.txt"
    line = command_line(tmp_path / "ncu", ["python", "x.py", "--set"], report=report, log=log, selection=selection)
    assert line[-3:] == ["python", "x.py", "--set"]
    # The second and third launch of a and of b, each in every configuration.
    assert line[line.index("--filter-mode") + 1] == "per-launch-config"
    assert (line[line.index("--launch-skip") + 1], line[line.index("--launch-count") + 1]) == ("1", "2")
    assert line[line.index("--kernel-name") + 1] == "regex:(^|[ :])(a|b)($|[<(])"
    assert line[line.index("--kernel-name-base") + 1] == "demangled"
    assert line[line.index("--clock-control") + 1] == "none"
    assert [line[i + 1] for i, part in enumerate(line) if part == "--section"] == list(SECTIONS)
    assert line[line.index("--metrics") + 1] == ",".join(METRICS)
    alone = command_line(tmp_path / "ncu", ["x"], report=report, log=log, selection=None, clocks="base")
    assert (alone[alone.index("--launch-skip") + 1], alone[alone.index("--launch-count") + 1]) == ("0", "1")
    assert "--kernel-name" not in alone
    assert alone[alone.index("--kernel-name-base") + 1] == "demangled"
    assert alone[alone.index("--clock-control") + 1] == "base"

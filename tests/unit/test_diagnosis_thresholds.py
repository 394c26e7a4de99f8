"""Thresholds: every one has a source, projects override them, and mistakes in a project's file are named."""

import re
from pathlib import Path

import pytest

from perfscope.diagnosis.rules import RULES
from perfscope.diagnosis.thresholds import defaults, load, severity
from perfscope.errors import InputError, UsageError
from perfscope.model.finding import Severity

DOCS = Path(__file__).parents[2] / "docs" / "rules.md"


def test_every_rule_has_thresholds_and_every_threshold_a_source():
    thresholds = defaults()
    assert set(thresholds) == {*RULES, "severity", "evaluation"}
    for group in thresholds.values():
        assert group
        for threshold in group.values():
            assert len(threshold.source) > 20
            assert threshold.unit


def test_without_a_project_file_the_defaults_hold(tmp_path):
    assert load(tmp_path) == defaults()


def test_perfscope_toml_overrides_and_says_so(tmp_path):
    (tmp_path / "perfscope.toml").write_text("[thresholds.gil-contention]\nlost_pct = 33\n")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    changed = load(inner)["gil-contention"]["lost_pct"]
    assert changed.value == 33
    assert str(tmp_path / "perfscope.toml") in changed.source
    assert load(inner)["disk-wait"] == defaults()["disk-wait"]


def test_the_nearest_file_wins_and_a_pyproject_without_settings_is_passed(tmp_path):
    (tmp_path / "perfscope.toml").write_text("[thresholds.gil-contention]\nlost_pct = 33\n")
    near = tmp_path / "near"
    near.mkdir()
    (near / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert load(near)["gil-contention"]["lost_pct"].value == 33
    (near / "pyproject.toml").write_text("[tool.perfscope.thresholds.gil-contention]\nlost_pct = 44\n")
    assert load(near)["gil-contention"]["lost_pct"].value == 44
    (near / "perfscope.toml").write_text("[thresholds.severity]\nhigh = 50\n")
    assert load(near)["gil-contention"]["lost_pct"] == defaults()["gil-contention"]["lost_pct"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[thresholds.gil-contenton]\nlost_pct = 3\n", "gil-contenton"),
        ("[thresholds.gil-contention]\nlost_pc = 3\n", "lost_pc"),
        ("[treshold]\n", "treshold"),
        ("[thresholds.gil-contention]\nlost_pct = '3'\n", "lost_pct"),
        ("[thresholds.gil-contention]\nlost_pct = true\n", "lost_pct"),
        ("[thresholds.gil-contention]\nlost_pct = -1\n", "lost_pct"),
        ("[thresholds.gil-contention]\nlost_pct = nan\n", "lost_pct"),
        ("thresholds = 3\n", "thresholds"),
        ("[thresholds]\ngil-contention = 3\n", "gil-contention"),
    ],
)
def test_mistakes_are_named(tmp_path, text, named):
    (tmp_path / "perfscope.toml").write_text(text)
    with pytest.raises(UsageError, match=re.escape(named)) as raised:
        load(tmp_path)
    assert str(tmp_path / "perfscope.toml") in str(raised.value)


def test_a_file_that_is_no_toml_is_an_input_error(tmp_path):
    (tmp_path / "perfscope.toml").write_bytes(b"\xff[")
    with pytest.raises(InputError, match="can't be read"):
        load(tmp_path)


def test_severity_follows_the_cut_offs():
    thresholds = defaults()
    cuts = {name: thresholds["severity"][name].value for name in ("medium", "high", "critical")}
    assert severity(cuts["medium"] - 0.1, thresholds) is Severity.LOW
    for name, value in cuts.items():
        assert severity(value, thresholds) is Severity.parse(name)
    assert severity(None, thresholds) is Severity.LOW


def test_the_documentation_names_every_rule_threshold_and_value():
    sections = dict(re.findall(r"^## `([a-z0-9-]+)`\n(.*?)(?=^## |\Z)", DOCS.read_text(), re.M | re.S))
    assert list(sections) == [*RULES, "severity", "evaluation"]
    for rule, group in defaults().items():
        rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", sections[rule], re.M))
        assert rows == {name: f"{t.value:g} {t.unit}" for name, t in group.items()}

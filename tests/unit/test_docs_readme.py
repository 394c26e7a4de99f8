"""The README promises only what is there: its links, its commands, the name to install."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from perfscope.cli import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_nobody_is_sent_to_someone_elses_distribution(page: Path) -> None:
    installs = re.findall(r"pip install (?:-\S+ )*['\"]?([\w.-]+)", page.read_text(encoding="utf-8"))
    assert "perfscope" not in installs


def test_both_set_up_commands_are_shown_and_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for goal in ("demo", "test"):
        assert f"    make {goal}\n" in readme
        subprocess.run(["make", "-n", goal], cwd=ROOT, check=True, capture_output=True)


def test_every_command_is_in_the_readme() -> None:
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("## Commands")[1].split("##")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_scripts_and_benchmarks_that_are_named_exist(page: Path) -> None:
    for name in re.findall(r"python ((?:scripts|benchmarks)/\w+\.py)", page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name

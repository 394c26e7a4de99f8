"""How often the watcher looks: seldom only where the kernel tells of births, and all has been quiet for a while."""

import os
import subprocess
import sys

import pytest

from perfscope.recording import watch
from perfscope.recording.watch import Watcher


class Listener:
    def __init__(self, told: list[int]) -> None:
        self.told = told
        self.started: list[int] = []

    def process_started(self, process) -> None:
        self.started.append(process.pid)

    def process_ended(self, pid: int) -> None:
        pass

    def followed(self) -> list[int]:
        return self.told


@pytest.fixture
def parent():
    """A process that starts a child for each line that it gets, and says that child's pid."""
    program = (
        "import subprocess, sys\nfor line in sys.stdin:\n    print(subprocess.Popen(['sleep', '60']).pid, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
    ) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, 9)


@pytest.fixture(autouse=True)
def scans_cost_nothing(monkeypatch):
    monkeypatch.setattr(watch, "_SCANS_COST", 0)


def test_a_young_target_and_one_that_nobody_follows_are_looked_at_often(parent):
    for told in ([], [parent.pid]):
        watcher = Watcher([parent.pid], Listener(told), set())
        watcher.scan()
        assert watcher.wait_s == pytest.approx(0.1)


def test_a_calm_target_is_looked_at_seldom_until_a_child_is_born(parent, monkeypatch):
    monkeypatch.setattr(watch, "_YOUNG_NS", 0)
    listener = Listener([parent.pid])
    watcher = Watcher([parent.pid], listener, set())
    watcher.scan()
    watcher.scan()  # by now it was there before the last one
    assert watcher.wait_s == pytest.approx(0.25)
    monkeypatch.setattr(watch, "_YOUNG_NS", 60 * 10**9)
    print(file=parent.stdin, flush=True)
    child = int(parent.stdout.readline())
    watcher.scan()
    assert listener.started == [parent.pid, child]
    assert watcher.wait_s == pytest.approx(0.1)
    assert sorted(watcher.live) == sorted([parent.pid, child])

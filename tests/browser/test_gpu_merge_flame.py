"""GPU time in the viewer: the weight, and what is known of a kernel when the pointer is on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import reports_helpers as helpers
from playwright.sync_api import Browser, sync_playwright

from perfscope.merge.calltree import CallTree, TreeFrame
from perfscope.reports import flame

CHROMIUM = "/usr/bin/chromium"
KERNEL = "ampere_sgemm_128x64_tn"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


def tree() -> CallTree:
    """main launches a kernel, 30 ms busy and 70 ms idle; on the host all of 100 ms are spinning for it."""
    trunk = (TreeFrame("process", "serve (1)"), TreeFrame("thread", "main (1)"), TreeFrame("python", "main", "a.py"))
    spinning = TreeFrame("state", f"[spinning: GPU sync for {KERNEL}]")
    ms = 1_000_000
    made = helpers.build(
        [
            helpers.Stack((*trunk, spinning), 100 * ms, 100 * ms, 1),
            helpers.Stack((*trunk, TreeFrame("gpu", "[matrix multiply]"), TreeFrame("gpu", KERNEL)), 0, 0, 0),
            helpers.Stack((*trunk, TreeFrame("state", "[GPU idle]")), 0, 0, 0),
        ]
    )
    of = {frame.label: i for i, frame in enumerate(made.frames)}
    gpu = np.zeros(len(made.parent), np.int64)
    gpu[made.frame == of[KERNEL]] = 30 * ms
    gpu[made.frame == of["[GPU idle]"]] = 70 * ms
    details = {of[KERNEL]: ["8 times, mean 3.75 ms", "memory 88.8 % of peak", "odd <b>\x07"]}
    return replace(made, weights={**made.weights, "gpu": gpu}, timeline=None, details=details)


def test_kernels_show_their_time_and_what_is_known_of_them(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "flame.html"
    file.write_text(flame.page(tree(), weight="gpu"), encoding="utf-8")
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(file.as_uri())
    page.locator("html[data-state=drawn]").wait_for(state="attached")
    frames = {f["path"][-1]: f for f in page.evaluate("perfscope.frames") if f["path"]}
    assert frames[KERNEL]["width"] / frames["main"]["width"] == pytest.approx(0.3, abs=0.01)
    at = frames[KERNEL]
    page.locator("#flame").hover(position={"x": at["x"] + at["width"] / 2, "y": at["y"] + 10})
    words = page.locator("#tooltip").inner_text()
    assert "8 times, mean 3.75 ms\nmemory 88.8 % of peak\nodd <b>\\x07" in words
    assert "30.0 ms" in words
    legend = page.locator("#legend").inner_text()
    assert "GPU idle" in legend
    assert "70.0 %" in legend
    page.keyboard.press("w")
    page.keyboard.press("w")
    assert "waiting: GPU sync" in page.locator("#legend").inner_text()
    assert said == []

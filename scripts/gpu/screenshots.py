"""Draws the pictures of docs/gpu.md from the session of `perfscope demo --gpu`, in a real browser.

    python scripts/gpu/screenshots.py [--out docs/img] [--chromium PATH]

gpu-idle.png: all of the GPU's time; gpu-kernels.png: what a heavy kernel's module launches, with that kernel's figures;
gpu-wall.png: the host's time of the Python thread that launches.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, Position, ViewportSize, sync_playwright

ROOT = Path(__file__).parents[2]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SIZE: ViewportSize = {"width": 1280, "height": 1080}


def point(page: Page, frame: dict[str, Any], *, click: bool = False) -> None:
    """Puts the pointer on a frame of the graph, or clicks it."""
    at: Position = {"x": frame["x"] + min(frame["width"] / 2, 300), "y": frame["y"] + 10}
    graph = page.locator("#flame")
    graph.click(position=at) if click else graph.hover(position=at)


def into_heaviest_kernel(page: Page) -> None:
    """Zooms to where the widest kernel hangs beside others, and points at it."""
    kernels = [
        f for f in page.evaluate("perfscope.frames") if f["layer"] == "gpu" and not f["path"][-1].startswith("[")
    ]
    path = max(kernels, key=lambda frame: frame["width"])["path"]
    around = path[:-5]  # the kernel, its group, the function that launches it, torch's two wrappers of a module's call
    point(page, next(f for f in page.evaluate("perfscope.frames") if f["path"] == around), click=True)
    point(page, next(f for f in page.evaluate("perfscope.frames") if f["path"] == path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "img")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    perfscope = [sys.executable, "-m", "perfscope"]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        run = partial(subprocess.run, cwd=folder, check=True, capture_output=True)
        run([*perfscope, "demo", "--gpu", "-o", "llm.perfscope"])
        browser = playwright.chromium.launch(executable_path=options.chromium, args=FLAGS)
        page = browser.new_context(viewport=SIZE, color_scheme="light").new_page()
        page.goto((Path(folder) / "llm.html").as_uri())
        page.locator("html[data-state=drawn]").wait_for(state="attached")
        page.screenshot(path=options.out / "gpu-idle.png")
        into_heaviest_kernel(page)
        page.screenshot(path=options.out / "gpu-kernels.png")
        wall = ["flame", "llm.perfscope", "-o", "wall.html", "--weight", "wall", "--thread", "MainThread"]
        run([*perfscope, *wall])
        page.goto((Path(folder) / "wall.html").as_uri())
        page.locator("html[data-state=drawn]").wait_for(state="attached")
        page.screenshot(path=options.out / "gpu-wall.png")
        browser.close()


if __name__ == "__main__":
    main()

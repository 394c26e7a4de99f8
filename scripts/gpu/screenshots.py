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
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[2]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
WIDTH = 1280


def heaviest_kernel(page: Page) -> dict[str, float]:
    """Place of the widest kernel that is drawn."""
    frames = [f for f in page.evaluate("perfscope.frames") if f["layer"] == "gpu" and not f["path"][-1].startswith("[")]
    widest: dict[str, float] = max(frames, key=lambda frame: frame["width"])
    return widest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "img")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    perfscope = [sys.executable, "-m", "perfscope"]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        quiet = {"cwd": folder, "check": True, "capture_output": True}
        subprocess.run([*perfscope, "demo", "--gpu", "-o", "llm.perfscope"], **quiet)
        browser = playwright.chromium.launch(executable_path=options.chromium, args=FLAGS)
        page = browser.new_context(viewport={"width": WIDTH, "height": 860}, color_scheme="light").new_page()
        page.goto((Path(folder) / "llm.html").as_uri())
        page.locator("html[data-state=drawn]").wait_for(state="attached")
        page.screenshot(path=options.out / "gpu-idle.png")
        page.get_by_role("radio", name="wall", exact=True).click()
        page.screenshot(path=options.out / "gpu-wall.png")
        browser.close()


if __name__ == "__main__":
    main()

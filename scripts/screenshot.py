#!/usr/bin/env python3
"""Pictures of a flame graph in a real browser, on light and on dark ground.

    make demo
    python scripts/screenshot.py demo.html docs/img/flame --weight cpu

writes docs/img/flame-light.png and docs/img/flame-dark.png. Needs chromium, and playwright from `make install-dev`.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Literal

from playwright.sync_api import ViewportSize, sync_playwright

SIZE: ViewportSize = {"width": 1280, "height": 760}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, help="what perfscope flame wrote")
    parser.add_argument("prefix", help="path of the pictures, up to -light.png and -dark.png")
    parser.add_argument("--weight", help="wall, cpu, off-cpu, gpu or samples")
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox", "--disable-gpu"])
        schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
        for scheme in schemes:
            page = browser.new_page(viewport=SIZE, color_scheme=scheme)
            page.goto(options.page.resolve().as_uri())
            page.locator("html[data-state=drawn]").wait_for(state="attached")
            if options.weight:
                page.get_by_role("radio", name=options.weight, exact=True).click()
            page.screenshot(path=f"{options.prefix}-{scheme}.png")
        browser.close()


if __name__ == "__main__":
    main()

"""How long a flame graph of 100,000 distinct stacks takes to open in headless Chromium, and how large it is.

    python benchmarks/flame_open.py [--stacks N] [--runs N] [--chromium PATH]

Prints the file's size; per run, the milliseconds from navigation to the first complete picture by the page's own clock
(reading and parsing the file included), and of these what the viewer's script took; and the medians. Needs playwright
and Chromium.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from reports_helpers import many

from perfscope.reports import flame

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-sync", "--disable-background-networking"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stacks", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    tree = many(options.stacks)
    began = time.perf_counter()
    page_text = flame.page(tree)
    writing = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "flame.html"
        file.write_text(page_text, encoding="utf-8")
        print(f"{options.stacks:,} stacks, {len(tree.parent):,} nodes: {file.stat().st_size / 1e6:.2f} MB")
        print(f"made in {writing:.2f} s")
        browser = playwright.chromium.launch(executable_path=options.chromium, args=FLAGS)
        opened, script = [], []
        for run in range(options.runs):
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            page.goto(file.as_uri(), wait_until="commit")
            page.locator("html[data-state]").wait_for(state="attached")
            opened.append(page.evaluate("perfscope.drawnAtMs"))
            script.append(page.evaluate("perfscope.openMs"))
            print(f"run {run + 1}: open {opened[-1]:.0f} ms, of these script {script[-1]:.0f} ms")
            page.close()
        browser.close()
    print(f"median: open {statistics.median(opened):.0f} ms, script {statistics.median(script):.0f} ms")


if __name__ == "__main__":
    main()

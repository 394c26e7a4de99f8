"""How long `perfscope --help` takes: wall time of fresh processes, after one that warms the disk cache.

    python benchmarks/startup.py [--runs N]

Prints median and range beside those of an empty Python process: what that costs, perfscope can't save.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time


def milliseconds(argv: list[str], runs: int) -> list[float]:
    """Wall time of each run in ms, the first left out."""
    took = []
    for _ in range(runs + 1):
        begin = time.perf_counter()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        took.append((time.perf_counter() - begin) * 1e3)
    return took[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    for name, argv in (
        ("python -c pass", [sys.executable, "-c", "pass"]),
        ("perfscope --help", [sys.executable, "-m", "perfscope", "--help"]),
    ):
        took = milliseconds(argv, runs)
        print(
            json.dumps(
                {
                    "command": name,
                    "runs": runs,
                    "median_ms": round(statistics.median(took), 1),
                    "min_ms": round(min(took), 1),
                    "max_ms": round(max(took), 1),
                }
            )
        )


if __name__ == "__main__":
    main()

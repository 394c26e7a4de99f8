"""What recording costs a program on the GPU: scripts/gpu/llm.py recorded with everything on but ncu, beside one alone.

    python3 scripts/gpu/slowdown.py [--rounds 8] [--tokens 300] [RECORD OPTIONS ...]

On a shared host one run takes twice as long as the next, so the two run at the same time, each on a third of the CPUs,
the collectors on the last third; they decode the same tokens from the same moment on, and swap their CPUs every round.
A round's ratio is of the milliseconds of a token (median), recorded over alone; printed are the median of the rounds
and its 95 % interval (bootstrap). The control is the same of two that run alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import cycle
from pathlib import Path

import numpy as np

PROGRAM = """
import statistics, sys
sys.path.insert(0, sys.argv[1])
import torch
from llm import PROMPT_TOKENS, WARM_UP_TOKENS, generate, load
model = load()
prompt = torch.randint(0, 32_000, (1, PROMPT_TOKENS), device="cuda")
generate(model, prompt, WARM_UP_TOKENS)
print("READY", flush=True)
sys.stdin.readline()
print(statistics.median(generate(model, prompt, int(sys.argv[2]))), flush=True)
"""


def cpus(third: int) -> str:
    """A third of the CPUs that this process may use, as taskset takes them."""
    allowed = sorted(os.sched_getaffinity(0))
    return ",".join(map(str, allowed[third * len(allowed) // 3 : (third + 1) * len(allowed) // 3]))


def start(third: int, tokens: int, recorder: list[str]) -> subprocess.Popen[str]:
    before = ["taskset", "-c", cpus(2), *recorder] if recorder else []
    program = ["taskset", "-c", cpus(third), sys.executable, "-c", PROGRAM, str(Path(__file__).parent), str(tokens)]
    return subprocess.Popen(
        [*before, *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def beside(thirds: tuple[int, int], tokens: int, recorder: list[str]) -> float:
    """Milliseconds of a token of the first program, which `recorder` starts if there is one, over the second's."""
    pair = [start(thirds[0], tokens, recorder), start(thirds[1], tokens, [])]
    try:
        for process in pair:
            assert process.stdin and process.stdout
            if process.stdout.readline().strip() != "READY":
                sys.exit(f"{process.args!r} did not start")
        for process in pair:
            assert process.stdin
            process.stdin.write("\n")
            process.stdin.flush()
        first, second = (float(process.stdout.readline()) for process in pair if process.stdout)
        for process in pair:
            process.wait()
    finally:
        for process in pair:
            process.kill()
    return first / second


def interval(values: list[float]) -> dict[str, float]:
    """Median, and the 95 % interval of the median over 10,000 draws with replacement."""
    draws = np.median(np.random.default_rng(0).choice(values, (10_000, len(values))), axis=1)
    low, high = np.percentile(draws, (2.5, 97.5))
    return {"median": round(float(np.median(values)), 4), "low": round(float(low), 4), "high": round(float(high), 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=300)
    asked, options = parser.parse_known_args()
    ratios: dict[str, list[float]] = {"recorded": [], "control": []}
    with tempfile.TemporaryDirectory() as folder:
        session = Path(folder) / "slowdown.perfscope"
        record = [sys.executable, "-m", "perfscope", "record", "--force", "-o", str(session), *options, "--"]
        for _, thirds in zip(range(asked.rounds), cycle([(0, 1), (1, 0)]), strict=False):
            ratios["recorded"].append(beside(thirds, asked.tokens, record))
            ratios["control"].append(beside(thirds, asked.tokens, []))
            print(json.dumps({name: round(done[-1], 4) for name, done in ratios.items()}), file=sys.stderr, flush=True)
        collectors = json.loads((session / "session.json").read_text())["collectors"]
    said = {name: interval(done) for name, done in ratios.items()} | {
        "rounds": asked.rounds,
        "collectors": {
            name: {key: report[key] for key in ("status", "events", "lost_events")}
            for name, report in collectors.items()
        },
    }
    print(json.dumps(said, indent=1))


if __name__ == "__main__":
    main()

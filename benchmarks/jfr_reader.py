"""How much faster perfscope reads a .jfr file than `jfr print --json` of the JDK, for the same events.

    python benchmarks/jfr_reader.py [FILE.jfr] [--rounds 5]

Both get the same file and the same list of events, in interleaved rounds; each round takes the time of a whole
process (interpreter or JVM start included) and, for our reader, of the reading alone within it. Medians, and the ratio.
Without a file, tests/data/jfr/phases.jfr is read.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

DATA = Path(__file__).parent.parent / "tests" / "data" / "jfr" / "phases.jfr"

OURS = """
import sys, time
from pathlib import Path
from perfscope.collectors.jfr.chunk import JfrFile
from perfscope.collectors.jfr.kinds import CONSTANTS
begin = time.perf_counter()
count = 0
wanted = sys.argv[2].split(",")
for chunk in JfrFile(Path(sys.argv[1]), wanted, CONSTANTS):
    for name in chunk.event_names():
        for row in chunk.rows(name, chunk.field_names(name)):
            count += 1
print(count, time.perf_counter() - begin)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("file", type=Path, nargs="?", default=DATA)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    tool = shutil.which("jfr")
    if tool is None:
        print("no `jfr` on PATH: install a JDK", file=sys.stderr)
        return 2
    from perfscope.collectors.jfr.kinds import WANTED

    names = ",".join(sorted(WANTED))
    theirs: list[float] = []
    process: list[float] = []
    reading: list[float] = []
    events = ""
    for _ in range(options.rounds):
        begin = time.perf_counter()
        subprocess.run(
            [tool, "print", "--json", "--stack-depth", "64", "--events", names, str(options.file)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        theirs.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", OURS, str(options.file), names], check=True, capture_output=True, text=True
        )
        process.append(time.perf_counter() - begin)
        events, inner = done.stdout.split()
        reading.append(float(inner))
    medians = [statistics.median(times) for times in (theirs, process, reading)]
    print(f"{options.file.name}: {options.file.stat().st_size / 1e6:.2f} MB, {events} events, {options.rounds} rounds")
    for what, median in zip(("jfr print --json", "ours, whole process", "ours, reading"), medians, strict=True):
        print(f"{what:22} {median * 1e3:9.1f} ms   {medians[0] / median:6.1f} x")
    return 0


if __name__ == "__main__":
    sys.exit(main())

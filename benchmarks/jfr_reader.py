"""How much faster perfscope reads a .jfr file than `jfr print --json` of the JDK, for the same events.

    python benchmarks/jfr_reader.py [FILE.jfr ...] [--rounds 5] [--keep FOLDER]

Both get the same file and the same list of events, in interleaved rounds; each round takes the time of a whole
process (interpreter or JVM start included) and, for our reader, of the reading alone within it. Medians, and the ratio.
Without a file: tests/data/jfr/phases.jfr and two recordings made on the spot with perfscope's own settings, one of a
busy program and one of a heap so small that it is collected all the time. --keep leaves these two in a folder.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from perfscope import probes
from perfscope.collectors.jfr.kinds import WANTED

HERE = Path(__file__).parent
DATA = HERE.parent / "tests" / "data" / "jfr" / "phases.jfr"
MADE = {"mixed": 4.0, "gc": 2.5}
"""What the program does -> for how many seconds. Some 40,000 and 120,000 events on the 2-core machine."""

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


def make(work: str, folder: Path) -> Path:
    """Records JfrLoad.java at that work."""
    path = folder / f"{work}.jfr"
    recording = f"-XX:StartFlightRecording=filename={path},settings={probes.path('jfr', 'perfscope.jfc')}"
    heap = ("-XX:+UseSerialGC", "-Xmn1m", "-Xmx64m")
    subprocess.run(
        ["java", *heap, recording, str(HERE / "JfrLoad.java"), work, str(MADE[work])],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return path


def measure(file: Path, rounds: int) -> None:
    names = ",".join(sorted(WANTED))
    theirs: list[float] = []
    process: list[float] = []
    reading: list[float] = []
    events = ""
    for _ in range(rounds):
        begin = time.perf_counter()
        subprocess.run(
            ["jfr", "print", "--json", "--stack-depth", "64", "--events", names, str(file)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        theirs.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", OURS, str(file), names], check=True, capture_output=True, text=True
        )
        process.append(time.perf_counter() - begin)
        events, inner = done.stdout.split()
        reading.append(float(inner))
    medians = [statistics.median(times) for times in (theirs, process, reading)]
    print(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB, {events} events, {rounds} rounds")
    for what, median in zip(("jfr print --json", "ours, whole process", "ours, reading"), medians, strict=True):
        print(f"{what:22} {median * 1e3:9.1f} ms   {medians[0] / median:6.1f} x")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE.jfr")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the made recordings there")
    options = parser.parse_args()
    if shutil.which("jfr") is None:
        print("no `jfr` on PATH: install a JDK", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for file in options.files or [DATA, *(make(work, folder) for work in MADE)]:
            measure(file, options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())

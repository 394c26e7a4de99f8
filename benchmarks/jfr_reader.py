"""How much faster perfscope reads a .jfr file than `jfr print --json` of the JDK, for the same events.

    python benchmarks/jfr_reader.py [FILE.jfr ...] [--rounds 5] [--keep FOLDER]

All get the same file, in interleaved rounds: `jfr print` as a whole process, for the events that perfscope reads; our
reader alone, for all fields of the same events, as columns in memory; and `perfscope import` as a whole process, which
resolves stacks and names and writes a session. Medians, and the ratio.
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
MADE = {"mixed": 40_000, "gc": 12_000_000}
"""What the program does -> how many steps of it. They give some 40,000 and 150,000 events."""

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
        for piece in chunk.columns(name, chunk.field_names(name)):
            count += piece.count
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


def measure(file: Path, rounds: int, folder: Path) -> None:
    names = ",".join(sorted(WANTED))
    print_ = ["jfr", "print", "--json", "--stack-depth", "64", "--events", names, str(file)]
    import_ = [sys.executable, "-m", "perfscope", "import", str(file), "--force", "-o", str(folder / "s.perfscope")]
    theirs: list[float] = []
    reading: list[float] = []
    whole: list[float] = []
    events = ""
    for _ in range(rounds):
        theirs.append(seconds(print_))
        ours = [sys.executable, "-c", OURS, str(file), names]
        done = subprocess.run(ours, check=True, capture_output=True, text=True)
        events, inner = done.stdout.split()
        reading.append(float(inner))
        whole.append(seconds(import_))
    medians = [statistics.median(times) for times in (theirs, reading, whole)]
    print(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB, {events} events, {rounds} rounds")
    for what, median in zip(("jfr print --json", "our reader", "perfscope import"), medians, strict=True):
        print(f"{what:22} {median * 1e3:9.1f} ms   {medians[0] / median:6.1f} x")


def seconds(command: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


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
            measure(file, options.rounds, Path(temporary))
    return 0


if __name__ == "__main__":
    sys.exit(main())

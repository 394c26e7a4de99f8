"""Runs the commands that a page shows and puts what they print now under them.

    python scripts/page_output.py PAGE [--check]

A block that begins with ```console has a command in its first line, after "$ " (and on up to END, if the line ends in
<<'END'), and below it what that prints on 80 columns. All commands of a page run one after the other in one empty
directory, which is called /home/me in what they print. With --check the page stays as it is, and the exit status is 1
if it says something else than the commands.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

BLOCK = re.compile(
    r"^```console\n\$ (?P<command>.+<<'END'\n(?:.*\n)*?END|.+)\n(?P<said>(?:(?!```).*\n)*)```$", re.MULTILINE
)
SECONDS = 120.0


def printed(command: str, folder: Path) -> str:
    """What a command prints on both streams, on 80 columns. Raises SystemExit with that if it fails."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "80", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=SECONDS,
        check=False,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"$ {command}\n{done.stdout}exit status {done.returncode}")
    lines = done.stdout.replace(str(folder), "/home/me").splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def renewed(text: str) -> str:
    """The page with what its commands print now."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder).resolve()
        return BLOCK.sub(lambda m: f"```console\n$ {m['command']}\n{printed(m['command'], here)}```", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    before = options.page.read_text(encoding="utf-8")
    after = renewed(before)
    if options.check:
        return int(before != after)
    options.page.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

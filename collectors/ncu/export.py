"""Reads .ncu-rep files through ncu's own export to CSV, where NVIDIA's reader isn't installed or fails."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from perfscope.collectors.ncu import binaryreport, driver, textreport
from perfscope.collectors.ncu.launches import Launch
from perfscope.errors import CollectorError, InputError


def read(path: Path) -> tuple[list[Launch], int]:
    """Launches of a report, and the number of exported rows that couldn't be read. Values are rounded as printed.

    Raises CollectorError if there is no ncu, InputError if it can't export the file.
    """
    line = [str(driver.find()), "--import", str(path), "--csv", "--page", "raw"]
    line += ["--print-kernel-base", "mangled", "--print-units", "base"]  # 4 Mbyte/s, not 0.000004 Tbyte/s
    with tempfile.NamedTemporaryFile(prefix="perfscope-ncu-", suffix=".csv") as out:
        try:
            subprocess.run(
                line, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL, timeout=binaryreport.TIME_S,
                preexec_fn=binaryreport.bounded(path), check=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise InputError(f"{path}: ncu's export gave no answer") from None
        except subprocess.CalledProcessError as error:
            raise InputError(f"{path}: ncu's export failed (exit status {error.returncode})") from None
        except OSError as error:
            raise CollectorError(f"{line[0]} can't be started: {error.strerror}") from None
        return textreport.read(Path(out.name))

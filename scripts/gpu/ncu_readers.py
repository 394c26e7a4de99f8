"""A report read through NVIDIA's reader and through ncu's own export: launches, metrics, and where they differ.

python scripts/gpu/ncu_readers.py REPORT.ncu-rep
"""

from __future__ import annotations

import sys
from pathlib import Path

from perfscope.collectors.ncu import binaryreport, export


def main() -> int:
    report = Path(sys.argv[1])
    exact = binaryreport.read(report)
    printed, unread = export.read(report)
    print(f"{len(exact)} launches by ncu-report, {len(printed)} by ncu --import ({unread} lines unread)")
    for one, other in zip(exact, printed, strict=True):
        shared = one.metrics.keys() & other.metrics.keys()
        differ = [
            f"{name} {one.metrics[name]} {other.metrics[name]}"
            for name in sorted(shared)
            if abs(one.metrics[name][0] - other.metrics[name][0]) > 0.01 * abs(one.metrics[name][0]) + 0.01
        ]
        same = (one.name, one.grid, one.block) == (other.name, other.grid, other.block)
        print(f"{one.name} {one.grid} {one.block}: {'same' if same else f'not {other.name} {other.grid}'}, ", end="")
        print(f"{len(one.metrics)} and {len(other.metrics)} metrics, {len(differ)} of {len(shared)} differ")
        for line in differ[:5]:
            print(f"    {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

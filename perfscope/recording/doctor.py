"""What can be recorded on this machine, collector by collector, and what mends the rest."""

from __future__ import annotations

from perfscope import collectors
from perfscope.collectors.base import Check
from perfscope.collectors.ncu import driver
from perfscope.errors import CollectorError
from perfscope.options import Options


def examine(options: Options | None = None) -> list[Check]:
    """All rows of all collectors, in the order in which they start, and of the Nsight Compute pass. Changes nothing."""
    rows: list[Check] = []
    for name in collectors.COLLECTORS:
        try:
            rows += collectors.load(name).check(options or Options())
        except CollectorError as error:
            rows.append(Check(name, name, "unavailable", str(error), error.hint or ""))
        except Exception as error:  # noqa: BLE001 (a defect of one collector must not hide the others' rows)
            rows.append(Check(name, name, "unavailable", f"can't be loaded: {type(error).__name__}: {error}"))
    rows += driver.check()
    return rows

"""pytest plugin (-p tests.noskip): with PERFSCOPE_NO_SKIPS=1, a skip fails unless the test is marked `gpu`.

A test that silently doesn't run proves nothing; where CI has all the tools, each skip is a fault of CI or of the test.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

_FORBIDDEN = os.environ.get("PERFSCOPE_NO_SKIPS") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if _FORBIDDEN and report.skipped and item.get_closest_marker("gpu") is None:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was not run, and nothing but a gpu test may be left out here: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if _FORBIDDEN and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} was left out while collecting: {report.longrepr}"
    return report

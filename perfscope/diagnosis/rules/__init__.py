"""The rules, one module each. Adding one is its module, its thresholds, its section in docs/rules.md and one line here.

A rule's module has `RULE` (its id), `NEEDS` (the collectors it reads) and `evaluate(facts, limits) -> Verdict`: facts
are diagnosis.facts.Facts, limits the rule's own thresholds, and the verdict is flagged (with findings), ok (saying what
was measured), or not_evaluable (naming the missing input and how to get it). A missing value is never 0 and never a
pass. Findings leave `severity` at INFO; the engine sets it from gives_back_pct, except for rules that report no fault
(INFORMATIVE).
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.thresholds import Limits
from perfscope.model.finding import Verdict

RULES: dict[str, str] = {
    "python-hotspot": "perfscope.diagnosis.rules.python_hotspot",
    "gil-contention": "perfscope.diagnosis.rules.gil_contention",
    "cpu-oversubscription": "perfscope.diagnosis.rules.cpu_oversubscription",
    "disk-wait": "perfscope.diagnosis.rules.disk_wait",
    "lock-contention": "perfscope.diagnosis.rules.lock_contention",
    "gc-pause": "perfscope.diagnosis.rules.gc_pause",
    "jvm-allocation": "perfscope.diagnosis.rules.jvm_allocation",
    "sleep-or-idle": "perfscope.diagnosis.rules.sleep_or_idle",
    "launch-bound": "perfscope.diagnosis.rules.launch_bound",
    "sync-in-loop": "perfscope.diagnosis.rules.sync_in_loop",
    "pageable-copy": "perfscope.diagnosis.rules.pageable_copy",
    "copy-not-overlapped": "perfscope.diagnosis.rules.copy_not_overlapped",
    "single-stream": "perfscope.diagnosis.rules.single_stream",
    "small-grid": "perfscope.diagnosis.rules.small_grid",
    "uncoalesced-access": "perfscope.diagnosis.rules.uncoalesced_access",
    "bank-conflict": "perfscope.diagnosis.rules.bank_conflict",
    "divergence": "perfscope.diagnosis.rules.divergence",
    "tensor-core-unused": "perfscope.diagnosis.rules.tensor_core_unused",
    "memory-bound": "perfscope.diagnosis.rules.memory_bound",
    "compute-bound": "perfscope.diagnosis.rules.compute_bound",
    "low-occupancy": "perfscope.diagnosis.rules.low_occupancy",
    "l2-misses": "perfscope.diagnosis.rules.l2_misses",
    "low-sol": "perfscope.diagnosis.rules.low_sol",
    "gpu-saturated": "perfscope.diagnosis.rules.gpu_saturated",
    "gpu-throttled": "perfscope.diagnosis.rules.gpu_throttled",
    "pcie-saturated": "perfscope.diagnosis.rules.pcie_saturated",
}
"""Rule id -> its module."""

INFORMATIVE = frozenset({"sleep-or-idle", "memory-bound", "compute-bound", "gpu-saturated"})
"""Rules whose findings are no fault: severity info."""


class Rule(Protocol):
    def __call__(self, facts: Facts, limits: Limits) -> Verdict: ...


def load(rule: str) -> Rule:
    """The function of a rule."""
    evaluate: Rule = import_module(RULES[rule]).evaluate
    return evaluate


def needs(rule: str) -> tuple[str, ...]:
    """Names of the collectors a rule reads."""
    collectors: tuple[str, ...] = import_module(RULES[rule]).NEEDS
    return collectors

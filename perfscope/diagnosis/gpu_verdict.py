"""What the rules on a GPU's timeline have in common in what they say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from perfscope.diagnosis.describe import by_function, not_evaluable, ok, path
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.gpu_timeline import Gpu, gpus, missing
from perfscope.diagnosis.thresholds import Limits
from perfscope.model.finding import Finding, Verdict, Where
from perfscope.model.stacks import ROOT, Frame


def verdict(rule: str, facts: Facts, limits: Limits, judge: Callable[[Facts, Limits, Gpu], Finding | str]) -> Verdict:
    """`judge` of every GPU: a finding, or what was measured."""
    if gap := missing(facts):
        return not_evaluable(rule, *gap)
    judged = [judge(facts, limits, gpu) for gpu in gpus(facts)]
    if not judged:
        return not_evaluable(rule, "no GPU activity after the warm-up", "a longer recording")
    findings = tuple(found for found in judged if isinstance(found, Finding))
    if findings:
        return Verdict(rule, "flagged", "; ".join(f.title for f in findings), findings)
    return ok(rule, "; ".join(str(said) for said in judged))


def gives_back(facts: Facts, ns: float) -> float:
    """Share of the recording (0..100) that lies in `ns`; 0 where it has no length."""
    return min(100.0, 100 * ns / facts.elapsed_ns) if facts.elapsed_ns > 0 else 0.0


def gpu_name(gpu: Gpu) -> str:
    """GPU 0: its number as its process counts."""
    return f"GPU {gpu.rows.devices[gpu.device][1]}"


def code_of(
    facts: Facts, gpu: Gpu, rows: npt.NDArray[np.int64], weight: npt.NDArray[np.number]
) -> tuple[Frame | None, int]:
    """The line that launched most of some rows of a GPU's activity, by their weights, and a stack in it."""
    ranked = by_function(facts, gpu.rows.stack[rows].astype(np.int32), weight.astype(float), "python")
    return (ranked[0][0], ranked[0][2]) if ranked else (None, ROOT)


def where(facts: Facts, gpu: Gpu, frame: Frame | None, stack: int, tid: int | None = None) -> Where:
    """The code and thread, and the steady part of that GPU."""
    index = None if tid is None else facts.index.get((gpu.pid, tid))
    return Where(
        process=None if index is None else facts.threads[index].process,
        pid=gpu.pid,
        thread=None if index is None else facts.threads[index].name,
        tid=tid,
        stack=path(facts, stack),
        file=frame.file if frame else None,
        line=frame.line if frame else None,
        function=frame.function if frame else None,
        device=gpu_name(gpu),
        window_ns=(gpu.start_ns, gpu.end_ns),
    )

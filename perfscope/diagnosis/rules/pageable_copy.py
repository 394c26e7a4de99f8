"""pageable-copy: copies between the GPU and pageable host memory, in which nothing else runs.

The driver stages such a copy through its own pinned buffer, at a fraction of the bus's speed, and it can't run beside
kernels. Lost time is when only such copies ran, and the gaps from their call to their start. gives_back is that time's
share: pinned and overlapped copies could hide all of it.
"""

from __future__ import annotations

import numpy as np

from perfscope.diagnosis.describe import against, flame, label, observed, seconds
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.gpu_timeline import MEASURED, Gpu
from perfscope.diagnosis.gpu_verdict import code_of, gives_back, gpu_name, verdict, where
from perfscope.diagnosis.thresholds import Limits
from perfscope.model.finding import Finding, Severity, Verdict

RULE = "pageable-copy"
NEEDS = ("cuda",)


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    return verdict(RULE, facts, limits, _judge)


def _judge(facts: Facts, limits: Limits, gpu: Gpu) -> Finding | str:
    rows, gaps = gpu.rows, gpu.gaps
    copies = rows.pageable & (rows.bytes >= limits["bytes"].value)
    name = gpu_name(gpu)
    if not copies.any():
        return f"{name}: no copy of at least {limits['bytes'].value:g} bytes from or to pageable memory"
    spans = gpu.clipped(copies)
    staged = copies[gaps.next]
    exposed = int(gpu.without_kernels(spans).sum() + (gaps.end - gaps.launch)[staged].sum())
    share, gain = gpu.pct(exposed), gives_back(facts, exposed)
    moved, count = int(rows.bytes[copies].sum()), int(np.count_nonzero(copies))
    text = f"{name} did nothing but pageable copies in {share:.1f} % of the steady part"
    if share < limits["exposed_pct"].value or gain < limits["gives_back_pct"].value:
        return text
    length = (rows.end - rows.start)[copies]
    frame, stack = code_of(facts, gpu, np.flatnonzero(copies), length)
    return Finding(
        RULE,
        f"Pageable copies: {text}" + (f", most by {label(frame)}" if frame else ""),
        Severity.INFO,
        where(facts, gpu, frame, stack),
        (
            against("only pageable copies ran, or were being staged", share, limits["exposed_pct"], MEASURED),
            against("ceiling of elapsed time saved", gain, limits["gives_back_pct"], MEASURED),
            observed("pageable copies", count, "copies", MEASURED),
            observed("moved by them", moved / 1e9, "GB", MEASURED),
            observed("while they ran", moved / max(int(length.sum()), 1), "GB/s", MEASURED),
        ),
        round(gain, 1),
        f"keep the host's side in pinned memory (DataLoader(pin_memory=True), tensor.pin_memory()) and copy with "
        f"non_blocking=True on a stream of its own: {seconds(exposed)} lay bare. {gpu.left_out}",
        flame(facts, "gpu"),
    )

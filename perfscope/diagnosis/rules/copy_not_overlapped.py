"""copy-not-overlapped: pinned copies between host and GPU run while no kernel does, on the stream of the kernels.

Lost time is when such copies ran and no kernel did. Beside kernels that time could be hidden, but only as far as there
are kernels with no copy beside them: gives_back is the less of both. Whether the next kernel needs that very copy can't
be told from a timeline; then only preparing the next step's copy during this one's kernels helps.
"""

from __future__ import annotations

import numpy as np

from perfscope.diagnosis.describe import against, flame, label, observed
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.gpu_timeline import MEASURED, Gpu
from perfscope.diagnosis.gpu_verdict import code_of, gives_back, gpu_name, verdict, where
from perfscope.diagnosis.intervals import overlap_ns
from perfscope.diagnosis.thresholds import Limits
from perfscope.merge.gpu_activity import KERNEL
from perfscope.model.finding import Finding, Severity, Verdict

RULE = "copy-not-overlapped"
NEEDS = ("cuda",)


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    return verdict(RULE, facts, limits, _judge)


def _judge(facts: Facts, limits: Limits, gpu: Gpu) -> Finding | str:
    rows = gpu.rows
    kernel_streams = np.unique(rows.stream[rows.kind == KERNEL])
    copies = rows.between_host & ~rows.pageable & np.isin(rows.stream, kernel_streams)
    name = gpu_name(gpu)
    if not copies.any():
        return f"{name}: no pinned copy from or to the host on a stream that runs kernels"
    spans = gpu.clipped(copies)
    exposed = int(gpu.without_kernels(spans).sum())
    kernels_alone = int((gpu.kernels[1] - gpu.kernels[0] - overlap_ns(*gpu.kernels, spans)).sum())
    saved = min(exposed, kernels_alone)
    share, gain = gpu.pct(exposed), gives_back(facts, saved)
    text = f"{name} copied from or to the host with no kernel beside it in {share:.1f} % of the steady part"
    if share < limits["exposed_pct"].value or gain < limits["gives_back_pct"].value:
        return text
    length = (rows.end - rows.start)[copies]
    frame, stack = code_of(facts, gpu, np.flatnonzero(copies), length)
    return Finding(
        RULE,
        f"Copies not overlapped: {text}" + (f", most by {label(frame)}" if frame else ""),
        Severity.INFO,
        where(facts, gpu, frame, stack),
        (
            against("copies with no kernel beside them", share, limits["exposed_pct"], MEASURED),
            against("ceiling of elapsed time saved", gain, limits["gives_back_pct"], "the less of the next two"),
            observed("copies with no kernel beside them", exposed / 1e9, "s", MEASURED),
            observed("kernels with no copy beside them", kernels_alone / 1e9, "s", MEASURED),
            observed("moved", float(rows.bytes[copies].clip(0).sum()) / 1e9, "GB", MEASURED),
        ),
        round(gain, 1),
        "copy on a stream of its own, the next step's data during this step's kernels (two buffers, an event each). "
        "Whether the next kernel needs that very copy can't be told from a timeline; if so, only such a head start "
        f"helps. {gpu.left_out}",
        flame(facts, "gpu"),
    )
